// Arenas: whose a block is, depots, what is taken before a new slab, what goes back when nobody needs it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "fake_cpu.h"
#include "fake_os.h"
#include "fresh_pool.h"
#include "hak.h"

using testing::ElementsAreArray;
using testing::IsEmpty;

namespace {

class Arena : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(start_pool(1 * HAK_GIB));
    fake_cpu::install();
  }
  void TearDown() override {
    EXPECT_EQ(hak_heap_check(), 0u);
    EXPECT_EQ(hak_depot_bytes, depot_bytes());
    EXPECT_THAT(fake_os::violations(), IsEmpty());
  }

  static hak_arena *on_cpu(uint32_t number) {
    fake_cpu::number = number;
    return hak_arena_current();
  }
  // n blocks, however many batches that takes.
  std::vector<void *> take(hak_arena *a, unsigned c, size_t n) {
    std::vector<void *> blocks(n);
    for (size_t got = 0; got < n;) {
      unsigned taken = hak_arena_take(a, c, &blocks[got], unsigned(std::min<size_t>(n - got, FULL)), &d);
      if (taken == 0) ADD_FAILURE() << "out of memory";
      if (taken == 0) break;
      std::reverse(&blocks[got], &blocks[got] + taken);  // as they are handed out
      got += taken;
    }
    return blocks;
  }
  void flush(const std::vector<void *> &blocks, unsigned c) { hak_arena_flush(blocks.data(), unsigned(blocks.size()), c, &d); }
  // A full magazine, whose last block is on top.
  static void **magazine_of(const std::vector<void *> &blocks, unsigned c) {
    EXPECT_EQ(blocks.size(), hak_magazine_usable[c]);
    auto **magazine = reinterpret_cast<void **>(hak_meta_take());
    *hak_magazine_empty_top(magazine, c) = nullptr;
    std::copy(blocks.begin(), blocks.end(), hak_magazine_empty_top(magazine, c) + 1);
    return magazine;
  }
  static std::vector<void *> blocks_in(void **magazine, unsigned c, unsigned count) {
    void **first = hak_magazine_empty_top(magazine, c) + 1;
    return std::vector<void *>(first, first + count);
  }
  static hak_arena *owner(void *p) {
    return hak_arena_at(HAK_TAG_OWNER(hak_region_span(hak_region_find(p), p)->tag) - 1);
  }
  static bool is_free(void *p) { return hak_slab_examine(hak_region_span(hak_region_find(p), p), p) == HAK_VERDICT_DOUBLE_FREE; }
  static size_t depot_bytes() {
    size_t bytes = 0;
    for (uint32_t i = 0; i < hak_arena_count(); i++) {
      for (unsigned c = 0; c < HAK_CLASS_COUNT; c++) {
        const hak_arena_bin &bin = hak_arena_at(i)->bins[c];
        bytes += bin.full_count * size_t(hak_magazine_usable[c]) * hak_class_size(c);
        bytes += bin.full_count * HAK_MAGAZINE_BYTES;
      }
    }
    return bytes;
  }
  void shrink_all() { hak_arena_shrink_all(&d); }
  static void use_up_cells() {
    fake_os::fail_all(fake_os::MAP);
    while (hak_meta_take() != nullptr) continue;
  }

  static constexpr unsigned C = 3;  // 64 bytes: FULL to a magazine
  static constexpr unsigned FULL = HAK_MAGAZINE_SLOTS - 1;
  const size_t SIZE = 64;
  hak_deferred d = {};
};

// --- which arena ---

TEST_F(Arena, ThereIsOneForEachCpuThatIsSeen) {
  EXPECT_EQ(hak_arena_count(), 1u);
  hak_arena *first = on_cpu(0);
  EXPECT_EQ(hak_arena_count(), 1u);
  EXPECT_EQ(first->id, 0u);
  hak_arena *fourth = on_cpu(3);
  EXPECT_EQ(hak_arena_count(), 4u);
  EXPECT_EQ(fourth->id, 3u);
  EXPECT_EQ(on_cpu(0), first);
  EXPECT_EQ(on_cpu(3), fourth);
}

