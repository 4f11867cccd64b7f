// The thread cache and its slow half, in one thread: refill, overflow, capacity, decay, modes, and where memory is short.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <random>
#include <thread>
#include <vector>

#include "actor.h"
#include "fake_cpu.h"
#include "fake_os.h"
#include "hak.h"

using testing::ElementsAreArray;
using testing::IsEmpty;

namespace {

constexpr size_t SLOTS = HAK_MAGAZINE_SLOTS - 1;

class Tcache : public testing::Test {
 protected:
  void SetUp() override {
    fake_os::reset();
    ASSERT_TRUE(hak_start());
    fake_cpu::install();
    hak_os_l2_bytes = 1 * HAK_MIB;
  }
  void TearDown() override {
    EXPECT_EQ(hak_heap_check(), 0u);
    EXPECT_THAT(fake_os::violations(), IsEmpty());
  }
};

hak_tcache *self() { return hak_thread_cache(); }
hak_tcache_bin &bin_of(size_t size) { return self()->bins[hak_class_for(size)]; }
hak_arena_bin &arena_bin(size_t size, uint32_t arena = 0) { return hak_arena_at(arena)->bins[hak_class_for(size)]; }
unsigned usable_of(size_t size) { return hak_magazine_usable[hak_class_for(size)]; }

// Blocks of the class in the calling thread's cache, the loaded magazine's alone, and in the depot of the first arena.
size_t loaded(size_t size) {
  unsigned c = hak_class_for(size);
  void **magazine = self()->bins[c].loaded;
  return magazine == nullptr ? 0 : size_t(*hak_tcache_top_of(self(), c) - hak_tcache_empty_top(&self()->bins[c]));
}
size_t cached(size_t size) { return loaded(size) + bin_of(size).full_count * size_t(usable_of(size)); }
size_t in_depot(size_t size) { return arena_bin(size).full_count * size_t(usable_of(size)); }

bool is_free(void *p) {
  hak_span *s = hak_region_span(hak_region_find(p), p);
  return s->bumped == 0 || hak_slab_examine(s, p) == HAK_VERDICT_DOUBLE_FREE;
}

std::vector<void *> alloc_many(size_t size, size_t n) {
  std::vector<void *> blocks(n);
  for (void *&p : blocks) p = hakmem_malloc(size);
  return blocks;
}
void free_all(const std::vector<void *> &blocks) {
  for (void *p : blocks) hakmem_free(p);
}
size_t live_spans() { return hak_load_relaxed(&hak_span_pool.live_spans); }
// What the thread and the depots hold.
void flush_all() {
  hak_deferred d = {};
  hak_tcache_flush(self(), &d);
  hak_arena_shrink_all(&d);
  EXPECT_EQ(d.verdict, HAK_VERDICT_OK);
}
// So much is accessible and free that no request finds the pool full, which would empty the cache.
void make_pool_roomy(size_t bytes) {
  free_all(alloc_many(32768, bytes / 32768));
  flush_all();
  ASSERT_FALSE(hak_pool_is_full());
}
void decay(bool all = false) {
  hak_deferred d = {};
  hak_tcache_decay(self(), all, &d);
  EXPECT_EQ(d.verdict, HAK_VERDICT_OK);
}

// Settings that a cache reads when it is attached.
void in_new_thread(const std::function<void()> &body) { std::thread(body).join(); }

const size_t SIZES[] = {16, 100, 1024, 4096, 10000, 32768};

// --- the order of blocks ---

TEST_F(Tcache, LastFreedIsFirstReused) {
  auto blocks = alloc_many(100, 10);
  free_all(blocks);
  for (size_t i = 10; i-- > 0;) EXPECT_EQ(hakmem_malloc(100), blocks[i]);
}

TEST_F(Tcache, FreshBlocksComeInAddressOrder) {
  auto blocks = alloc_many(2000, 30);
  EXPECT_TRUE(std::is_sorted(blocks.begin(), blocks.end()));
}

TEST_F(Tcache, BatchesDoubleFromFour) {
  size_t expected = 4;
  for (int refill = 0; refill < 6; refill++, expected *= 2) {
    hakmem_malloc(32);
    EXPECT_EQ(cached(32), std::min(expected, SLOTS) - 1) << "refill " << refill;
    for (size_t left = cached(32); left > 0; left--) hakmem_malloc(32);
  }
  hakmem_free(hakmem_malloc(32));
  decay();
  decay();  // idle
  for (void *p : alloc_many(32, 1)) hakmem_free(p);
  EXPECT_EQ(cached(32), 4u) << "and again";
}

// --- magazines ---

// Of each class a few magazines, and of all together what the second-level cache holds.
TEST_F(Tcache, HoldsTheUsableSlotsOfItsClassAndAStackOfThem) {
  for (unsigned c = 0; hak_class_size(c) <= HAK_SHARED_MAX; c++) {
    size_t size = hak_class_size(c), usable = hak_magazine_usable[c];
    size_t most = std::min<size_t>(945 / usable, 1 * HAK_MIB / (usable * size));
    grow_capacity(size);
    for (void *p : alloc_many(size, 20 * usable)) {
      hakmem_free(p);
      ASSERT_LE(loaded(size), usable) << size;
      ASSERT_LE(bin_of(size).full_count, most) << size;
    }
    EXPECT_EQ(bin_of(size).full_count, most) << size;
    EXPECT_EQ(self()->stacked_bytes, most * usable * size);
    EXPECT_EQ(hak_heap_check(), 0u);
    flush_all();
    EXPECT_EQ(self()->stacked_bytes, 0u);
  }
  EXPECT_EQ(live_spans(), 0u);
}

// 16 KiB first; twice as much, again and again, where its class leads to many slow paths.
TEST_F(Tcache, TheCapacityOfALargeBlocksMagazineGrowsByUse) {
  make_pool_roomy(16 * HAK_MIB);
  for (size_t size : {16, 100, 512, 2048, 10240, 32768}) {
    in_new_thread([size] {
      unsigned first = unsigned(std::min<size_t>(usable_of(size), std::max<size_t>(16 * HAK_KIB / size, 2)));
      std::vector<unsigned> seen = {bin_of(size).capacity};
      for (int round = 0; round < 4000 && seen.back() < usable_of(size); round++) {
        for (void *p : alloc_many(size, 2 * usable_of(size))) {
          hakmem_free(p);
          ASSERT_LE(loaded(size), bin_of(size).capacity);
          if (bin_of(size).capacity < usable_of(size)) { ASSERT_EQ(bin_of(size).full_count, 0u); }
        }
        if (bin_of(size).capacity != seen.back()) seen.push_back(bin_of(size).capacity);
      }
      EXPECT_EQ(seen.front(), first) << size;
      EXPECT_EQ(seen.back(), usable_of(size)) << size;
      for (size_t i = 1; i < seen.size(); i++) EXPECT_LE(seen[i - 1], seen[i]) << size;
      EXPECT_EQ(hak_heap_check(), 0u);
    });
  }
}

// Where there are few slow paths a decay time halves it; one without any forgets it.
TEST_F(Tcache, TheCapacityShrinksWithItsUse) {
  size_t size = 2048;
  make_pool_roomy(16 * HAK_MIB);
  grow_capacity(size);
  hak_deferred d = {};
  hak_tcache_decay(self(), true, &d);
  for (unsigned expected : {31u, 15u, 8u, 8u}) {
    flush_all();
    free_all(alloc_many(size, 40));
    decay(true);
    EXPECT_EQ(bin_of(size).capacity, expected);
    EXPECT_LE(loaded(size), expected);
    EXPECT_EQ(hak_heap_check(), 0u);
  }
  auto blocks = alloc_many(size, 100);
  std::sort(blocks.begin(), blocks.end());
  EXPECT_EQ(std::unique(blocks.begin(), blocks.end()), blocks.end()) << "each once";
  free_all(blocks);
  grow_capacity(size);
  flush_all();
  decay();
  decay();
  EXPECT_EQ(bin_of(size).capacity, 8u) << "though the bin was empty";
}

TEST_F(Tcache, WhatIsPrewarmedStaysAtTheFirstDecay) {
  hak_deferred d = {};
  hak_tcache_prewarm(self(), hak_class_for(4096), 50, &d);
  ASSERT_EQ(cached(4096), 50u);
  decay();
  EXPECT_EQ(cached(4096), 50u);
  decay();
  EXPECT_EQ(cached(4096), 0u) << "nobody uses it";
}

TEST_F(Tcache, AllClassesShareTheRoom) {
  make_pool_roomy(16 * HAK_MIB);
  for (size_t size : {700, 1024, 2048, 3000, 5000}) {
    grow_capacity(size);
    free_all(alloc_many(size, 1000));
    EXPECT_LE(self()->stacked_bytes, 1 * HAK_MIB);
  }
  EXPECT_GT(self()->stacked_bytes, 1 * HAK_MIB - 64 * 5120);
  EXPECT_EQ(bin_of(5000).full_count, 0u) << "the others came first";
  EXPECT_GE(loaded(5000), usable_of(5000) / 2) << "half of a magazine goes at a time";
  size_t stacked = 0;
  for (unsigned c = 0; c < HAK_CLASS_COUNT; c++) stacked += self()->bins[c].full_count * hak_magazine_usable[c] * hak_class_size(c);
  EXPECT_EQ(self()->stacked_bytes, stacked);
}

// What has left comes back by address, whatever the order in which it was freed.
TEST_F(Tcache, TheOldestOfTheStackLeavesForItsSlabsAndTheRestComesBackLatestFirst) {
  size_t size = 512, usable = usable_of(size), kept = (945 / usable + 1) * usable;
  make_pool_roomy(16 * HAK_MIB);
  grow_capacity(size);
  auto blocks = alloc_many(size, kept + 3 * usable);
  flush_all();  // of what the batches brought too many
  std::mt19937 random(1);
  std::shuffle(blocks.begin(), blocks.end(), random);
  free_all(blocks);
  EXPECT_EQ(cached(size), kept);
  EXPECT_EQ(hak_depot_bytes, 0u);
  std::vector<void *> expected(blocks.rbegin(), blocks.rbegin() + long(kept));
  EXPECT_THAT(alloc_many(size, kept), ElementsAreArray(expected)) << "its own";
  auto rest = alloc_many(size, 2 * usable);
  size_t descents = 0, slabs = 1;
  for (size_t i = 1; i < rest.size(); i++) {
    bool same = hak_region_span(hak_region_find(rest[i]), rest[i]) == hak_region_span(hak_region_find(rest[i]), rest[i - 1]);
    slabs += !same;
    descents += same && rest[i] < rest[i - 1];
  }
  EXPECT_LE(descents, 1u) << "where a refill ends";
  EXPECT_LE(slabs, 20u);
}

// No slow path, while a program's swing is no larger.
TEST_F(Tcache, SwingsOfItsCapacityTakeNoSlab) {
  size_t size = 256, capacity = (945 / usable_of(size) + 1) * usable_of(size);
  free_all(alloc_many(size, capacity));
  uint64_t taken = hak_os_stats.alloc;
  for (int i = 0; i < 10; i++) free_all(alloc_many(size, capacity));
  EXPECT_EQ(hak_os_stats.alloc, taken);
}

TEST_F(Tcache, WhatItHasNoRoomForGoesToItsSlabs) {
  auto blocks = alloc_many(4096, 8192);  // 32 MiB
  void *kept = hakmem_malloc(4096);
  flush_all();
  free_all(blocks);
  EXPECT_EQ(hak_depot_bytes, 0u) << "nobody else's";
  EXPECT_LE(cached(4096) * 4096, 1 * HAK_MIB + SLOTS * 4096);
  EXPECT_LT(live_spans() * HAK_SPAN_SIZE, 3 * HAK_MIB);
  hakmem_free(kept);
}

TEST_F(Tcache, TakesAMagazineOfItsDepot) {
  auto blocks = alloc_many(100, usable_of(100));
  auto **magazine = reinterpret_cast<void **>(hak_meta_take());
  std::copy(blocks.begin(), blocks.end(), hak_magazine_empty_top(magazine, hak_class_for(100)) + 1);
  ASSERT_TRUE(hak_arena_put_magazine(magazine, hak_class_for(100)));
  in_new_thread([&] {
    self();
    EXPECT_EQ(hakmem_malloc(100), blocks.back());
    EXPECT_EQ(cached(100), blocks.size() - 1);
    EXPECT_EQ(in_depot(100), 0u);
  });
}

TEST_F(Tcache, AFreeOfTheBlockOnTopIsADoubleFree) {
  void *p = hakmem_malloc(100);
  hakmem_free(p);
  hak_deferred d = {};
  hak_tcache_free(self(), p, hak_class_for(100), &d);
  EXPECT_EQ(d.verdict, HAK_CHECKS ? HAK_VERDICT_DOUBLE_FREE : HAK_VERDICT_OK);
}

TEST_F(Tcache, PopAnyTakesEachBlockOnce) {
  free_all(alloc_many(100, 40));
  unsigned c = hak_class_for(100);
  std::vector<void *> all;
  while (void *p = hak_tcache_pop_any(c)) all.push_back(p);
  EXPECT_EQ(cached(100), 0u);
  EXPECT_GE(all.size(), 40u);
  EXPECT_FALSE(std::is_sorted(all.begin(), all.end()));
  std::sort(all.begin(), all.end());
  EXPECT_EQ(std::unique(all.begin(), all.end()), all.end());
  free_all(all);
}

// --- pinned capacities ---

class TcachePin : public Tcache, public testing::WithParamInterface<int> {
 protected:
  static void pin(int group, int blocks) {
    hak_config.hot_ring[group] = blocks;
    hak_arena_start();
    fake_cpu::install();
  }
};

TEST_P(TcachePin, HoldsTheCapacity) {
  size_t pinned = size_t(GetParam());
  unsigned other = usable_of(200);
  pin(4, GetParam());  // 65 to 128 bytes
  EXPECT_EQ(usable_of(200), other);
  size_t most = 0;
  for (int round = 0; round < 5; round++) {
    auto blocks = alloc_many(100, 4000);
    for (void *p : blocks) {
      hakmem_free(p);
      most = std::max(most, cached(100));
    }
  }
  EXPECT_LE(most, pinned);
  // 64, 128, 256 … are whole magazines of SLOTS blocks.
  EXPECT_EQ(most, pinned <= SLOTS ? pinned : pinned / SLOTS * SLOTS);
  EXPECT_EQ(in_depot(100), 0u) << "the rest is in its slabs";
}

TEST_P(TcachePin, IsNotExceededByPrewarming) {
  pin(4, GetParam());
  hak_deferred d = {};
  hak_tcache_prewarm(self(), hak_class_for(100), 4000, &d);
  EXPECT_LE(cached(100), size_t(GetParam()));
  EXPECT_GT(cached(100), 0u);
}

INSTANTIATE_TEST_SUITE_P(Capacities, TcachePin, testing::Values(1, 2, 10, 63, 64, 100, 127, 128, 256, 1000));

// The oldest one lies below all the others, which an overflow would have to walk through.
TEST_F(TcachePin, OfALargeStackTheNewestLeaves) {
  pin(4, 16384);
  auto blocks = alloc_many(100, 20000);
  free_all({blocks.begin(), blocks.begin() + 16384});
  void **newest = bin_of(100).full;
  unsigned full = bin_of(100).full_count;
  ASSERT_EQ(full, 16384 / SLOTS - 1);
  free_all({blocks.begin() + 16384, blocks.end()});
  EXPECT_EQ(bin_of(100).full, newest) << "the stack is as it was";
  EXPECT_EQ(bin_of(100).full_count, full);
  EXPECT_EQ(in_depot(100), 0u);
}

TEST_F(TcachePin, OfLargeBlocksIsOfSmallerMagazines) {
  pin(12, 64);  // up to 32 KiB
  free_all(alloc_many(32768, 300));
  EXPECT_EQ(usable_of(32768), 8u);
  EXPECT_EQ(bin_of(32768).full_count, 7u);
  EXPECT_LE(cached(32768), 64u);
}

TEST_F(TcachePin, DoesNotDecay) {
  pin(5, 2048);
  free_all(alloc_many(256, 2000));
  unsigned stacked = bin_of(256).full_count;
  EXPECT_GT(stacked, 10u);
  for (int i = 0; i < 10; i++) decay();
  EXPECT_EQ(bin_of(256).full_count, stacked);
}

// --- prewarming ---

TEST_F(Tcache, PrewarmFillsTheCache) {
  hak_deferred d = {};
  hak_tcache_prewarm(self(), hak_class_for(64), 2 * SLOTS + 2, &d);
  EXPECT_EQ(cached(64), 2 * SLOTS + HAK_MAGAZINE_SLOTS / 2) << "so many, and the loaded magazine is half full";
  hak_tcache_prewarm(self(), hak_class_for(4096), 96, &d);
  EXPECT_EQ(cached(4096), 96u);
}

TEST_F(Tcache, PrewarmLeavesTheLoadedMagazineHalfFullAndItsLowestBlockOnTop) {
  hak_deferred d = {};
  hak_tcache_prewarm(self(), hak_class_for(64), 2 * SLOTS + 1, &d);
  EXPECT_EQ(cached(64), 2 * SLOTS + HAK_MAGAZINE_SLOTS / 2);
  unsigned full = bin_of(64).full_count;
  std::vector<void *> blocks = alloc_many(64, HAK_MAGAZINE_SLOTS / 2 - 1);
  EXPECT_TRUE(std::is_sorted(blocks.begin(), blocks.end()));
  EXPECT_EQ(bin_of(64).full_count, full) << "a magazine was changed for a handful of blocks";
  free_all(blocks);
  EXPECT_EQ(bin_of(64).full_count, full);
}

// --- decay ---

TEST_F(Tcache, ClassesThatWereIdleKeepNothing) {
  auto blocks = alloc_many(256, 1000);
  free_all(blocks);
  decay();
  EXPECT_GT(cached(256), 0u) << "used since the last time";
  decay();
  EXPECT_EQ(cached(256), 0u);
  EXPECT_EQ(bin_of(256).loaded, nullptr);
  EXPECT_EQ(in_depot(256), 0u) << "to their slabs";
}

// Half of the magazines that nobody took since the last time.
TEST_F(Tcache, ClassesInUseLoseWhatTheyDidNotNeed) {
  size_t size = 128, usable = usable_of(size);
  auto use = [&] {  // one magazine of the stack
    free_all(alloc_many(size, loaded(size) + usable));
  };
  for (int swing = 0; swing < 6; swing++) free_all(alloc_many(size, 4000));
  decay();
  unsigned full = bin_of(size).full_count;
  ASSERT_EQ(full, 7u);
  for (int i = 0; i < 20; i++) {
    use();
    ASSERT_EQ(bin_of(size).full_count, full);
    decay();
    unsigned unused = full - 1;
    full -= (unused + 1) / 2;
    ASSERT_EQ(bin_of(size).full_count, full);
  }
  EXPECT_EQ(full, 1u) << "which is in use";
}

TEST_F(Tcache, WhereAllIsAskedForNoStackStays) {
  for (int swing = 0; swing < 6; swing++) free_all(alloc_many(128, 4000));
  decay(true);
  EXPECT_EQ(bin_of(128).full_count, 0u);
  EXPECT_GT(loaded(128), 0u) << "the magazine in use does";
}

// As slow paths come by: of any class, or of extents.
TEST_F(Tcache, DecaysByTheClock) {
  uint64_t now = 1000000;
  fake_os::set_clock(now);
  in_new_thread([&] {
    self();
    free_all(alloc_many(256, 1000));
    for (int i = 0; i < 80; i++) {
      fake_os::set_clock(now += 100);
      hakmem_free(hakmem_malloc(300000));
    }
    EXPECT_EQ(cached(256), 0u);
    EXPECT_EQ(in_depot(256), 0u) << "depots decay too";
  });
}

// Nodes freed in no order leave a few of nearly every slab in the cache; and the work that follows is served by the cache alone.
TEST_F(Tcache, WhatItHoldsPinsNoSlabsWhileItServesAllWork) {
  uint64_t now = 1000000;
  fake_os::set_clock(now);
  in_new_thread([&] {
    self();
    std::mt19937 random(1);
    std::vector<void *> nodes;
    for (size_t bytes = 0, size; bytes < 40 * HAK_MIB; bytes += size) nodes.push_back(hakmem_malloc(size = 24 + random() % 150));
    std::shuffle(nodes.begin(), nodes.end(), random);
    free_all(nodes);
    EXPECT_GT(live_spans() * HAK_SPAN_SIZE, 20 * HAK_MIB) << "pinned";
    for (int i = 0; i < 500; i++) {
      fake_os::set_clock(now += 20);
      for (int k = 0; k < 20; k++) hakmem_free(hakmem_malloc(16 + random() % 2500));
    }
    EXPECT_LE((live_spans() + hak_load_relaxed(&hak_span_pool.dirty_spans)) * HAK_SPAN_SIZE, 8 * HAK_MIB);
  });
}

// --- modes ---

TEST_F(Tcache, SwitchedOffEveryCallGoesToTheSlabs) {
  hak_config.hot_ring_enable = 0;
  in_new_thread([] {
    void *p = hakmem_malloc(100), *q = hakmem_malloc(100);
    for (void **top : hak_tls.top) EXPECT_EQ(top, HAK_NULL_TOP);
    EXPECT_FALSE(is_free(p));
    hakmem_free(p);
    EXPECT_TRUE(is_free(p)) << "it is back in its slab at once";
    hakmem_free(q);
    free_all(alloc_many(100, 1000));
    EXPECT_EQ(cached(100), 0u);
    EXPECT_EQ(hak_depot_bytes, 0u);
  });
}

TEST_F(Tcache, CountedModeCountsEveryCall) {
  hak_config.front_metrics = 1;
  in_new_thread([] {
    hak_tcache *t = self();
    ASSERT_NE(t->counts, nullptr);
    for (void **top : hak_tls.top) EXPECT_EQ(top, HAK_NULL_TOP) << "the uncounted fast path must be closed";
    unsigned c = hak_class_for(100);
    auto blocks = alloc_many(100, 10);
    EXPECT_EQ(t->counts[c].hits, 8u);
    EXPECT_EQ(t->counts[c].misses, 2u) << "batches of 4, then 8";
    EXPECT_EQ(t->counts[c].refills, 2u);
    free_all(blocks);
    EXPECT_EQ(t->counts[c].hits, 8u + 10u);
    EXPECT_EQ(t->counts[c].flushes, 0u);
    flush_all();
    EXPECT_EQ(t->counts[c].flushes, 1u);
    hak_cache_counts sum = hak_tcache_sum_class(c).counts;
    EXPECT_EQ(sum.hits, 18u);
    for (unsigned other = 0; other < HAK_CLASS_COUNT; other++)
      if (other != c) EXPECT_EQ(t->counts[other].hits + t->counts[other].misses, 0u);
  });
}

TEST_F(Tcache, PublishesWhatItHoldsAtSlowPaths) {
  unsigned c = hak_class_for(100);
  auto blocks = alloc_many(100, 2000);
  free_all(blocks);
  size_t stacked = bin_of(100).full_count * size_t(usable_of(100));
  EXPECT_GE(hak_tcache_sum_class(c).published, stacked);
  EXPECT_LE(hak_tcache_sum_class(c).published, cached(100));
  flush_all();
  EXPECT_EQ(hak_tcache_sum_class(c).published, 0u);
}

TEST_F(Tcache, FlushLeavesNothingBehind) {
  for (size_t size : SIZES) free_all(alloc_many(size, 500));
  flush_all();
  for (size_t size : SIZES) EXPECT_EQ(cached(size), 0u);
  EXPECT_EQ(hak_depot_bytes, 0u);
  EXPECT_EQ(live_spans(), 0u);
}

// --- short of memory ---

void use_up_cells() {
  fake_os::fail_all(fake_os::MAP);
  for (hak_meta *spare = self()->spares; spare != nullptr; spare = spare->next) self()->spare_count--;
  self()->spares = nullptr;
  while (hak_meta_take() != nullptr) continue;
}

TEST_F(Tcache, WithoutAMagazineItsArenaServesIt) {
  hakmem_free(hakmem_malloc(16));  // the region is there
  flush_all();  // a full pool would empty the cache, which leaves it a magazine
  use_up_cells();
  for (size_t size : {size_t(32), size_t(1000), size_t(20000)}) {
    auto blocks = alloc_many(size, 20);
    for (void *p : blocks) ASSERT_NE(p, nullptr) << size;
    EXPECT_EQ(bin_of(size).loaded, nullptr);
    free_all(blocks);
    for (void *p : blocks) EXPECT_TRUE(is_free(p)) << "back at once";
  }
  fake_os::allow_all();
}

TEST_F(Tcache, WithoutASecondMagazineHalfOfTheFirstGoes) {
  size_t size = 100, usable = usable_of(size);
  auto blocks = alloc_many(size, 2 * usable);
  flush_all();
  hakmem_free(blocks[0]);  // loads one
  use_up_cells();
  for (size_t i = 1; i <= usable; i++) hakmem_free(blocks[i]);
  EXPECT_EQ(loaded(size), usable / 2 + 1);
  EXPECT_TRUE(is_free(blocks[0])) << "the older half";
  EXPECT_FALSE(is_free(blocks[usable]));
  EXPECT_EQ(hakmem_malloc(size), blocks[usable]);
  fake_os::allow_all();
}

// The system gives nothing more, and all that is free lies in caches and depots.
TEST_F(Tcache, ARequestTakesWhatCachesHoldBeforeItFails) {
  auto blocks = alloc_many(1024, 30000);
  free_all(blocks);
  fake_os::fail_if([](const fake_os::Event &e) { return e.call == fake_os::MAP || e.call == fake_os::PROTECT ? ENOMEM : 0; });
  std::vector<void *> others;
  void *p;
  while ((p = hakmem_malloc(30000)) != nullptr) others.push_back(p);
  EXPECT_EQ(errno, ENOMEM);
  EXPECT_GT(others.size() * 30000, 25 * HAK_MIB);
  EXPECT_EQ(hak_depot_bytes, 0u);
  hakmem_free(others.back());
  others.pop_back();
  EXPECT_NE(p = hakmem_malloc(30000), nullptr);
  hakmem_free(p);
  free_all(others);
  fake_os::allow_all();
}

// What the cache holds serves any class, without a system call, before more becomes accessible.
TEST_F(Tcache, AFullPoolHasWhatItHoldsBeforeItGrows) {
  for (size_t size : {size_t(500), size_t(900), size_t(7000)}) {
    grow_capacity(size);
    free_all(alloc_many(size, HAK_MIB / size));
    size_t held = self()->stacked_bytes;
    ASSERT_GT(held, HAK_MIB / 4);
    while (!hak_pool_is_full()) hakmem_malloc(262144);
    ASSERT_EQ(self()->stacked_bytes, held) << size;
    size_t ready = hak_main_region.ready_spans;
    hakmem_malloc(262144);
    EXPECT_EQ(self()->stacked_bytes, 0u) << size;
    EXPECT_EQ(cached(size), 0u);
    EXPECT_EQ(in_depot(size), 0u);
    EXPECT_EQ(hak_main_region.ready_spans, ready) << size;
  }
}

TEST_F(Tcache, AFullPoolHasWhatArenasKeepBeforeItGrows) {
  std::vector<void *> blocks;
  for (int i = 0; i < 6; i++) blocks.push_back(hakmem_malloc(65536));
  while (!hak_pool_is_full()) hakmem_malloc(262144);
  flush_all();
  free_all(blocks);
  ASSERT_EQ(hak_arena_current()->bins[hak_class_for(65536)].slabs.kept, 6u);
  size_t ready = hak_main_region.ready_spans;
  hakmem_malloc(262144);
  hakmem_malloc(20000);
  EXPECT_EQ(hak_main_region.ready_spans, ready);
  EXPECT_EQ(hak_arena_kept_bytes(), 0u);
}

// Else whatever is handed over between threads of a process that has grown to its size would go through slabs, again and again.
TEST_F(Tcache, AFullPoolLeavesTheMagazinesThatServeTheRequest) {
  for (size_t size : {size_t(400), size_t(1000), size_t(6000)}) {
    grow_capacity(size);
    free_all(alloc_many(size, HAK_MIB / size));
    while (!hak_pool_is_full()) hakmem_malloc(262144);
    unsigned full = bin_of(size).full_count;
    ASSERT_GT(full, 1u);
    for (size_t left = loaded(size); left > 0; left--) hakmem_malloc(size);
    hakmem_malloc(size);
    EXPECT_EQ(bin_of(size).full_count, full - 1) << size;
    flush_all();
  }
}

// --- and all of it ---

TEST_F(Tcache, RandomLoadLosesAndDoublesNothing) {
  std::mt19937 random(7);
  std::vector<std::pair<unsigned char *, size_t>> live;
  for (int step = 0; step < 200000; step++) {
    if (step % 1000 == 0) fake_cpu::number = random() % 3;
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
    if (step % 20000 == 0) {
      ASSERT_EQ(hak_heap_check(), 0u);
      decay(random() % 2 == 0);
    }
  }
  for (auto [p, size] : live) hakmem_free(p);
  flush_all();
  EXPECT_EQ(live_spans(), 0u);
}

}  // namespace
