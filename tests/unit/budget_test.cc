// The limit's arithmetic, and the target's levels on made-up figures of the system.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "fake_files.h"
#include "fake_os.h"
#include "fresh_pool.h"
#include "hak.h"
#include "whole_steps.h"
#include "large_blocks.h"
#include "run_program.h"

using testing::IsEmpty;

namespace {

constexpr size_t MIB = HAK_MIB, SPANS_PER_MIB = HAK_MIB / HAK_SPAN_SIZE;

class Budget : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(start_pool(1 * HAK_GIB));
    fake_os::on_call([this](const fake_os::Event &e) {
      bool grows = e.call == fake_os::PROTECT || (e.call == fake_os::ADVISE && e.detail == MADV_DODUMP);
      if (!grows && hak_load_relaxed(&hak_span_pool.lock.state) != 0) called_under_lock = true;
    });
    files.write("/proc/meminfo", "MemTotal: 1048576 kB\n");
  }
  void TearDown() override {
    EXPECT_FALSE(called_under_lock);
    EXPECT_THAT(fake_os::violations(), IsEmpty());
  }

  static hak_span *take(size_t mib) {
    bool zeroed;
    return hak_pool_take(mib * SPANS_PER_MIB, 1, HELD_TAGS, false, &zeroed);
  }
  static bool give(hak_span *span) {
    bool due = false;
    hak_pool_give(span, 0, HELD_TAGS.head, &due);
    return due;
  }
  static hak_budget_figures state() {
    hak_budget_figures figures;
    hak_budget_state(&figures);
    return figures;
  }
  static size_t dirty_mib() { return hak_span_pool.dirty_spans / SPANS_PER_MIB; }
  // Without a target as much may be dirty as there is.
  static void keep_much() { hak_span_pool.mark_spans = SIZE_MAX; }
  // Whether too much is dirty while so much is, and so much live.
  static bool over(size_t dirty, size_t live) {
    std::swap(hak_span_pool.dirty_spans, dirty);
    std::swap(hak_span_pool.live_spans, live);
    bool is = hak_budget_over_now();
    hak_span_pool.dirty_spans = dirty;
    hak_span_pool.live_spans = live;
    return is;
  }
  // One epoch in which the process is so large.
  unsigned epoch(size_t resident_mib) {
    files.set_resident(resident_mib * MIB);
    whole_steps::tick(now_ms += 250, &d);
    return hak_budget_level();
  }

  FakeFiles files;
  uint64_t now_ms = 1000000;
  hak_deferred d = {};
  bool called_under_lock = false;
};

// --- limit ---

TEST_F(Budget, WithoutLimitNothingIsRefused) {
  EXPECT_NE(take(32), nullptr);
  bool zeroed;
  EXPECT_NE(large_blocks::alloc(100 * MIB, 4096, &zeroed), nullptr);
  EXPECT_EQ(state().limit, 0u);
  EXPECT_GE(state().used, 132 * MIB);
  EXPECT_LE(state().used, 134 * MIB) << "blocks, their tables and the table of huge blocks";
}

TEST_F(Budget, SpansStopAtTheLimit) {
  hak_config.limit = 16 * MIB;
  hak_span *first = take(8);
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(take(9), nullptr);
  hak_span *second = take(7);
  ASSERT_NE(second, nullptr);
  EXPECT_EQ(take(1), nullptr) << "the tables count too";
  EXPECT_LE(state().used, 16 * MIB);
  give(first);
  EXPECT_NE(take(8), nullptr) << "dirty memory changes hands";
}

TEST_F(Budget, DirtyMemoryThatDoesNotFitCountsUntilItIsPurged) {
  hak_config.limit = 16 * MIB;
  std::vector<hak_span *> spans(14);
  for (hak_span *&s : spans) ASSERT_NE(s = take(1), nullptr);
  for (size_t i = 0; i < spans.size(); i += 2) give(spans[i]);
  EXPECT_EQ(take(4), nullptr);
  EXPECT_EQ(hak_decay_all(0, &d), 7 * MIB);
  EXPECT_NE(take(4), nullptr);
}

