// Random calls of jemalloc's interface against a model of what it promises: a block has at least what nallocx says, however it came to be; what ZERO or
// calloc has made zero, and the program has not written, stays zero through every growth with ZERO, to the last usable byte; contents stay; a block that is
// resized without a flag stays in its arena or is the thread's. Arguments: seed, steps.
#include <hakmem/hakmem.h>
#include <hakmem/heap.h>

#include <cstdio>
#include <random>

#include "je.h"

namespace {

constexpr size_t kBlocks = 200, kBytes = size_t{200} << 20;

struct Block {
  unsigned char *p;
  size_t usable;
  bool is_zero;  // all of it; else all of it is `byte`
  unsigned char byte;
};

std::mt19937_64 numbers;
std::vector<Block> blocks;
size_t live;
uint64_t step;
unsigned caches[2], arenas[2];
hakmem_heap *heap;

size_t pick(size_t below) { return numbers() % below; }

[[noreturn]] void fail(const char *what, const Block &b, size_t a, size_t c) {
  fprintf(stderr, "step %llu: %s: block %p of %zu bytes: %zu, %zu\n", static_cast<unsigned long long>(step), what, static_cast<void *>(b.p), b.usable, a, c);
  _exit(1);
}

// From a byte to tens of MiB; few are large.
size_t any_size() {
  size_t lg = pick(4) == 0 ? pick(25) : pick(16), size = (size_t{1} << lg) + pick(size_t{1} << lg);
  return pick(4) == 0 ? std::max(size & ~size_t{4095}, size_t{1}) : size;
}

void check(const Block &b, const char *when) {
  unsigned char byte = b.is_zero ? 0 : b.byte;
  for (size_t i = 0; i < b.usable; i++) {
    if (b.p[i] != byte) fail(when, b, i, b.p[i]);
  }
}

void check_size(Block *b, size_t size, int align_flag, const char *way) {
  if (b->p == nullptr) fail(way, *b, size, 0);
  b->usable = sallocx(b->p, 0);
  if (b->usable < nallocx(size, align_flag)) fail(way, *b, size, nallocx(size, align_flag));
  if (b->usable != malloc_usable_size(b->p)) fail(way, *b, size, malloc_usable_size(b->p));
  if (reinterpret_cast<uintptr_t>(b->p) % (size_t{1} << align_flag) != 0) fail("alignment", *b, size, static_cast<size_t>(align_flag));
}

int any_place() {
  switch (pick(6)) {
    case 0: return kNoCache;
    case 1: return cache_flag(caches[pick(2)]);
    case 2: return arena_flag(arenas[pick(2)]);
    case 3: return arena_flag(0);
    default: return 0;
  }
}

void allocate() {
  size_t size = any_size();
  if (live + size > kBytes || blocks.size() >= kBlocks) return;
  Block b = {nullptr, 0, pick(2) == 0, static_cast<unsigned char>(1 + pick(255))};
  int lg = pick(3) == 0 ? static_cast<int>(pick(17)) : 0, flags = any_place() | lg;
  size_t align = size_t{1} << lg;
  unsigned way = static_cast<unsigned>(pick(8));
  if (way == 0) {
    b.p = static_cast<unsigned char *>(b.is_zero ? calloc(1, size) : malloc(size)), lg = 0;
  } else if (way == 1) {
    b.p = static_cast<unsigned char *>(b.is_zero ? hakmem_aligned_calloc(align, 1, size) : hakmem_aligned_alloc(align, size));
  } else if (way == 2) {
    b.is_zero = false, lg = std::max(lg, 3);
    if (posix_memalign(reinterpret_cast<void **>(&b.p), size_t{1} << lg, size) != 0) fail("posix_memalign", b, size, align);
  } else if (way == 3) {
    b.p = static_cast<unsigned char *>(b.is_zero ? hakmem_heap_calloc(heap, 1, size) : hakmem_heap_aligned_alloc(heap, align, size));
    if (b.is_zero) lg = 0;
  } else {
    b.p = static_cast<unsigned char *>(mallocx(size, flags | (b.is_zero ? kZero : 0)));
  }
  check_size(&b, size, lg, "allocation");
  live += b.usable;
  if (b.is_zero)
    check(b, "zeros of a new block");
  else
    memset(b.p, b.byte, b.usable);
  blocks.push_back(b);
}

// To a size like it, or to any.
size_t new_size(const Block &b) { return pick(3) == 0 ? any_size() : std::max(b.usable / 2 + pick(b.usable + 1), size_t{1}); }

// What a resized block has: as before up to `kept`, then zeros where they were promised.
void settle(Block *b, size_t kept, bool zeros) {
  unsigned char byte = b->is_zero ? 0 : b->byte;
  for (size_t i = 0; i < std::min(kept, b->usable); i++) {
    if (b->p[i] != byte) fail("contents after a resize", *b, i, b->p[i]);
  }
  for (size_t i = kept; zeros && i < b->usable; i++) {
    if (b->p[i] != 0) fail("zeros of what a resize added", *b, i, b->p[i]);
  }
  if (b->is_zero && (zeros || b->usable <= kept)) return;
  b->is_zero = false;
  memset(b->p, b->byte, b->usable);
}

unsigned arena_of(void *p) {
  unsigned index = ~0u;
  size_t bytes = sizeof index;
  mallctl("arenas.lookup", &index, &bytes, &p, sizeof p);
  return index;
}

void resize(Block *b) {
  check(*b, "before a resize");
  size_t size = new_size(*b), before = b->usable;
  if (size > before && live + size > kBytes) return;
  bool zeros = pick(2) == 0;
  unsigned arena = arena_of(b->p), threads = get<unsigned>("thread.arena");
  live -= before;
  switch (pick(4)) {
    case 0: {
      size_t after = xallocx(b->p, size, pick(2) == 0 ? 0 : pick(before + 1), zeros ? kZero : 0);
      if (after != sallocx(b->p, 0)) fail("xallocx", *b, size, after);
      if (after >= size) check_size(b, size, 0, "xallocx");
      b->usable = after;
      settle(b, before, zeros);
      break;
    }
    case 1:
      b->p = static_cast<unsigned char *>(realloc(b->p, size));
      check_size(b, size, 0, "realloc");
      if (arena_of(b->p) != arena && arena_of(b->p) != threads) fail("arena after realloc", *b, arena, arena_of(b->p));
      settle(b, std::min(size, before), false);
      break;
    case 2:
      if (hakmem_expand(b->p, size) != nullptr) check_size(b, size, 0, "expand");
      b->usable = sallocx(b->p, 0);
      settle(b, before, false);
      break;
    default: {
      int lg = pick(3) == 0 ? static_cast<int>(pick(17)) : 0, place = any_place();
      b->p = static_cast<unsigned char *>(rallocx(b->p, size, place | lg | (zeros ? kZero : 0)));
      check_size(b, size, lg, "rallocx");
      if (place >= arena_flag(0) && arena_of(b->p) != static_cast<unsigned>(place >> 20) - 1) fail("arena after rallocx", *b, arena_of(b->p), static_cast<size_t>(place >> 20) - 1);
      /* A block that shrinks keeps what it has of what was its own: growth promises zeros from there on. */
      settle(b, std::min(before, b->usable), zeros);
      break;
    }
  }
  live += b->usable;
}

void release(size_t i) {
  Block b = blocks[i];
  blocks[i] = blocks.back();
  blocks.pop_back();
  check(b, "before a free");
  live -= b.usable;
  if (pick(2) == 0) memset(b.p, 0xee, b.usable);
  switch (pick(4)) {
    case 0: sdallocx(b.p, b.usable - pick(2), 0); break;
    case 1: dallocx(b.p, kNoCache); break;
    case 2: dallocx(b.p, cache_flag(caches[pick(2)])); break;
    default: free(b.p);
  }
}

void one_step() {
  size_t what = pick(100), n = blocks.size();
  if (what < 40 || n == 0)
    allocate();
  else if (what < 70)
    resize(&blocks[pick(n)]);
  else if (what < 97)
    release(pick(n));
  else if (what == 97)
    set<unsigned>("thread.arena", pick(2) == 0 ? 0 : arenas[pick(2)]);
  else if (what == 98 && pick(20) == 0)
    hakmem_purge();
}

}  // namespace

int main(int argc, char **argv) {
  numbers.seed(argc > 1 ? strtoull(argv[1], nullptr, 0) : 1);
  uint64_t steps = argc > 2 ? strtoull(argv[2], nullptr, 0) : 20000;
  blocks.reserve(kBlocks);
  for (unsigned &id : caches) id = get<unsigned>("tcache.create");
  for (unsigned &index : arenas) index = get<unsigned>("arenas.create");
  heap = hakmem_heap_new(nullptr);
  for (step = 0; step < steps; step++) one_step();
  while (!blocks.empty()) release(0);
  printf("%llu steps\n", static_cast<unsigned long long>(steps));
  return 0;
}
