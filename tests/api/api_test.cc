// Semantics and errno of every function of the interface.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <csignal>
#include <cstring>
#include <set>

#include "family.h"
#include "hakmem/heap.h"
#include "hakmem/stats.h"
#include "run_program.h"

using testing::HasSubstr;

namespace {

constexpr size_t KIB = 1024, MIB = 1024 * KIB, GIB = 1024 * MIB;
constexpr size_t SMALL_MAX = 32 * KIB, RUN_MAX = 32 * MIB;
constexpr int MARK = 4711;  // an errno nobody sets

class Api : public testing::Test {
 protected:
  void SetUp() override { errno = MARK; }
  void TearDown() override { EXPECT_EQ(hakmem_heap_check(), 0u); }
};

unsigned char *bytes(void *p) { return static_cast<unsigned char *>(p); }
bool aligned(const void *p, size_t align) { return reinterpret_cast<uintptr_t>(p) % align == 0; }

// Every class boundary and its neighbours, and the borders between owners.
std::vector<size_t> interesting_sizes() {
  std::set<size_t> sizes = {0, 1, 2, 7, 8, 9};
  auto around = [&](size_t s) {
    for (size_t v : {s - 1, s, s + 1}) sizes.insert(v);
  };
  for (size_t s = 16; s <= 128; s += 16) around(s);
  for (size_t base = 128; base < KIB; base *= 2)
    for (size_t k = 1; k <= 8; k++) around(base + k * base / 8);
  for (size_t base = KIB; base < SMALL_MAX; base *= 2)
    for (size_t k = 1; k <= 4; k++) around(base + k * base / 4);
  around(64 * KIB);
  around(128 * KIB);
  around(1 * MIB);
  return {sizes.begin(), sizes.end()};
}

// One size for each owner and path.
const size_t OWNERS[] = {1, 100, 1000, 5000, SMALL_MAX, SMALL_MAX + 1, 64 * KIB, 300 * KIB, 5 * MIB, RUN_MAX, RUN_MAX + 1, 40 * MIB};

// Marks the first and last bytes, and one word a page in between: enough to see a moved or lost page.
void fill(void *p, size_t size, uint64_t seed) {
  for (size_t i = 0; i < size; i += (i < 256 || i + 256 > size ? 1 : std::min<size_t>(4096, size - 256 - i + 1)))
    bytes(p)[i] = static_cast<unsigned char>((seed + i * 7 + (i >> 12)) ^ 0x5a);
}
::testing::AssertionResult holds(void *p, size_t filled, size_t size, uint64_t seed) {
  for (size_t i = 0; i < filled; i += (i < 256 || i + 256 > filled ? 1 : std::min<size_t>(4096, filled - 256 - i + 1))) {
    if (i < size && bytes(p)[i] != static_cast<unsigned char>((seed + i * 7 + (i >> 12)) ^ 0x5a))
      return ::testing::AssertionFailure() << "byte " << i << " changed";
  }
  return ::testing::AssertionSuccess();
}

// Its offset; `size` where all bytes are zero.
size_t first_that_is_not_zero(void *p, size_t size) {
  if (size == 0 || (bytes(p)[0] == 0 && memcmp(p, bytes(p) + 1, size - 1) == 0)) return size;
  return static_cast<size_t>(std::find_if(bytes(p), bytes(p) + size, [](unsigned char b) { return b != 0; }) - bytes(p));
}

size_t resident_bytes() {
  FILE *f = fopen("/proc/self/statm", "r");
  unsigned long total = 0, resident = 0;
  EXPECT_EQ(fscanf(f, "%lu %lu", &total, &resident), 2);
  fclose(f);
  return resident * 4096;
}

TEST_F(Api, MallocEverySize) {
  for (size_t size : interesting_sizes()) {
    void *p = F(malloc)(size);
    ASSERT_NE(p, nullptr) << size;
    EXPECT_TRUE(aligned(p, 16)) << size;
    EXPECT_TRUE(hakmem_is_ours(p)) << size;
    size_t usable = F(malloc_usable_size)(p);
    EXPECT_GE(usable, size);
    memset(p, 0xee, usable);
    F(free)(p);
  }
  EXPECT_EQ(errno, MARK) << "success leaves errno alone";
}

TEST_F(Api, MallocLarge) {
  for (size_t size : {RUN_MAX - 1, RUN_MAX, RUN_MAX + 1, 100 * MIB, GIB, 3 * GIB}) {
    void *p = F(malloc)(size);
    ASSERT_NE(p, nullptr) << size;
    EXPECT_TRUE(aligned(p, 4096));
    EXPECT_GE(F(malloc_usable_size)(p), size);
    bytes(p)[0] = bytes(p)[size / 2] = bytes(p)[size - 1] = 1;
    F(free)(p);
  }
}

TEST_F(Api, SizeZeroIsAPointerOfItsOwn) {
  void *p = F(malloc)(0), *q = F(malloc)(0), *r = F(calloc)(0, 5), *s = F(calloc)(5, 0), *t = F(realloc)(nullptr, 0);
  std::set<void *> all = {p, q, r, s, t};
  EXPECT_EQ(all.size(), 5u);
  EXPECT_EQ(all.count(nullptr), 0u);
  for (void *x : all) F(free)(x);
}

TEST_F(Api, TooLargeIsEnomem) {
  for (size_t size : {size_t(PTRDIFF_MAX) - 65536, size_t(PTRDIFF_MAX), size_t(PTRDIFF_MAX) + 1, SIZE_MAX - 4096, SIZE_MAX - 15, SIZE_MAX}) {
    size = opaque(size);
#define EXPECT_ENOMEM(call)       \
  errno = MARK;                   \
  EXPECT_EQ(call, nullptr) << size; \
  EXPECT_EQ(errno, ENOMEM) << #call
    EXPECT_ENOMEM(F(malloc)(size));
    EXPECT_ENOMEM(F(calloc)(1, size));
    EXPECT_ENOMEM(F(calloc)(size, 1));
    EXPECT_ENOMEM(F(realloc)(nullptr, size));
    EXPECT_ENOMEM(F(reallocarray)(nullptr, size, 1));
    EXPECT_ENOMEM(F(aligned_alloc)(16, size));
    EXPECT_ENOMEM(F(aligned_alloc)(64, size));
    EXPECT_ENOMEM(F(aligned_alloc)(4096, size));
    EXPECT_ENOMEM(F(aligned_alloc)(GIB, size));
    EXPECT_ENOMEM(F(memalign)(64, size));
    EXPECT_ENOMEM(F(valloc)(size));
    EXPECT_ENOMEM(F(pvalloc)(size));
    void *block = F(malloc)(16);
    EXPECT_ENOMEM(F(realloc)(block, size));
    EXPECT_ENOMEM(F(reallocarray)(block, 1, size));
    F(free)(block);
    void *out = &size;
    errno = MARK;
    EXPECT_EQ(F(posix_memalign)(&out, 64, size), ENOMEM);
    EXPECT_EQ(out, &size) << "left alone on failure";
    EXPECT_EQ(errno, MARK) << "the error is the result, not errno";
  }
}

TEST_F(Api, ProductsThatOverflow) {
  for (auto [a, b] : {std::pair<size_t, size_t>{SIZE_MAX, 2}, {2, SIZE_MAX}, {SIZE_MAX / 2 + 1, 2}, {size_t(1) << 32, size_t(1) << 32},
                      {SIZE_MAX / 16 + 2, 16}}) {
    a = opaque(a);
    errno = MARK;
    EXPECT_EQ(F(calloc)(a, b), nullptr);
    EXPECT_EQ(errno, ENOMEM);
    void *p = F(malloc)(10);
    errno = MARK;
    EXPECT_EQ(F(reallocarray)(p, a, b), nullptr);
    EXPECT_EQ(errno, ENOMEM);
    EXPECT_GE(F(malloc_usable_size)(p), 10u) << "the old block is still there";
    F(free)(p);
  }
}

TEST_F(Api, CallocZeroesWhatWasDirty) {
  std::vector<size_t> sizes = interesting_sizes();
  sizes.insert(sizes.end(), std::begin(OWNERS), std::end(OWNERS));
  for (size_t size : sizes) {
    for (int round = 0; round < 2; round++) {
      void *dirty = F(malloc)(size);
      ASSERT_NE(dirty, nullptr);
      memset(dirty, 0xff, F(malloc_usable_size)(dirty));
      F(free)(dirty);
      void *p = F(calloc)(round == 0 ? 1 : size, round == 0 ? size : 1);
      ASSERT_NE(p, nullptr);
      ASSERT_EQ(first_that_is_not_zero(p, size), size);
      memset(p, 0xff, size);
      F(free)(p);
    }
  }
}

TEST_F(Api, CallocAfterTrimIsZero) {
  std::vector<void *> blocks;
  for (int i = 0; i < 20; i++) {
    blocks.push_back(F(malloc)(MIB));
    memset(blocks.back(), 0xff, MIB);
  }
  for (void *p : blocks) F(free)(p);
  F(malloc_trim)(0);
  for (void *&p : blocks) {
    p = F(calloc)(1, MIB);
    for (size_t i = 0; i < MIB; i += 64) ASSERT_EQ(bytes(p)[i], 0);
  }
  for (void *p : blocks) F(free)(p);
}

TEST_F(Api, ReallocMatrix) {
  const size_t sizes[] = {1,        15,        16,       17,        100,          128,     129,     1000,         1024,       1025,
                          4096,     5000,      SMALL_MAX, SMALL_MAX + 1, 64 * KIB, 64 * KIB + 1, 200000, MIB, 4 * MIB, 16 * MIB,
                          RUN_MAX - 1, RUN_MAX, RUN_MAX + 1, 40 * MIB};
  for (size_t from : sizes) {
    for (size_t to : sizes) {
      void *p = F(malloc)(from);
      ASSERT_NE(p, nullptr);
      fill(p, from, from + to);
      void *q = F(realloc)(p, to);
      ASSERT_NE(q, nullptr) << from << " to " << to;
      ASSERT_GE(F(malloc_usable_size)(q), to) << from << " to " << to;
      ASSERT_TRUE(holds(q, from, to, from + to)) << from << " to " << to;
      fill(q, to, to);
      // And back again.
      void *r = F(realloc)(q, from);
      ASSERT_NE(r, nullptr);
      ASSERT_GE(F(malloc_usable_size)(r), from);
      ASSERT_TRUE(holds(r, to, from, to)) << from << " to " << to << " and back";
      F(free)(r);
    }
  }
  EXPECT_EQ(errno, MARK);
}

TEST_F(Api, ReallocGrowingStepByStepKeepsAllBytes) {
  size_t size = 1;
  auto *p = bytes(F(malloc)(size));
  p[0] = 0;
  while (size < 3 * MIB) {
    size_t bigger = size + size / 3 + 1;
    p = bytes(F(realloc)(p, bigger));
    ASSERT_NE(p, nullptr);
    for (size_t i = size; i < bigger; i++) p[i] = static_cast<unsigned char>(i * 31 >> 3);
    for (size_t i = 0; i < bigger; i += 1 + i / 64) ASSERT_EQ(p[i], static_cast<unsigned char>(i * 31 >> 3)) << i << " of " << bigger;
    size = bigger;
  }
  F(free)(p);
}

TEST_F(Api, ReallocShrinkGivesMemoryBack) {
  // Most of a block that shrank can be used by others: 64 blocks of 1 MiB shrunk to 1 byte are no 64 MiB.
  std::vector<void *> blocks;
  for (int i = 0; i < 64; i++) {
    blocks.push_back(F(malloc)(MIB));
    memset(blocks.back(), 1, MIB);
  }
  for (void *&p : blocks) p = F(realloc)(p, 1);
  F(malloc_trim)(0);
  EXPECT_LT(F(mallinfo2)().uordblks, 16 * MIB);
  for (void *p : blocks) F(free)(p);
}

TEST_F(Api, ReallocToZeroFreesAndGivesNull) {
  for (size_t size : OWNERS) {
    void *p = F(malloc)(size);
    errno = MARK;
    EXPECT_EQ(F(realloc)(p, 0), nullptr) << size;
    EXPECT_EQ(errno, MARK) << "not an error";
    void *again = F(malloc)(size);
    if (!HAKMEM_TEST_HARDENED && size <= SMALL_MAX) EXPECT_EQ(again, p) << "freed, and reused at once: " << size;
    F(free)(again);
  }
}

TEST_F(Api, ReallocToZeroFreesLargeBlocks) {
  auto live = [] {
    hakmem_stats s;
    EXPECT_EQ(hakmem_stats_get(&s, sizeof s), 0);
    return s.extents + s.huge_live;
  };
  F(free)(F(malloc)(1));
  for (size_t size : {300 * KIB, 5 * MIB, RUN_MAX, 40 * MIB}) {
    uint64_t before = live();
    void *p = F(malloc)(size);
    EXPECT_GE(live(), before + size);
    EXPECT_EQ(F(realloc)(p, 0), nullptr);
    EXPECT_EQ(live(), before) << size;
  }
}

// Advice on some of a mapping's pages, as numpy gives it, makes two mappings of it: the kernel does not move those together.
TEST_F(Api, ReallocOfAHugeBlockWhosePagesDiffer) {
  for (int part = 0; part < 2; part++) {
    size_t size = 40 * MIB, page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    unsigned char *p = bytes(F(malloc)(size));
    ASSERT_NE(p, nullptr);
    p[0] = 1;
    p[size - 1] = 2;
    uintptr_t at = reinterpret_cast<uintptr_t>(p) / page * page + (part == 0 ? page : size / 2 / page * page);
    ASSERT_EQ(madvise(reinterpret_cast<void *>(at), 4 * page, MADV_DONTFORK), 0);
    unsigned char *q = bytes(F(realloc)(p, 2 * size));
    ASSERT_NE(q, nullptr) << "there is memory";
    EXPECT_EQ(q[0], 1);
    EXPECT_EQ(q[size - 1], 2);
    q[2 * size - 1] = 3;
    F(free)(q);
  }
  EXPECT_EQ(errno, MARK);
}

TEST_F(Api, FailedReallocLeavesTheBlock) {
  for (size_t size : OWNERS) {
    void *p = F(malloc)(size);
    fill(p, size, size);
    for (size_t too_much : {size_t(PTRDIFF_MAX) - 4096, size_t(PTRDIFF_MAX) + 1, SIZE_MAX}) {
      errno = MARK;
      EXPECT_EQ(F(realloc)(p, opaque(too_much)), nullptr);
      EXPECT_EQ(errno, ENOMEM);
      EXPECT_GE(F(malloc_usable_size)(p), size);
      EXPECT_TRUE(holds(p, size, size, size));
    }
    F(free)(p);
  }
}

TEST_F(Api, ReallocarrayMultiplies) {
  void *p = F(reallocarray)(nullptr, 10, 10);
  fill(p, 100, 1);
  p = F(reallocarray)(p, 1000, 100);
  EXPECT_GE(F(malloc_usable_size)(p), 100000u);
  EXPECT_TRUE(holds(p, 100, 100, 1));
  EXPECT_EQ(F(reallocarray)(p, 0, 100), nullptr);
}

TEST_F(Api, ForeignPointersAreLeftAlone) {
  if (HAKMEM_TEST_HARDENED) GTEST_SKIP() << "they end the program: harden.HardenedBlocks.WhatIsNoBlockOfOursIsReported";
  static char in_data[64];
  char on_stack[64];
  char *mapped = static_cast<char *>(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  char *unreadable = static_cast<char *>(mmap(nullptr, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  memset(in_data, 1, 64);
  memset(on_stack, 1, 64);
  memset(mapped, 1, 4096);
  for (char *p : {in_data, on_stack + 16, mapped, mapped + 16, unreadable, reinterpret_cast<char *>(8), reinterpret_cast<char *>(-16L),
                  reinterpret_cast<char *>(0xdeadbeefdead0000)}) {
    p = opaque(p);
    errno = MARK;
    F(free)(p);
    EXPECT_EQ(F(malloc_usable_size)(p), 0u);
    EXPECT_FALSE(hakmem_is_ours(p));
    EXPECT_EQ(errno, MARK);
    EXPECT_EQ(F(realloc)(p, 100), nullptr);
    EXPECT_EQ(errno, EINVAL);
    errno = MARK;
    EXPECT_EQ(F(realloc)(p, 0), nullptr);
    EXPECT_EQ(errno, EINVAL);
    errno = MARK;
    EXPECT_EQ(F(reallocarray)(p, 10, 10), nullptr);
    EXPECT_EQ(errno, EINVAL);
    errno = MARK;
    F(free_sized)(p, 10);
    EXPECT_EQ(errno, MARK);
  }
  for (int i = 0; i < 64; i++) EXPECT_TRUE(in_data[i] == 1 && on_stack[i] == 1 && mapped[i] == 1);
}

TEST_F(Api, AlignedEveryPowerOfTwo) {
  for (size_t align = 1; align <= GIB; align *= 2) {
    std::vector<std::pair<unsigned char *, size_t>> live;
    for (size_t size : {size_t(0), size_t(1), size_t(15), size_t(100), align, 3 * std::min<size_t>(align, MIB), size_t(5000), size_t(40000), 2 * MIB}) {
      if (size > 64 * MIB) continue;
      auto *p = bytes(F(aligned_alloc)(align, size)), *q = bytes(F(memalign)(align, size));
      void *out = nullptr;
      int error = F(posix_memalign)(&out, std::max(align, sizeof(void *)), size);
      EXPECT_EQ(error, 0);
      for (unsigned char *block : {p, q, bytes(out)}) {
        ASSERT_NE(block, nullptr) << align << ", " << size;
        EXPECT_TRUE(aligned(block, align)) << align << ", " << size;
        size_t usable = F(malloc_usable_size)(block);
        EXPECT_GE(usable, size);
        for (auto [other, other_usable] : live)
          EXPECT_TRUE(block + std::max<size_t>(usable, 1) <= other || other + std::max<size_t>(other_usable, 1) <= block)
              << "overlap, alignment " << align << ", size " << size;
        live.emplace_back(block, usable);
        if (size > 0) {
          block[0] = block[size - 1] = 1;
          if (size <= 40000) memset(block, 0xee, size);
        }
      }
    }
    for (auto [p, usable] : live) F(free)(p);
  }
  EXPECT_EQ(errno, MARK);
}

TEST_F(Api, AlignedBlocksCanBeReallocated) {
  for (size_t align : {32, 64, 256, 4096, 65536, 1 << 20}) {
    void *p = F(aligned_alloc)(align, 1000);
    fill(p, 1000, align);
    p = F(realloc)(p, 100000);
    EXPECT_TRUE(holds(p, 1000, 1000, align));
    F(free)(p);
  }
}

TEST_F(Api, AlignedAllocRefusesOtherAlignments) {
  for (size_t align : {size_t(0), size_t(3), size_t(6), size_t(24), size_t(100), SIZE_MAX, size_t(PTRDIFF_MAX)}) {
    errno = MARK;
    EXPECT_EQ(F(aligned_alloc)(opaque(align), 100), nullptr) << align;
    EXPECT_EQ(errno, EINVAL);
  }
  for (size_t align : {size_t(1) << 62, size_t(1) << 63, size_t(1) << 48}) {
    errno = MARK;
    EXPECT_EQ(F(aligned_alloc)(opaque(align), 100), nullptr) << align;
    EXPECT_EQ(errno, ENOMEM);
  }
}

TEST_F(Api, PosixMemalignRefusesOtherAlignments) {
  void *mark = &mark, *out = mark;
  for (size_t align : {size_t(0), size_t(1), size_t(2), size_t(4), size_t(3), size_t(12), size_t(24), SIZE_MAX}) {
    EXPECT_EQ(F(posix_memalign)(&out, opaque(align), 100), EINVAL) << align;
    EXPECT_EQ(out, mark);
  }
  EXPECT_EQ(errno, MARK);
}

TEST_F(Api, MemalignRoundsTheAlignmentUp) {
  for (auto [asked, given] : {std::pair<size_t, size_t>{0, 16}, {1, 16}, {3, 16}, {17, 32}, {48, 64}, {100, 128}, {4097, 8192}, {70000, 131072}}) {
    void *p = F(memalign)(asked, 50);
    ASSERT_NE(p, nullptr);
    EXPECT_TRUE(aligned(p, given)) << asked;
    F(free)(p);
  }
  for (size_t none : {SIZE_MAX, (size_t(1) << 63) + 1}) {
    errno = MARK;
    EXPECT_EQ(F(memalign)(opaque(none), 50), nullptr);
    EXPECT_EQ(errno, EINVAL) << "no power of two is as large";
  }
}

// As glibc's own tests have it (malloc/tst-malloc-too-large.c): every power of two is an alignment.
TEST_F(Api, TooLargeAtAnyAlignmentIsEnomem) {
  for (size_t size : {size_t(1) << 50, (size_t(1) << 51) - 1, size_t(PTRDIFF_MAX) + 1, size_t(0) - 4096, SIZE_MAX}) {
    size = opaque(size);
    for (size_t align = 1; align != 0; align <<= 1) {
      void *mark = &mark, *out = mark;
      errno = MARK;
      EXPECT_EQ(F(memalign)(align, size), nullptr) << align;
      EXPECT_EQ(errno, ENOMEM) << align << ", " << size;
      errno = MARK;
      EXPECT_EQ(F(aligned_alloc)(align, size), nullptr) << align;
      EXPECT_EQ(errno, ENOMEM) << align << ", " << size;
      if (align >= sizeof(void *)) {
        EXPECT_EQ(F(posix_memalign)(&out, align, size), ENOMEM) << align << ", " << size;
      }
      EXPECT_EQ(out, mark);
    }
  }
  for (size_t align : {size_t(1) << 62, (size_t(1) << 62) + 1, size_t(1) << 63}) {
    errno = MARK;
    EXPECT_EQ(F(memalign)(opaque(align), 8), nullptr);
    EXPECT_EQ(errno, ENOMEM) << align;
  }
}

TEST_F(Api, PageAligned) {
  for (size_t size : {0, 1, 4095, 4096, 4097, 100000}) {
    void *p = F(valloc)(size), *q = F(pvalloc)(size);
    EXPECT_TRUE(aligned(p, 4096) && aligned(q, 4096));
    EXPECT_GE(F(malloc_usable_size)(p), size);
    EXPECT_GE(F(malloc_usable_size)(q), (std::max<size_t>(size, 1) + 4095) / 4096 * 4096) << "whole pages";
    F(free)(p);
    F(free)(q);
  }
}

TEST_F(Api, FreeKeepsErrno) {
  F(free)(nullptr);
  EXPECT_EQ(errno, MARK);
  for (size_t size : OWNERS) {
    // Enough of them that flushes, releases to the system and unmapping all happen.
    std::vector<void *> blocks;
    size_t n = size < SMALL_MAX ? 3000 : size < MIB ? 1000 : 30;
    for (size_t i = 0; i < n; i++) {
      blocks.push_back(F(malloc)(size));
      ASSERT_NE(blocks.back(), nullptr);
      bytes(blocks.back())[0] = 1;
    }
    errno = MARK;
    for (void *p : blocks) {
      F(free)(p);
      ASSERT_EQ(errno, MARK) << size;
    }
  }
}

TEST_F(Api, UsableBytesAreOnesOwn) {
  for (size_t size : {1, 24, 100, 700, 3000, 20000, 40000, 100000}) {
    std::vector<unsigned char *> blocks;
    for (size_t i = 0; i < 200; i++) {
      blocks.push_back(bytes(F(malloc)(size)));
      memset(blocks[i], int(i), F(malloc_usable_size)(blocks[i]));
    }
    for (size_t i = 0; i < 200; i++) {
      size_t usable = F(malloc_usable_size)(blocks[i]);
      ASSERT_TRUE(blocks[i][0] == i && blocks[i][usable / 2] == i && blocks[i][usable - 1] == i);
      F(free)(blocks[i]);
    }
  }
  EXPECT_EQ(F(malloc_usable_size)(nullptr), 0u);
}

TEST_F(Api, FreeSizedTakesTheRightSize) {
  F(free_sized)(nullptr, 0);
  F(free_aligned_sized)(nullptr, 64, 0);
  for (size_t size : OWNERS) {
    F(free_sized)(F(malloc)(size), size);
    F(free_sized)(F(calloc)(1, size), size);
    F(free_sized)(F(realloc)(F(malloc)(10), size), size);
    F(free_aligned_sized)(F(aligned_alloc)(256, size), 256, size);
  }
}

TEST_F(Api, FreeSizedSeesOneTooLarge) {
  testing::KilledBySignal aborted(SIGABRT);
  EXPECT_EXIT(F(free_sized)(F(malloc)(100), opaque(size_t(113))), aborted,
              HAKMEM_TEST_HARDENED ? "hakmem: sized free: .*class 100" : "hakmem: sized free: .*class 112");
  EXPECT_EXIT(F(free_aligned_sized)(F(aligned_alloc)(64, 100), 64, opaque(size_t(1000))), aborted, "hakmem: sized free: ");
}

TEST_F(Api, FreeSizedSeesOneTooLargeForRunsAndHugeBlocks) {
  testing::KilledBySignal aborted(SIGABRT);
  EXPECT_EXIT(
      {
        F(free_sized)(F(malloc)(100000), opaque(size_t(200000)));
        _exit(0);
      },
      aborted, "hakmem: sized free: ");
  EXPECT_EXIT(
      {
        F(free_sized)(F(malloc)(40 * MIB), opaque(80 * MIB));
        _exit(0);
      },
      aborted, "hakmem: sized free: ");
}

TEST_F(Api, Mallopt) {
  for (int param : {M_MXFAST, M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD, M_MMAP_MAX, M_CHECK_ACTION, M_PERTURB, M_ARENA_TEST, M_ARENA_MAX})
    EXPECT_EQ(F(mallopt)(param, 1), 1) << param;
  EXPECT_EQ(F(mallopt)(12345, 1), 0);
  EXPECT_EQ(errno, MARK);
}

TEST_F(Api, MallinfoFollowsTheProgram) {
  F(free)(F(malloc)(1));
  struct mallinfo2 before = F(mallinfo2)();
  std::vector<void *> blocks;
  for (int i = 0; i < 10000; i++) blocks.push_back(F(malloc)(1000));
  void *huge = F(malloc)(3 * GIB);
  struct mallinfo2 after = F(mallinfo2)();
  EXPECT_EQ(after.hblks, before.hblks + 1);
  EXPECT_EQ(after.hblkhd, before.hblkhd + 3 * GIB + HAKMEM_TEST_HARDENED * 4096);  // a page for the trailer
  EXPECT_GE(after.uordblks, before.uordblks + 10000 * 1000);
  EXPECT_LT(after.uordblks, before.uordblks + 3 * GIB) << "which hblkhd has alone";
  EXPECT_EQ(after.arena, after.uordblks + after.fordblks);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
  struct mallinfo old = F(mallinfo)();
#pragma GCC diagnostic pop
  EXPECT_EQ(old.hblkhd, INT_MAX) << "saturated";
  EXPECT_EQ(old.hblks, int(after.hblks));
  for (void *p : blocks) F(free)(p);
  F(free)(huge);
  struct mallinfo2 end = F(mallinfo2)();
  EXPECT_LT(end.uordblks, before.uordblks + 4 * MIB);
  EXPECT_GT(end.fordblks, before.fordblks);
}

TEST_F(Api, MallocInfoIsXml) {
  char path[] = "/tmp/hakmem-info-XXXXXX";
  int fd = mkstemp(path);
  FILE *f = fdopen(fd, "w");
  void *p = F(malloc)(100);
  EXPECT_EQ(F(malloc_info)(0, f), 0);
  F(free)(p);
  fclose(f);
  ProgramResult r = run_program({"python3", "-c",
                                 "import sys, xml.etree.ElementTree as x\n"
                                 "r = x.parse(sys.argv[1]).getroot()\n"
                                 "print(r.tag, r.get('version'), int(r.find('.//system').get('size')) > 0)",
                                 path});
  unlink(path);
  EXPECT_EQ(r.out, "malloc hakmem-" HAKMEM_VERSION_STRING " True\n") << r.err;
  EXPECT_EQ(F(malloc_info)(1, stdout), EINVAL);
  FILE *full = fopen("/dev/full", "w");
  setvbuf(full, nullptr, _IONBF, 0);
  EXPECT_EQ(F(malloc_info)(0, full), -1);
  fclose(full);
}

TEST_F(Api, MallocStatsGoesToStderr) {
  testing::internal::CaptureStderr();
  F(malloc_stats)();
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("hakmem " HAKMEM_VERSION_STRING));
}

TEST_F(Api, TrimReturnsMemory) {
  constexpr size_t N = 100000;  // 100 MB of small blocks, 100 MB of runs
  std::vector<void *> blocks(N);
  for (void *&p : blocks) {
    p = F(malloc)(1000);
    memset(p, 1, 1000);
  }
  std::vector<void *> runs(100);
  for (void *&p : runs) {
    p = F(malloc)(MIB);
    memset(p, 1, MIB);
  }
  size_t full = resident_bytes();
  for (void *p : blocks) F(free)(p);
  for (void *p : runs) F(free)(p);
  F(malloc_trim)(0);
  size_t trimmed = resident_bytes();
  EXPECT_LT(trimmed + 180 * MIB, full);
  void *p = F(malloc)(200 * KIB);
  memset(p, 1, 200 * KIB);
  F(free)(p);
  EXPECT_EQ(F(malloc_trim)(0), 1) << "something was given back";
  EXPECT_EQ(F(malloc_trim)(0), 0) << "nothing is left to give";
}

TEST_F(Api, GoodSizeIsWhatOneGets) {
  for (size_t size : interesting_sizes()) {
    size_t good = hakmem_good_size(size);
    EXPECT_GE(good, size);
    void *p = F(malloc)(size);
    EXPECT_EQ(F(malloc_usable_size)(p), good) << size;
    F(free)(p);
    EXPECT_EQ(hakmem_good_size(good), good);
  }
  for (size_t size : {RUN_MAX, RUN_MAX + 1, 100 * MIB + 5}) {
    void *p = F(malloc)(size);
    EXPECT_EQ(F(malloc_usable_size)(p), hakmem_good_size(size)) << size;
  }
  EXPECT_EQ(hakmem_good_size(SIZE_MAX), 0u);
  EXPECT_EQ(hakmem_good_size(size_t(PTRDIFF_MAX) + 1), 0u);
  EXPECT_EQ(hakmem_good_size(PTRDIFF_MAX), 0u);
}

// A mapping that realloc grew has the pages that were asked for, and serves other requests once it is freed.
TEST_F(Api, KeptMappingsHaveTheGoodSize) {
  for (size_t grown : {2180366, 5000001, 30000000}) {
    for (size_t less = 0; less < 70000; less += 4096) {
      void *grows = F(malloc)(190000), *behind = F(malloc)(190000); /* no room to grow in place */
      F(free)(F(realloc)(grows, grown));
      F(free)(behind);
      size_t size = (grown + 4095) / 4096 * 4096 - less;
      void *p = F(malloc)(size);
      ASSERT_GE(F(malloc_usable_size)(p), hakmem_good_size(size)) << size << " after one grown to " << grown;
      p = F(realloc)(p, size + 4096);
      ASSERT_GE(F(malloc_usable_size)(p), hakmem_good_size(size + 4096)) << size;
      memset(p, 1, hakmem_good_size(size + 4096));
      F(free)(p);
    }
  }
}

TEST_F(Api, BlocksOfADefaultHeapHaveTheGoodSize) {
  hakmem_heap *heap = hakmem_heap_new(nullptr), *before = hakmem_heap_set_default(heap);
  size_t size = 1, usable = 0, good = 0;
  for (; size < 200000 && usable >= good; size = size * 21 / 20 + 1) {
    void *p = F(malloc)(size);
    p = F(realloc)(p, size + size / 3);
    usable = F(malloc_usable_size)(p), good = hakmem_good_size(size + size / 3);
    F(free)(p);
  }
  hakmem_heap_set_default(before);
  hakmem_heap_destroy(heap);
  EXPECT_GE(usable, good) << size;
}

TEST_F(Api, AllocAtLeastTellsTheSize) {
  for (size_t size : OWNERS) {
    size_t actual = 0;
    void *p = hakmem_alloc_at_least(size, &actual);
    ASSERT_NE(p, nullptr);
    EXPECT_GE(actual, size);
    EXPECT_EQ(actual, F(malloc_usable_size)(p));
    bytes(p)[actual - 1] = 1;
    F(free)(p);
  }
  size_t actual = 5;
  EXPECT_EQ(hakmem_alloc_at_least(SIZE_MAX, &actual), nullptr);
  EXPECT_EQ(actual, 0u);
  EXPECT_EQ(errno, ENOMEM);
}

TEST_F(Api, IsOursFromStartToEnd) {
  EXPECT_FALSE(hakmem_is_ours(nullptr));
  for (size_t size : {size_t(100), SMALL_MAX, size_t(100000), 5 * MIB}) {
    auto *p = bytes(F(malloc)(size));
    EXPECT_TRUE(hakmem_is_ours(p));
    EXPECT_TRUE(hakmem_is_ours(p + size - 1));
    F(free)(p);
  }
  void *run = F(malloc)(5 * MIB);
  F(free)(run);
  EXPECT_FALSE(hakmem_is_ours(run)) << "freed";
}

TEST_F(Api, IsOursTellsNothingOfWhatIsFreed) {
  void *kept = F(malloc)(100), *freed = F(malloc)(100);
  F(free)(freed);
  EXPECT_TRUE(hakmem_is_ours(freed)) << "its slab has another block, and stays";
  F(free)(kept);
}

TEST_F(Api, IsOursOfOthersMemory) {
  static int in_static;
  int on_stack = 0;
  void *mapped = mmap(nullptr, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(mapped, MAP_FAILED);
  F(free)(F(malloc)(1));
  for (const void *p : {static_cast<const void *>(&in_static), static_cast<const void *>(&on_stack), static_cast<const void *>(mapped),
                        reinterpret_cast<const void *>(UINTPTR_MAX), reinterpret_cast<const void *>(1)})
    EXPECT_FALSE(hakmem_is_ours(p)) << p;
  munmap(mapped, 4096);
}

TEST_F(Api, IsOursInsideHugeBlocks) {
  auto *p = bytes(F(malloc)(40 * MIB));
  EXPECT_TRUE(hakmem_is_ours(p));
  EXPECT_TRUE(hakmem_is_ours(p + 1));
  EXPECT_TRUE(hakmem_is_ours(p + 40 * MIB - 1));
  F(free)(p);
  EXPECT_FALSE(hakmem_is_ours(p));
}

TEST_F(Api, Version) {
  char text[32];
  snprintf(text, sizeof text, "%d.%d.%d", HAKMEM_VERSION_MAJOR, HAKMEM_VERSION_MINOR, HAKMEM_VERSION_PATCH);
  EXPECT_STREQ(hakmem_version(), text);
  EXPECT_STREQ(hakmem_version(), HAKMEM_VERSION_STRING);
}

TEST_F(Api, ServedCountsUp) {
  uint64_t before = hakmem_served();
  F(free)(F(malloc)(100000));
  EXPECT_EQ(hakmem_served(), before + 1);
}

TEST_F(Api, Options) {
  int64_t value = -1;
  EXPECT_EQ(hakmem_option_get("HAKMEM_TINY_MAX_CLASS", &value), 0);
  EXPECT_EQ(value, 7);
  F(free)(F(malloc)(1));
  EXPECT_EQ(hakmem_option_set("HAKMEM_TINY_MAX_CLASS", 8), EBUSY);
  EXPECT_EQ(hakmem_option_set("HAKMEM_TINY_MAX_CLASS", 80), EINVAL);
  EXPECT_EQ(hakmem_option_set("HAKMEM_EXTERNAL_GUARD_STATS", 1), 0);
  EXPECT_EQ(hakmem_option_set("HAKMEM_EXTERNAL_GUARD_STATS", 0), 0);
  EXPECT_EQ(hakmem_option_set("HAKMEM_NOTHING", 0), EINVAL);
  EXPECT_EQ(hakmem_option_get("HAKMEM_NOTHING", &value), EINVAL);
  EXPECT_EQ(errno, MARK);
}

TEST_F(Api, OptionsGoWithoutThePrefix) {
  int64_t value = -1;
  EXPECT_EQ(hakmem_option_set("EXTERNAL_GUARD_STATS", 1), 0);
  EXPECT_EQ(hakmem_option_get("HAKMEM_EXTERNAL_GUARD_STATS", &value), 0);
  EXPECT_EQ(value, 1);
  EXPECT_EQ(hakmem_option_set("HAKMEM_EXTERNAL_GUARD_STATS", 0), 0);
  EXPECT_EQ(hakmem_option_get("EXTERNAL_GUARD_STATS", &value), 0);
  EXPECT_EQ(value, 0);
  EXPECT_EQ(hakmem_option_get("TINY_HOT_RING_C3", &value), 0) << "one for each class group";
  for (const char *name : {"", "HAKMEM_", "_PROFILE", "HAKMEM_HAKMEM_PROFILE", "profile", "PROFIL", "PROFILE="})
    EXPECT_EQ(hakmem_option_get(name, &value), EINVAL) << name;
  EXPECT_EQ(hakmem_option_get(nullptr, &value), EINVAL);
  EXPECT_EQ(hakmem_option_get("PROFILE", nullptr), EINVAL);
}

// What is listed is what get tells; the callback may allocate.
TEST_F(Api, OptionsAreListed) {
  std::set<std::string> names;
  auto visit = [](const hakmem_option *option, void *context) {
    EXPECT_TRUE(static_cast<std::set<std::string> *>(context)->insert(option->name).second) << option->name;
    F(free)(F(malloc)(100));
    int64_t value = -1;
    EXPECT_EQ(hakmem_option_get(option->name, &value), option->text ? EINVAL : 0) << option->name;
    if (!option->text) EXPECT_EQ(value, option->number) << option->name;
    EXPECT_GT(strlen(option->meaning), 10u) << option->name;
    if (option->origin == HAKMEM_ORIGIN_DEFAULT) EXPECT_STREQ(option->value, option->initial) << option->name;
    return true;
  };
  size_t count = hakmem_option_list(visit, &names);
  EXPECT_EQ(count, names.size());
  EXPECT_EQ(count, hakmem_option_list(nullptr, nullptr));
  for (const char *name : {"HAKMEM_PROFILE", "HAKMEM_TINY_HOT_RING_C12", "HAKMEM_HEAP_PROFILE_PREFIX"})
    EXPECT_EQ(names.count(name), 1u) << name;
  EXPECT_EQ(names.count("HAKMEM_TINY_HOT_RING_C"), 0u);
  auto first = [](const hakmem_option *, void *) { return false; };
  EXPECT_EQ(hakmem_option_list(first, nullptr), 1u);
}

TEST_F(Api, OptionsTellWhoSetThem) {
  auto origin = [](const char *name) {
    std::pair<const char *, int> wanted{name, -1};
    auto visit = [](const hakmem_option *option, void *context) {
      auto *w = static_cast<std::pair<const char *, int> *>(context);
      if (strcmp(option->name, w->first) == 0) w->second = option->origin;
      return true;
    };
    hakmem_option_list(visit, &wanted);
    return wanted.second;
  };
  EXPECT_EQ(origin("HAKMEM_LIMIT"), HAKMEM_ORIGIN_DEFAULT);
  EXPECT_EQ(hakmem_option_set("LIMIT", int64_t{1} << 50), 0);
  EXPECT_EQ(origin("HAKMEM_LIMIT"), HAKMEM_ORIGIN_API);
  EXPECT_EQ(hakmem_option_set("LIMIT", -7), EINVAL);
  EXPECT_EQ(hakmem_option_set("LIMIT", 0), 0);
  EXPECT_EQ(origin("HAKMEM_LIMIT"), HAKMEM_ORIGIN_API) << "the program's, though the default's value";
  F(free)(F(malloc)(1));
  EXPECT_EQ(hakmem_option_set("TINY_MAX_CLASS", 8), EBUSY);
  EXPECT_EQ(origin("HAKMEM_TINY_MAX_CLASS"), HAKMEM_ORIGIN_DEFAULT);
}

TEST_F(Api, BlocksOfBothFamiliesMix) {
  void *p = hakmem_malloc(100);
  p = F(realloc)(p, 5000);
  F(free)(p);
  p = F(malloc)(100);
  p = hakmem_realloc(p, 50 * MIB);
  hakmem_free(p);
}

// Out of memory is NULL with ENOMEM, and works again after frees.
TEST_F(Api, OutOfMemoryAndBack) {
  if (HAKMEM_TEST_SANITIZED) GTEST_SKIP() << "a sanitizer does not live under RLIMIT_AS";
  for (size_t size : {40 * MIB, size_t(200000), size_t(1000), size_t(20000)}) {
    F(free)(F(malloc)(size));
    FILE *f = fopen("/proc/self/statm", "r");
    unsigned long pages = 0;
    ASSERT_EQ(fscanf(f, "%lu", &pages), 1);
    fclose(f);
    struct rlimit old, limit;
    getrlimit(RLIMIT_AS, &old);
    limit = old;
    limit.rlim_cur = pages * 4096 + 300 * MIB;
    ASSERT_EQ(setrlimit(RLIMIT_AS, &limit), 0);
    // Address space inside the reservation is ours already: a limit on data pages stands in for overcommit there.
    struct rlimit old_data, data;
    getrlimit(RLIMIT_DATA, &old_data);
    data = old_data;
    data.rlim_cur = 400 * MIB;
    ASSERT_EQ(setrlimit(RLIMIT_DATA, &data), 0);
    void **list = nullptr;
    size_t n = 0;
    for (;;) {
      errno = MARK;
      void **p = static_cast<void **>(F(malloc)(size));
      if (p == nullptr) break;
      *p = list;
      list = p;
      n++;
      ASSERT_LT(n * size, 2 * GIB) << "the limit does not limit";
    }
    EXPECT_EQ(errno, ENOMEM);
    EXPECT_GT(n * size, 50 * MIB);
    size_t some = n / 2;
    for (size_t i = 0; i < some; i++) {
      void **next = static_cast<void **>(*list);
      F(free)(list);
      list = next;
    }
    for (size_t i = 0; i + 1 < some; i++) {
      void **p = static_cast<void **>(F(malloc)(size));
      ASSERT_NE(p, nullptr) << i << " of " << some << " blocks of " << size;
      *p = list;
      list = p;
    }
    while (list != nullptr) {
      void **next = static_cast<void **>(*list);
      F(free)(list);
      list = next;
    }
    setrlimit(RLIMIT_AS, &old);
    setrlimit(RLIMIT_DATA, &old_data);
    F(malloc_trim)(0);
  }
}

}  // namespace