TEST_F(Budget, GrowthInPlaceStopsAtTheLimit) {
  give(take(16));
  hak_decay_all(0, &d);  // so much is accessible now, and clean
  hak_config.limit = 4 * MIB;
  hak_span *s = take(2);
  ASSERT_NE(s, nullptr);
  EXPECT_TRUE(hak_pool_extend(s, SPANS_PER_MIB, HAK_CODE_EXTENT_BODY));
  EXPECT_FALSE(hak_pool_extend(s, 2 * SPANS_PER_MIB, HAK_CODE_EXTENT_BODY));
  bool due;
  ASSERT_TRUE(hak_pool_give(s, SPANS_PER_MIB, HELD_TAGS.head, &due));
  hak_config.limit = 1 * MIB;
  EXPECT_TRUE(hak_pool_extend(s, 2 * SPANS_PER_MIB, HAK_CODE_EXTENT_BODY)) << "over dirty spans nothing is added";
}

TEST_F(Budget, HugeBlocksStopAtTheLimit) {
  hak_config.limit = 128 * MIB;
  bool zeroed;
  unsigned maps = fake_os::count(fake_os::MAP);
  EXPECT_EQ(large_blocks::alloc(128 * MIB, 4096, &zeroed), nullptr);
  EXPECT_EQ(fake_os::count(fake_os::MAP), maps) << "the system is not even asked";
  void *p = large_blocks::alloc(80 * MIB, 4096, &zeroed);
  ASSERT_NE(p, nullptr);
  EXPECT_EQ(large_blocks::alloc(64 * MIB, 4096, &zeroed), nullptr);
  EXPECT_EQ(hak_huge_resize(p, 130 * MIB, true), nullptr);
  EXPECT_EQ(hak_huge_size(p), 80 * MIB) << "unchanged";
  p = hak_huge_resize(p, 120 * MIB, true);
  ASSERT_NE(p, nullptr);
  EXPECT_EQ(take(8), nullptr) << "spans and huge blocks share it";
  p = hak_huge_resize(p, 60 * MIB, true);
  EXPECT_NE(take(8), nullptr);
  ASSERT_TRUE(large_blocks::free(p));
  EXPECT_EQ(take(62), nullptr) << "the mapping is kept for the next block, and counts";
  EXPECT_EQ(large_blocks::release(), 60 * MIB);
  EXPECT_NE(large_blocks::alloc(110 * MIB, 4096, &zeroed), nullptr);
}

TEST_F(Budget, WhatTheSystemRefusesIsNotUsed) {
  hak_config.limit = 100 * MIB;
  bool zeroed;
  size_t before = state().used;
  fake_os::fail_all(fake_os::MAP);
  EXPECT_EQ(large_blocks::alloc(64 * MIB, 4096, &zeroed), nullptr);
  EXPECT_EQ(state().used, before);
  fake_os::allow_all();
  void *p = large_blocks::alloc(64 * MIB, 4096, &zeroed);
  before = state().used;
  fake_os::fail_all(fake_os::REMAP);
  EXPECT_EQ(hak_huge_resize(p, 80 * MIB, true), nullptr);
  EXPECT_EQ(hak_huge_resize(p, 40 * MIB, true), nullptr);
  EXPECT_EQ(state().used, before);
}

TEST_F(Budget, CellsAreCountedAndNeverRefused) {
  hak_config.limit = 1;
  size_t metadata = hak_meta_bytes();
  size_t before = state().used;
  for (int i = 0; i < 10000; i++) ASSERT_NE(hak_meta_take(), nullptr);
  EXPECT_GE(state().used - before, 10000u * HAK_META_SIZE);
  EXPECT_EQ(state().used - before, hak_meta_bytes() - metadata);
}

// Four threads ask at the same time where there is room for two, again and again.
TEST_F(Budget, ManyThreadsDoNotPassTheLimitTogether) {
  constexpr int THREADS = 4, ROUNDS = 300;
  fake_os::on_call(nullptr);  // some other thread may hold the lock
  hak_config.limit = 84 * MIB;
  std::atomic<int> arrived{0}, admitted{0};
  auto wait_for = [&arrived](int count) {
    arrived++;
    while (arrived < count) std::this_thread::yield();
  };
  std::vector<std::thread> threads;
  for (int t = 0; t < THREADS; t++)
    threads.emplace_back([&, t] {
      for (int round = 0; round < ROUNDS; round++) {
        bool zeroed;
        wait_for((3 * round + 1) * THREADS);
        hak_span *run = t == 0 ? take(30) : nullptr;
        void *huge = t == 0 ? nullptr : large_blocks::alloc(40 * MIB, 4096, &zeroed);
        admitted += run != nullptr || huge != nullptr;
        wait_for((3 * round + 2) * THREADS);
        if (t == 0 && state().used > 85 * MIB) ADD_FAILURE() << state().used << " bytes in round " << round;
        if (run != nullptr) give(run);
        if (huge != nullptr) large_blocks::free(huge);
        wait_for((3 * round + 3) * THREADS);
        if (t == 0) hak_decay_all(0, &d);
        if (t == 0) large_blocks::release();
      }
    });
  for (std::thread &t : threads) t.join();
  EXPECT_GE(admitted, ROUNDS);
}

