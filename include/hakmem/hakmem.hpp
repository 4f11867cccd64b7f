/* hakmem for C++17 on the C interface: a standard allocator and a memory resource; heaps as objects, as memory
 * resources and as scopes. Header only. */
#ifndef HAKMEM_HPP
#define HAKMEM_HPP

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <exception>
#include <limits>
#include <memory>
#include <memory_resource>
#include <new>
#include <stdexcept>
#include <type_traits>
#include <utility>

#include "hakmem/hakmem.h"
#include "hakmem/heap.h"

namespace hakmem {

/* `bytes` of uninitialised memory, aligned to `alignment` (a power of two); throws std::bad_alloc. */
[[nodiscard]] inline void *allocate_bytes(std::size_t bytes, std::size_t alignment) {
  /* Every block of hakmem_malloc is aligned to 16, and so is that of a request below 16 bytes. */
  void *p = alignment <= 16 ? hakmem_malloc(bytes) : hakmem_aligned_alloc(alignment, bytes);
  if (p == nullptr) throw std::bad_alloc();
  return p;
}

/* A stateless allocator ([allocator.requirements]): all instances are equal, alignment of T is honoured. */
template <typename T>
class allocator {
 public:
  using value_type = T;
  using is_always_equal = std::true_type;
  using propagate_on_container_move_assignment = std::true_type;

  constexpr allocator() noexcept = default;
  template <typename U>
  constexpr allocator(const allocator<U> &) noexcept {}

  [[nodiscard]] T *allocate(std::size_t count) {
    if (count > std::numeric_limits<std::size_t>::max() / sizeof(T)) throw std::bad_array_new_length();
    return static_cast<T *>(allocate_bytes(count * sizeof(T), alignof(T)));
  }
  void deallocate(T *p, std::size_t) noexcept { hakmem_free(p); }
};

template <typename T, typename U>
constexpr bool operator==(const allocator<T> &, const allocator<U> &) noexcept {
  return true;
}
template <typename T, typename U>
constexpr bool operator!=(const allocator<T> &, const allocator<U> &) noexcept {
  return false;
}

/* A std::pmr resource; all instances are equal. */
class memory_resource final : public std::pmr::memory_resource {
  void *do_allocate(std::size_t bytes, std::size_t alignment) override { return allocate_bytes(bytes, alignment); }
  void do_deallocate(void *p, std::size_t, std::size_t) override { hakmem_free(p); }
  bool do_is_equal(const std::pmr::memory_resource &other) const noexcept override {
    return this == &other || dynamic_cast<const memory_resource *>(&other) != nullptr;
  }
};

/* The one instance that is always there; usable with std::pmr::set_default_resource. It is never destroyed: destructors
 * of static objects, which run in any order at the end of a program, may use it and free what it gave. */
inline memory_resource *resource() noexcept {
  alignas(memory_resource) static unsigned char storage[sizeof(memory_resource)];
  static memory_resource *const instance = ::new (static_cast<void *>(storage)) memory_resource;
  return instance;
}

/* What a heap is made with: hakmem_heap_options without `size`. */
struct heap_options {
  const char *name = nullptr;    /* copied, up to 63 bytes */
  std::size_t limit = 0;         /* 0: none */
  hakmem_heap *parent = nullptr; /* must outlive the heap */
  unsigned flags = 0;            /* HAKMEM_HEAP_… */
};

/* A heap of <hakmem/heap.h>. The destructor destroys it, and with it every block that is still allocated and the heaps
 * below it: objects in these blocks are not destroyed, and the heaps below it must have ended before. Moves; a heap
 * that was moved from may only be destroyed or assigned to.
 *
 *   hakmem::heap query({"query 7", 64 << 20});
 *   void *row = query.allocate(100);
 */
class heap {
 public:
  /* Throws std::invalid_argument for a name or flags that hakmem_heap_new refuses, else std::bad_alloc. */
  explicit heap(const heap_options &options = heap_options()) : heap_(create(options)) {}
  heap(heap &&other) noexcept { take(other); }
  heap &operator=(heap &&other) noexcept {
    if (this != &other) {
      end();
      take(other);
    }
    return *this;
  }
  ~heap() { end(); }

  /* Ends the heap without its blocks, which live on in the main heap. */
  void release_to_main() noexcept { hakmem_heap_delete(std::exchange(heap_, nullptr)); }

  /* Uninitialised memory, aligned to `alignment` (a power of two). Throws std::bad_alloc, also where the limit, or that
   * of a heap above, would be passed. The thread and the way of its free do not matter: deallocate, hakmem_free, and
   * where the library replaces malloc also free. */
  [[nodiscard]] void *allocate(std::size_t bytes, std::size_t alignment = alignof(std::max_align_t)) {
    void *p = alignment <= 16 ? hakmem_heap_malloc(heap_, bytes) : hakmem_heap_aligned_alloc(heap_, alignment, bytes);
    if (p == nullptr) throw std::bad_alloc();
    return p;
  }
  static void deallocate(void *p) noexcept { hakmem_free(p); }

