// What is kept and what goes back: thresholds, idle epochs, and that no lock is held while the system works.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>

#include "fake_os.h"
#include "fresh_pool.h"
#include "hak.h"

using testing::IsEmpty;

namespace {

constexpr size_t SPANS_PER_MIB = HAK_MIB / HAK_SPAN_SIZE;

class Release : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(start_pool(1 * HAK_GIB));
    fake_os::on_call([this](const fake_os::Event &e) {
      if (e.call == fake_os::ADVISE && e.detail == MADV_DONTNEED && hak_load_relaxed(&hak_span_pool.lock.state) != 0) advised_under_lock = true;
    });
  }
  void TearDown() override {
    EXPECT_FALSE(advised_under_lock);
    EXPECT_THAT(fake_os::violations(), IsEmpty());
  }

  // Frees `mib` MiB of touched runs of 4 MiB; the last answer of the pool.
  bool make_dirty(size_t mib) {
    std::vector<hak_span *> runs;
    bool zeroed, due = false;
    for (size_t i = 0; i < mib / 4; i++) {
      runs.push_back(hak_pool_take(4 * SPANS_PER_MIB, 1, {}, false, &zeroed));
      memset(hak_span_address(hak_pool_region_of(runs.back()), runs.back()), 0xcc, 4096);
    }
    for (hak_span *s : runs) hak_pool_give(s, 0, 0, &due);
    return due;
  }
  size_t dirty_mib() const { return hak_span_pool.dirty_spans / SPANS_PER_MIB; }

  bool advised_under_lock = false;
};

TEST_F(Release, LimitIs12MiBOr12PercentOfLive) {
  EXPECT_FALSE(hak_release_over_limit(12 * SPANS_PER_MIB, 0));
  EXPECT_TRUE(hak_release_over_limit(12 * SPANS_PER_MIB + 1, 0));
  EXPECT_FALSE(hak_release_over_limit(120 * SPANS_PER_MIB, 1000 * SPANS_PER_MIB));
  EXPECT_TRUE(hak_release_over_limit(120 * SPANS_PER_MIB + 1, 1000 * SPANS_PER_MIB));
}

TEST_F(Release, ExcessGoesAtOnceToSevenEighths) {
  EXPECT_FALSE(make_dirty(12));
  unsigned before = fake_os::count(fake_os::ADVISE);
  hak_release_excess();
  EXPECT_EQ(fake_os::count(fake_os::ADVISE), before) << "at the limit nothing is due";
  EXPECT_TRUE(make_dirty(128));
  hak_release_excess();
  EXPECT_LE(dirty_mib(), 10u);
  EXPECT_GE(dirty_mib() + 16, 10u) << "one call gives back at most 16 MiB";
  EXPECT_GT(fake_os::count(fake_os::ADVISE), before);
}

// One span in sixteen stays in use, so that no huge page is free as a whole.
class ReleasePieces : public Release {
 protected:
  void make_pieces(size_t mib) {
    spans.resize(mib * SPANS_PER_MIB);
    bool zeroed;
    for (hak_span *&s : spans) s = hak_pool_take(1, 1, {}, true, &zeroed);
    for (size_t i = 0; i < spans.size(); i++)
      if (i % 16 != 0 && i % 512 != 8) hak_pool_give(spans[i], 0, 0, &due);
  }
  std::vector<hak_span *> spans;
  bool due = false;
};

TEST_F(ReleasePieces, WaitForTheTickUpToTwiceTheLimit) {
  make_pieces(24);
  EXPECT_TRUE(due);
  size_t dirty = dirty_mib(), live = hak_span_pool.live_spans;
  ASSERT_GT(dirty, 20u);
  unsigned before = fake_os::count(fake_os::ADVISE);
  hak_release_excess();
  EXPECT_EQ(fake_os::count(fake_os::ADVISE), before);
  EXPECT_FALSE(hak_release_over_limit(hak_span_pool.dirty_spans, live)) << "not asked again …";
  EXPECT_TRUE(hak_release_over_limit(hak_span_pool.dirty_spans + 2 * SPANS_PER_MIB, live)) << "… before there is more";
  for (uint64_t now : {1000000, 1000250, 1000500}) hak_release_tick(now);
  EXPECT_LE(dirty_mib(), 2u) << "idle by now";
}