// --- target ---

TEST_F(Budget, NoTargetReadsNothing) {
  hak_config.rss_target = 0;
  files.set_resident(10000 * MIB);
  for (int i = 0; i < 10; i++) EXPECT_EQ(hak_budget_look(now_ms += 250), unsigned(HAK_BUDGET_FAR));
  EXPECT_EQ(state().resident, 0u);
  EXPECT_EQ(hak_budget_room(), SIZE_MAX);
  EXPECT_FALSE(over(1u << 20, 1u << 20));
}

TEST_F(Budget, LevelsRiseOneAnEpochAndFallAtOnce) {
  hak_config.rss_target = 100 * MIB;
  EXPECT_EQ(epoch(90), unsigned(HAK_BUDGET_FAR));
  EXPECT_EQ(epoch(91), unsigned(HAK_BUDGET_NEAR));
  EXPECT_EQ(epoch(100), unsigned(HAK_BUDGET_NEAR));
  EXPECT_EQ(epoch(101), unsigned(HAK_BUDGET_OVER));
  EXPECT_EQ(epoch(101), unsigned(HAK_BUDGET_PURGE));
  EXPECT_EQ(epoch(101), unsigned(HAK_BUDGET_CALLBACK));
  EXPECT_EQ(epoch(500), unsigned(HAK_BUDGET_CALLBACK));
  EXPECT_EQ(epoch(95), unsigned(HAK_BUDGET_NEAR));
  EXPECT_EQ(epoch(120), unsigned(HAK_BUDGET_OVER));
  EXPECT_EQ(epoch(10), unsigned(HAK_BUDGET_FAR));
  hak_budget_figures f = state();
  EXPECT_EQ(f.target, 100 * MIB);
  EXPECT_EQ(f.resident, 10 * MIB);
  EXPECT_THAT(f.entered, testing::ElementsAre(1, 2, 2, 1, 1));
  hak_config.rss_target = 0;
  EXPECT_EQ(epoch(500), unsigned(HAK_BUDGET_FAR));
  EXPECT_EQ(state().target, 0u);
}

TEST_F(Budget, OneLookAnEpoch) {
  hak_config.rss_target = 100 * MIB;
  epoch(101);
  files.set_resident(500 * MIB);
  for (int i = 0; i < 100; i++) whole_steps::tick(now_ms + 1, &d);
  EXPECT_EQ(state().resident, 101 * MIB);
  EXPECT_EQ(hak_budget_level(), unsigned(HAK_BUDGET_OVER));
}

TEST_F(Budget, PressureRaisesTheLevelByOne) {
  hak_config.rss_target = 100 * MIB;
  files.write("/proc/pressure/memory", "some avg10=10.01 avg60=0.00 avg300=0.00 total=0\n");
  EXPECT_EQ(epoch(50), unsigned(HAK_BUDGET_NEAR));
  EXPECT_EQ(state().pressure, 1001u);
  EXPECT_EQ(epoch(50), unsigned(HAK_BUDGET_NEAR)) << "by one, not by one an epoch";
  EXPECT_EQ(epoch(95), unsigned(HAK_BUDGET_OVER));
  EXPECT_EQ(epoch(101), unsigned(HAK_BUDGET_PURGE));
  files.write("/proc/pressure/memory", "some avg10=10.00 avg60=0.00 avg300=0.00 total=0\n");
  now_ms += 2000;
  EXPECT_EQ(epoch(50), unsigned(HAK_BUDGET_FAR));
  files.write("/proc/pressure/memory", "some avg10=99.00 avg60=0.00 avg300=0.00 total=0\n");
  hak_config.rss_target = 0;
  now_ms += 2000;
  EXPECT_EQ(epoch(50), unsigned(HAK_BUDGET_FAR)) << "without a target it is not looked at";
}

