// The front cache and its slow half: start of a thread, order, capacity, batches, modes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <thread>

#include "fake_os.h"
#include "hak.h"

using testing::IsEmpty;

namespace {

constexpr size_t SLOTS = HAK_MAGAZINE_SLOTS - 1;

class Front : public testing::Test {
 protected:
  void SetUp() override { fake_os::reset(); }
  void TearDown() override {
    EXPECT_EQ(hak_heap_check(), 0u);
    EXPECT_THAT(fake_os::violations(), IsEmpty());
  }
};

hak_heap *self() { return hak_heap_current(); }
hak_bin &bin_of(size_t size) { return self()->bins[hak_class_for(size)]; }

// Blocks of the class that the calling thread's front holds.
size_t cached(size_t size) {
  unsigned c = hak_class_for(size);
  const hak_bin &bin = self()->bins[c];
  if (bin.magazine == nullptr) return 0;
  return size_t(self()->front->top[c] - (bin.magazine + SLOTS - bin.usable)) + bin.full_count * SLOTS;
}

std::vector<void *> alloc_many(size_t size, size_t n) {
  std::vector<void *> blocks(n);
  for (void *&p : blocks) p = hakmem_malloc(size);
  return blocks;
}
void free_all(const std::vector<void *> &blocks) {
  for (void *p : blocks) hakmem_free(p);
}

// Settings that a heap reads when it is made: changed before, seen by a thread with a heap of its own.
void in_new_thread(const std::function<void()> &body) { std::thread(body).join(); }

// A thread's first calls are served by a heap that is nobody's, with blocks that share no line.
TEST_F(Front, YoungThreadsHaveNoHeap) {
  self();  // the process's first heap is made at once
  in_new_thread([] {
    std::vector<void *> blocks;
    for (size_t size : {1, 24, 100, 700, 5000}) {
      for (void *p : alloc_many(size, 10)) blocks.push_back(p);
    }
    EXPECT_EQ(hak_tls_front.heap, nullptr);
    for (void *p : blocks) {
      EXPECT_EQ(reinterpret_cast<uintptr_t>(p) % HAK_CACHE_LINE, 0u);
      EXPECT_EQ(hakmem_malloc_usable_size(p) % HAK_CACHE_LINE, 0u);
      EXPECT_TRUE(hak_heap_by_id(HAK_TAG_OWNER(hak_region_tag_of(p)))->shared);
    }
    free_all(blocks);
    EXPECT_EQ(hak_tls_front.heap, nullptr);
    for (const hak_bin &bin : hak_emergency_heap.bins) EXPECT_EQ(bin.slabs.slabs, 0u) << "not even an empty one";
    free_all(alloc_many(24, 200));
    EXPECT_NE(hak_tls_front.heap, nullptr) << "grown up";
  });
}

// Where threads end young, the next one has a heap at once, for those after it.
TEST_F(Front, ThreadsThatEndYoungHaveHeirs) {
  self();
  hak_heap *heap = nullptr;
  auto live = [&heap] {
    hakmem_free(hakmem_malloc(24));
    heap = hak_tls_front.heap;
  };
  in_new_thread(live);
  EXPECT_EQ(heap, nullptr);
  in_new_thread(live);
  hak_heap *made = heap;
  ASSERT_NE(made, nullptr);
  in_new_thread(live);
  EXPECT_EQ(heap, made) << "adopted";
}

// A young thread's blocks are not kept back by whoever frees them.
TEST_F(Front, SharedHeapsGetTheirBlocksAtOnce) {
  self();
  std::vector<void *> blocks;
  in_new_thread([&blocks] { blocks = alloc_many(24, 20); });
  free_all(blocks);
  for (const hak_bin &bin : hak_emergency_heap.bins) {
    if (&bin != &hak_emergency_heap.bins[hak_class_for(64)]) EXPECT_EQ(bin.slabs.slabs, 0u);
  }
  hak_heap_flush_all(self());  // which kept some for itself
  for (const hak_bin &bin : hak_emergency_heap.bins) EXPECT_EQ(bin.slabs.slabs, 0u);
}

// A thread that allocates a little keeps no magazine, no block and no slab.
TEST_F(Front, YoungClassesKeepNothing) {
  in_new_thread([] {
    constexpr size_t SIZE = 5000;
    hak_heap *h = self();
    if (h->id <= HAK_EMERGENCY_ID + 1) return;  // the process's first heap is not young
    for (hak_bin &bin : h->bins) bin.young = 8;  // whoever had the heap before
    hak_heap_trim(h);
    hak_bin &bin = bin_of(SIZE);
    ASSERT_EQ(bin.magazine, nullptr);
    for (int round = 0; round < 2; round++) {
      auto blocks = alloc_many(SIZE, 4);
      EXPECT_EQ(bin.magazine, nullptr);
      EXPECT_EQ(bin.slabs.slabs, 1u);
      free_all(blocks);
      if (round == 0) EXPECT_EQ(bin.slabs.slabs, 0u) << "not even the empty one";
    }
    free_all(alloc_many(SIZE, 1));
    EXPECT_NE(bin.magazine, nullptr) << "the ninth";
    EXPECT_GT(cached(SIZE), 0u);
  });
}

// The tick at the end of a flush may empty every cache that is idle, never the one the caller is about to push on.
TEST_F(Front, TheTickOfAFlushLeavesItsOwnClassItsMagazine) {
  constexpr size_t SIZE = 96;
  in_new_thread([] {
    auto blocks = alloc_many(SIZE, 2000);
    hak_bin &bin = bin_of(SIZE);
    auto settings = hak_config;
    hak_config.mem_lean = 1;  // idle caches are emptied
    hak_config.mem_lean_decommit = HAK_LEAN_DONTNEED;
    for (void *p : blocks) {
      bin.activity = static_cast<decltype(bin.activity)>(-1);  // as after a great many flushes
      bin.last_refill = 0;                               // nothing grows
      self()->slow_count = 63;
      self()->last_tick_ms = 0;
      hakmem_free(p);
    }
    hak_config = settings;
    EXPECT_NE(bin.magazine, nullptr);
  });
}

TEST_F(Front, FreshThreadsAreIdleUntilTheFirstCall) {
  in_new_thread([] {
    hak_front &front = hak_tls_front;
    EXPECT_EQ(front.phase, unsigned(HAK_FRONT_FRESH));
    EXPECT_EQ(front.key, HAK_KEY_NONE);
    for (void **top : front.top) EXPECT_EQ(top, HAK_NULL_TOP);
    hakmem_free(nullptr);
    EXPECT_EQ(front.heap, nullptr) << "free(NULL) needs no heap";
    void *p = hakmem_malloc(1);
    EXPECT_EQ(front.phase, unsigned(HAK_FRONT_LIVE));
    EXPECT_EQ(front.key, HAK_TAG(front.heap->id, 0));
    hakmem_free(p);
    hak_heap_park_current();
    EXPECT_EQ(front.phase, unsigned(HAK_FRONT_ENDED));
    EXPECT_EQ(front.key, HAK_KEY_NONE);
    p = hakmem_malloc(100);  // the emergency heap
    ASSERT_NE(p, nullptr);
    EXPECT_EQ(HAK_TAG_OWNER(hak_region_tag(hak_region_find(p), p)), HAK_EMERGENCY_ID);
    EXPECT_EQ(front.heap, nullptr);
    hakmem_free(p);
  });
}

TEST_F(Front, LastFreedIsFirstReused) {
  auto blocks = alloc_many(100, 10);
  free_all(blocks);
  for (size_t i = 10; i-- > 0;) EXPECT_EQ(hakmem_malloc(100), blocks[i]);
}

TEST_F(Front, FreshBlocksComeInAddressOrder) {
  auto blocks = alloc_many(2000, 30);
  for (size_t i = 1; i < 30; i++) EXPECT_LT(blocks[i - 1], blocks[i]);
}

TEST_F(Front, BatchesDoubleFromFour) {
  in_new_thread([] {
    size_t expected = 4, seen = 0;
    for (int refill = 0; refill < 6; refill++) {
      hakmem_malloc(32);
      EXPECT_EQ(cached(32), std::min(expected, SLOTS) - 1) << "refill " << refill;
      for (size_t left = cached(32); left > 0; left--) hakmem_malloc(32);
      expected *= 2;
      seen++;
    }
    EXPECT_EQ(seen, 6u);
  });
}

// The constants behind it are tuned; these are the bounds they are tuned in.
TEST_F(Front, FirstCapacityIsBoundedInBytesAndBlocks) {
  in_new_thread([] {
    for (unsigned c = 0; c < HAK_FRONT_CLASSES; c++) {
      size_t capacity = self()->bins[c].capacity;
      EXPECT_GE(capacity, 4u);
      EXPECT_LE(capacity, 4 * SLOTS);
      EXPECT_LE(capacity * hak_class_size(c), std::max(64 * HAK_KIB, 4 * hak_class_size(c)));
      if (c > 0 && c < HAK_CLASSES) EXPECT_LE(capacity, self()->bins[c - 1].capacity);
    }
  });
}

TEST_F(Front, CapacityIsNeverExceeded) {
  in_new_thread([] {
    for (size_t size : {16, 100, 1024, 4096, 32768}) {
      auto blocks = alloc_many(size, 1000);
      for (void *p : blocks) {
        hakmem_free(p);
        ASSERT_LE(cached(size), bin_of(size).capacity) << size;
      }
    }
  });
}

class FrontPin : public Front, public testing::WithParamInterface<int> {};

TEST_P(FrontPin, HoldsTheCapacity) {
  int pinned = GetParam();
  unsigned other_group = bin_of(200).capacity;  // this thread's heap; it is not adopted while the thread lives
  hak_config.hot_ring[4] = pinned;  // 65 to 128 bytes
  in_new_thread([&] {
    EXPECT_EQ(bin_of(100).capacity, unsigned(pinned));
    EXPECT_EQ(bin_of(200).capacity, other_group);
    size_t most = 0;
    for (int round = 0; round < 5; round++) {
      auto blocks = alloc_many(100, 4000);
      for (void *p : blocks) {
        hakmem_free(p);
        most = std::max(most, cached(100));
      }
    }
    EXPECT_EQ(bin_of(100).capacity, unsigned(pinned)) << "swings do not move a pinned capacity";
    EXPECT_LE(most, size_t(pinned));
    // 64, 128, 256 … are whole magazines of 63.
    size_t reachable = pinned <= int(SLOTS) ? size_t(pinned) : size_t(pinned) / SLOTS * SLOTS;
    EXPECT_GE(most, std::min<size_t>(reachable, 3000));
  });
}

INSTANTIATE_TEST_SUITE_P(Capacities, FrontPin, testing::Values(1, 2, 10, 63, 64, 100, 128, 256, 2048));

// Only swings that are fast in time count: under a sanitizer or on a busy machine it may take a few more, and the
// capacity cannot grow as far.
bool grow(size_t size, size_t blocks, size_t capacity) {
  for (int round = 0; round < 3000 && bin_of(size).capacity < capacity; round++) free_all(alloc_many(size, blocks));
  return bin_of(size).capacity >= capacity;
}

TEST_F(Front, SwingsGrowTheCapacityUpToTwoMebibytes) {
  in_new_thread([] {
    ASSERT_TRUE(grow(256, 3000, 4 * bin_of(256).capacity));
    for (int round = 0; round < 100; round++) free_all(alloc_many(256, 20000));
    EXPECT_LE(bin_of(256).capacity * size_t(256), 2 * HAK_MIB);
    // And then the swing needs no slab any more.
    size_t fits = bin_of(256).capacity - SLOTS;
    free_all(alloc_many(256, fits));
    uint32_t slow = self()->slow_count;
    for (int round = 0; round < 10; round++) free_all(alloc_many(256, fits));
    EXPECT_EQ(self()->slow_count, slow);
  });
}

TEST_F(Front, ClassesTogetherGrowByTwoMebibytes) {
  fake_os::set_clock(1000);  // it stands: no class is idle for long enough to shrink
  in_new_thread([] {
    size_t grown = 0;
    for (size_t size : {256, 512, 1024, 2048, 4096}) {
      unsigned first = bin_of(size).capacity;
      for (int round = 0; round < 300; round++) free_all(alloc_many(size, 6 * HAK_MIB / size));
      grown += (bin_of(size).capacity - first) * size;
    }
    EXPECT_EQ(grown, self()->grown_bytes);
    EXPECT_LE(grown, 2 * HAK_MIB);
    EXPECT_GT(grown, 256 * HAK_KIB);
  });
}

TEST_F(Front, IdleClassesGiveTheirCapacityBack) {
  fake_os::set_clock(1000);
  in_new_thread([] {
    unsigned first = bin_of(256).capacity;
    ASSERT_TRUE(grow(256, 3000, 4 * first));
    free_all(alloc_many(256, 4 * first));
    EXPECT_GT(bin_of(256).full_count, 1u);
    // Another class keeps the heap's slow path busy; time goes on.
    uint64_t now = 1000;
    for (int i = 0; i < 60; i++) {
      fake_os::set_clock(now += 300);
      auto blocks = alloc_many(8192, 64 * 20);
      free_all(blocks);
    }
    EXPECT_EQ(bin_of(256).full_count, 0u);
    EXPECT_EQ(bin_of(256).capacity, first);
  });
}

TEST_F(Front, PinnedClassesDoNotShrink) {
  hak_config.hot_ring[5] = 1024;
  fake_os::set_clock(1000);
  in_new_thread([] {
    free_all(alloc_many(256, 1000));
    unsigned stacked = bin_of(256).full_count;
    EXPECT_GT(stacked, 10u);
    uint64_t now = 1000;
    for (int i = 0; i < 10; i++) {
      fake_os::set_clock(now += 300);
      free_all(alloc_many(8192, 64 * 20));
    }
    EXPECT_EQ(bin_of(256).full_count, stacked);
  });
}

TEST_F(Front, SwitchedOffEveryCallGoesToTheSlabs) {
  hak_config.hot_ring_enable = 0;
  in_new_thread([] {
    void *p = hakmem_malloc(100);
    EXPECT_EQ(hak_tls_front.key, HAK_KEY_NONE);
    hak_span *s = hak_region_span(hak_region_find(p), p);
    EXPECT_EQ(hak_slab_examine(s, p), HAK_VERDICT_OK);
    void *q = hakmem_malloc(100);
    hakmem_free(p);
    EXPECT_EQ(hak_slab_examine(s, p), HAK_VERDICT_DOUBLE_FREE) << "it is back in its slab at once";
    hakmem_free(q);
    auto blocks = alloc_many(100, 1000);
    free_all(blocks);
    EXPECT_EQ(cached(100), 0u);
  });
}

TEST_F(Front, CountedModeCountsEveryCall) {
  hak_config.front_metrics = 1;
  in_new_thread([] {
    hak_heap *h = self();
    ASSERT_NE(h->counts, nullptr);
    EXPECT_EQ(hak_tls_front.key, HAK_KEY_NONE) << "the uncounted fast path must be closed";
    unsigned c = hak_class_for(100);
    auto blocks = alloc_many(100, 10);
    EXPECT_EQ(h->counts[c].hits + h->counts[c].misses, 10u);
    EXPECT_EQ(h->counts[c].refills, h->counts[c].misses);
    EXPECT_EQ(h->counts[c].misses, 2u);  // batches of 4, then 8
    free_all(blocks);
    EXPECT_EQ(h->counts[c].hits, 8u + 10u);
    EXPECT_EQ(h->counts[c].flushes, 0u);
    free_all(alloc_many(100, 20000));  // 2 MB: more than any front keeps
    EXPECT_GT(h->counts[c].flushes, 0u);
    for (unsigned other = 0; other < HAK_FRONT_CLASSES; other++)
      if (other != c) EXPECT_EQ(h->counts[other].hits + h->counts[other].misses, 0u);
  });
}

TEST_F(Front, PrewarmFillsTheFront) {
  in_new_thread([] {
    hak_heap_prewarm(self(), hak_class_for(64), 128);
    EXPECT_EQ(cached(64), 2 * SLOTS + HAK_MAGAZINE_SLOTS / 2) << "128, and the loaded magazine is half full";
    hak_heap_prewarm(self(), hak_class_for(4096), 100);
    EXPECT_EQ(cached(4096), 100u);
  });
}

TEST_F(Front, PrewarmLeavesTheLoadedMagazineHalfFullAndItsLowestBlockOnTop) {
  in_new_thread([] {
    hak_heap_prewarm(self(), hak_class_for(64), 2 * SLOTS + 1);
    EXPECT_EQ(cached(64), 2 * SLOTS + HAK_MAGAZINE_SLOTS / 2);
    unsigned full = bin_of(64).full_count;
    std::vector<void *> blocks = alloc_many(64, HAK_MAGAZINE_SLOTS / 2 - 1);
    EXPECT_TRUE(std::is_sorted(blocks.begin(), blocks.end()));
    EXPECT_EQ(bin_of(64).full_count, full) << "a magazine was changed for a handful of blocks";
    free_all(blocks);
    EXPECT_EQ(bin_of(64).full_count, full);
  });
}

TEST_F(Front, PrewarmStaysWithinAPinnedCapacity) {
  hak_config.hot_ring[3] = 64;
  in_new_thread([] {
    hak_heap_prewarm(self(), hak_class_for(64), 128);
    EXPECT_EQ(bin_of(64).capacity, 64u);
    EXPECT_LE(cached(64), 64u);
  });
}

TEST_F(Front, FlushAllLeavesNothingBehind) {
  in_new_thread([] {
    for (size_t size : {16, 100, 1000, 10000}) free_all(alloc_many(size, 500));
    hak_heap_flush_all(self());
    for (size_t size : {16, 100, 1000, 10000}) EXPECT_EQ(cached(size), 0u);
    size_t live = hak_load_relaxed(&hak_span_pool.live_spans);
    hak_heap_trim(self());
    EXPECT_LT(hak_load_relaxed(&hak_span_pool.live_spans), live) << "the slabs kept for carving";
    EXPECT_EQ(hak_load_relaxed(&hak_span_pool.live_spans), 0u);
  });
}

TEST_F(Front, NoCellsForMagazinesIsNoFailure) {
  in_new_thread([] {
    self();
    while (hak_cell_take() != nullptr && hak_cell_bytes() < 64 * HAK_MIB) fake_os::fail_all(fake_os::MAP);
    fake_os::allow_all();
    hakmem_free(hakmem_malloc(16));  // the region is there
    fake_os::fail_if([](const fake_os::Event &e) { return e.call == fake_os::MAP ? ENOMEM : 0; });
    std::vector<void *> blocks;
    for (size_t size = 32; size < 32768; size *= 2) {
      void *p = hakmem_malloc(size);
      ASSERT_NE(p, nullptr) << size;
      blocks.push_back(p);
    }
    free_all(blocks);
    fake_os::allow_all();
  });
}

TEST_F(Front, RandomLoadLosesAndDoublesNothing) {
  in_new_thread([] {
    std::mt19937 random(7);
    std::vector<std::pair<unsigned char *, size_t>> live;
    for (int step = 0; step < 200000; step++) {
      if (random() % 2 == 0 && live.size() < 3000) {
        size_t size = 1 + random() % (random() % 8 == 0 ? 32768 : 700);
        auto *p = static_cast<unsigned char *>(hakmem_malloc(size));
        ASSERT_NE(p, nullptr);
        p[0] = p[size - 1] = static_cast<unsigned char>(size * 31);
        live.emplace_back(p, size);
      } else if (!live.empty()) {
        size_t at = random() % live.size();
        auto [p, size] = live[at];
        ASSERT_EQ(p[0], static_cast<unsigned char>(size * 31));
        ASSERT_EQ(p[size - 1], static_cast<unsigned char>(size * 31));
        hakmem_free(p);
        live[at] = live.back();
        live.pop_back();
      }
      if (step % 20000 == 0) ASSERT_EQ(hak_heap_check(), 0u);
    }
    for (auto [p, size] : live) hakmem_free(p);
    hak_heap_trim(self());
    EXPECT_EQ(hak_load_relaxed(&hak_span_pool.live_spans), 0u);
  });
}

}  // namespace