TEST_F(Arena, SixtyFourServeAnyNumberOfCpus) {
  std::set<hak_arena *> arenas;
  for (uint32_t i = 0; i < 200; i++) {
    hak_arena *a = on_cpu(i);
    EXPECT_EQ(a->id, i % HAK_ARENAS_MAX);
    arenas.insert(a);
    flush(take(a, C, 1), C);
  }
  EXPECT_EQ(arenas.size(), size_t(HAK_ARENAS_MAX));
  EXPECT_EQ(hak_arena_count(), uint32_t(HAK_ARENAS_MAX));
  EXPECT_EQ(d.verdict, HAK_VERDICT_OK);
}

TEST_F(Arena, WithoutMemoryForOneTheLastThereIsServes) {
  constexpr uint64_t now_ms = 1000000;
  fake_os::set_clock(now_ms);
  hak_arena *second = on_cpu(1);
  fake_os::fail_all(fake_os::MAP);
  while (hak_meta_take_block((sizeof(hak_arena) + HAK_META_SIZE - 1) / HAK_META_SIZE) != nullptr) continue;
  EXPECT_EQ(on_cpu(9), second);
  EXPECT_EQ(hak_arena_count(), 2u);
  fake_os::allow_all();
  fake_os::set_clock(now_ms + 1000);
  EXPECT_EQ(on_cpu(9)->id, 9u);
}

// Each slow path there would cost a lock for all and system calls, when memory is short already.
TEST_F(Arena, MemoryForOneIsNotAskedForAgainSoon) {
  constexpr uint64_t now_ms = 1000000;
  fake_os::set_clock(now_ms);
  use_up_cells();
  unsigned before = fake_os::count(fake_os::MAP);
  EXPECT_EQ(on_cpu(3)->id, 0u);
  unsigned once = fake_os::count(fake_os::MAP);
  EXPECT_GT(once, before);
  fake_os::set_clock(now_ms + HAK_OS_REFUSED_MS - 1);
  for (int i = 0; i < 100; i++) EXPECT_EQ(on_cpu(3)->id, 0u);
  EXPECT_EQ(fake_os::count(fake_os::MAP), once);
  fake_os::set_clock(now_ms + HAK_OS_REFUSED_MS);
  EXPECT_EQ(on_cpu(3)->id, 0u);
  EXPECT_GT(fake_os::count(fake_os::MAP), once);
  fake_os::allow_all();
  fake_os::set_clock(now_ms);  // a clock that went back
  EXPECT_EQ(on_cpu(3)->id, 3u);
}

// --- slabs ---

TEST_F(Arena, BlocksComeInAddressOrderFromItsOwnSlab) {
  hak_arena *a = on_cpu(2);
  auto blocks = take(a, C, 50);
  EXPECT_TRUE(std::is_sorted(blocks.begin(), blocks.end()));
  for (void *p : blocks) EXPECT_EQ(owner(p), a);
  EXPECT_EQ(a->bins[C].slabs.slabs, 1u);
}

// One magazine, blocks of several arenas: each finds its slab.
TEST_F(Arena, WhoseABlockIsIsSettledAtFlush) {
  std::vector<void *> all;
  for (uint32_t cpu : {0, 1, 2, 5}) {
    hak_arena *a = on_cpu(cpu);
    void *out[FULL];
    for (size_t n = 0; n < 3000;) {
      unsigned taken = hak_arena_take(a, C, out, FULL, &d);
      all.insert(all.end(), out, out + taken);
      n += taken;
    }
  }
  std::mt19937 random(1);
  std::shuffle(all.begin(), all.end(), random);
  for (size_t at = 0; at < all.size(); at += 60) flush({all.begin() + long(at), all.begin() + long(std::min(at + 60, all.size()))}, C);
  EXPECT_EQ(d.verdict, HAK_VERDICT_OK);
  for (uint32_t i = 0; i < hak_arena_count(); i++) EXPECT_LE(hak_arena_at(i)->bins[C].slabs.slabs, 1u) << "the one that is carved";
  shrink_all();
  EXPECT_EQ(hak_span_pool.live_spans, 0u);
}