TEST_F(Budget, PercentOfTheCgroupsLimit) {
  files.write("/proc/thread-self/cgroup", "0::/box\n");
  files.write("/sys/fs/cgroup/box/memory.max", "268435456\n");
  hak_config.rss_target = -80;
  EXPECT_EQ(epoch(200), unsigned(HAK_BUDGET_NEAR));
  EXPECT_EQ(state().target, 268435456u / 100 * 80);
  EXPECT_EQ(epoch(206), unsigned(HAK_BUDGET_OVER));
  files.write("/sys/fs/cgroup/box/memory.max", "536870912\n");
  now_ms += 10000;
  EXPECT_EQ(epoch(206), unsigned(HAK_BUDGET_FAR)) << "the administrator has raised it";
  hak_config.rss_target = -40;
  EXPECT_EQ(epoch(206), unsigned(HAK_BUDGET_OVER)) << "a new percentage holds at once";
}

TEST_F(Budget, PercentOfTheMachine) {
  hak_config.rss_target = -50;
  EXPECT_EQ(epoch(10), unsigned(HAK_BUDGET_FAR));
  EXPECT_EQ(state().target, HAK_GIB / 100 * 50);
}

TEST_F(Budget, PercentOfNothingIsSaidOnce) {
  files.remove("/proc/meminfo");
  hak_config.rss_target = -50;
  testing::internal::CaptureStderr();
  for (int i = 0; i < 100; i++) EXPECT_EQ(epoch(5000), unsigned(HAK_BUDGET_FAR));
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "hakmem: HAKMEM_RSS_TARGET=50%: the memory this is a part of cannot be read: using no target\n");
}

TEST_F(Budget, WithoutStatmThereIsNoTarget) {
  hak_config.rss_target = 1 * MIB;
  whole_steps::tick(now_ms += 250, &d);
  EXPECT_EQ(hak_budget_level(), unsigned(HAK_BUDGET_FAR));
  EXPECT_EQ(hak_budget_room(), SIZE_MAX);
}

// 100 MiB are used, 40 of them dirty, and the process is 20 MiB larger than that.
TEST_F(Budget, WhatMayStayDirtyFollowsFromWhatIsLeft) {
  hak_config.rss_target = 160 * MIB;
  std::vector<hak_span *> runs(25);
  for (hak_span *&s : runs) s = take(4);
  for (size_t i = 0; i < 10; i++) give(runs[i]);
  files.set_resident(120 * MIB);
  hak_budget_look(now_ms += 250);
  size_t left = 160 - 160 / 16 - 20;  // for spans
  EXPECT_EQ(hak_budget_room() / SPANS_PER_MIB, left - 60);
  size_t live = hak_span_pool.live_spans, next = 40 + 160 / 32;  // when it is time to measure again
  EXPECT_FALSE(over(next * SPANS_PER_MIB, live));
  EXPECT_TRUE(over(next * SPANS_PER_MIB + 1, live));
  bool zeroed;
  ASSERT_NE(large_blocks::alloc(64 * MIB, 4096, &zeroed), nullptr);
  files.set_resident((120 + 64 + 1) * MIB);
  EXPECT_EQ(hak_budget_room() / SPANS_PER_MIB, left - 60 - 64 - 1) << "between two looks as well (with the table of huge blocks)";
  ASSERT_NE(large_blocks::alloc(64 * MIB, 4096, &zeroed), nullptr);
  files.set_resident((120 + 128 + 1) * MIB);
  EXPECT_EQ(hak_budget_room(), HAK_BUDGET_DIRTY_LEAST);
  EXPECT_FALSE(over(HAK_BUDGET_DIRTY_LEAST, live)) << "the least always stays";
  whole_steps::excess(&d);
  EXPECT_LE(hak_span_pool.dirty_spans, HAK_BUDGET_DIRTY_LEAST);
}

TEST_F(Budget, PagesThatComeBackInDirtySpansAreMeasured) {
  keep_much();
  hak_config.rss_target = 320 * MIB;
  for (unsigned i = 0; i < 25; i++) take(4);
  std::vector<hak_span *> runs(30);
  for (hak_span *&s : runs) s = take(4);
  for (hak_span *s : runs) give(s);
  epoch(250);
  EXPECT_GE(hak_span_pool.dirty_spans, 112u * SPANS_PER_MIB);
  files.set_resident(330 * MIB);  // no pages were in what was dirty and is taken now
  for (unsigned i = 0; i < 2; i++) runs[i] = take(4);
  EXPECT_FALSE(hak_budget_over_now());
  for (unsigned i = 2; i < 5; i++) runs[i] = take(4);
  EXPECT_TRUE(hak_budget_over_now()) << "1/32 of the target more is live";
  whole_steps::excess(&d);
  EXPECT_LE(hak_span_pool.dirty_spans, (120u - 20 - 30) * SPANS_PER_MIB);
}

