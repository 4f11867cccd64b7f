// Writes and reads behind a block and before it.
#include <fcntl.h>
#include <malloc.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "misuse.h"

namespace misuse {
namespace {

// Long enough for every size and 1 MiB more.
unsigned char source[k600K + 2 * kMiB];
unsigned char destination[k600K + 2 * kMiB];

void write_by_loop(unsigned char *p, size_t from, size_t to) {
  volatile unsigned char *bytes = opaque(p);
  for (size_t i = from; i < to; i++) bytes[i] = 'A';
}

void write_before_by_loop(unsigned char *p, size_t amount) {
  volatile unsigned char *bytes = opaque(p);
  for (size_t i = 1; i <= amount; i++) *(bytes - i) = 'B';
}

void end(unsigned char *p) {
  std::free(opaque(p));
  free_neighbours();
}

void over_loop(const Case &c) {
  unsigned char *p = victim(c.size);
  write_by_loop(p, c.size - 16, c.size + c.amount);
  end(p);
}

void over_memset(const Case &c) {
  unsigned char *p = victim(c.size);
  size_t from = c.size > kMiB ? c.size - kPage : 0;
  std::memset(opaque(p) + from, 0, c.size - from + c.amount);
  end(p);
}

void over_memcpy(const Case &c) {
  unsigned char *p = victim(c.size);
  size_t from = c.size > kMiB ? c.size - kPage : 0;
  std::memset(source, 'C', sizeof source);
  std::memcpy(opaque(p) + from, opaque(source), c.size - from + c.amount);
  end(p);
}

// A line that has one byte more than the buffer: its closing zero.
void over_strcpy(const Case &c) {
  unsigned char *p = victim(c.size);
  std::memset(source, 'D', c.size);
  source[c.size] = '\0';
  std::strcpy(reinterpret_cast<char *>(opaque(p)), reinterpret_cast<char *>(opaque(source)));
  end(p);
}

// The kernel writes: a read with a length that is too large.
void over_read(const Case &c) {
  unsigned char *p = victim(c.size);
  int file = open("/dev/zero", O_RDONLY | O_CLOEXEC);
  if (file < 0) not_done();
  ssize_t length = read(file, opaque(p), c.size + c.amount);
  close(file);
  sink = static_cast<unsigned long>(length);
  end(p);
}

// One store, some bytes behind the block: an index that is too large.
void over_kept_for_fault(const Case &c) { write_by_loop(victim(c.size), c.size, c.size + c.amount); }

void over_index(const Case &c) {
  unsigned char *p = victim(c.size);
  volatile unsigned char *bytes = opaque(p);
  bytes[c.size + c.amount] = 'E';
  end(p);
}

// Blocks that another function than malloc made.

void over_calloc(const Case &c) {
  auto *p = static_cast<unsigned char *>(opaque(std::calloc(c.size / 4, 4)));
  write_by_loop(p, 0, c.size + c.amount);
  std::free(opaque(p));
}

void over_aligned(const Case &c) {
  void *p = nullptr;
  if (posix_memalign(&p, 256, c.size) != 0) not_done();
  write_by_loop(static_cast<unsigned char *>(p), 0, c.size + c.amount);
  std::free(opaque(p));
}

void over_realloc(const Case &c) {
  auto *p = static_cast<unsigned char *>(std::realloc(victim(c.size), 3 * c.size));
  write_by_loop(p, c.size, 3 * c.size + c.amount);
  end(p);
}

void over_array(const Case &c) {
  auto *p = static_cast<unsigned char *>(opaque(operator new[](c.size)));
  write_by_loop(p, 0, c.size + c.amount);
  operator delete[](opaque(p));
}

// A copy of a text, with more appended.
void over_strdup(const Case &c) {
  std::memset(source, 'F', c.size - 1);
  source[c.size - 1] = '\0';
  char *text = strdup(reinterpret_cast<char *>(opaque(source)));
  std::strcat(opaque(text), "more");
  std::free(opaque(text));
}

// To the size that the allocator says the block has, and one more.
void over_usable(const Case &c) {
  unsigned char *p = victim(c.size);
  size_t usable = malloc_usable_size(p);
  write_by_loop(p, usable - 16, usable + c.amount);
  end(p);
}

void under_aligned(const Case &c) {
  auto *p = static_cast<unsigned char *>(aligned_alloc(64, (c.size + 63) / 64 * 64));
  write_before_by_loop(p, c.amount);
  std::free(opaque(p));
}

// What the program dies of is something else, and follows from it, perhaps.
void over_then_fault(const Case &c) {
  over_kept_for_fault(c);
  sink = **opaque(static_cast<volatile unsigned long *volatile *>(std::calloc(1, k40)));
}

void over_then_exit_at_once(const Case &c) {
  over_kept_for_fault(c);
  _exit(0);
}

void over_then_quick_exit(const Case &c) {
  over_kept_for_fault(c);
  std::quick_exit(0);
}

void under_loop(const Case &c) {
  unsigned char *p = victim(c.size);
  write_before_by_loop(p, c.amount);
  end(p);
}

void under_memset(const Case &c) {
  unsigned char *p = victim(c.size);
  std::memset(opaque(p) - c.amount, 0xff, c.amount);
  end(p);
}

// The same, and neither the block nor those beside it are freed.
void over_kept(const Case &c) {
  unsigned char *p = victim(c.size);
  write_by_loop(p, c.size - 16, c.size + c.amount);
}

void under_kept(const Case &c) {
  unsigned char *p = victim(c.size);
  write_before_by_loop(p, c.amount);
}

void over_memset_kept(const Case &c) {
  unsigned char *p = victim(c.size);
  std::memset(opaque(p) + c.size - 16, 0, 16 + c.amount);
}

void under_memset_kept(const Case &c) {
  unsigned char *p = victim(c.size);
  std::memset(opaque(p) - c.amount, 0xff, c.amount);
}

// Those beside it are freed, and it is not.
void over_beside(const Case &c) {
  over_kept(c);
  free_neighbours();
}

void under_beside(const Case &c) {
  under_kept(c);
  free_neighbours();
}

void within(const Case &c) {
  unsigned char *p = victim(c.size);
  write_by_loop(p, 0, c.size);
  size_t length = c.size < sizeof source ? c.size : sizeof source;
  std::memcpy(opaque(p) + c.size - length, opaque(source), length);
  end(p);
}

void within_kept(const Case &c) {
  unsigned char *p = victim(c.size);
  write_by_loop(p, 0, c.size);
}

void sum(const unsigned char *p, size_t length) {
  const volatile unsigned char *bytes = opaque(p);
  unsigned long total = 0;
  for (size_t i = 0; i < length; i++) total += bytes[i];
  sink = total;
}

void read_behind_by_loop(const Case &c) {
  unsigned char *p = victim(c.size);
  sum(p + c.size, c.amount);
  end(p);
}

void read_behind_by_memcpy(const Case &c) {
  unsigned char *p = victim(c.size);
  size_t from = c.size > kMiB ? c.size - kPage : 0;
  std::memcpy(opaque(destination), opaque(p) + from, c.size - from + c.amount);
  end(p);
}

// A text that fills its block, and has no end.
void read_unterminated(const Case &c) {
  unsigned char *p = victim(c.size);
  std::memset(opaque(p), 't', c.size);
  sink = std::strlen(reinterpret_cast<char *>(opaque(p)));
  end(p);
}

void read_before(const Case &c) {
  unsigned char *p = victim(c.size);
  sum(p - c.amount, c.amount);
  end(p);
}

// Downward, so that what lies directly before the block is read first.
void read_before_downward(const Case &c) {
  unsigned char *p = victim(c.size);
  const volatile unsigned char *bytes = opaque(p);
  unsigned long total = 0;
  for (size_t i = 1; i <= c.amount; i++) total += *(bytes - i);
  sink = total;
  end(p);
}

void read_within(const Case &c) {
  unsigned char *p = victim(c.size);
  sum(p, c.size);
  end(p);
}

}  // namespace

void add_overflows() {
  add("overflow", "loop-1", {k40, k3000, k600K}, 1, over_loop);
  add("overflow", "loop-8", {k40, k3000}, 8, over_loop);
  add("overflow", "loop-32", {k40, k3000, k600K}, 32, over_loop);
  add("overflow", "loop-1M", {k40, k3000, k600K, k40M}, kMiB, over_loop);
  add("overflow", "memset-1", {k40, k20000, k40M}, 1, over_memset);
  add("overflow", "memset-8", {k20000, k600K, k40M}, 8, over_memset);
  add("overflow", "memset-32", {k40, k20000, k40M}, 32, over_memset);
  add("overflow", "memcpy-1M", {k40, k20000, k600K, k40M}, kMiB, over_memcpy);
  add("overflow", "strcpy-1", {k40, k3000, k20000}, 1, over_strcpy);
  add("overflow", "read-32", {k40, k3000, k600K}, 32, over_read);
  add("overflow", "index-200", {k40, k3000, k20000}, 200, over_index);
  add("overflow", "index-8K", {k40, k3000, k20000}, 2 * kPage, over_index);
  add("overflow", "index-300K", {k40, k20000, k600K}, k600K / 2, over_index);
  add("overflow", "calloc-1", {k40, k3000, k600K}, 1, over_calloc);
  add("overflow", "aligned-8", {k40, k3000, k20000}, 8, over_aligned);
  add("overflow", "realloc-1", {k40, k20000, k600K}, 1, over_realloc);
  add("overflow", "new[]-1", {k40, k3000, k600K}, 1, over_array);
  add("overflow", "strdup-4", {k40, k3000}, 4, over_strdup);
  add("overflow", "usable-1", {k40, k3000, k600K}, 1, over_usable);
  add("overflow", "then-fault-8", {k40, k20000}, 8, over_then_fault);
  add("overflow", "then-exit-at-once-32", {k40, k3000}, 32, over_then_exit_at_once);
  add("overflow", "then-quick-exit-8", {k40, k20000}, 8, over_then_quick_exit);
  add("overflow", "control", {k40, k3000, k20000, k600K, k40M}, 0, within);

  add("underflow", "loop-1", {k40, k3000, k600K}, 1, under_loop);
  add("underflow", "loop-8", {k40, k3000, k600K}, 8, under_loop);
  add("underflow", "loop-32", {k40, k3000, k600K}, 32, under_loop);
  add("underflow", "loop-1M", {k40, k3000, k600K, k40M}, kMiB, under_loop);
  add("underflow", "memset-8", {k20000, k40M}, 8, under_memset);
  add("underflow", "memset-32", {k20000, k40M}, 32, under_memset);
  add("underflow", "memset-1M", {k40, k20000, k40M}, kMiB, under_memset);
  add("underflow", "aligned-8", {k40, k3000, k600K}, 8, under_aligned);
  add("underflow", "control", {k40, k3000, k600K, k40M}, 0, within);

  add("never-freed", "over-1", {k40, k3000, k20000, k600K, k40M}, 1, over_kept);
  add("never-freed", "over-8", {k40, k20000}, 8, over_memset_kept);
  add("never-freed", "over-32", {k40, k3000, k20000, k600K, k40M}, 32, over_kept);
  add("never-freed", "over-1M", {k40, k3000, k20000, k600K, k40M}, kMiB, over_kept);
  add("never-freed", "over-memset-1M", {k40, k3000, k600K, k40M}, kMiB, over_memset_kept);
  add("never-freed", "under-1", {k40, k20000}, 1, under_kept);
  add("never-freed", "under-8", {k40, k3000, k600K, k40M}, 8, under_kept);
  add("never-freed", "under-32", {k40, k3000, k600K}, 32, under_memset_kept);
  add("never-freed", "under-1M", {k40, k20000, k600K, k40M}, kMiB, under_kept);
  add("never-freed", "others-freed-over-1", {k40, k3000, k600K}, 1, over_beside);
  add("never-freed", "others-freed-over-32", {k40, k20000, k600K}, 32, over_beside);
  add("never-freed", "others-freed-under-8", {k40, k3000, k600K}, 8, under_beside);
  add("never-freed", "control", {k40, k3000, k600K, k40M}, 0, within_kept);
}

void add_overreads() {
  add("over-read", "loop-32", {k40, k3000, k20000, k600K, k40M}, 32, read_behind_by_loop);
  add("over-read", "strlen", {k40, k3000}, 0, read_unterminated);
  add("over-read", "loop-8K", {k600K, k40M}, 2 * kPage, read_behind_by_loop);
  add("over-read", "loop-1M", {k40, k3000, k600K, k40M}, kMiB, read_behind_by_loop);
  add("over-read", "memcpy-1M", {k40, k20000, k600K, k40M}, kMiB, read_behind_by_memcpy);
  add("over-read", "before-8K", {k600K, k40M}, 2 * kPage, read_before);
  add("over-read", "before-1M", {k40, k20000, k600K}, kMiB, read_before_downward);
  add("over-read", "control", {k40, k3000, k20000, k600K, k40M}, 0, read_within);
}

void add_fresh() {
  add("fresh", "over-1", {k40, k3000, k600K}, 1, over_loop);
  add("fresh", "over-1M", {k40, k3000, k20000, k600K}, kMiB, over_kept);
  add("fresh", "under-32", {k40, k3000, k600K}, 32, under_loop);
  add("fresh", "under-1M", {k40, k3000, k20000, k600K}, kMiB, under_kept);
  add("fresh", "index-200", {k40, k3000, k20000}, 200, over_index);
  add("fresh", "index-8K", {k40, k3000, k20000}, 2 * kPage, over_index);
  add("fresh", "index-300K", {k40, k20000}, k600K / 2, over_index);
  add("fresh", "under-1", {k40, k3000}, 1, under_loop);
  add("fresh", "then-exit-at-once-32", {k40, k3000}, 32, over_then_exit_at_once);
  add("fresh", "read-32", {k40, k3000, k20000}, 32, read_behind_by_loop);
  add("fresh", "read-1M", {k40, k3000, k20000, k600K}, kMiB, read_behind_by_loop);
  add("fresh", "control", {k40, k3000, k20000, k600K, k40M}, 0, within_kept);
}

}  // namespace misuse