  [[nodiscard]] hakmem_heap *get() const noexcept { return heap_; }
  [[nodiscard]] const char *name() const noexcept { return hakmem_heap_name(heap_); }
  [[nodiscard]] bool contains(const void *p) const noexcept { return hakmem_heap_of(p) == heap_; }
  [[nodiscard]] hakmem_heap_stats stats() const noexcept {
    hakmem_heap_stats stats = {};
    hakmem_heap_get_stats(heap_, &stats, sizeof stats);
    return stats;
  }
  /* Frees all blocks, and destroys the heaps below it, whose objects must have ended before; name, parent, limit and
   * flags stay. Other threads must not use the heap meanwhile, nor may an exception that was thrown in a scope of it be
   * on its way. */
  void reset() noexcept { hakmem_heap_reset(heap_); }
  /* 0: none. */
  void set_limit(std::size_t bytes) noexcept { hakmem_heap_set_limit(heap_, bytes); }

  /* Calls visit(void *block, std::size_t usable_size) for each block, until it returns false if it returns anything;
   * returns for how many. visit must neither allocate or free in the heap nor throw (std::terminate). */
  template <typename Visit>
  std::size_t visit(Visit &&visit) const {
    using function = std::remove_reference_t<Visit>;
    auto call = [](void *block, std::size_t size, void *context) noexcept -> bool {
      function &called = **static_cast<function **>(context);
      if constexpr (std::is_void_v<decltype(called(block, size))>) {
        called(block, size);
        return true;
      } else {
        return called(block, size);
      }
    };
    function *context = std::addressof(visit);
    return hakmem_heap_visit(heap_, call, &context);
  }

 private:
  friend class heap_scope;

  static hakmem_heap *create(const heap_options &options) {
    hakmem_heap_options all = {};
    all.size = sizeof all;
    all.name = options.name;
    all.limit = options.limit;
    all.parent = options.parent;
    all.flags = options.flags;
    hakmem_heap *created = hakmem_heap_new(&all);
    if (created == nullptr && errno == EINVAL) throw std::invalid_argument("hakmem::heap: name or flags");
    if (created == nullptr) throw std::bad_alloc();
    return created;
  }

  /* The object of an exception that was thrown in a scope is a block of the heap, as __cxa_allocate_exception calls
   * malloc. It must live until the handler ends: where an exception passes this destructor, all blocks live on. */
  void end() noexcept {
    if (scoped_.load(std::memory_order_relaxed) && std::uncaught_exceptions() > exceptions_)
      release_to_main();
    else
      hakmem_heap_destroy(std::exchange(heap_, nullptr));
  }

  void take(heap &other) noexcept {
    heap_ = std::exchange(other.heap_, nullptr);
    scoped_.store(other.scoped_.load(std::memory_order_relaxed), std::memory_order_relaxed);
  }

  hakmem_heap *heap_;
  int exceptions_ = std::uncaught_exceptions(); /* on their way when this object began */
  std::atomic<bool> scoped_{false};             /* some heap_scope has been opened */
};

/* While it lives, malloc and its kin, operator new included, allocate in the heap for the calling thread; afterwards in
 * the heap before it. A scope belongs to one thread, and ends before the scopes that the thread has opened earlier.
 * Blocks may outlive the scope, but not the heap. The object of an exception that is thrown inside is such a block, so
 * that no std::exception_ptr may keep it beyond the heap; but where the exception passes the heap's destructor on its
 * way to a handler, the heap's blocks live on in the main heap. */
class heap_scope {
 public:
  /* Throws std::bad_alloc where the thread has no memory for it. */
  explicit heap_scope(heap &inside) : before_(hakmem_heap_set_default(inside.heap_)) {
    if (hakmem_heap_get_default() != inside.heap_) throw std::bad_alloc();
    inside.scoped_.store(true, std::memory_order_relaxed);
  }
  heap_scope(const heap_scope &) = delete;
  heap_scope &operator=(const heap_scope &) = delete;
  ~heap_scope() {
    /* The thread has had a default: it has the memory for another. */
    (void)hakmem_heap_set_default(before_);
  }

 private:
  hakmem_heap *before_;
};

/* A std::pmr resource with a heap of its own. As with std::pmr::monotonic_buffer_resource, release() and the destructor
 * free all blocks at once; but threads may share the resource, and blocks that are freed before are used again. For
 * std::allocator_traits: std::pmr::polymorphic_allocator<T>(&resource). */
class heap_resource final : public std::pmr::memory_resource {
 public:
  explicit heap_resource(const heap_options &options = heap_options()) : heap_(options), flags_(options.flags) {}

  /* Frees all blocks, and goes on with an empty heap of the same name, limit, parent and flags; other threads must not
   * use the resource meanwhile. Throws std::bad_alloc, with the heap as it was. */
  void release() {
    hakmem_heap *old = heap_.get();
    heap_ = heap({hakmem_heap_name(old), heap_.stats().limit, hakmem_heap_parent(old), flags_});
  }

  /* Another one after release(). */
  [[nodiscard]] heap &get_heap() noexcept { return heap_; }

 private:
  void *do_allocate(std::size_t bytes, std::size_t alignment) override { return heap_.allocate(bytes, alignment); }
  void do_deallocate(void *p, std::size_t, std::size_t) override { hakmem_free(p); }
  /* Any resource could free the blocks, but a container that took them over would lose them with the heap. */
  bool do_is_equal(const std::pmr::memory_resource &other) const noexcept override { return this == &other; }

  heap heap_;
  unsigned flags_;
};

}  // namespace hakmem

#endif