TEST_F(Budget, ABurstIsHeldToTheTarget) {
  hak_config.rss_target = 50 * MIB;
  epoch(10);
  std::vector<hak_span *> runs(15);
  for (hak_span *&s : runs) s = take(4);
  whole_steps::tick(now_ms + 1, &d); // who takes spans has the higher mark
  bool due = false;
  for (hak_span *s : runs) due |= give(s);
  EXPECT_TRUE(due) << "60 MiB are below what is kept without a target";
  files.set_resident(70 * MIB);
  whole_steps::excess(&d);
  EXPECT_LE(dirty_mib(), 38u);
  EXPECT_GE(dirty_mib(), 15u);
}

// Resident memory may grow by more than is counted: huge pages.
TEST_F(Budget, ItIsMeasuredAgainBetweenTwoLooksAsMemoryIsTaken) {
  keep_much();
  hak_config.rss_target = 320 * MIB;
  hak_span *dirty[5];
  for (hak_span *&d : dirty) {
    d = take(8);
    take(1);  // so that nothing larger fits there later
  }
  epoch(100);
  for (hak_span *d : dirty) give(d);
  EXPECT_FALSE(hak_budget_over_now());
  take(320 / 32 + 1);
  EXPECT_TRUE(hak_budget_over_now());
  files.set_resident(300 * MIB);
  whole_steps::excess(&d);
  EXPECT_EQ(state().resident, 300 * MIB);
  EXPECT_EQ(dirty_mib(), 40u) << "there is room";
  take(11);
  files.set_resident(330 * MIB);
  whole_steps::excess(&d);
  EXPECT_LE(dirty_mib(), 40u - (330 - 310));
}

TEST_F(Budget, PagesOfSlabsAreAskedForWhenNothingIsDirty) {
  hak_config.rss_target = 320 * MIB;
  take(32);
  epoch(290);
  EXPECT_FALSE(hak_budget_slab_purge_due());
  take(32);
  files.set_resident(322 * MIB);
  EXPECT_TRUE(hak_budget_slab_purge_due());
  size_t wanted = hak_budget_slab_bytes_wanted();
  EXPECT_EQ(wanted, (322 - 300) * MIB + 320 * MIB / 32);
  hak_add_relaxed(&hak_span_pool.purged_slab_pages, 4 * MIB / hak_os_page_size());
  hak_budget_slab_bytes_purged();
  EXPECT_FALSE(hak_budget_slab_purge_due()) << "18 MiB are lacking still, and are not asked for again";
  EXPECT_EQ(hak_budget_slab_bytes_wanted(), 0u);
  take(12);
  EXPECT_TRUE(hak_budget_slab_purge_due()) << "until there is more";
  hak_add_relaxed(&hak_span_pool.purged_slab_pages, 20 * MIB / hak_os_page_size());
  EXPECT_FALSE(hak_budget_slab_purge_due());
}

TEST_F(Budget, NearTheTargetIdleMemoryGoesAfterOneEpoch) {
  hak_config.rss_target = 100 * MIB;
  epoch(95);
  give(take(1));
  epoch(95);
  EXPECT_EQ(hak_span_pool.dirty_spans, 0u) << "all of it, although 2 MiB would be kept without a target";
}

TEST_F(Budget, AboveItAllFreeMemoryGoesInTheSecondEpoch) {
  hak_config.rss_target = 100 * MIB;
  epoch(101);
  give(take(10));
  epoch(101);
  EXPECT_EQ(hak_budget_level(), unsigned(HAK_BUDGET_PURGE));
  EXPECT_EQ(hak_span_pool.dirty_spans, 0u) << "used in this epoch or not";
  EXPECT_EQ(hak_budget_room(), HAK_BUDGET_DIRTY_LEAST) << "and what is freed from now on, the least aside";
  EXPECT_TRUE(over(HAK_BUDGET_DIRTY_LEAST + 1, 0));
}

TEST_F(Budget, NoFreedMappingIsKeptNearTheTarget) {
  bool zeroed;
  void *p = large_blocks::alloc(40 * MIB, 4096, &zeroed);
  hak_config.rss_target = 100 * MIB;
  epoch(95);
  size_t mapped = fake_os::mapped_bytes();
  large_blocks::free(p);
  EXPECT_EQ(fake_os::mapped_bytes(), mapped - 40 * MIB);
}

