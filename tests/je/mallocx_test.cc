// mallocx and its kin: sizes, alignment, zeros, caches and resizing.
#include "hakmem/hakmem.h"
#include "je.h"

#include <fstream>

namespace {

constexpr size_t kExtentMost = size_t{32} << 20;

std::vector<size_t> sizes() {
  std::vector<size_t> all;
  for (size_t s = 1; s < (size_t{100} << 20); s = s * 7 / 4 + 1) all.push_back(s);
  return all;
}

TEST(Mallocx, SizesAreThoseThatNallocxSays) {
  for (size_t size : sizes()) {
    for (int lg = 0; lg <= 16; lg++) {
      int flags = lg_align(lg);
      void *p = mallocx(size, flags);
      ASSERT_NE(p, nullptr) << size;
      EXPECT_EQ(reinterpret_cast<uintptr_t>(p) % (size_t{1} << lg), 0u);
      EXPECT_GE(sallocx(p, 0), nallocx(size, flags)) << size << " aligned to 1 << " << lg;
      if (size <= kExtentMost) EXPECT_EQ(sallocx(p, 0), nallocx(size, flags)) << size << " aligned to 1 << " << lg; /* a mapping may be one that was kept */
      EXPECT_EQ(sallocx(p, 0), malloc_usable_size(p));
      EXPECT_GE(sallocx(p, 0), size);
      sdallocx(p, size, flags);
    }
  }
}

TEST(Mallocx, RequestsBeyondAllSizesAreRefused) {
  EXPECT_EQ(mallocx(SIZE_MAX, 0), nullptr);
  EXPECT_EQ(mallocx(size_t{PTRDIFF_MAX} + 1, kZero), nullptr);
  EXPECT_EQ(mallocx(1, lg_align(62)), nullptr);
  EXPECT_EQ(nallocx(SIZE_MAX, 0), 0u);
  EXPECT_EQ(nallocx(1, lg_align(63)), 0u);
}

TEST(Mallocx, ZeroFlagClearsUsedMemory) {
  for (size_t size : {1, 48, 100, 5000, 40000, 300000, 3000000}) {
    for (int flags : {0, lg_align(8), kNoCache}) {
      for (int round = 0; round < 3; round++) {
        void *dirty = mallocx(size, flags);
        memset(dirty, 0xa5, size);
        dallocx(dirty, flags);
        void *p = mallocx(size, flags | kZero);
        EXPECT_TRUE(is_filled(p, 0, 0, size)) << size << " " << flags;
        memset(p, 0xa5, size);
        dallocx(p, flags);
      }
    }
  }
}

TEST(Mallocx, BlocksWithoutCacheAreBlocksLikeOthers) {
  for (size_t size : sizes()) {
    void *p = mallocx(size, kNoCache), *q = malloc(size);
    EXPECT_GE(sallocx(p, 0), size);
    if (size <= kExtentMost) EXPECT_EQ(sallocx(p, 0), malloc_usable_size(q));
    memset(p, 1, size);
    free(p);
    dallocx(q, kNoCache);
  }
}

// Blocks that are freed without a cache leave their slab at once: what a program that moves blocks together goes by.
TEST(Mallocx, FreeWithoutCacheEmptiesSlabs) {
  std::vector<void *> blocks;
  for (int i = 0; i < 50000; i++) blocks.push_back(mallocx(96, 0));
  refresh();
  size_t before = get<size_t>("stats.active");
  for (void *p : blocks) dallocx(p, kNoCache);
  refresh();
  EXPECT_LT(get<size_t>("stats.active") + 4000000, before);
}

// A mapping has the pages of what it was resized to, and serves other requests once it is freed.
TEST(Mallocx, KeptMappingsAreAsLargeAsNallocxSays) {
  for (size_t grown : {1100000, 2180366, 5000001, 30000000}) {
    for (size_t more = 0; more < 70000; more += 4096) {
      void *grows = mallocx(190000, 0), *behind = mallocx(190000, 0); /* no room to grow in place */
      free(rallocx(grows, grown, 0));
      free(behind);
      size_t size = (grown + 4095) / 4096 * 4096 - more;
      void *p = mallocx(size, 0);
      ASSERT_GE(sallocx(p, 0), nallocx(size, 0)) << size << " after one grown to " << grown;
      memset(p, 1, nallocx(size, 0));
      p = rallocx(p, size + 4096, 0);
      ASSERT_GE(sallocx(p, 0), nallocx(size + 4096, 0)) << size;
      sdallocx(p, nallocx(size + 4096, 0), 0);
    }
  }
}

size_t resident() {
  size_t all = 0, pages = 0;
  std::ifstream("/proc/self/statm") >> all >> pages;
  return pages * 4096;
}

// Zeros that the system gives are not written once more.
TEST(Mallocx, ZeroedHugeBlocksAreNotTouched) {
  constexpr size_t kSize = size_t{300} << 20, kTouched = size_t{20} << 20;
  Arena a;
  for (int flags : {0, lg_align(5), lg_align(6), lg_align(12), arena_flag(0), arena_flag(0) | lg_align(6), a.flag(), a.flag() | lg_align(6), kNoCache | lg_align(6)}) {
    size_t before = resident();
    auto *p = static_cast<unsigned char *>(mallocx(kSize, flags | kZero));
    ASSERT_NE(p, nullptr);
    EXPECT_LT(resident(), before + kTouched) << flags;
    p = static_cast<unsigned char *>(rallocx(p, 2 * kSize, flags | kZero));
    EXPECT_LT(resident(), before + kTouched) << flags << ", grown";
    xallocx(p, 3 * kSize, 0, flags | kZero);
    EXPECT_LT(resident(), before + kTouched) << flags << ", grown in place";
    EXPECT_EQ(p[2 * kSize - 1], 0);
    dallocx(p, 0);
    hakmem_purge();
    auto *q = static_cast<unsigned char *>(rallocx(mallocx(2000000, flags), kSize, flags | kZero));
    EXPECT_LT(resident(), before + kTouched) << flags << ", grown from a small one";
    EXPECT_EQ(q[kSize - 1], 0);
    dallocx(q, 0);
    hakmem_purge();
  }
}

// Nor are they where a freed mapping is kept that would serve but for what is in it: its pages go.
TEST(Mallocx, ZerosInPlaceOfAKeptMappingHoldWhatIsTouched) {
  constexpr size_t kSize = size_t{100} << 20, kTouched = size_t{8} << 20;
  Arena a;
  auto look = [&](const char *how, int flags, void *(*make)(int)) {
    for (int round = 0; round < 3; round++) {
      size_t before = resident();
      auto *p = static_cast<unsigned char *>(make(flags));
      ASSERT_NE(p, nullptr);
      EXPECT_LT(resident(), before + kTouched) << how << ", " << flags << ", round " << round;
      for (size_t at = 0; at < kSize; at += kSize / 20) {
        EXPECT_EQ(p[at], 0);
        p[at] = 1;
      }
      free(p);
    }
  };
  auto zeroed = [](int flags) { return mallocx(kSize, flags | kZero); };
  auto grown = [](int flags) { return rallocx(mallocx(40000, flags | kZero), kSize, flags | kZero); };
  for (int flags : {0, lg_align(6), arena_flag(0) | lg_align(6), a.flag(), a.flag() | lg_align(6), a.flag() | kNoCache, kNoCache | lg_align(12)}) {
    look("mallocx", flags, zeroed);
    look("rallocx", flags, grown);
  }
  ASSERT_EQ(set("thread.arena", a.index), 0);
  look("calloc in the thread's arena", 0, [](int) { return calloc(kSize / 8, 8); });
  look("mallocx in the thread's arena", lg_align(12), zeroed);
  ASSERT_EQ(set("thread.arena", 0u), 0);
}

// opt.zero asks for zeros wherever there is new memory: it touches no page that the program does not.
TEST(DISABLED_Zero, TouchesNothingOfNewLargeBlocks) {
  constexpr size_t kTouched = size_t{8} << 20;
  Arena a;
  void *(*ways[])(size_t, int) = {[](size_t size, int) { return malloc(size); }, [](size_t size, int) { return aligned_alloc(4096, size); }, mallocx};
  for (size_t size : {size_t{1} << 20, size_t{20} << 20, size_t{100} << 20}) {
    for (auto *way : ways) {
      for (int flags : {lg_align(6), a.flag()}) {
        size_t before = resident();
        std::vector<void *> blocks;
        for (size_t sum = 0; sum < size_t{300} << 20; sum += size) {
          blocks.push_back(way(size, flags));
          ASSERT_TRUE(is_filled(blocks.back(), 0, size - 10, size));
        }
        EXPECT_LT(resident(), before + kTouched) << size << ", " << flags;
        for (void *p : blocks) free(p);
        act("arena.4096.purge");
      }
    }
  }
}

// As the program has not written there, ZERO at each step means that all of it is zero.
TEST(Rallocx, ZerosHoldThroughEveryGrowth) {
  unsigned id = get<unsigned>("tcache.create");
  Arena a;
  for (int flags : {0, kNoCache, cache_flag(id), a.flag(), lg_align(6)}) {
    for (size_t size = 1; size < 3000000; size = size * 5 / 4 + 1) {
      void *dirty[16];
      for (void *&p : dirty) {
        p = mallocx(size, flags);
        memset(p, 0xee, sallocx(p, 0));
      }
      for (void *p : dirty) dallocx(p, flags & 0xfffff);
      void *p = mallocx(size, flags | kZero), *q = calloc(1, size), *r = hakmem_aligned_calloc(256, 1, size);
      for (void **at : {&p, &q, &r}) {
        ASSERT_TRUE(is_filled(*at, 0, 0, sallocx(*at, 0))) << size << " " << flags;
        *at = rallocx(*at, size + 20, flags | kZero);
        *at = rallocx(*at, size * 2 + 20, flags | kZero);
        ASSERT_TRUE(is_filled(*at, 0, 0, sallocx(*at, 0))) << size << " " << flags;
        dallocx(*at, flags & 0xfffff);
      }
    }
  }
}

TEST(Rallocx, KeepsContentsAndZeroesTheRest) {
  for (size_t from : {10, 100, 2000, 30000, 100000, 400000, 3000000}) {
    for (size_t to : {20, 150, 5000, 50000, 200000, 600000, 9000000}) {
      auto *p = static_cast<unsigned char *>(mallocx(from, 0));
      size_t before = sallocx(p, 0);
      memset(p, 7, before);
      p = static_cast<unsigned char *>(rallocx(p, to, kZero));
      ASSERT_NE(p, nullptr);
      size_t after = sallocx(p, 0);
      EXPECT_GE(after, to);
      EXPECT_TRUE(is_filled(p, 7, 0, std::min(before, to)));
      EXPECT_TRUE(is_filled(p, 0, std::min(before, after), after)) << from << " to " << to;
      dallocx(p, 0);
    }
  }
}

TEST(Rallocx, AlignsAndShrinksToTheSizeThatNallocxSays) {
  for (int lg = 4; lg <= 15; lg++) {
    for (int next = 4; next <= 15; next++) {
      void *p = mallocx(1, lg_align(lg));
      for (size_t size : {32768, 3000, 100, 16}) {
        p = rallocx(p, size, lg_align(next));
        EXPECT_EQ(reinterpret_cast<uintptr_t>(p) % (size_t{1} << next), 0u);
        EXPECT_EQ(sallocx(p, 0), nallocx(size, lg_align(next))) << size << " " << lg << " " << next;
      }
      dallocx(p, 0);
    }
  }
}

TEST(Rallocx, MovesIntoAnArena) {
  Arena a;
  void *p = mallocx(100, 0);
  memset(p, 3, 100);
  p = rallocx(p, 100, a.flag());
  unsigned index = 0;
  size_t length = sizeof index;
  ASSERT_EQ(mallctl("arenas.lookup", &index, &length, &p, sizeof p), 0);
  EXPECT_EQ(index, a.index);
  EXPECT_TRUE(is_filled(p, 3, 0, 100));
  EXPECT_EQ(rallocx(p, SIZE_MAX / 4, a.flag()), nullptr);
  EXPECT_TRUE(is_filled(p, 3, 0, 100));
  dallocx(p, 0);
}

TEST(Xallocx, StaysInPlaceOrSaysTheSizeThereIs) {
  for (size_t size : sizes()) {
    auto *p = static_cast<unsigned char *>(mallocx(size, 0));
    size_t usable = sallocx(p, 0);
    memset(p, 9, size);
    EXPECT_EQ(xallocx(p, size, 0, 0), usable);
    size_t grown = xallocx(p, usable + 1, 0, kZero);
    EXPECT_EQ(grown, sallocx(p, 0));
    if (grown > usable) {
      EXPECT_TRUE(is_filled(p, 0, usable, grown)) << size;
      if (grown - usable >= 65536) EXPECT_LT(xallocx(p, size, 0, 0), grown); /* else it has the same spans, and the page of its colour */
    }
    EXPECT_TRUE(is_filled(p, 9, 0, size));
    dallocx(p, 0);
  }
}

// Whatever is a span or a page less.
TEST(Xallocx, ShrinksLargeBlocks) {
  Arena a;
  for (int flags : {0, a.flag()}) {
    for (size_t from : {130000, 200000, 300000, 1000000, 5000000, 40000000, 100000000}) {
      for (size_t to : {20000, 60000, 100000, 250000, 400000, 4000000, 30000000}) {
        if (to + 131072 > from) continue;
        auto *p = static_cast<unsigned char *>(mallocx(from, flags));
        memset(p, 9, to);
        size_t shrunk = xallocx(p, to, 0, flags);
        EXPECT_LE(shrunk, to + 2 * 65536) << from << " to " << to << ", " << flags;
        EXPECT_GE(shrunk, nallocx(to, flags));
        EXPECT_EQ(shrunk, sallocx(p, 0));
        EXPECT_TRUE(is_filled(p, 9, 0, to));
        dallocx(p, flags);
      }
    }
  }
}

// Where there is room behind it.
TEST(Xallocx, GrowsAnExtent) {
  size_t grown = 0, more = 0;
  std::vector<void *> blocks;
  for (int i = 0; i < 50; i++) {
    void *p = mallocx(1 << 20, 0);
    grown += xallocx(p, 2 << 20, 0, 0) >= size_t{2} << 20;
    more += xallocx(p, 2 << 20, SIZE_MAX - (2 << 20), 0) >= size_t{2} << 20; /* as much is not to be had, and that is no failure */
    blocks.push_back(p);
  }
  EXPECT_GT(grown, 0u);
  EXPECT_GE(more, grown);
  for (void *p : blocks) dallocx(p, 0);
}

TEST(Threads, CountWhatTheyAllocateAndFree) {
  uint64_t *allocated = get<uint64_t *>("thread.allocatedp"), *freed = get<uint64_t *>("thread.deallocatedp");
  for (size_t size : sizes()) {
    for (int flags : {0, lg_align(7), kZero, kNoCache}) {
      uint64_t a = *allocated, d = *freed;
      void *p = mallocx(size, flags);
      size_t usable = sallocx(p, 0);
      EXPECT_EQ(*allocated - a, usable);
      EXPECT_EQ(*freed, d);
      p = rallocx(p, size + 20000, 0);
      EXPECT_EQ(*allocated - a, usable + sallocx(p, 0));
      EXPECT_EQ(*freed - d, usable);
      usable += sallocx(p, 0);
      dallocx(p, flags);
      EXPECT_EQ(*freed - d, usable);
    }
  }
  EXPECT_EQ(get<uint64_t>("thread.allocated"), *allocated);
  EXPECT_EQ(get<uint64_t>("thread.deallocated"), *freed);
}

// Of the core's own interface, which is in this library too.
TEST(Threads, CountAlignedBlocksOfZeros) {
  uint64_t *allocated = get<uint64_t *>("thread.allocatedp"), *freed = get<uint64_t *>("thread.deallocatedp");
  for (size_t size : sizes()) {
    uint64_t a = *allocated, d = *freed;
    void *p = hakmem_aligned_calloc(128, 1, size);
    EXPECT_EQ(*allocated - a, sallocx(p, 0)) << size;
    dallocx(p, 0);
    EXPECT_EQ(*freed - d, *allocated - a) << size;
  }
}

TEST(Threads, AreCalledAsTheyAllocateAndFree) {
  struct Seen { uint64_t allocated, freed; int calls; } seen = {};
  struct Activity { void (*callback)(void *, uint64_t, uint64_t); void *context; } was = {nullptr, &seen}, is = {
      [](void *context, uint64_t a, uint64_t f) { *static_cast<Seen *>(context) = {a, f, static_cast<Seen *>(context)->calls + 1}; }, &seen};
  size_t bytes = sizeof was;
  ASSERT_EQ(mallctl("experimental.thread.activity_callback", &was, &bytes, &is, sizeof is), 0);
  EXPECT_EQ(was.callback, nullptr);
  uint64_t *allocated = get<uint64_t *>("thread.allocatedp"), *freed = get<uint64_t *>("thread.deallocatedp");
  void *p = malloc(1000000);
  EXPECT_EQ(seen.allocated, *allocated);
  free(p);
  EXPECT_EQ(seen.freed, *freed);
  EXPECT_EQ(seen.calls, 2);
  for (int i = 0; i < 1000; i++) free(malloc(1000));
  EXPECT_NEAR(seen.calls, 2 + 2 * 1000 * 1024 / 65536, 4);
  Activity none = {};
  ASSERT_EQ(mallctl("experimental.thread.activity_callback", &is, &bytes, &none, sizeof none), 0);
  EXPECT_EQ(is.context, &seen);
  int calls = seen.calls;
  free(malloc(1000000));
  EXPECT_EQ(seen.calls, calls);
}

TEST(Threads, KnowTheirPeak) {
  ASSERT_EQ(act("thread.peak.reset"), 0);
  EXPECT_LT(get<uint64_t>("thread.peak.read"), 1000u);
  void *p = malloc(1000000);
  size_t usable = malloc_usable_size(p);
  free(p);
  EXPECT_NEAR(static_cast<double>(get<uint64_t>("thread.peak.read")), static_cast<double>(usable), 1000); /* what gtest frees meanwhile */
}

TEST(Threads, EmptyReallocsAreCounted) {
  size_t before = get<size_t>("stats.zero_reallocs");
  void *volatile p = malloc(10);
  EXPECT_EQ(realloc(p, 0), nullptr);
  EXPECT_EQ(get<size_t>("stats.zero_reallocs"), before + 1);
}

}  // namespace