TEST_F(Arena, ASlabThatIsEmptyMayBeAnotherArenasNext) {
  hak_arena *first = on_cpu(0), *second = on_cpu(1);
  auto blocks = take(first, C, 30);
  flush(blocks, C);
  hak_arena_shrink(first, true, &d);
  EXPECT_EQ(hak_span_pool.live_spans, 0u);
  auto again = take(second, C, 10);
  EXPECT_EQ(owner(again[0]), second);
  EXPECT_EQ(hak_region_span(&hak_main_region, again[0]), hak_region_span(&hak_main_region, blocks[0])) << "the same span";
  // A block of before, freed a second time: it has not been handed out again.
  EXPECT_EQ(d.verdict, HAK_VERDICT_OK);
  flush({blocks[29]}, C);
  EXPECT_NE(d.verdict, HAK_VERDICT_OK);
  EXPECT_EQ(d.bad, blocks[29]);
}

TEST_F(Arena, OutOfMemoryTakesNothing) {
  hak_arena *first = on_cpu(0), *second = on_cpu(1);
  fake_os::fail_all(fake_os::PROTECT);
  fake_os::fail_all(fake_os::MAP);
  void *out[FULL];
  std::vector<void *> all;
  for (unsigned n; (n = hak_arena_take(first, 51, out, FULL, &d)) > 0;) all.insert(all.end(), out, out + n);
  ASSERT_FALSE(all.empty());
  EXPECT_EQ(hak_arena_alloc(51, &d), nullptr);
  EXPECT_EQ(hak_arena_take(second, 51, out, 1, &d), 0u);
  flush({all[0]}, 51);
  EXPECT_EQ(hak_arena_take(second, 51, out, 1, &d), 1u) << "what the other one has";
}

// --- misuse, seen at flush ---

struct Misuse {
  const char *name;
  std::vector<void *> (*blocks)(const std::vector<void *> &own, const std::vector<void *> &others);
  hak_verdict verdict;
  size_t bad;  // index of the bad block
};
class ArenaMisuse : public Arena, public testing::WithParamInterface<Misuse> {};

TEST_P(ArenaMisuse, IsToldWithItsBlock) {
  auto own = take(on_cpu(0), C, 20), others = take(on_cpu(1), C, 20);
  auto blocks = GetParam().blocks(own, others);
  flush(blocks, C);
  EXPECT_EQ(d.verdict, GetParam().verdict);
  EXPECT_EQ(d.bad, blocks[GetParam().bad]);
  EXPECT_EQ(d.bad_code, C + 1);
  EXPECT_TRUE(is_free(blocks.back())) << "the others are freed";
}

char *address(void *p) { return static_cast<char *>(p); }
INSTANTIATE_TEST_SUITE_P(
    Cases, ArenaMisuse,
    testing::Values(
        Misuse{"Twice", [](auto &own, auto &) { return std::vector<void *>{own[0], own[1], own[0], own[2]}; }, HAK_VERDICT_DOUBLE_FREE, 2},
        Misuse{"TwiceInAnotherArena",
               [](auto &own, auto &others) { return std::vector<void *>{others[3], own[1], others[3], others[4]}; }, HAK_VERDICT_DOUBLE_FREE, 2},
        Misuse{"Inside", [](auto &own, auto &) { return std::vector<void *>{own[0], address(own[5]) + 16, own[6]}; },
               HAK_VERDICT_NO_BLOCK_START, 1},
        Misuse{"NeverHandedOut", [](auto &own, auto &) { return std::vector<void *>{address(own[19]) + 64, own[6]}; },
               HAK_VERDICT_NO_BLOCK_START, 0},
        Misuse{"TheFirstOfTwo",
               [](auto &own, auto &others) { return std::vector<void *>{own[0], own[0], address(others[1]) + 8, others[2]}; },
               HAK_VERDICT_DOUBLE_FREE, 1}),
    [](const auto &info) { return info.param.name; });