TEST_F(ReleasePieces, BeyondThatGoAtOnce) {
  make_pieces(256);
  ASSERT_GT(dirty_mib(), 200u);
  hak_release_excess();
  EXPECT_LE(dirty_mib(), 12u);
  EXPECT_GE(dirty_mib(), 8u);
}

// Half a second later they would have been idle, and gone all the same: see WaitForTheTickUpToTwiceTheLimit.
TEST_F(ReleasePieces, ThatWereTakenAgainRestFirst) {
  fake_os::set_clock(1000000);
  bool zeroed;
  for (size_t i = 0; i < 40 * SPANS_PER_MIB; i++) hak_pool_take(1, 1, {}, true, &zeroed);
  auto swing = [&](size_t mib, uint64_t now_ms) {
    fake_os::set_clock(now_ms);
    for (hak_span *s : spans)
      if (s->tag != HAK_TAG_NONE) hak_pool_give(s, 0, 0, &due);
    make_pieces(mib);
    hak_release_excess();
    return dirty_mib();
  };
  // Turns of three seconds, longer than those that regret looks at.
  EXPECT_LE(swing(110, 1000000), 25u);
  EXPECT_LE(swing(110, 1003000), 25u) << "taken again: a second from now on, which has passed";
  EXPECT_GT(swing(110, 1006000), 90u) << "four seconds";
  EXPECT_LE(swing(110, 1009000), 25u) << "which have passed";
  EXPECT_GT(swing(110, 1012000), 90u) << "sixteen";
  EXPECT_GT(swing(110, 1015000), 90u);
  EXPECT_LE(swing(1000, 1018000), 400u) << "so much is no swing";
}

// Memory-lean mode: a target that can change, whole huge pages or not, and in its own time where asked for.
class ReleaseLean : public ReleasePieces {
 protected:
  void SetUp() override {
    Release::SetUp();
    hak_config.mem_lean = 1;
    hak_config.mem_lean_target_mb = 10;
  }
  void TearDown() override {
    hak_config.mem_lean = 0;
    hak_release_start();
    Release::TearDown();
  }
  static void start(int decommit) {
    hak_config.mem_lean_decommit = decommit;
    hak_release_start();
  }
  static unsigned advised(int advice) {
    unsigned n = 0;
    for (const auto &e : fake_os::log()) n += e.call == fake_os::ADVISE && e.detail == advice;
    return n;
  }
};

TEST_F(ReleaseLean, KeepsTheTarget) {
  start(HAK_LEAN_DONTNEED);
  EXPECT_FALSE(hak_release_over_limit(10 * SPANS_PER_MIB, 1000 * SPANS_PER_MIB)) << "whatever is live";
  EXPECT_TRUE(hak_release_over_limit(10 * SPANS_PER_MIB + 1, 1000 * SPANS_PER_MIB));
  ASSERT_EQ(hak_config_set("HAKMEM_SS_MEM_LEAN_TARGET_MB", 3), 0);
  EXPECT_TRUE(hak_release_over_limit(3 * SPANS_PER_MIB + 1, 0));
  uint64_t counted = hak_os_stats.lean_decommit;
  make_pieces(16);
  hak_release_excess();
  EXPECT_LE(dirty_mib(), 3u) << "pieces too";
  EXPECT_GT(hak_os_stats.lean_decommit, counted);
  EXPECT_EQ(advised(MADV_FREE), 0u);
}

TEST_F(ReleaseLean, IdleMemoryGoesAfterOneEpoch) {
  start(HAK_LEAN_DONTNEED);
  hak_release_tick(1000000);
  make_dirty(8);
  hak_release_tick(1000250);
  EXPECT_EQ(dirty_mib(), 0u);
}

TEST_F(ReleaseLean, FreeLeavesItToTheKernelAndTrimDoesNot) {
  start(HAK_LEAN_FREE);
  make_dirty(64);
  hak_release_excess();
  EXPECT_LE(dirty_mib(), 10u);
  EXPECT_GT(advised(MADV_FREE), 0u);
  EXPECT_EQ(advised(MADV_DONTNEED), 0u);
  bool zeroed = true, due = false;
  hak_span *s = hak_pool_take(20 * SPANS_PER_MIB, 1, {}, false, &zeroed);
  EXPECT_FALSE(zeroed) << "the kernel may not have taken it yet";
  hak_pool_give(s, 0, 0, &due);
  EXPECT_EQ(hak_release_all(0), 64 * HAK_MIB) << "what is left to the kernel is resident";
  hak_pool_take(20 * SPANS_PER_MIB, 1, {}, false, &zeroed);
  EXPECT_TRUE(zeroed);
}

