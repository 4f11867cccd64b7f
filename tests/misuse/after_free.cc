// Blocks used after they were freed: read, written, reallocated.
#include <malloc.h>

#include <cstdlib>
#include <cstring>
#include <new>
#include <vector>

#include "misuse.h"

namespace misuse {
namespace {

unsigned char *freed(size_t size) {
  unsigned char *p = victim(size);
  std::free(opaque(p));
  return p;
}

void sum(const unsigned char *p, size_t length) {
  const volatile unsigned char *bytes = opaque(p);
  unsigned long total = 0;
  for (size_t i = 0; i < length; i++) total += bytes[i];
  sink = total;
}

void store(unsigned char *p, size_t length) {
  volatile unsigned char *bytes = opaque(p);
  for (size_t i = 0; i < length; i++) bytes[i] = 'W';
}

void read_freed(const Case &c) { sum(freed(c.size), c.size < kPage ? c.size : kPage); }

void use_of_nothing(const Case &) {}

void write_freed(const Case &c) { store(freed(c.size), 8); }

void write_middle(const Case &c) { store(freed(c.size) + c.size / 2, 8); }

void write_whole(const Case &c) {
  unsigned char *p = freed(c.size);
  std::memset(opaque(p), 0x57, c.size);
}

void write_then_return(const Case &c) {
  store(freed(c.size), 8);
  return_at_once();
}

// Others of its size are freed before the write: it lies deep in a cache, or in none.
void write_late(const Case &c) {
  unsigned char *p = freed(c.size);
  churn(c.size, c.size <= k20000 ? 300 : 6);
  store(p, 8);
}

// Blocks of its size are taken after the write, so that it may be handed out as it is.
void write_then_reuse(const Case &c) {
  unsigned char *p = freed(c.size);
  store(p, 16);
  churn(c.size, c.size <= k20000 ? 64 : 3);
}

// The write goes into the block's next owner, where it was handed out again at once.
void write_reused(const Case &c) {
  unsigned char *p = freed(c.size);
  unsigned char *next = take(c.size);
  store(p, 16);
  sum(next, 16);
  std::free(next);
}

void read_freed_by_a_thread(const Case &c) {
  unsigned char *p = victim(c.size);
  on_thread([](void *q) { std::free(q); }, opaque(p));
  sum(p, 16);
}

void write_freed_by_a_thread(const Case &c) {
  unsigned char *p = victim(c.size);
  on_thread([](void *q) { std::free(q); }, opaque(p));
  store(p, 16);
  churn(c.size, 64);
}

// A list whose second node was freed, and is still linked.
template <size_t Bytes>
void walk_freed_list(const Case &) {
  struct Node {
    Node *next;
    unsigned char *text;
    unsigned char data[Bytes - 16];
  };
  auto *first = static_cast<Node *>(std::malloc(sizeof(Node))), *second = static_cast<Node *>(std::malloc(sizeof(Node)));
  auto *third = static_cast<Node *>(std::malloc(sizeof(Node)));
  *first = {second, first->data, {1}}, *second = {third, second->data, {2}}, *third = {nullptr, third->data, {3}};
  std::free(opaque(second));
  sink = *opaque(opaque(first)->next)->text;
}

template <size_t Bytes>
void call_from_freed(const Case &) {
  struct Handler {
    void (*call)(const Case &);
    unsigned char data[Bytes - 8];
  };
  auto *p = static_cast<Handler *>(std::malloc(sizeof(Handler)));
  p->call = use_of_nothing;
  std::free(opaque(p));
  opaque(p)->call({});
}

void write_freed_array(const Case &c) {
  auto *p = static_cast<unsigned char *>(opaque(operator new[](c.size)));
  operator delete[](opaque(p));
  store(p + 8, 8);
}

void write_freed_by_resize_to_nothing(const Case &c) {
  unsigned char *p = victim(c.size);
  if (std::realloc(opaque(p), 0) != nullptr) not_done();
  store(p, 8);
}

// Another thread frees it, and ends.
void write_then_end_at_once(const Case &c) {
  unsigned char *p = victim(c.size);
  on_thread([](void *q) { std::free(q); }, opaque(p));
  store(p, 8);
  std::quick_exit(0);
}

// A pointer that is kept beyond a realloc that moved the block.
unsigned char *moved(size_t size, void **next) {
  unsigned char *p = victim(size);
  *next = std::realloc(opaque(p), 4 * size);
  if (*next == nullptr || opaque(*next) == p) not_done();
  return p;
}

void read_moved(const Case &c) {
  void *next;
  sum(moved(c.size, &next), 16);
  std::free(next);
}

void write_moved(const Case &c) {
  void *next;
  store(moved(c.size, &next), 16);
  churn(c.size, 16);
  std::free(next);
}

void read_moved_and_reused(const Case &c) {
  void *next;
  unsigned char *p = moved(c.size, &next);
  unsigned char *other = take(c.size);
  sum(p, 16);
  std::free(other);
  std::free(next);
}

void use_rightly(const Case &c) {
  unsigned char *p = freed(c.size);
  unsigned char *q = take(c.size);
  store(q, 16);
  sum(q, 16);
  sink = reinterpret_cast<unsigned long>(p);
  std::free(q);
  churn(c.size, c.size <= k20000 ? 64 : 3);
  free_neighbours();
}

// Objects whose first word leads to their code.

template <size_t Bytes>
struct Shape {
  virtual ~Shape() = default;
  virtual unsigned long area() const { return data[0]; }
  unsigned char data[Bytes - 8] = {1};
};

template <size_t Bytes>
struct Circle : Shape<Bytes> {
  unsigned long area() const override { return this->data[1] * 3ul; }
};

template <size_t Bytes>
void call_deleted(const Case &) {
  Shape<Bytes> *shape = opaque<Shape<Bytes>>(new Circle<Bytes>);
  sink = shape->area();
  delete opaque(shape);
  sink = opaque(shape)->area();
}

// An object of another type may be where the first was.
template <size_t Bytes>
void call_reused(const Case &) {
  Shape<Bytes> *shape = opaque<Shape<Bytes>>(new Circle<Bytes>);
  sink = shape->area();
  delete opaque(shape);
  void *text = opaque(operator new(Bytes));
  std::memset(text, 'x', Bytes);
  sink = opaque(shape)->area();
  operator delete(text);
}

template <size_t Bytes>
void delete_virtual_twice(const Case &) {
  Shape<Bytes> *shape = opaque<Shape<Bytes>>(new Circle<Bytes>);
  sink = shape->area();
  delete opaque(shape);
  delete opaque(shape);
}

template <size_t Bytes>
void call_living(const Case &) {
  Shape<Bytes> *shape = opaque<Shape<Bytes>>(new Circle<Bytes>);
  sink = shape->area();
  delete opaque(shape);
}

// realloc, and what follows from it.

void realloc_freed(const Case &c) {
  unsigned char *p = freed(c.size);
  void *q = std::realloc(opaque(p), c.size + c.size / 2);
  sink = reinterpret_cast<unsigned long>(opaque(q));
}

void realloc_freed_smaller(const Case &c) {
  unsigned char *p = freed(c.size);
  void *q = std::realloc(opaque(p), c.size - c.size / 4);
  sink = reinterpret_cast<unsigned long>(opaque(q));
}

void realloc_inside(const Case &c) {
  unsigned char *p = victim(c.size);
  void *q = std::realloc(opaque(p + c.amount), 2 * c.size);
  sink = reinterpret_cast<unsigned long>(opaque(q));
}

void realloc_stack(const Case &) {
  alignas(16) char bytes[256];
  std::memset(bytes, 1, sizeof bytes);
  void *q = std::realloc(opaque(bytes), 1000);
  sink = reinterpret_cast<unsigned long>(opaque(q));
}

char static_bytes[256] __attribute__((aligned(16)));

void realloc_static(const Case &) {
  static_bytes[0] = 1;
  void *q = std::realloc(opaque(static_bytes), 1000);
  sink = reinterpret_cast<unsigned long>(opaque(q));
}

// An iterator of before the array grew.
void read_by_old_iterator(const Case &c) {
  std::vector<unsigned char> bytes(c.size, 1);
  const volatile unsigned char *first = opaque(bytes.data());
  bytes.resize(4 * c.size);
  sink = *first;
}

void free_moved(const Case &c) {
  void *next;
  unsigned char *p = moved(c.size, &next);
  std::free(opaque(p));
  std::free(next);
}

void overflow_after_shrinking(const Case &c) {
  unsigned char *p = victim(c.size);
  auto *q = static_cast<unsigned char *>(opaque(std::realloc(opaque(p), c.size / 2)));
  store(q, c.size);
  std::free(opaque(q));
  free_neighbours();
}

// Where the end was before.
void write_old_end_after_shrinking(const Case &c) {
  unsigned char *p = victim(c.size);
  auto *q = static_cast<unsigned char *>(opaque(std::realloc(opaque(p), c.size / 10 * 6)));
  store(q + c.size / 10 * 9, 8);
  std::free(opaque(q));
  free_neighbours();
}

void realloc_right(const Case &c) {
  unsigned char *p = victim(c.size);
  auto *q = static_cast<unsigned char *>(opaque(std::realloc(p, 4 * c.size)));
  store(q, 4 * c.size < kPage ? 4 * c.size : kPage);
  q = static_cast<unsigned char *>(opaque(std::realloc(q, c.size / 2)));
  store(q, c.size / 2);
  std::free(q);
  free_neighbours();
}

// What the allocator is asked about a block that is none.

void usable_size_of_freed(const Case &c) { sink = malloc_usable_size(opaque(freed(c.size))); }

void usable_size_inside(const Case &c) { sink = malloc_usable_size(opaque(victim(c.size) + c.amount)); }

void usable_size_of_stack(const Case &) {
  alignas(16) char bytes[256];
  std::memset(bytes, 1, sizeof bytes);
  sink = malloc_usable_size(opaque(bytes + 64));
}

void usable_size_right(const Case &c) {
  unsigned char *p = victim(c.size);
  if (malloc_usable_size(p) < c.size) std::abort();
  sink = malloc_usable_size(nullptr);
  std::free(p);
  free_neighbours();
}

}  // namespace

void add_uses_after_free() {
  add("use-after-free", "read", {k40, k3000, k20000, k600K, k40M}, 0, read_freed);
  add("use-after-free", "write", {k40, k3000, k20000, k600K, k40M}, 0, write_freed);
  add("use-after-free", "write-middle", {k3000, k20000, k600K}, 0, write_middle);
  add("use-after-free", "write-whole", {k40, k3000, k600K}, 0, write_whole);
  add("use-after-free", "write-return", {k40, k3000, k20000, k600K, k40M}, 0, write_then_return);
  add("use-after-free", "write-late", {k40, k3000, k600K}, 0, write_late);
  add("use-after-free", "write-then-reuse", {k40, k3000, k20000, k600K, k40M}, 0, write_then_reuse);
  add("use-after-free", "write-reused", {k40, k3000, k20000, k600K, k40M}, 0, write_reused);
  add("use-after-free", "read-by-thread", {k40, k600K}, 0, read_freed_by_a_thread);
  add("use-after-free", "write-by-thread", {k40, k3000}, 0, write_freed_by_a_thread);
  add("use-after-free", "virtual-call-48", {0}, 0, call_deleted<48>);
  add("use-after-free", "virtual-call-3000", {0}, 0, call_deleted<3000>);
  add("use-after-free", "virtual-call-reused-48", {0}, 0, call_reused<48>);
  add("use-after-free", "virtual-call-reused-3000", {0}, 0, call_reused<3000>);
  add("use-after-free", "virtual-delete-48", {0}, 0, delete_virtual_twice<48>);
  add("use-after-free", "list-48", {0}, 0, walk_freed_list<48>);
  add("use-after-free", "list-2000", {0}, 0, walk_freed_list<2000>);
  add("use-after-free", "function-64", {0}, 0, call_from_freed<64>);
  add("use-after-free", "function-5000", {0}, 0, call_from_freed<5000>);
  add("use-after-free", "write-array", {k40, k3000, k600K}, 0, write_freed_array);
  add("use-after-free", "write-resized-to-nothing", {k40, k20000, k40M}, 0, write_freed_by_resize_to_nothing);
  add("use-after-free", "write-then-quick-exit", {k40, k3000}, 0, write_then_end_at_once);
  add("use-after-free", "old-iterator", {k40, k20000}, 0, read_by_old_iterator);
  add("fresh", "freed-read", {k40, k3000, k20000}, 0, read_freed);
  add("fresh", "freed-write", {k40, k20000}, 0, write_then_return);
  add("fresh", "freed-write-middle", {k3000, k20000}, 0, write_middle);
  add("fresh", "freed-read-by-thread", {k40, k3000}, 0, read_freed_by_a_thread);
  add("fresh", "freed-list-48", {0}, 0, walk_freed_list<48>);
  add("fresh", "old-iterator", {k40, k20000}, 0, read_by_old_iterator);
  add("use-after-free", "control", {k40, k3000, k20000, k600K, k40M}, 0, use_rightly);
  add("use-after-free", "control-virtual", {0}, 0, call_living<48>);
}

void add_reallocs() {
  add("realloc", "freed-larger", {k40, k3000, k20000, k600K, k40M}, 0, realloc_freed);
  add("realloc", "freed-smaller", {k40, k20000, k600K}, 0, realloc_freed_smaller);
  add("realloc", "inside-16", {k40, k3000, k600K, k40M}, 16, realloc_inside);
  add("realloc", "inside-4096", {k20000, k600K}, kPage, realloc_inside);
  add("realloc", "stack", {0}, 0, realloc_stack);
  add("realloc", "static", {0}, 0, realloc_static);
  add("realloc", "moved-freed", {k40, k3000, k20000}, 0, free_moved);
  add("realloc", "moved-read", {k40, k20000}, 0, read_moved);
  add("fresh", "moved-read", {k40, k20000}, 0, read_moved);
  add("realloc", "moved-read-reused", {k40, k3000}, 0, read_moved_and_reused);
  add("realloc", "moved-written", {k40, k3000, k20000}, 0, write_moved);
  add("realloc", "shrunk-old-end", {k3000, k20000, k600K, k40M}, 0, write_old_end_after_shrinking);
  add("realloc", "shrunk-overflow", {k40, k3000, k20000, k600K}, 0, overflow_after_shrinking);
  add("realloc", "control", {k40, k3000, k20000, k600K}, 0, realloc_right);

  add("usable-size", "freed", {k40, k3000, k600K, k40M}, 0, usable_size_of_freed);
  add("usable-size", "inside-16", {k40, k600K}, 16, usable_size_inside);
  add("usable-size", "stack", {0}, 0, usable_size_of_stack);
  add("usable-size", "control", {k40, k3000, k600K, k40M}, 0, usable_size_right);
}

}  // namespace misuse
