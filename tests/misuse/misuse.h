// Programs that misuse memory, one a case: `misuse CASE` does a little ordinary work, the misuse, and a little ordinary work
// again, and returns from main. Nothing here knows which allocator serves it. A case writes nothing to stdout or stderr.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>

namespace misuse {

// Sizes of blocks: small, medium (two), and large (two). 600 KiB are whole pages, 40,000,000 bytes are not.
constexpr size_t k40 = 40, k3000 = 3000, k20000 = 20000, k600K = 600 * 1024, k40M = 40000000;
constexpr size_t kMiB = 1 << 20;
constexpr size_t kPage = 4096;

// Exit status beside 0. Refused: an impossible request gave NULL or an exception, as it must.
// NotDone: the misuse did not come about, for example because realloc did not move the block.
enum Status { kEnded = 0, kWrongUse = 2, kRefused = 10, kNotDone = 11 };

struct Case {
  const char *family;
  const char *what;
  size_t size;    // of the block, 0 where the case has no size
  size_t amount;  // bytes behind, before or inside: what `what` says
  void (*run)(const Case &);
};

// One case for each size. The name is family.what.size.
void add(const char *family, const char *what, std::initializer_list<size_t> sizes, size_t amount,
         void (*run)(const Case &));

void add_overflows();
void add_overreads();
void add_fresh();
void add_double_frees();
void add_invalid_frees();
void add_uses_after_free();
void add_reallocs();
void add_zero_sizes();
void add_wrong_deletes();
void add_impossible_sizes();

// Hides from the compiler where a pointer comes from, so that misuse is neither optimised away nor warned of.
template <class T>
T *opaque(T *p) {
  asm volatile("" : "+r"(p) : : "memory");
  return p;
}

// A block of malloc with its bytes written, or for large ones its first and last page.
unsigned char *take(size_t size);

// The block that is misused: between others of its size, which stay in use; in the family `fresh` the program's first.
unsigned char *victim(size_t size);

// Frees the blocks around the victim.
void free_neighbours();

// malloc and free of various small sizes, leaving nothing in use.
void ordinary_work(int rounds);

// Takes and frees blocks of one size, `count` of them in use at a time.
void churn(size_t size, int count);

// After the case main returns at once, without ordinary work.
void return_at_once();

// Ends the program where the misuse could not be done.
[[noreturn]] void not_done();
// Ends the program where an impossible request was refused.
[[noreturn]] void refused();

// Runs `work` on a thread of its own and waits for it.
void on_thread(void (*work)(void *), void *argument);

// Bytes that were read go here.
extern volatile unsigned long sink;

}  // namespace misuse