TEST_F(Arena, ABlockFreedTwiceWhoseSlabHasGoneIsTold) {
  hak_arena *a = on_cpu(0);
  auto blocks = take(a, C, 5);
  flush(blocks, C);
  hak_arena_shrink(a, true, &d);
  ASSERT_EQ(hak_span_pool.live_spans, 0u);
  flush({blocks[2]}, C);
  EXPECT_EQ(d.verdict, HAK_VERDICT_FREE_MEMORY);
  EXPECT_EQ(d.bad, blocks[2]);
  d = {};
  hak_arena_free(blocks[2], C, &d);
  EXPECT_EQ(d.verdict, HAK_VERDICT_FREE_MEMORY);
}

TEST_F(Arena, OtherPeoplesMemoryIsTold) {
  bool zeroed;
  void *extent = hak_extent_alloc(100000, 1, false, &zeroed), *other_class = take(on_cpu(0), C + 1, 1)[0];
  int local;
  for (void *p : {extent, other_class, static_cast<void *>(&local)}) {
    d = {};
    flush({p}, C);
    EXPECT_EQ(d.verdict, HAK_VERDICT_FREE_MEMORY);
    EXPECT_EQ(d.bad, p);
    d = {};
    hak_arena_free(p, C, &d);
    EXPECT_EQ(d.verdict, HAK_VERDICT_FREE_MEMORY);
  }
}

TEST_F(Arena, SingleBlocksAreLookedAtAtOnce) {
  auto blocks = take(on_cpu(0), C, 5);
  hak_arena_free(blocks[1], C, &d);
  EXPECT_TRUE(is_free(blocks[1]));
  EXPECT_EQ(d.verdict, HAK_VERDICT_OK);
  hak_arena_free(blocks[1], C, &d);
  EXPECT_EQ(d.verdict, HAK_VERDICT_DOUBLE_FREE);
}

// --- depots ---

TEST_F(Arena, MagazinesGoToWhoeverOwnsTheirFirstBlock) {
  hak_arena *first = on_cpu(0), *second = on_cpu(1);
  auto mine = take(first, C, FULL - 1), theirs = take(second, C, 1);
  auto blocks = mine;
  blocks.push_back(theirs[0]);  // on top
  void **magazine = magazine_of(blocks, C);
  ASSERT_TRUE(hak_arena_put_magazine(magazine, C));
  EXPECT_EQ(hak_depot_bytes, FULL * SIZE + HAK_MAGAZINE_BYTES);
  EXPECT_TRUE(hak_arena_is_foreign(on_cpu(0)->bins[C].full == nullptr ? magazine : nullptr, C));
  on_cpu(1);
  EXPECT_FALSE(hak_arena_is_foreign(magazine, C));
  EXPECT_EQ(hak_arena_take_magazine(first, C), nullptr);
  EXPECT_EQ(hak_arena_take_magazine(second, C), magazine);
  EXPECT_THAT(blocks_in(magazine, C, FULL), ElementsAreArray(blocks));
  EXPECT_EQ(hak_depot_bytes, 0u);
}

TEST_F(Arena, TheLatestMagazineIsTakenFirst) {
  hak_arena *a = on_cpu(0);
  void **magazines[3];
  for (auto &m : magazines) ASSERT_TRUE(hak_arena_put_magazine(m = magazine_of(take(a, C, FULL), C), C));
  for (size_t i = 3; i-- > 0;) EXPECT_EQ(hak_arena_take_magazine(a, C), magazines[i]);
  EXPECT_EQ(hak_arena_take_magazine(a, C), nullptr);
}