TEST_F(ReleaseLean, AKernelWithoutFreeGetsDontneed) {
  start(HAK_LEAN_FREE);
  fake_os::fail_if([](const fake_os::Event &e) { return e.call == fake_os::ADVISE && e.detail == MADV_FREE ? EINVAL : 0; });
  make_dirty(64);
  hak_release_excess();
  EXPECT_LE(dirty_mib(), 10u);
  EXPECT_GT(advised(MADV_DONTNEED), 0u);
}

TEST_F(ReleaseLean, OffOnlySuppressesPrewarming) {
  start(HAK_LEAN_OFF);
  EXPECT_FALSE(hak_release_over_limit(12 * SPANS_PER_MIB, 0)) << "balanced";
  EXPECT_TRUE(hak_release_over_limit(12 * SPANS_PER_MIB + 1, 0));
}

TEST_F(Release, SpeedKeepsMore) {
  hak_config.profile = HAK_PROFILE_SPEED;
  hak_release_start();
  EXPECT_FALSE(hak_release_over_limit(256 * SPANS_PER_MIB, 0));
  EXPECT_TRUE(hak_release_over_limit(256 * SPANS_PER_MIB + 1, 0));
  hak_config.profile = HAK_PROFILE_BALANCED;
  hak_release_start();
}

// Each time half of what was live is gone, threads are told to empty their caches.
TEST_F(Release, SubsidenceIsNoticed) {
  std::vector<hak_span *> runs;
  bool zeroed, due = false;
  for (int i = 0; i < 64; i++) runs.push_back(hak_pool_take(4 * SPANS_PER_MIB, 1, {}, false, &zeroed));
  hak_release_tick(2000000);
  uint32_t before = hak_release_subsidences;
  auto free_until = [&](size_t left) {
    for (; runs.size() > left; runs.pop_back()) hak_pool_give(runs.back(), 0, 0, &due);
    hak_release_excess();
    return hak_release_subsidences - before;
  };
  EXPECT_EQ(free_until(33), 0u) << "more than half is live";
  EXPECT_EQ(free_until(31), 1u);
  EXPECT_EQ(free_until(16), 1u);
  EXPECT_EQ(free_until(15), 2u);
  EXPECT_EQ(free_until(2), 3u);
  EXPECT_EQ(free_until(0), 4u);
}

// The free that passes half says so, and whoever is told gives back what is left of a burst; after some time of work as much
// is kept as before.
TEST_F(Release, SubsidenceLeavesLess) {
  std::vector<hak_span *> runs;
  bool zeroed, due = false;
  for (int i = 0; i < 20; i++) runs.push_back(hak_pool_take(SPANS_PER_MIB, 1, {}, false, &zeroed));
  hak_release_tick(2000000);
  uint32_t before = hak_release_subsidences;
  for (; runs.size() > 10; runs.pop_back()) hak_pool_give(runs.back(), 0, 0, &due);
  EXPECT_FALSE(due) << "10 MiB may stay, and half is live";
  hak_pool_give(runs.back(), 0, 0, &due);
  runs.pop_back();
  EXPECT_TRUE(due);
  hak_release_excess();
  EXPECT_EQ(hak_release_subsidences - before, 1u);
  EXPECT_TRUE(hak_release_subsided);
  due = false;
  hak_pool_give(runs.back(), 0, 0, &due);
  runs.pop_back();
  EXPECT_TRUE(due);
  hak_release_excess();
  EXPECT_LE(dirty_mib(), 4u);
  for (unsigned i = 1; i <= 40; i++) hak_release_tick(2000000 + 250 * i);
  EXPECT_FALSE(hak_release_subsided) << "at work";
}

// What nobody has come by for is as old as the clock says.
TEST_F(Release, AFirstTickAfterALongRestFindsItIdle) {
  fake_os::set_clock(4000000);
  hak_release_tick(4000000);
  make_dirty(8);
  hak_release_tick(4000000 + 250);
  EXPECT_EQ(dirty_mib(), 8u) << "idle for one epoch";
  hak_release_tick(4000000 + 250 + 1000);
  EXPECT_EQ(dirty_mib(), 2u);
}