size_t resident_spans(const void *p, size_t bytes) {
  std::vector<unsigned char> resident(bytes / hak_os_page_size() + 1);
  EXPECT_EQ(mincore(const_cast<void *>(p), bytes, resident.data()), 0);
  size_t pages = size_t(std::count_if(resident.begin(), resident.end(), [](unsigned char r) { return (r & 1) != 0; }));
  return pages * hak_os_page_size() / HAK_SPAN_SIZE;
}

TEST_F(Budget, NearTheTargetRunsHoldNoPagesBehindTheirBlock) {
  bool zeroed, due = false;
  hak_span *s = hak_pool_take(2, 1, HELD_TAGS, false, &zeroed);
  void *start = span_address(s);
  for (size_t target : {0 * MIB, 100 * MIB}) {
    memset(start, 1, 2 * HAK_SPAN_SIZE);
    hak_pool_give(s, 0, HELD_TAGS.head, &due);
    hak_config.rss_target = int64_t(target);
    files.set_resident(95 * MIB);
    hak_budget_look(now_ms += 250);
    char *p = static_cast<char *>(hak_extent_alloc(HAK_SPAN_SIZE + 100, 128, false, &zeroed));
    ASSERT_EQ(p, start);
    EXPECT_FALSE(zeroed);
    EXPECT_EQ(p[HAK_SPAN_SIZE + 99], 1);
    EXPECT_EQ(p[2 * HAK_SPAN_SIZE - 1], target == 0 ? 1 : 0);
    EXPECT_EQ(resident_spans(p, 2 * HAK_SPAN_SIZE), target == 0 ? 2u : 1u);
    ASSERT_EQ(hak_extent_claim(hak_region_find(p), p), HAK_VERDICT_OK);
    hak_extent_give(hak_region_find(p), p, &due);
    s = hak_pool_take(2, 1, HELD_TAGS, false, &zeroed);
  }
}

// Under mlockall, for example: asking at every free would cost a system call each.
TEST_F(Budget, ASystemThatTakesNothingBackIsAskedOnceAnEpoch) {
  keep_much();
  hak_config.rss_target = 100 * MIB;
  epoch(200);
  hak_span *a = take(8), *b = take(8);
  take(8);  // stays: no subsidence
  give(a);
  fake_os::fail_all(fake_os::ADVISE, EINVAL);
  fake_os::fail_all(fake_os::MAP);
  whole_steps::excess(&d);
  unsigned calls = fake_os::count(fake_os::ADVISE);
  EXPECT_FALSE(give(b));
  whole_steps::excess(&d);
  EXPECT_EQ(fake_os::count(fake_os::ADVISE), calls);
  epoch(95);
  EXPECT_NE(hak_budget_room(), SIZE_MAX) << "the next look asks again";
}

// --- a target that cannot be met ---

// A process of which so much is not malloc's, where 40 MiB stay live and 10 come and go.
class BudgetInVain : public Budget {
 protected:
  // Calls for memory in an epoch of 20 rounds.
  size_t calls_of_an_epoch(size_t foreign_mib) {
    size_t before = fake_os::count(fake_os::ADVISE);
    hak_deferred d = {};
    for (int round = 0; round < 20; round++) {
      hak_span *runs[10];
      for (hak_span *&run : runs) run = take(1);
      look(foreign_mib);
      for (hak_span *run : runs) {
        if (give(run)) whole_steps::excess(&d);
      }
      look(foreign_mib);
    }
    whole_steps::tick(now_ms += 250, &d);
    return fake_os::count(fake_os::ADVISE) - before;
  }
  void look(size_t foreign_mib) {
    files.set_resident((foreign_mib << 20) + ((hak_span_pool.live_spans + hak_span_pool.dirty_spans) << HAK_SPAN_SHIFT));
    hak_deferred d = {};
    fake_os::set_clock(now_ms);
    hak_slow_exit(&d);
  }
};

TEST_F(BudgetInVain, GivingBackStopsWhereItDoesNotHelp) {
  hak_config.rss_target = 256 * MIB;
  take(40 - 32);
  take(32);
  epoch(340);
  size_t first = calls_of_an_epoch(300);
  EXPECT_GE(first, 80u) << "all that is freed goes, neighbours in one call";
  for (int i = 0; i < 3; i++) calls_of_an_epoch(300);
  EXPECT_GT(state().callbacks + hak_budget_callback_due, 0u) << "the program is still told";
  for (int i = 0; i < 8; i++) EXPECT_LE(calls_of_an_epoch(300), 10u) << i;
  EXPECT_LE(hak_span_pool.dirty_spans, 256u / 16 * SPANS_PER_MIB);
}