TEST_F(Arena, ACheckOfDepotsTakesSoManyMagazinesAtMost) {
  hak_arena *a = on_cpu(0);
  for (unsigned c : {3u, 20u}) {
    for (int i = 0; i < 50; i++) {
      auto blocks = take(a, c, hak_magazine_usable[c]);
      ASSERT_TRUE(hak_arena_put_magazine(magazine_of(blocks, c), c));
    }
  }
  hak_arena_check_depots(64, &d);
  EXPECT_EQ(a->bins[3].full_count, 0u);
  EXPECT_EQ(a->bins[20].full_count, 100u - 64);
  hak_arena_check_depots(64, &d);
  EXPECT_EQ(hak_depot_bytes, 0u);
}

TEST_F(Arena, AMagazineOfLargeBlocksHasFewerSlots) {
  hak_arena *a = on_cpu(0);
  for (unsigned c = 0; c < HAK_CLASS_COUNT; c++) {
    unsigned usable = hak_magazine_usable[c];
    EXPECT_GE(usable, 2u);
    EXPECT_LE(usable * hak_class_size(c), 512 * HAK_KIB);
    auto blocks = take(a, c, usable);
    void **magazine = magazine_of(blocks, c);
    ASSERT_TRUE(hak_arena_put_magazine(magazine, c));
    EXPECT_EQ(hak_depot_bytes, HAK_MAGAZINE_BYTES + usable * hak_class_size(c));
    shrink_all();  // one of each class is more than depots hold
    EXPECT_EQ(hak_depot_bytes, 0u);
  }
  EXPECT_EQ(hak_span_pool.live_spans, 0u);
  EXPECT_EQ(d.verdict, HAK_VERDICT_OK);
}

TEST_F(Arena, DepotsHold16MiB) {
  constexpr unsigned LARGE = 31;  // 1 KiB
  hak_arena *a = on_cpu(0);
  std::vector<void *> blocks;
  do blocks = take(a, LARGE, hak_magazine_usable[LARGE]);
  while (hak_arena_put_magazine(magazine_of(blocks, LARGE), LARGE));
  EXPECT_LE(hak_depot_bytes, 16 * HAK_MIB);
  EXPECT_GT(hak_depot_bytes + HAK_MAGAZINE_SLOTS * 1024 + HAK_MAGAZINE_BYTES, 16 * HAK_MIB);
  flush(blocks, LARGE);
}

// Magazines count against it too, and stay.
// Of the smallest blocks they are a third of it.
TEST_F(Arena, WhatDepotsHoldCountsTheMagazines) {
  constexpr unsigned SMALLEST = 0;
  ASSERT_EQ(hak_class_size(SMALLEST), 16u);
  hak_arena *a = on_cpu(0);
  size_t magazines = 0;
  for (bool more = true; more; magazines += more) {
    auto blocks = take(a, SMALLEST, FULL);
    void **magazine = magazine_of(blocks, SMALLEST);
    more = hak_arena_put_magazine(magazine, SMALLEST);
    if (!more) flush(blocks, SMALLEST);
  }
  EXPECT_EQ(magazines, 16 * HAK_MIB / (FULL * 16 + HAK_MAGAZINE_BYTES));
  shrink_all();
}

TEST_F(Arena, WithALimitDepotsHoldASmallPartOfIt) {
  hak_arena *a = on_cpu(0);
  hak_config.limit = 64 * HAK_MIB;
  std::vector<void *> blocks;
  do blocks = take(a, C, FULL);
  while (hak_arena_put_magazine(magazine_of(blocks, C), C));
  EXPECT_LE(hak_depot_bytes, HAK_MIB);
  EXPECT_GT(hak_depot_bytes, HAK_MIB / 2);
  hak_config.limit = 0;
  EXPECT_TRUE(hak_arena_put_magazine(magazine_of(blocks, C), C));
}

// --- what is taken before a new slab is made ---