// Given back at once and taken again within a second: the next time as much is kept as was held, while that goes on.
TEST_F(Release, RegretKeepsWhatComesBack) {
  fake_os::set_clock(5000000);
  make_dirty(200);
  hak_release_excess();
  EXPECT_LE(dirty_mib(), 10u);
  make_dirty(200);  // taken again …
  hak_release_excess();
  EXPECT_EQ(dirty_mib(), 200u) << "and now kept";
  unsigned before = fake_os::count(fake_os::ADVISE);
  for (int i = 0; i < 10; i++) {
    make_dirty(200);
    hak_release_excess();
  }
  EXPECT_EQ(fake_os::count(fake_os::ADVISE), before) << "a program that swings makes no system call";
  // Two windows without a swing end it.
  for (uint64_t now : {5001000, 5002000, 5003000}) {
    fake_os::set_clock(now);
    hak_release_excess();
  }
  EXPECT_LE(dirty_mib(), 10u);
}

// Two swings, then some seconds of light work in which what they left goes: until windows are as long as that.
TEST_F(Release, RegretInVainMakesWindowsLonger) {
  uint64_t now = 8000000;
  auto look = [&](unsigned times) {
    while (times-- > 0) {
      fake_os::set_clock(now += 500);
      hak_release_excess();
    }
  };
  unsigned before = 0;
  for (int cycle = 0; cycle < 20; cycle++) {
    if (cycle == 10) before = fake_os::count(fake_os::ADVISE);
    for (int i = 0; i < 2; i++) {
      make_dirty(200);
      look(1);
    }
    look(8);
    if (cycle == 0) EXPECT_LE(dirty_mib(), 10u) << "after two windows of a second";
  }
  EXPECT_EQ(fake_os::count(fake_os::ADVISE), before);
  EXPECT_GE(dirty_mib(), 200u);
  look(64);
  EXPECT_LE(dirty_mib(), 10u) << "two of the longest windows without a swing end it";
}

// More is kept than the peak and an eighth, lest it be in vain again; but not for ever.
TEST_F(Release, SlackIsCutFromTimeToTime) {
  uint64_t now = 30000000;
  auto swing = [&](size_t mib, unsigned times) {
    while (times-- > 0) {
      fake_os::set_clock(now += 500);
      make_dirty(mib);
      hak_release_excess();
    }
  };
  for (int cycle = 0; cycle < 10; cycle++) {
    swing(280, 2);
    swing(0, 8);
  }
  EXPECT_GE(dirty_mib(), 280u);
  unsigned before = fake_os::count(fake_os::ADVISE);
  swing(200, 2 * 1024 * 2);
  EXPECT_LE(dirty_mib(), 225u);
  EXPECT_LE(fake_os::count(fake_os::ADVISE), before + 50);
}

TEST_F(Release, WhatIsTakenAgainMuchLaterWasNotInVain) {
  uint64_t now = 10000000;
  for (int hour = 0; hour < 8; hour++) {
    fake_os::set_clock(now += 3600 * 1000);
    hak_release_tick(now);
    size_t vain = hak_span_pool.vain_spans;
    make_dirty(200);
    EXPECT_EQ(hak_span_pool.vain_spans, vain) << hour;
    hak_release_excess();
  }
}

// A little that goes after a rest and comes back some seconds later, which is too little for a verdict each time.
TEST_F(Release, ChunksRestLongerWhenALittleComesBackAgainAndAgain) {
  uint64_t now = 20000000;
  size_t taken_again = 0;
  fake_os::set_clock(now);
  for (int cycle = 0; cycle < 40; cycle++) {
    if (cycle == 20) taken_again = hak_span_pool.unrest_spans;
    make_dirty(8);
    for (int i = 0; i < 24; i++) {
      fake_os::set_clock(now += 250);
      hak_release_tick(now);
    }
  }
  EXPECT_GT(taken_again, 0u);
  EXPECT_EQ(hak_span_pool.unrest_spans, taken_again) << "no more in the second half";
}

TEST_F(Release, RegretEndsWhenNobodyComesBy) {
  uint64_t now = 9000000;
  fake_os::set_clock(now);
  for (int i = 0; i < 3; i++) {
    make_dirty(200);
    hak_release_excess();
  }
  ASSERT_EQ(dirty_mib(), 200u);
  fake_os::set_clock(now + 1500);
  hak_release_excess();
  EXPECT_LE(dirty_mib(), 10u);
}