TEST_F(BudgetInVain, NotWhereTheTargetCanBeMet) {
  keep_much();
  hak_config.rss_target = 256 * MIB;
  take(40 - 32);
  take(32);
  for (int i = 0; i < 8; i++) {
    calls_of_an_epoch(195);
    look(195);
    EXPECT_LE(state().resident, 256 * MIB);
  }
}

TEST_F(BudgetInVain, ItIsTriedAgainOnceTheTargetIsMet) {
  hak_config.rss_target = 256 * MIB;
  take(40 - 32);
  take(32);
  for (int i = 0; i < 8; i++) calls_of_an_epoch(300);
  ASSERT_LE(calls_of_an_epoch(300), 10u);
  epoch(100);
  EXPECT_EQ(hak_budget_slack, 0u);
  calls_of_an_epoch(300);  // until it is measured again
  EXPECT_GE(calls_of_an_epoch(300), 80u);
}

TEST_F(BudgetInVain, OfAGroupsLimitAPartStaysFree) {
  files.write("/proc/thread-self/cgroup", "0::/box\n");
  files.write("/sys/fs/cgroup/box/memory.max", std::to_string(512 * MIB));
  take(40 - 32);
  take(32);
  auto settled = [this](size_t foreign_mib) {
    size_t most = 0;
    for (int i = 0; i < 4; i++) calls_of_an_epoch(foreign_mib);
    for (int i = 0; i < 4; i++) most = std::max(most, calls_of_an_epoch(foreign_mib));
    return most;
  };
  EXPECT_LE(settled(440), 10u) << "480 MiB cannot go; with what comes and goes 490";
  EXPECT_GE(settled(460), 100u) << "500, and each MiB counts";
}

TEST_F(Budget, TailsStayWhileThereIsRoom) {
  bool zeroed, due = false;
  hak_config.rss_target = 100 * MIB;
  for (size_t resident : {91, 95}) {
    give(take(1));
    files.set_resident(resident * MIB);
    hak_budget_look(now_ms += 250);
    ASSERT_EQ(hak_budget_level(), unsigned(HAK_BUDGET_NEAR));
    size_t before = fake_os::count(fake_os::ADVISE);
    void *p = hak_extent_alloc(HAK_SPAN_SIZE / 2, 1, false, &zeroed);
    EXPECT_EQ(fake_os::count(fake_os::ADVISE) - before, resident == 91 ? 0u : 1u);
    hak_extent_claim(hak_region_find(p), p);
    hak_extent_give(hak_region_find(p), p, &due);
  }
}

// --- callback ---

struct Calls {
  size_t count = 0, resident = 0, target = 0;
  bool locked = false, recurse = false;
};

void on_pressure(size_t resident, size_t target, void *context) {
  auto *calls = static_cast<Calls *>(context);
  calls->count++;
  calls->resident = resident;
  calls->target = target;
  calls->locked |= hak_load_relaxed(&hak_span_pool.lock.state) != 0;
  errno = 12345;
  if (calls->recurse) {
    hak_store_relaxed(&hak_budget_callback_due, 1);
    hak_budget_call_back();
  }
}

TEST_F(Budget, CallbackComesLastAndOnceAnEpoch) {
  Calls calls;
  hak_budget_set_callback(on_pressure, &calls);
  hak_config.rss_target = 100 * MIB;
  for (size_t resident : {95, 101, 102}) {
    epoch(resident);
    EXPECT_FALSE(hak_budget_must_call_back()) << resident;
  }
  epoch(103);
  ASSERT_TRUE(hak_budget_must_call_back());
  errno = 7;
  hak_budget_call_back();
  EXPECT_EQ(errno, 7);
  EXPECT_EQ(calls.count, 1u);
  EXPECT_EQ(calls.resident, 103 * MIB);
  EXPECT_EQ(calls.target, 100 * MIB);
  EXPECT_FALSE(calls.locked);
  hak_budget_call_back();
  EXPECT_EQ(calls.count, 1u) << "not before the next epoch";
  epoch(103);
  hak_budget_call_back();
  EXPECT_EQ(calls.count, 2u);
  EXPECT_EQ(state().callbacks, 2u);
  hak_budget_set_callback(nullptr, nullptr);
  epoch(103);
  hak_budget_call_back();
  EXPECT_EQ(calls.count, 2u);
  EXPECT_FALSE(hak_budget_must_call_back());
}