TEST_F(Arena, FreeBlocksOfAnotherArenaComeBeforeANewSlab) {
  hak_arena *first = on_cpu(0), *second = on_cpu(1);
  auto blocks = take(second, C, 100);
  flush({blocks.begin(), blocks.begin() + 50}, C);
  auto stolen = take(first, C, 50);
  for (void *p : stolen) EXPECT_EQ(owner(p), second);
  EXPECT_EQ(first->bins[C].slabs.slabs, 0u);
  auto own = take(first, C, 1);
  EXPECT_EQ(owner(own[0]), first) << "what it has never handed out stays its own";
  flush(stolen, C);
  EXPECT_TRUE(is_free(stolen[0]));
}

TEST_F(Arena, WhatIsUncarvedInItsOwnSlabComesFirst) {
  hak_arena *first = on_cpu(0), *second = on_cpu(1);
  take(first, C, 1);
  auto blocks = take(second, C, 100);
  flush({blocks.begin(), blocks.begin() + 50}, C);
  EXPECT_EQ(owner(take(first, C, 1)[0]), first);
}

TEST_F(Arena, DepotsOfOthersAreStolenFromToo) {
  hak_arena *first = on_cpu(0), *second = on_cpu(1);
  auto blocks = take(second, C, FULL);
  ASSERT_TRUE(hak_arena_put_magazine(magazine_of(blocks, C), C));
  void *out[4];
  EXPECT_EQ(hak_arena_take(first, C, out, 4, &d), 4u);
  EXPECT_THAT(out, ElementsAreArray(blocks.begin(), blocks.begin() + 4));
  EXPECT_EQ(hak_depot_bytes, 0u);
  for (size_t i = 4; i < blocks.size(); i++) EXPECT_TRUE(is_free(blocks[i])) << "the rest is back in its slab";
  EXPECT_EQ(hak_arena_take(first, C, out, 4, &d), 4u);
  EXPECT_EQ(out[3], blocks[4]);
  EXPECT_EQ(first->bins[C].slabs.slabs, 0u);
}

TEST_F(Arena, NobodyWaitsToSteal) {
  hak_arena *first = on_cpu(0), *second = on_cpu(1);
  auto blocks = take(second, C, 100);
  flush({blocks.begin(), blocks.begin() + 50}, C);
  hak_lock_take(&second->bins[C].lock);
  auto own = take(first, C, 1);
  hak_lock_drop(&second->bins[C].lock);
  EXPECT_EQ(owner(own[0]), first);
}

TEST_F(Arena, OneThatHasNothingToSpareIsNotAskedAgain) {
  hak_arena *first = on_cpu(0), *second = on_cpu(1);
  auto blocks = take(second, C, 10);
  flush({blocks[0]}, C);
  ASSERT_EQ(second->bins[C].spare, 1u);
  void *out[FULL];
  EXPECT_EQ(hak_arena_take(first, C, out, FULL, &d), 1u) << "a short batch";
  EXPECT_EQ(second->bins[C].spare, 0u);
  flush({blocks[1]}, C);
  EXPECT_EQ(second->bins[C].spare, 1u);
}

// --- single blocks ---

// Depots are for whole magazines; but before a new slab is made, what they hold serves too.
TEST_F(Arena, SingleBlocksComeFromSlabsAndThenFromDepots) {
  hak_arena *a = on_cpu(1);
  take(a, C, 1);
  hak_span *s = a->bins[C].slabs.bump_slab;
  take(a, C, s->blocks - 1u - FULL);
  auto blocks = take(a, C, FULL);
  ASSERT_EQ(a->bins[C].slabs.bump_slab, nullptr);
  ASSERT_TRUE(hak_arena_put_magazine(magazine_of(blocks, C), C));
  void *p = hak_arena_alloc(C, &d);
  EXPECT_EQ(p, blocks[0]);
  EXPECT_EQ(hak_depot_bytes, 0u);
  EXPECT_EQ(a->bins[C].slabs.slabs, 1u);
  EXPECT_TRUE(is_free(blocks[1]));
}

