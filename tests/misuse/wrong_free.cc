// Blocks freed twice, and frees of what is no block.
#include <alloca.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <new>

#include "misuse.h"

namespace misuse {
namespace {

int count_for(size_t size, int small, int large) { return size <= k20000 ? small : large; }

void twice_at_once(const Case &c) {
  unsigned char *p = victim(c.size);
  std::free(opaque(p));
  std::free(opaque(p));
}

// Another block is freed between.
void twice_around_another(const Case &c) {
  unsigned char *p = victim(c.size), *q = take(c.size);
  std::free(opaque(p));
  std::free(opaque(q));
  std::free(opaque(p));
}

// Several frees and mallocs between, of other sizes and of the same one; the block is not taken again.
void twice_with_work_between(const Case &c) {
  void *same[4];
  int count = count_for(c.size, 4, 1);
  unsigned char *p = victim(c.size);
  for (int i = 0; i < count; i++) same[i] = take(c.size);
  std::free(opaque(p));
  for (int i = 0; i < count; i++) std::free(same[i]);
  for (int i = 0; i < 6; i++) {
    void *q = take(100 + 50 * i);
    std::free(q);
  }
  std::free(opaque(p));
}

// Hundreds of blocks of its size are freed between, so that a cache has handed it on.
void twice_long_after(const Case &c) {
  void *same[400];
  unsigned char *p = victim(c.size);
  for (void *&q : same) q = take(c.size);
  std::free(opaque(p));
  for (void *q : same) std::free(q);
  std::free(opaque(p));
}

// The block may be in use again, by an owner who then loses it.
void twice_after_reuse(const Case &c) {
  unsigned char *p = victim(c.size);
  std::free(opaque(p));
  unsigned char *next = take(c.size);
  std::free(opaque(p));
  unsigned char *third = take(c.size);
  next[0] = 'n';
  third[0] = 't';
  std::free(next);
  std::free(third);
}

void twice_by_a_thread(const Case &c) {
  unsigned char *p = victim(c.size);
  on_thread([](void *q) { std::free(q); }, opaque(p));
  std::free(opaque(p));
}

void twice_by_two_threads(const Case &c) {
  unsigned char *p = victim(c.size);
  on_thread([](void *q) { std::free(q); }, opaque(p));
  on_thread([](void *q) { std::free(q); }, opaque(p));
}

void deleted_twice(const Case &c) {
  void *p = opaque(operator new(c.size));
  std::memset(p, 1, c.size);
  operator delete(opaque(p));
  operator delete(opaque(p));
}

// Other large blocks follow, so that no cache of the allocator has the memory any more.
void twice_when_unmapped(const Case &c) {
  void *others[6];
  unsigned char *p = victim(c.size);
  for (int i = 0; i < 6; i++) others[i] = take(c.size + (i + 1) * kMiB);
  std::free(opaque(p));
  for (void *q : others) std::free(q);
  std::free(opaque(p));
}

void freed_after_resize_to_nothing(const Case &c) {
  unsigned char *p = victim(c.size);
  if (std::realloc(opaque(p), 0) != nullptr) not_done();
  std::free(opaque(p));
}

// Both ends of a pair of owners, each of which frees it with its own thread's work between.
void twice_by_owners(const Case &c) {
  unsigned char *p = victim(c.size);
  std::free(opaque(p));
  ordinary_work(30);
  on_thread([](void *q) { ordinary_work(5), std::free(q); }, opaque(p));
}

void freed_in_every_order(const Case &c) {
  int count = count_for(c.size, 400, 3);
  unsigned char *p = victim(c.size);
  std::free(p);
  churn(c.size, count);
  unsigned char *q = take(c.size);
  on_thread([](void *r) { std::free(r); }, q);
  operator delete(operator new(c.size));
  free_neighbours();
}

// Addresses that malloc has never returned.

char static_bytes[4096] __attribute__((aligned(64)));
const char text_literal[] = "a constant of the program, which no allocator has ever seen";
thread_local char thread_bytes[256] __attribute__((aligned(16)));

void free_stack(const Case &) {
  alignas(16) char bytes[256];
  std::memset(bytes, 1, sizeof bytes);
  std::free(opaque(bytes));
}

void free_alloca(const Case &c) {
  auto *bytes = static_cast<char *>(alloca(c.size));
  std::memset(bytes, 1, c.size);
  std::free(opaque(bytes));
}

void free_static(const Case &) {
  std::memset(static_bytes, 1, sizeof static_bytes);
  std::free(opaque(static_bytes));
}

void free_text(const Case &) { std::free(opaque(reinterpret_cast<void *>(&free_static))); }

void free_literal(const Case &) { std::free(opaque(const_cast<char *>(text_literal))); }

void free_thread_local(const Case &) {
  thread_bytes[0] = 1;
  std::free(opaque(thread_bytes));
}

void free_environment(const Case &) {
  char *path = getenv("PATH");
  if (path == nullptr) not_done();
  std::free(opaque(path));
}

void free_own_mapping(const Case &c) {
  void *p = mmap(nullptr, c.size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) not_done();
  std::memset(p, 1, c.size);
  std::free(opaque(p));
}

void free_address(const Case &c) { std::free(opaque(reinterpret_cast<void *>(c.amount))); }

// A pointer that was never set has what lay there before: here words of a message.
void free_uninitialised(const Case &) {
  void *p;
  std::memcpy(&p, "GET /ind", sizeof p);
  std::free(opaque(p));
}

void free_inside(const Case &c) {
  unsigned char *p = victim(c.size);
  std::free(opaque(p + c.amount));
}

void free_before(const Case &c) {
  unsigned char *p = victim(c.size);
  std::free(opaque(p - c.amount));
}

void free_behind(const Case &c) {
  unsigned char *p = victim(c.size);
  std::free(opaque(p + (c.size + 15) / 16 * 16));
}

void delete_inside(const Case &c) {
  auto *p = static_cast<unsigned char *>(opaque(operator new(c.size)));
  std::memset(p, 1, c.size);
  operator delete(opaque(p + c.amount));
}

void free_right(const Case &c) {
  unsigned char *p = victim(c.size);
  std::free(p);
  std::free(opaque(static_cast<void *>(nullptr)));
  void *aligned = std::aligned_alloc(256, 256 * ((c.size + 255) / 256));
  std::free(opaque(aligned));
  free_neighbours();
}

}  // namespace

void add_double_frees() {
  add("double-free", "at-once", {k40, k3000, k20000, k600K, k40M}, 0, twice_at_once);
  add("double-free", "around-another", {k40, k3000, k20000, k600K, k40M}, 0, twice_around_another);
  add("double-free", "work-between", {k40, k3000, k20000, k600K, k40M}, 0, twice_with_work_between);
  add("double-free", "long-after", {k40, k3000, k20000}, 0, twice_long_after);
  add("double-free", "after-reuse", {k40, k3000, k20000, k600K, k40M}, 0, twice_after_reuse);
  add("double-free", "by-a-thread", {k40, k3000, k600K}, 0, twice_by_a_thread);
  add("double-free", "by-two-threads", {k40, k20000, k600K}, 0, twice_by_two_threads);
  add("double-free", "deleted", {k40, k3000, k600K}, 0, deleted_twice);
  add("double-free", "when-unmapped", {k40M}, 0, twice_when_unmapped);
  add("double-free", "resized-to-nothing", {k40, k3000, k600K}, 0, freed_after_resize_to_nothing);
  add("double-free", "by-owners", {k40, k20000, k600K}, 0, twice_by_owners);
  add("double-free", "control", {k40, k3000, k20000, k600K, k40M}, 0, freed_in_every_order);
}

void add_invalid_frees() {
  add("invalid-free", "stack", {0}, 0, free_stack);
  add("invalid-free", "alloca", {k40, k20000}, 0, free_alloca);
  add("invalid-free", "static", {0}, 0, free_static);
  add("invalid-free", "text", {0}, 0, free_text);
  add("invalid-free", "literal", {0}, 0, free_literal);
  add("invalid-free", "thread-local", {0}, 0, free_thread_local);
  add("invalid-free", "environment", {0}, 0, free_environment);
  add("invalid-free", "own-mapping", {k600K}, 0, free_own_mapping);
  add("invalid-free", "never-mapped", {0}, 0x123456789000, free_address);
  add("invalid-free", "small-number", {0}, 0x20, free_address);
  add("invalid-free", "uninitialised", {0}, 0, free_uninitialised);
  add("invalid-free", "inside-1", {k40, k3000, k600K, k40M}, 1, free_inside);
  add("invalid-free", "inside-8", {k40, k3000, k600K, k40M}, 8, free_inside);
  add("invalid-free", "inside-16", {k40, k3000, k20000, k600K, k40M}, 16, free_inside);
  add("invalid-free", "inside-4096", {k20000, k600K, k40M}, kPage, free_inside);
  add("invalid-free", "far-inside", {k40M}, 4096 * kPage, free_inside);
  add("invalid-free", "before-16", {k40, k3000, k20000, k600K, k40M}, 16, free_before);
  add("invalid-free", "behind", {k40, k3000, k20000, k600K, k40M}, 0, free_behind);
  add("invalid-free", "delete-inside-16", {k40, k3000}, 16, delete_inside);
  add("invalid-free", "control", {k40, k3000, k20000, k600K, k40M}, 0, free_right);
}

}  // namespace misuse
