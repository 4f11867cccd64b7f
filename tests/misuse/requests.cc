// Blocks of no bytes, blocks freed by another family's function, and sizes that no system can give.
#include <malloc.h>

#include <cstdlib>
#include <cstring>
#include <new>

#include "misuse.h"

namespace misuse {
namespace {

void store(unsigned char *p, size_t length) {
  volatile unsigned char *bytes = opaque(p);
  for (size_t i = 0; i < length; i++) bytes[i] = 'Z';
}

// NULL is a right answer to a request of no bytes; then there is nothing to misuse.
unsigned char *needed(void *p) {
  if (opaque(p) == nullptr) not_done();
  return static_cast<unsigned char *>(p);
}

// Kept in use, so that the block of no bytes has some beside it.
void surround() {
  for (int i = 0; i < 4; i++) sink = reinterpret_cast<unsigned long>(opaque(std::malloc(0)));
}

unsigned char *by_malloc() {
  surround();
  unsigned char *p = needed(std::malloc(0));
  surround();
  return p;
}

unsigned char *by_calloc() {
  surround();
  return needed(std::calloc(0, 8));
}

unsigned char *by_new_array() {
  size_t none = 0;
  asm volatile("" : "+r"(none));
  return opaque(reinterpret_cast<unsigned char *>(new char[none]));
}

void read_empty(const Case &) {
  const volatile unsigned char *p = by_malloc();
  sink = p[0];
}

void read_empty_words(const Case &c) {
  unsigned char *p = by_calloc();
  unsigned char into[64];
  std::memcpy(opaque(into), opaque(p), c.amount);
  sink = into[0];
}

void write_empty(const Case &c) {
  unsigned char *p = by_malloc();
  store(p, c.amount);
}

void write_empty_and_free(const Case &c) {
  unsigned char *p = by_malloc();
  store(p, c.amount);
  std::free(opaque(p));
}

void copy_to_empty(const Case &c) {
  unsigned char *p = by_malloc();
  char text[64];
  std::memset(text, 't', sizeof text);
  std::memcpy(opaque(p), opaque(text), c.amount);
  std::free(opaque(p));
}

void write_empty_calloc(const Case &c) {
  unsigned char *p = by_calloc();
  store(p, c.amount);
  std::free(opaque(p));
}

void write_empty_new(const Case &c) {
  unsigned char *p = by_new_array();
  store(p, c.amount);
  delete[] reinterpret_cast<char *>(opaque(p));
}

void write_one_byte_block(const Case &c) {
  unsigned char *p = victim(k40);
  unsigned char *q = needed(std::realloc(opaque(p), 1));
  store(q, c.amount);
  std::free(opaque(q));
}

void read_empty_far(const Case &c) { sink = static_cast<const volatile unsigned char *>(by_malloc())[c.amount]; }

void read_before_empty(const Case &) { sink = *(static_cast<const volatile unsigned char *>(by_malloc()) - 1); }

// An array that a program counts as empty, and fills when it comes to it.
void write_empty_array(const Case &c) {
  surround();
  store(needed(std::calloc(0, 0)), c.amount);
}

// c.amount: the alignment.
unsigned char *by_memalign(const Case &c) { return needed(memalign(c.amount, 0)); }

void read_empty_aligned(const Case &c) {
  const volatile unsigned char *p = by_memalign(c);
  sink = p[0];
}

void write_empty_memalign(const Case &c) { store(by_memalign(c), 1); }

void read_empty_of_pages(const Case &) {
  const volatile unsigned char *p = needed(valloc(0));
  sink = p[0];
}

void write_empty_aligned(const Case &c) {
  void *p = nullptr;
  if (posix_memalign(&p, 16, 0) != 0) not_done();
  store(needed(p), c.amount);
  std::free(opaque(p));
}

void read_freed_empty(const Case &) {
  unsigned char *p = by_malloc();
  std::free(opaque(p));
  sink = *static_cast<const volatile unsigned char *>(opaque(p));
}

void empty_deleted(const Case &) { operator delete(by_malloc()); }

void empty_freed_twice(const Case &) {
  unsigned char *p = by_malloc();
  std::free(opaque(p));
  std::free(opaque(p));
}

void empty_right(const Case &) {
  std::free(by_malloc());
  std::free(by_calloc());
  delete[] reinterpret_cast<char *>(by_new_array());
  unsigned char *p = needed(std::realloc(victim(k40), 1));
  store(p, 1);
  std::free(p);
  p = needed(std::realloc(by_malloc(), k3000));
  store(p, k3000);
  std::free(p);
  std::memcpy(by_malloc(), opaque(p = by_malloc()), 0);
  std::free(p);
  free_neighbours();
}

// Families.

void *filled(void *p, size_t size) {
  std::memset(p, 2, size);
  return opaque(p);
}

void malloc_delete(const Case &c) { operator delete(filled(std::malloc(c.size), c.size)); }
void malloc_delete_array(const Case &c) { operator delete[](filled(std::malloc(c.size), c.size)); }
void calloc_delete(const Case &c) { operator delete(filled(std::calloc(c.size, 1), c.size)); }
void realloc_delete_array(const Case &c) { operator delete[](filled(std::realloc(victim(c.size), 2 * c.size), c.size)); }
void new_realloc(const Case &c) { sink = reinterpret_cast<unsigned long>(std::realloc(filled(operator new(c.size), c.size), 2 * c.size)); }
void strdup_delete(const Case &c) {
  void *text = filled(std::malloc(c.size), c.size);
  static_cast<char *>(text)[c.size - 1] = '\0';
  operator delete(opaque(strdup(static_cast<char *>(text))));
}
void new_free(const Case &c) { std::free(filled(operator new(c.size), c.size)); }
void new_array_free(const Case &c) { std::free(filled(operator new[](c.size), c.size)); }
void new_delete_array(const Case &c) { operator delete[](filled(operator new(c.size), c.size)); }
void new_array_delete(const Case &c) { operator delete(filled(operator new[](c.size), c.size)); }

// With its neighbours, as objects have them.
void sized_delete(const Case &c) {
  void *beside[2] = {operator new(c.size), nullptr};
  void *p = filled(operator new(c.size), c.size);
  beside[1] = operator new(c.size);
  operator delete(p, c.size + c.amount);
  for (void *q : beside) operator delete(q, c.size);
}

void sized_array_delete(const Case &c) {
  void *p = filled(operator new[](c.size), c.size);
  operator delete[](p, c.size / 2);
}

constexpr std::align_val_t kLine{64}, kWide{4096};

void aligned_new_delete(const Case &c) { operator delete(filled(operator new(c.size, kLine), c.size)); }
void new_aligned_delete(const Case &c) { operator delete(filled(operator new(c.size), c.size), kLine); }
void aligned_other_delete(const Case &c) { operator delete(filled(operator new(c.size, kWide), c.size), kLine); }
void aligned_alloc_delete(const Case &c) {
  operator delete(filled(std::aligned_alloc(64, (c.size + 63) / 64 * 64), c.size));
}
void aligned_new_free(const Case &c) { std::free(filled(operator new(c.size, kLine), c.size)); }

// An array of objects with destructors begins with their number: delete frees an address 8 bytes inside.
struct Item {
  ~Item() { sink = id; }
  unsigned long id = 7;
};

void delete_of_items(const Case &c) {
  Item *items = new Item[c.amount];
  delete opaque(items);
}

void families_right(const Case &c) {
  std::free(filled(std::malloc(c.size), c.size));
  operator delete(filled(operator new(c.size), c.size));
  operator delete[](filled(operator new[](c.size), c.size));
  operator delete(filled(operator new(c.size), c.size), c.size);
  operator delete[](filled(operator new[](c.size), c.size), c.size);
  operator delete(filled(operator new(c.size, kLine), c.size), kLine);
  operator delete(filled(operator new(c.size, kWide), c.size), c.size, kWide);
  delete[] opaque(new Item[5]);
  std::free(filled(std::aligned_alloc(64, (c.size + 63) / 64 * 64), c.size));
}

// Sizes that no system can give: the right answer is NULL, or bad_alloc.

size_t hidden(size_t n) {
  asm volatile("" : "+r"(n));
  return n;
}

void expect_refusal(void *p) {
  if (opaque(p) == nullptr) refused();
  store(static_cast<unsigned char *>(p), 16);
}

void huge_malloc(const Case &c) { expect_refusal(std::malloc(hidden(c.amount))); }
void huge_calloc(const Case &c) { expect_refusal(std::calloc(hidden(c.amount), 16)); }
void huge_calloc_small_product(const Case &) {
  expect_refusal(std::calloc(hidden((size_t{1} << 32) + 1), hidden(size_t{1} << 32)));
}
void huge_realloc(const Case &c) { expect_refusal(std::realloc(victim(k40), hidden(c.amount))); }
void huge_reallocarray(const Case &) {
  expect_refusal(reallocarray(victim(k40), hidden((size_t{1} << 62) + 2), hidden(4)));
}
void huge_aligned_alloc(const Case &) { expect_refusal(std::aligned_alloc(64, hidden(SIZE_MAX - 63))); }
void odd_alignment(const Case &) {
  void *p = nullptr;
  expect_refusal(posix_memalign(&p, hidden(24), 100) != 0 ? nullptr : p);
}
void huge_alignment(const Case &) { expect_refusal(memalign(hidden(size_t{1} << 63), 100)); }
void huge_new(const Case &) {
  void *p = nullptr;
  try {
    p = operator new(hidden(SIZE_MAX / 2));
  } catch (const std::bad_alloc &) {
    refused();
  }
  expect_refusal(p);
}
void possible_size(const Case &) {
  std::free(take(k40M));
  auto *p = static_cast<unsigned char *>(opaque(reallocarray(nullptr, 10, 10)));
  store(p, 100);
  std::free(p);
}

}  // namespace

void add_zero_sizes() {
  add("zero-size", "read-1", {0}, 1, read_empty);
  add("zero-size", "calloc-read-8", {0}, 8, read_empty_words);
  add("zero-size", "write-1", {0}, 1, write_empty);
  add("zero-size", "write-8", {0}, 8, write_empty);
  add("zero-size", "write-1-free", {0}, 1, write_empty_and_free);
  add("zero-size", "write-8-free", {0}, 8, write_empty_and_free);
  add("zero-size", "memcpy-16-free", {0}, 16, copy_to_empty);
  add("zero-size", "memcpy-40-free", {0}, 40, copy_to_empty);
  add("zero-size", "calloc-write-1-free", {0}, 1, write_empty_calloc);
  add("zero-size", "calloc-write-16-free", {0}, 16, write_empty_calloc);
  add("zero-size", "new-write-1-delete", {0}, 1, write_empty_new);
  add("zero-size", "new-write-8-delete", {0}, 8, write_empty_new);
  add("zero-size", "realloc-1-write-2", {0}, 2, write_one_byte_block);
  add("zero-size", "realloc-1-write-40", {0}, 40, write_one_byte_block);
  add("zero-size", "read-100", {0}, 100, read_empty_far);
  add("zero-size", "read-5000", {0}, 5000, read_empty_far);
  add("zero-size", "read-before", {0}, 1, read_before_empty);
  add("zero-size", "array-write-300", {0}, 300, write_empty_array);
  add("zero-size", "aligned-write-1-free", {0}, 1, write_empty_aligned);
  add("zero-size", "aligned-64-read", {0}, 64, read_empty_aligned);
  add("zero-size", "aligned-4096-read", {0}, 4096, read_empty_aligned);
  add("zero-size", "aligned-64-write", {0}, 64, write_empty_memalign);
  add("zero-size", "valloc-read", {0}, 0, read_empty_of_pages);
  add("zero-size", "freed-read", {0}, 0, read_freed_empty);
  add("zero-size", "malloc-delete", {0}, 0, empty_deleted);
  add("zero-size", "freed-twice", {0}, 0, empty_freed_twice);
  add("zero-size", "control", {0}, 0, empty_right);
}

void add_wrong_deletes() {
  add("wrong-delete", "malloc-delete", {k40, k600K}, 0, malloc_delete);
  add("wrong-delete", "malloc-delete[]", {k20000}, 0, malloc_delete_array);
  add("wrong-delete", "calloc-delete", {k40, k600K}, 0, calloc_delete);
  add("wrong-delete", "realloc-delete[]", {k40, k3000}, 0, realloc_delete_array);
  add("wrong-delete", "strdup-delete", {k40, k20000}, 0, strdup_delete);
  add("wrong-delete", "new-realloc", {k40, k600K}, 0, new_realloc);
  add("wrong-delete", "new-free", {k40, k600K}, 0, new_free);
  add("wrong-delete", "new[]-free", {k20000}, 0, new_array_free);
  add("wrong-delete", "new-delete[]", {k40, k20000}, 0, new_delete_array);
  add("wrong-delete", "new[]-delete", {k40, k600K}, 0, new_array_delete);
  add("wrong-delete", "sized-1-more", {k40, k3000, k600K}, 1, sized_delete);
  add("wrong-delete", "sized-1000-more", {k40, k3000, k600K}, 1000, sized_delete);
  add("wrong-delete", "sized[]-half", {k40, k20000, k600K}, 0, sized_array_delete);
  add("wrong-delete", "aligned-new-delete", {k40}, 0, aligned_new_delete);
  add("wrong-delete", "new-aligned-delete", {k3000}, 0, new_aligned_delete);
  add("wrong-delete", "aligned-other-delete", {k40}, 0, aligned_other_delete);
  add("wrong-delete", "aligned_alloc-delete", {k40}, 0, aligned_alloc_delete);
  add("wrong-delete", "aligned-new-free", {k40}, 0, aligned_new_free);
  add("wrong-delete", "delete-of-3-items", {0}, 3, delete_of_items);
  add("wrong-delete", "delete-of-500-items", {0}, 500, delete_of_items);
  add("wrong-delete", "control", {k40, k3000, k20000, k600K}, 0, families_right);
}

void add_impossible_sizes() {
  add("impossible-size", "malloc-max", {0}, SIZE_MAX, huge_malloc);
  add("impossible-size", "malloc-half", {0}, SIZE_MAX / 2 + 1, huge_malloc);
  add("impossible-size", "malloc-negative", {0}, static_cast<size_t>(-100), huge_malloc);
  add("impossible-size", "calloc-overflow", {0}, SIZE_MAX / 8, huge_calloc);
  add("impossible-size", "calloc-small-product", {0}, 0, huge_calloc_small_product);
  add("impossible-size", "realloc-max", {0}, SIZE_MAX, huge_realloc);
  add("impossible-size", "reallocarray-small-product", {0}, 0, huge_reallocarray);
  add("impossible-size", "aligned_alloc-max", {0}, 0, huge_aligned_alloc);
  add("impossible-size", "posix_memalign-24", {0}, 0, odd_alignment);
  add("impossible-size", "memalign-huge", {0}, 0, huge_alignment);
  add("impossible-size", "new-half", {0}, 0, huge_new);
  add("impossible-size", "control", {0}, 0, possible_size);
}

}  // namespace misuse