// --- shrinking ---

TEST_F(Arena, TheMagazinesThatNobodyNeededGo) {
  hak_arena *a = on_cpu(0);
  for (int i = 0; i < 16; i++) ASSERT_TRUE(hak_arena_put_magazine(magazine_of(take(a, C, FULL), C), C));
  hak_arena_shrink(a, false, &d);
  EXPECT_EQ(a->bins[C].full_count, 16u) << "they have just come";
  void **used[4];
  for (auto &m : used) m = hak_arena_take_magazine(a, C);
  for (auto &m : used) ASSERT_TRUE(hak_arena_put_magazine(m, C));
  hak_arena_shrink(a, false, &d);
  EXPECT_EQ(a->bins[C].full_count, 4u) << "the others were not taken";
  hak_arena_shrink(a, false, &d);
  EXPECT_EQ(hak_depot_bytes, 0u);
  EXPECT_EQ(d.verdict, HAK_VERDICT_OK);
}

TEST_F(Arena, AllOfItGoesWhereAsked) {
  for (uint32_t cpu = 0; cpu < 8; cpu++) {
    hak_arena *a = on_cpu(cpu);
    for (unsigned c = 0; c < HAK_CLASS_COUNT; c++) {
      ASSERT_TRUE(hak_arena_put_magazine(magazine_of(take(a, c, hak_magazine_usable[c]), c), c));
      if (hak_depot_bytes > 15 * HAK_MIB) shrink_all();
    }
  }
  shrink_all();
  EXPECT_EQ(hak_depot_bytes, 0u);
  EXPECT_EQ(hak_span_pool.live_spans, 0u);
  EXPECT_EQ(d.verdict, HAK_VERDICT_OK);
}

// Each of two depots holds blocks of the other's slab, whichever is shrunk first.
TEST_F(Arena, SlabsThatOthersDepotsEmptyGoToo) {
  hak_arena *first = on_cpu(0), *second = on_cpu(1);
  auto some = take(first, C, FULL), others = take(second, C, FULL);
  std::swap_ranges(some.begin(), some.begin() + 30, others.begin());
  ASSERT_TRUE(hak_arena_put_magazine(magazine_of(some, C), C));
  ASSERT_TRUE(hak_arena_put_magazine(magazine_of(others, C), C));
  ASSERT_EQ(first->bins[C].full_count, 1u);
  ASSERT_EQ(second->bins[C].full_count, 1u);
  shrink_all();
  EXPECT_EQ(hak_span_pool.live_spans, 0u);
}

// A magazine is in the depot of the arena of one of its blocks; the others may be somebody else's.
TEST_F(Arena, DepotsOfArenasWithoutSlabsShrinkToo) {
  hak_arena *first = on_cpu(0), *second = on_cpu(1);
  auto blocks = take(first, C, FULL - 1), top = take(second, C, 1);
  blocks.push_back(top[0]);
  ASSERT_TRUE(hak_arena_put_magazine(magazine_of(blocks, C), C));
  for (int i = 0; i < 3; i++) hak_arena_shrink(second, false, &d);
  EXPECT_EQ(second->bins[C].slabs.slabs, 0u);
  EXPECT_EQ(hak_depot_bytes, 0u);
  hak_arena_shrink(first, false, &d);
  EXPECT_EQ(hak_span_pool.live_spans, 0u);
}

// --- fork ---

TEST_F(Arena, AForkHoldsEveryBin) {
  for (uint32_t cpu = 0; cpu < 3; cpu++) on_cpu(cpu);
  hak_arena_fork_lock();
  for (uint32_t i = 0; i < 3; i++) {
    for (hak_arena_bin &bin : hak_arena_at(i)->bins) EXPECT_FALSE(hak_lock_try(&bin.lock));
  }
  hak_arena_fork_unlock();
  for (hak_arena_bin &bin : hak_arena_at(1)->bins) {
    EXPECT_TRUE(hak_lock_try(&bin.lock));
    hak_lock_drop(&bin.lock);
  }
}

