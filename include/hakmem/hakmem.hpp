/* hakmem for C++17: a standard allocator and a memory resource on the C interface. Header only. */
#ifndef HAKMEM_HPP
#define HAKMEM_HPP

#include <cstddef>
#include <limits>
#include <memory_resource>
#include <new>
#include <type_traits>

#include "hakmem/hakmem.h"

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

/* The one instance that is always there; usable with std::pmr::set_default_resource. It is never destroyed: destructors of
 * static objects, which run in any order at the end of a program, may use it and free what it gave. */
inline memory_resource *resource() noexcept {
  alignas(memory_resource) static unsigned char storage[sizeof(memory_resource)];
  static memory_resource *const instance = ::new (static_cast<void *>(storage)) memory_resource;
  return instance;
}

}  // namespace hakmem

#endif