TEST_F(Release, NoRegretForMemoryThatStaysAway) {
  uint64_t now = 6000000;
  for (int i = 0; i < 5; i++) {
    fake_os::set_clock(now += 1500);
    hak_release_excess();  // a window begins
    make_dirty(200);
    hak_release_excess();
    EXPECT_LE(dirty_mib(), 10u) << i;
  }
}

TEST_F(Release, GivesBackRunsNotSpans) {
  make_dirty(256);
  unsigned before = fake_os::count(fake_os::ADVISE);
  hak_release_all(0);
  EXPECT_EQ(dirty_mib(), 0u);
  EXPECT_LE(fake_os::count(fake_os::ADVISE) - before, 256u / 16 + 8) << "neighbours are coalesced into one call";
}

TEST_F(Release, PagesAreGoneAndKnownZero) {
  make_dirty(8);
  char *p = static_cast<char *>(hak_region_address(&hak_main_region, hak_main_region.first_span));
  EXPECT_EQ(p[0], char(0xcc));
  EXPECT_EQ(hak_release_all(0), 8 * HAK_MIB);
  EXPECT_EQ(p[0], 0);
  bool zeroed = false;
  hak_pool_take(1, 1, {}, false, &zeroed);
  EXPECT_TRUE(zeroed);
}

TEST_F(Release, IdleMemoryWaitsTwoEpochs) {
  uint64_t t = 1000000;
  hak_release_tick(t);
  make_dirty(40);
  hak_release_tick(t += 100);
  EXPECT_EQ(dirty_mib(), 40u) << "no epoch has passed";
  hak_release_tick(t += 250);
  EXPECT_EQ(dirty_mib(), 40u) << "one epoch is not idle yet";
  hak_release_tick(t += 250);
  EXPECT_LE(dirty_mib(), 2u);
}

TEST_F(Release, MemoryInUseIsNotIdle) {
  uint64_t t = 1000000;
  for (int epoch = 0; epoch < 10; epoch++) {
    hak_release_tick(t += 250);
    make_dirty(40);  // the same runs again: their chunk was used in this epoch
    EXPECT_EQ(dirty_mib(), 40u);
  }
}

TEST_F(Release, KeepsEightPercentOfLive) {
  bool zeroed;
  for (int i = 0; i < 100; i++) ASSERT_NE(hak_pool_take(4 * SPANS_PER_MIB, 1, {}, false, &zeroed), nullptr);  // 400 MiB live
  uint64_t t = 1000000;
  hak_release_tick(t);
  make_dirty(100);
  for (int i = 0; i < 4; i++) hak_release_tick(t += 250);
  EXPECT_LE(dirty_mib(), 32u);
  EXPECT_GE(dirty_mib(), 16u);
}

TEST_F(Release, RefusalKeepsTheMemoryAndEnds) {
  make_dirty(128);
  fake_os::fail_all(fake_os::ADVISE, EINVAL);
  fake_os::fail_all(fake_os::MAP);
  hak_release_excess();
  EXPECT_EQ(hak_release_all(0), 0u);
  EXPECT_EQ(dirty_mib(), 128u);
  EXPECT_EQ(hak_span_pool.live_spans, 0u);
  fake_os::allow_all();
  EXPECT_EQ(hak_release_all(0), 128 * HAK_MIB);
}

TEST_F(Release, KeepBytesAreKept) {
  make_dirty(128);
  hak_release_all(32 * HAK_MIB);
  EXPECT_LE(dirty_mib(), 32u);
  EXPECT_GE(dirty_mib(), 16u);
}

TEST_F(Release, HighAddressesGoFirst) {
  make_dirty(192);
  hak_release_all(100 * HAK_MIB);
  uintptr_t lowest = UINTPTR_MAX;
  for (const auto &e : fake_os::log())
    if (e.call == fake_os::ADVISE && e.detail == MADV_DONTNEED) lowest = std::min(lowest, e.addr);
  ASSERT_NE(lowest, UINTPTR_MAX);
  EXPECT_GE(lowest, hak_main_region.base + 64 * HAK_MIB) << "allocation prefers low addresses: those stay warm";
}

TEST_F(Release, AllRegionsTakePart) {
  ASSERT_TRUE(hak_region_init(16 * HAK_MIB));
  memset(&hak_span_pool, 0, sizeof hak_span_pool);
  make_dirty(60);
  EXPECT_GE(hak_region_count(), 4u);
  EXPECT_EQ(hak_release_all(0), 60 * HAK_MIB);
}

}  // namespace