TEST_F(Budget, CallbackIsNotReentered) {
  Calls calls;
  calls.recurse = true;
  hak_budget_set_callback(on_pressure, &calls);
  hak_config.rss_target = 100 * MIB;
  for (int i = 0; i < 3; i++) epoch(200);
  hak_budget_call_back();
  EXPECT_EQ(calls.count, 1u);
  epoch(200);
  hak_budget_call_back();
  EXPECT_EQ(calls.count, 2u) << "and is called again after it has returned";
}

// Left by an exception the first time, counts the next ones.
void throw_once(size_t, size_t, void *context) {
  if (++*static_cast<unsigned *>(context) == 1) throw 1;
}

HAK_NOINLINE void call_back_from_deeper(unsigned levels) {
  char volatile room[1000];
  room[0] = room[999] = 0;
  if (levels > 0)
    call_back_from_deeper(levels - 1);
  else
    hak_budget_call_back();
  room[1] = room[0];
}

TEST_F(Budget, CallbackThatDoesNotReturnIsCalledAgain) {
  for (unsigned deeper : {0, 5}) {
    unsigned calls = 0;
    hak_budget_set_callback(throw_once, &calls);
    hak_config.rss_target = 100 * MIB;
    for (int i = 0; i < 3; i++) epoch(200);
    EXPECT_THROW(call_back_from_deeper(3), int);
    ASSERT_EQ(calls, 1u);
    for (int i = 0; i < 100 && calls == 1; i++) {
      epoch(200);
      call_back_from_deeper(3 + deeper);
    }
    EXPECT_EQ(calls, 2u) << deeper;
  }
}

// --- caches ---

class BudgetCaches : public testing::Test {
 protected:
  void SetUp() override { fake_os::set_clock(now_ms); }

  // Slow paths of one class.
  static void keep_busy() {
    std::vector<void *> blocks(2000);
    for (int turn = 0; turn < 5; turn++) {
      for (void *&b : blocks) b = hakmem_malloc(2000);
      for (void *b : blocks) hakmem_free(b);
    }
  }
  // An epoch in which only that class is used.
  void epoch() {
    fake_os::set_clock(now_ms += 300);
    keep_busy();
  }

  FakeFiles files;
  uint64_t now_ms = 1000000;
};

TEST_F(BudgetCaches, AboveTheTargetIdleCachesAreEmptiedSooner) {
  unsigned c = hak_class_for(100);
  for (size_t target : {0 * MIB, 100 * MIB}) {
    hak_config.rss_target = int64_t(target);
    files.set_resident(200 * MIB);
    epoch();
    std::vector<void *> blocks(50);
    for (void *&b : blocks) b = hakmem_malloc(100);
    for (void *b : blocks) hakmem_free(b);
    const hak_tcache *t = hak_tls.cache;
    ASSERT_NE(t->bins[c].loaded, nullptr);
    for (int i = 0; i < 3; i++) epoch();
    EXPECT_EQ(t->bins[c].loaded == nullptr, target != 0);
    EXPECT_NE(t->bins[hak_class_for(2000)].loaded, nullptr) << "the class in use";
    hakmem_free(hakmem_malloc(100));
    for (int i = 0; i < 10; i++) epoch();  // as at first
  }
  EXPECT_EQ(hakmem_heap_check(), 0u);
}

// --- fork ---

std::atomic<int> entered, leave;

void wait_inside(size_t, size_t, void *) {
  entered++;
  while (leave == 0) std::this_thread::yield();
}

TEST(BudgetFork, ACallThatAnotherThreadIsInEndsInTheChild) {
  hakmem_free(hakmem_malloc(1));
  hak_budget_set_callback(wait_inside, nullptr);
  hak_store_relaxed(&hak_budget_callback_due, 1);
  std::thread caller(hak_budget_call_back);
  while (entered == 0) std::this_thread::yield();
  ProgramResult r = run_forked([] {
    leave = 1;
    hak_store_relaxed(&hak_budget_callback_due, 1);
    hakmem_free(hakmem_malloc(100000));
    return int(entered);
  });
  EXPECT_EQ(r.exit_code, 2) << "it was called in the child";
  EXPECT_EQ(r.signal, 0);
  leave = 1;
  caller.join();
}

}  // namespace