// --- many threads ---

// Each on a CPU that changes, with blocks that the others allocated.
TEST_F(Arena, ManyThreadsLoseAndDoubleNothing) {
  constexpr unsigned THREADS = 4, ROUNDS = HAKMEM_TEST_SANITIZED ? 1500 : 6000;
  constexpr size_t BOXES = 64;
  static std::atomic<void *> boxes[3][BOXES];
  const unsigned classes[3] = {0, 3, 31};
  std::atomic<bool> bad{false};
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < THREADS; t++)
    threads.emplace_back([&, t] {
      std::mt19937 random(t);
      std::vector<void *> kept[3];
      for (unsigned round = 0; round < ROUNDS; round++) {
        if (random() % 8 == 0) fake_cpu::number = random() % 5;
        unsigned k = random() % 3, c = classes[k], n = 1 + random() % 16;
        hak_deferred own = {};
        hak_arena *a = hak_arena_current();
        std::vector<void *> blocks(n);
        n = hak_arena_take(a, c, blocks.data(), n, &own);
        std::vector<void *> old;
        for (unsigned i = 0; i < n; i++) {
          memset(blocks[i], int(t), 16);
          void *p = boxes[k][random() % BOXES].exchange(blocks[i]);
          if (p != nullptr) old.push_back(p);
        }
        if (random() % 4 == 0) {
          if (void **magazine = hak_arena_take_magazine(a, c)) {
            hak_arena_flush(hak_magazine_empty_top(magazine, c) + 1, hak_magazine_usable[c], c, &own);
            auto *meta = reinterpret_cast<hak_meta *>(magazine);
            meta->next = nullptr;
            hak_meta_give(meta);
          }
        }
        kept[k].insert(kept[k].end(), old.begin(), old.end());
        size_t usable = hak_magazine_usable[c], whole = kept[k].size() < usable ? 0 : usable;
        if (whole != 0 && random() % 2 == 0) {
          auto **magazine = reinterpret_cast<void **>(hak_meta_take());
          std::copy(kept[k].end() - long(usable), kept[k].end(), hak_magazine_empty_top(magazine, c) + 1);
          if (hak_arena_put_magazine(magazine, c))
            kept[k].resize(kept[k].size() - usable);
          else
            hak_meta_give_one(magazine);
        } else if (!kept[k].empty()) {
          size_t n = std::min<size_t>(kept[k].size(), random() % 64);
          hak_arena_flush(&kept[k][kept[k].size() - n], unsigned(n), c, &own);
          kept[k].resize(kept[k].size() - n);
        }
        if (random() % 64 == 0) hak_arena_shrink(hak_arena_at(random() % hak_arena_count()), random() % 2 == 0, &own);
        if (random() % 64 == 0) hak_purge_slabs(hak_arena_at(random() % hak_arena_count()), round, true, SIZE_MAX, &own);
        void *one = hak_arena_alloc(c, &own);
        if (one == nullptr || own.verdict != HAK_VERDICT_OK) bad = true;
        hak_arena_free(one, c, &own);
      }
      hak_deferred own = {};
      for (unsigned k = 0; k < 3; k++) hak_arena_flush(kept[k].data(), unsigned(kept[k].size()), classes[k], &own);
      if (own.verdict != HAK_VERDICT_OK) bad = true;
    });
  for (std::thread &t : threads) t.join();
  EXPECT_FALSE(bad);
  for (unsigned k = 0; k < 3; k++) {
    for (auto &box : boxes[k])
      if (void *p = box.exchange(nullptr)) flush({p}, classes[k]);
  }
  shrink_all();
  EXPECT_EQ(d.verdict, HAK_VERDICT_OK);
  EXPECT_EQ(hak_span_pool.live_spans, 0u);
}

}  // namespace
