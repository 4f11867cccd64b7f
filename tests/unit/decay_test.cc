// When memory goes back: the curve, the mark, the feedback of refaults, and the modes, by a clock that the test moves.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <random>
#include <thread>
#include <vector>

#include "fake_files.h"
#include "fake_os.h"
#include "fresh_pool.h"
#include "hak.h"
#include "whole_steps.h"

using testing::IsEmpty;

namespace {

constexpr size_t SPANS_PER_MIB = HAK_MIB / HAK_SPAN_SIZE;
constexpr uint64_t DECAY_MS = 1000, LOOK_MS = DECAY_MS / 4;

class Decay : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(start_pool(4 * HAK_GIB));
    hak_config.decay_ms = DECAY_MS;  // whatever the default is
    fake_os::on_call([this](const fake_os::Event &e) {
      bool purges = e.call == fake_os::ADVISE && (e.detail == MADV_DONTNEED || e.detail == MADV_FREE);
      if (purges && hak_load_relaxed(&hak_span_pool.lock.state) != 0) advised_under_lock = true;
    });
    fake_os::set_clock(now_ms);
    hak_config.rss_target = 0;
    hak_decay_worth_spans = 0;
    start();
  }
  void TearDown() override {
    EXPECT_FALSE(advised_under_lock);
    EXPECT_THAT(fake_os::violations(), IsEmpty());
  }

  // As at the start of a process, with the first look behind it.
  void start() {
    hak_decay_start();
    look(0);
  }
  void look(uint64_t ms = LOOK_MS) {
    hak_deferred d = {};
    fake_os::set_clock(now_ms += ms);
    whole_steps::tick(now_ms, &d);
  }
  static void excess() {
    hak_deferred d = {};
    whole_steps::excess(&d);
  }
  void end_thread(uint64_t lived_ms) {
    hak_deferred d = {};
    hak_decay_thread_end(lived_ms, &d);
  }
  std::vector<hak_span *> take(size_t mib) {
    std::vector<hak_span *> runs(mib);
    bool zeroed;
    hak_deferred d = {};
    for (hak_span *&s : runs) s = hak_pool_take(SPANS_PER_MIB, 1, HELD_TAGS, false, &zeroed);
    hak_decay_tick(now_ms, &d);  // as any request does
    return runs;
  }
  // Whether a purge was due in the end.
  static bool give(const std::vector<hak_span *> &runs) {
    bool due = false;
    for (hak_span *s : runs) {
      due = false;
      hak_pool_give(s, 0, HELD_TAGS.head, &due);
    }
    return due;
  }
  bool make_dirty(size_t mib) { return give(take(mib)); }
  static size_t dirty() { return hak_load_relaxed(&hak_span_pool.dirty_spans); }
  static size_t dirty_mib() { return dirty() / SPANS_PER_MIB; }
  static unsigned advised(int advice) {
    unsigned n = 0;
    for (const auto &e : fake_os::log()) n += e.call == fake_os::ADVISE && e.detail == advice;
    return n;
  }

  uint64_t now_ms = 1000000;
  bool advised_under_lock = false;
};

// --- the curve ---

// Smoothstep at 1/8, 3/8, 5/8 and 7/8 of the decay time. Whole huge pages are purged: up to one more.
TEST_F(Decay, NothingGoesBeforeAndEverythingAfterADecayTimeAndAQuarter) {
  make_dirty(48);
  double all = double(dirty());
  for (double x : {0.125, 0.375, 0.625, 0.875}) {
    size_t before = dirty();
    look(LOOK_MS - 1);
    EXPECT_EQ(dirty(), before) << "between two looks nothing does";
    look(1);
    double stays = all * (1 - x * x * (3 - 2 * x));
    EXPECT_LE(double(dirty()), stays + all / 256) << x;
    EXPECT_GE(double(dirty()), stays - all / 128 - HAK_HUGE_PAGE_SPANS) << x;
  }
  look();
  EXPECT_EQ(dirty(), 0u);
}

TEST_F(Decay, WhatBecomesDirtyLaterGoesLater) {
  auto first = take(20), second = take(20);
  give(first);
  look();
  look();
  give(second);
  for (int i = 0; i < 3; i++) look();
  EXPECT_LE(dirty_mib(), 20u * 70 / 256 + 1 + 20) << "of the first one nothing, at most";
  EXPECT_GE(dirty_mib(), 3u) << "of the second one something";
  for (int i = 0; i < 2; i++) look();
  EXPECT_EQ(dirty(), 0u);
}

TEST_F(Decay, ALittleGoesToo) {
  for (int round = 0; round < 3; round++) {
    bool zeroed, due = false;
    hak_pool_give(hak_pool_take(1, 1, HELD_TAGS, false, &zeroed), 0, HELD_TAGS.head, &due);
    for (int i = 0; i < 5; i++) look();
    EXPECT_EQ(dirty(), 0u);
  }
}

// Calls for a megabyte are worth less than they cost, and a program may have forbidden them to itself.
TEST_F(Decay, TheLastTwoMebibytesStayWhileTheProgramWorks) {
  hak_decay_worth_spans = 32;
  make_dirty(100);
  for (int i = 0; i < 9; i++) look();
  EXPECT_LE(dirty(), 32u);
  EXPECT_GT(dirty(), 32u - 4) << "whole ranges go";
  look(3600 * 1000);
  EXPECT_EQ(dirty(), 0u) << "after a rest";
}

// Whoever comes by rarely cannot tell since when it has been dirty: it is gone at the second look.
TEST_F(Decay, AfterARestItIsGoneAtTheSecondLook) {
  make_dirty(8);
  look(3600 * 1000);
  look(3600 * 1000);
  EXPECT_EQ(dirty(), 0u);
}

// A load that takes and frees at random, as often as it likes: what a decay time purges is bounded by what was dirty in it.
TEST_F(Decay, PurgesNoMoreThanWasDirtyInADecayTime) {
  for (unsigned seed = 1; seed <= 4; seed++) {
    std::mt19937 random(seed);
    std::vector<hak_span *> held;
    std::deque<size_t> purged(8, 0), most(8, 0);
    for (int i = 0; i < 400; i++) {
      size_t dirtiest = dirty();
      for (unsigned n = random() % 5; n > 0; n--) {
        if (random() % 2 == 0) {
          for (hak_span *s : take(random() % 40)) held.push_back(s);
        } else {
          std::shuffle(held.begin(), held.end(), random);
          size_t left = held.size() - random() % (held.size() + 1);
          give({held.begin() + long(left), held.end()});
          held.resize(left);
        }
        dirtiest = std::max(dirtiest, dirty());
      }
      uint64_t before = hak_purge_stats.bytes;
      look(hak_decay_ms() / 4);
      purged.push_back((hak_purge_stats.bytes - before) >> HAK_SPAN_SHIFT);
      most.push_back(dirtiest);
      purged.pop_front();
      most.pop_front();
      size_t in_time = 0;
      for (size_t k = 4; k < 8; k++) in_time += purged[k];
      // 4/3: steady loads have a third of it purged at each look. And the rest of a huge page each time.
      size_t bound = *std::max_element(most.begin(), most.end()) * 4 / 3 + 4 * HAK_HUGE_PAGE_SPANS;
      ASSERT_LE(in_time, bound) << "seed " << seed << ", look " << i;
    }
    give(held);
    for (int i = 0; i < 8; i++) look(hak_decay_ms() / 4);
    EXPECT_EQ(dirty(), 0u) << "after two decay times at most, since refaults kept the peak";
  }
}

// Nobody may come by behind it; a chunk at most, so that no end takes long.
TEST_F(Decay, TheLastThreadThatWorkedForLongGivesBackWhatItLeaves) {
  hak_decay_worth_spans = HAK_BUDGET_DIRTY_LEAST;
  make_dirty(60);
  end_thread(DECAY_MS - 1);
  EXPECT_EQ(dirty_mib(), 60u) << "what comes and goes with threads that live shortly stays";
  end_thread(DECAY_MS);
  EXPECT_EQ(dirty(), 0u);
  give(take(200));
  size_t before = dirty_mib();
  end_thread(1000 * DECAY_MS);
  EXPECT_NEAR(double(dirty_mib()), double(before) - 64, 2);
}

// They may take again what they have just freed.
TEST_F(Decay, AThreadThatEndsBesideOthersPurgesNothing) {
  std::atomic<int> there{0};
  std::atomic<bool> end{false};
  std::vector<std::thread> others;
  for (int i = 0; i < 2; i++)
    others.emplace_back([&] {
      ASSERT_NE(hak_tcache_attach(false), nullptr);
      there++;
      while (!end) std::this_thread::yield();
      hak_deferred d = {};
      hak_tcache_detach(&d);
    });
  while (there < 2) std::this_thread::yield();
  make_dirty(60);
  end_thread(2 * DECAY_MS);
  EXPECT_EQ(dirty_mib(), 60u);
  end = true;
  for (auto &t : others) t.join();
  end_thread(2 * DECAY_MS);
  EXPECT_EQ(dirty(), 0u);
}

TEST_F(Decay, TheLastThreadLeavesTheHelperItsWork) {
  hak_config.background = 1;
  make_dirty(20);
  end_thread(DECAY_MS);
  EXPECT_EQ(dirty_mib(), 20u);
  hak_config.background = 0;
}

TEST_F(Decay, TheTimeIsAnOption) {
  hak_config.decay_ms = 10000;
  start();
  EXPECT_EQ(hak_decay_ms(), 10000u);
  make_dirty(8);
  for (int i = 0; i < 9; i++) look(LOOK_MS);
  EXPECT_EQ(dirty_mib(), 8u) << "not looked at before 2.5 s";
  for (int i = 0; i < 5; i++) look(2500);
  EXPECT_EQ(dirty(), 0u);
}

TEST_F(Decay, TheTimeChangesWhileTheProgramRuns) {
  hak_deferred d = {};
  make_dirty(8);
  hak_config.decay_ms = 100;
  hak_decay_follow(&d);
  EXPECT_EQ(dirty_mib(), 8u) << "what is dirty has the new time";
  for (int i = 0; i < 5; i++) look(25);
  EXPECT_EQ(dirty(), 0u);
  make_dirty(8);
  hak_config.decay_ms = 0;
  hak_decay_follow(&d);
  EXPECT_EQ(dirty(), 0u);
  EXPECT_TRUE(make_dirty(1)) << "each free says so";
  excess();
  hak_config.decay_ms = DECAY_MS;
  hak_decay_follow(&d);
  EXPECT_FALSE(make_dirty(8)) << "and does not any more";
}

TEST_F(Decay, NoTimeAtAll) {
  hak_config.decay_ms = 0;
  start();
  EXPECT_TRUE(make_dirty(1)) << "each free says so";
  excess();
  EXPECT_EQ(dirty(), 0u);
}

// A fault in a free huge page made all of it resident.
TEST_F(Decay, NoTimeAtAllGivesBackAHugePageWithItsOnlySpan) {
  hak_config.decay_ms = 0;
  start();
  bool zeroed, due = false;
  auto take_one = [&] { return hak_pool_take(1, 1, HELD_TAGS, true, &zeroed); };
  hak_span *first = take_one();
  hak_region *r = hak_pool_region_of(first);
  ASSERT_TRUE(r->chunks[(first - r->spans) / HAK_CHUNK_SPANS].huge);
  auto give_one = [&](hak_span *s) {
    uint64_t before = hak_purge_stats.bytes;
    hak_pool_give(s, 0, HELD_TAGS.head, &due);
    excess();
    return hak_purge_stats.bytes - before;
  };
  EXPECT_EQ(give_one(first), HAK_HUGE_PAGE);
  hak_span *s = take_one(), *neighbour = take_one();
  EXPECT_EQ(give_one(s), HAK_SPAN_SIZE) << "up to what is live";
  EXPECT_EQ(give_one(neighbour), HAK_HUGE_PAGE);
}

TEST_F(Decay, OneThreadLooks) {
  constexpr int THREADS = 4, ROUNDS = 200;
  fake_os::on_call(nullptr);  // some other thread may hold the lock
  make_dirty(8);
  uint32_t epoch = hak_pool_look();
  std::atomic<int> arrived{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < THREADS; t++)
    threads.emplace_back([&] {
      for (int round = 1; round <= ROUNDS; round++) {
        hak_deferred d = {};
        arrived++;
        while (arrived < round * THREADS) std::this_thread::yield();
        whole_steps::tick(now_ms + LOOK_MS * static_cast<uint64_t>(round), &d);
      }
    });
  for (std::thread &t : threads) t.join();
  EXPECT_EQ(hak_pool_look() - epoch, static_cast<uint32_t>(ROUNDS));
  EXPECT_EQ(dirty(), 0u);
}

// Else the child would never look again.
TEST_F(Decay, ALookEndsWithItsThreadInTheChildOfAFork) {
  static std::atomic<bool> purging{false}, forked{false};
  make_dirty(48);
  hak_large_left_to_others = false;  // another thread looks, and takes no large block
  fake_os::on_call([](const fake_os::Event &e) {
    if (e.call != fake_os::ADVISE || e.detail != MADV_DONTNEED || purging.exchange(true)) return;
    while (!forked) std::this_thread::yield();
  });
  std::thread looker([this] { look(); });
  while (!purging) std::this_thread::yield();
  uint32_t epoch = hak_pool_look();
  hak_deferred d = {};
  whole_steps::tick(now_ms + 1000, &d);
  EXPECT_EQ(hak_pool_look(), epoch) << "somebody looks";
  hak_decay_fork_child();  // as this thread's child would
  whole_steps::tick(now_ms + 1000, &d);
  EXPECT_EQ(hak_pool_look(), epoch + 1);
  forked = true;
  looker.join();
}

// --- the mark ---

TEST_F(Decay, TheMarkIs64MiBOrWhatIsHeld) {
  EXPECT_FALSE(make_dirty(64));
  unsigned before = fake_os::count(fake_os::ADVISE);
  excess();
  EXPECT_EQ(fake_os::count(fake_os::ADVISE), before) << "at the mark nothing is due";
  EXPECT_TRUE(make_dirty(65));
  excess();
  EXPECT_LE(dirty_mib(), 32u) << "half of it";
  EXPECT_GE(dirty_mib(), 30u);
  hak_span_pool.purged_spans = 0;  // a decay time later: what is taken now was not purged too early
  auto held = take(200);
  EXPECT_FALSE(make_dirty(200));
  EXPECT_TRUE(make_dirty(202));
  excess();
  EXPECT_LE(dirty_mib(), 100u);
  EXPECT_GE(dirty_mib(), 98u);
}

// Sparse slabs are no reason to leave as much dirty.
TEST_F(Decay, WhatIsHeldIsWithoutSparseSlabs) {
  auto held = take(200);
  make_dirty(80);
  hak_span_pool.sparse_spans = 190 * SPANS_PER_MIB;
  excess();
  EXPECT_LE(dirty_mib(), 32u);
  hak_span_pool.sparse_spans = 0;
  hak_span_pool.purged_spans = 0;
  EXPECT_FALSE(make_dirty(80));
  excess();
  EXPECT_EQ(dirty_mib(), 80u);
}

// A server that forgets what it had, and then waits.
TEST_F(Decay, WhileTheProgramTakesNoSpanTheMarkIsLower) {
  auto runs = take(60);
  look(1);
  EXPECT_FALSE(give({runs.begin(), runs.begin() + 20}));
  look(15);
  EXPECT_FALSE(give({runs.begin() + 20, runs.begin() + 30})) << "for 15 ms";
  look(1);
  EXPECT_TRUE(give({runs.begin() + 30, runs.begin() + 31}));
  excess();
  EXPECT_LE(dirty_mib(), 15u) << "half of what is held";
  take(1);
  look(1);
  EXPECT_FALSE(give({runs.begin() + 31, runs.begin() + 60})) << "it takes some again";
}

// The coarse clock has moved only when the slow path after the rest sees the last span that was taken before it.
TEST_F(Decay, ARestCountsFromTheLastSpanOn) {
  auto runs = take(30);
  bool zeroed;
  for (int i = 0; i < 30; i++) runs.push_back(hak_pool_take(SPANS_PER_MIB, 1, HELD_TAGS, false, &zeroed));
  hak_decay_note_takes(now_ms);
  look(17);
  EXPECT_TRUE(give({runs.begin(), runs.begin() + 31}));
}

// With huge pages hundreds of MiB go in a few milliseconds.
TEST_F(Decay, TheLowerMarkFallsWhileTheClockStands) {
  auto runs = take(200);
  look(17);
  for (auto at = runs.begin(); at < runs.end(); at += 5) {
    if (give({at, at + 5})) excess();
  }
  EXPECT_LE(dirty_mib(), 16u);
}

// Before a decay time is over.
TEST_F(Decay, TheMarkRisesAtOnceWhereWhatItPurgedIsTakenAgain) {
  EXPECT_TRUE(make_dirty(100));
  excess();
  EXPECT_LE(dirty_mib(), 32u);
  unsigned before = fake_os::count(fake_os::ADVISE);
  EXPECT_TRUE(make_dirty(100));
  excess();
  EXPECT_EQ(fake_os::count(fake_os::ADVISE), before);
  look(1);
  EXPECT_FALSE(make_dirty(100)) << "the mark is the peak meanwhile";
  EXPECT_TRUE(make_dirty(130));
}

// Nobody looks any more: what the load had in use is all that the mark leaves, and once that is old, half of its mark.
TEST_F(Decay, TheMarkRisesOnlyToWhatTheLoadShowed) {
  auto held = take(150);
  for (int i = 0; i < 4; i++) {
    make_dirty(200);
    excess();
  }
  EXPECT_EQ(dirty_mib(), 200u) << "the mark is higher";
  for (int i = 0; i < 12; i++) look();
  EXPECT_EQ(dirty(), 0u);
  make_dirty(140);
  EXPECT_TRUE(give(held));
  excess();
  EXPECT_LE(dirty_mib(), 64u);
}

// A program that frees much and then works inside its caches: no clock passes.
TEST_F(Decay, AfterASpikeAsMuchAsHalfTheMarkIsLeft) {
  auto spike = take(1000);
  bool due = false;
  for (hak_span *s : spike) {
    hak_pool_give(s, 0, HELD_TAGS.head, &due);
    if (due) excess();
    due = false;
  }
  EXPECT_LE(dirty_mib(), 64u);
}

TEST_F(Decay, WhatTheSystemRefusesIsNotAskedForAtEachFree) {
  fake_os::fail_all(fake_os::ADVISE, EINVAL);
  fake_os::fail_all(fake_os::MAP);
  auto runs = take(101);
  EXPECT_TRUE(give({runs.begin(), runs.end() - 1}));
  excess();
  EXPECT_EQ(dirty_mib(), 100u);
  EXPECT_FALSE(give({runs.back()})) << "a step more is";
  for (int i = 0; i < 4; i++) look();
  fake_os::allow_all();
  EXPECT_TRUE(make_dirty(101)) << "asked again after a decay time";
}

TEST_F(Decay, TheHelperThatSleepsIsWokenByTheNextFree) {
  EXPECT_FALSE(hak_decay_has_work());
  auto runs = take(2);
  hak_store_seq(&hak_decay_sleeper, 1u);
  EXPECT_FALSE(hak_decay_has_work());
  EXPECT_TRUE(give({runs[0]}));
  excess();
  EXPECT_EQ(hak_decay_sleeper, 0u);
  EXPECT_EQ(dirty_mib(), 1u) << "which it looks after";
  EXPECT_TRUE(hak_decay_has_work());
  EXPECT_FALSE(give({runs[1]})) << "the mark is what it was";
}

// --- refaults ---

class Refaults : public Decay {
 protected:
  void SetUp() override {
    Decay::SetUp();
    for (int i = 0; i < 3; i++) look();
  }
  // To the look that judges.
  void pass_decay_time() {
    uint64_t time = hak_decay_ms();
    for (int i = 0; i < 4; i++) look(time / 4);
  }
  // Whether what is dirty stays beyond the curve.
  bool keeps_peaks() {
    make_dirty(8);
    size_t before = dirty();
    for (int i = 0; i < 5; i++) look();
    bool stays = dirty() == before;
    for (int i = 0; i < 3; i++) look();
    return stays;
  }
  // So much is purged, and taken again before the next judgement.
  void refault(size_t mib) {
    make_dirty(mib);
    hak_purge_spans(0, false);
    give(take(mib));
    hak_purge_spans(0, false);
    pass_decay_time();
  }
};

// What the load had in use within the last 7/4 of a decay time stays while refaults show it, and then goes at once.
TEST_F(Refaults, KeepWhatTheLoadShowsAndNoLonger) {
  for (size_t mib : {16, 300}) {
    refault(mib);
    give(take(mib));
    hak_purge_spans(0, false);
    give(take(mib));
    for (int i = 0; i < 6; i++) {
      look();
      EXPECT_EQ(dirty_mib(), mib) << i;
    }
    for (int i = 0; i < 2; i++) look();
    EXPECT_EQ(dirty(), 0u) << mib;
    for (int i = 0; i < 5; i++) look();
  }
}

TEST_F(Refaults, KeepWhatThreadsThatEndWouldGiveBack) {
  refault(40);
  give(take(40));
  end_thread(DECAY_MS);
  EXPECT_EQ(dirty_mib(), 40u);
  for (int i = 0; i < 16; i++) look();
  give(take(40));
  end_thread(DECAY_MS);
  EXPECT_EQ(dirty(), 0u) << "and no longer";
}

// However long the load has swung before, and however rarely somebody comes by.
TEST_F(Refaults, EndWithTheLoad) {
  for (int i = 0; i < 60; i++) {
    give(take(90));
    if (i % 2 == 0) hak_purge_spans(0, false);
    look(LOOK_MS * 2);
  }
  give(take(90));
  look();
  EXPECT_GE(dirty_mib(), 90u) << "refaults have shown it";
  for (int i = 0; i < 2; i++) look(7 * LOOK_MS / 2);
  EXPECT_EQ(dirty(), 0u);
}

TEST_F(Refaults, AreForgottenWhereNothingComesBack) {
  refault(16);
  for (int i = 0; i < 12; i++) look();
  make_dirty(40);
  for (int i = 0; i < 3; i++) look();
  EXPECT_LE(dirty_mib(), 40u * 175 / 256 + 2) << "the curve, from the first look on";
  for (int i = 0; i < 2; i++) look();
  EXPECT_EQ(dirty(), 0u);
}

TEST_F(Refaults, OfAQuarterOrOfALittleSayNothing) {
  make_dirty(40);
  hak_purge_spans(0, false);
  auto again = take(8);
  pass_decay_time();
  EXPECT_FALSE(keeps_peaks()) << "a fifth";
  give(again);
  pass_decay_time();
  refault(3);
  EXPECT_FALSE(keeps_peaks()) << "3 MiB";
}

// To who holds much, what stays beside it costs more than a few refaults a second.
TEST_F(Refaults, OfLessThanAnEighthOfWhatIsHeldSayNothing) {
  auto held = take(200);
  refault(20);
  EXPECT_FALSE(keeps_peaks());
  refault(28);
  EXPECT_TRUE(keeps_peaks());
  give(held);
  hak_purge_spans(0, false);
  for (int i = 0; i < 16; i++) look();
  held = take(1000);
  refault(40);
  EXPECT_TRUE(keeps_peaks()) << "nor are 32 MiB few, whatever is held";
}

TEST_F(Refaults, LaterThanADecayTimeAreNone) {
  make_dirty(32);
  hak_purge_spans(0, false);
  pass_decay_time();
  auto again = take(32);
  pass_decay_time();
  give(again);
  EXPECT_FALSE(keeps_peaks());
}

// What was purged before the last look but one would have left the window too: a load that comes back so late is not helped by it.
TEST_F(Refaults, LaterThanTwoLooksAreNone) {
  for (int looks : {1, 2, 3}) {
    make_dirty(32);
    hak_purge_spans(0, false);
    for (int i = 0; i < looks; i++) look();
    auto again = take(32);
    for (int i = looks; i < 4; i++) look();
    give(again);
    hak_purge_spans(0, false);
    pass_decay_time();
    EXPECT_EQ(keeps_peaks(), looks < 2) << looks;
    for (int i = 0; i < 16; i++) look();
  }
}

// Refaults are judged while all is in use as well as while all is free.
TEST_F(Refaults, CountHoweverTheyAreJudged) {
  refault(60);
  uint64_t before = 0;
  for (int i = 0; i < 20; i++) {
    auto held = take(60);
    look();
    look();
    give(held);
    for (int k = 0; k < 3 + i % 2; k++) look();
    if (i == 1) before = hak_purge_stats.bytes;
  }
  EXPECT_EQ(hak_purge_stats.bytes, before);
}

// A program that takes 40 MiB again and again, and rests for a second or two in between.
TEST_F(Refaults, AProgramThatComesBackIsPurgedFewTimes) {
  std::mt19937 random(1);
  auto swing = [&] {
    make_dirty(40);
    for (unsigned ms = 1000 + random() % 1000; ms > 100; ms -= 100) look(100);
    return hak_purge_stats.bytes;
  };
  uint64_t first = 0, last = 0;
  for (int i = 0; i < 100; i++) first = swing();
  for (int i = 0; i < 100; i++) last = swing();
  EXPECT_LE((last - first) / HAK_MIB, 100u * 40 / 4);
}

// One look in two is missed, and never the one that would have been the fourth.
TEST_F(Refaults, AreJudgedWhereEverySecondLookIsMissed) {
  for (unsigned offset = 0; offset < 4; offset++) {
    for (unsigned i = 0; i < offset; i++) look();
    make_dirty(16);
    hak_purge_spans(0, false);
    give(take(16));
    hak_purge_spans(0, false);
    for (int i = 0; i < 2; i++) look(2 * LOOK_MS);
    EXPECT_TRUE(keeps_peaks()) << offset;
    for (int i = 0; i < 12; i++) look();
  }
}

// A target leaves no room for what a load may want again.
TEST_F(Refaults, DoNotKeepATargetWaiting) {
  FakeFiles files;
  files.set_resident(200 * HAK_MIB);
  for (int i = 0; i < 3; i++) refault(16);
  make_dirty(16);
  hak_config.rss_target = 100 * HAK_MIB;
  look(LOOK_MS);
  EXPECT_EQ(hak_budget_level(), unsigned(HAK_BUDGET_OVER));
  look(LOOK_MS);
  EXPECT_EQ(hak_budget_level(), unsigned(HAK_BUDGET_PURGE));
  EXPECT_EQ(dirty(), 0u);
  hak_config.rss_target = 0;
}

// --- memory-lean mode: a target that can change, and in the system's own time where asked for ---

class DecayLean : public Decay {
 protected:
  void SetUp() override {
    Decay::SetUp();
    hak_config.mem_lean = 1;
    hak_config.mem_lean_target_mb = 10;
  }
  void start(int decommit) {
    hak_config.mem_lean_decommit = decommit;
    Decay::start();
  }
};

TEST_F(DecayLean, KeepsTheTarget) {
  start(HAK_LEAN_DONTNEED);
  auto held = take(1000);
  EXPECT_FALSE(make_dirty(10)) << "whatever is held";
  EXPECT_TRUE(make_dirty(11));
  uint64_t counted = hak_os_stats.lean_decommit;
  excess();
  EXPECT_LE(dirty_mib(), 9u);
  EXPECT_GT(hak_os_stats.lean_decommit, counted);
  EXPECT_EQ(advised(MADV_FREE), 0u);
  ASSERT_EQ(hak_config_set("HAKMEM_SS_MEM_LEAN_TARGET_MB", 3), 0);
  look(LOOK_MS);
  EXPECT_TRUE(make_dirty(4));
  excess();
  EXPECT_LE(dirty_mib(), 3u);
}

TEST_F(DecayLean, IdleMemoryGoesInAQuarterOfASecond) {
  start(HAK_LEAN_DONTNEED);
  make_dirty(8);
  for (int i = 0; i < 5; i++) look(63);
  EXPECT_EQ(dirty(), 0u);
}

TEST_F(DecayLean, FreeLeavesItToTheKernelAndTrimDoesNot) {
  start(HAK_LEAN_FREE);
  make_dirty(64);
  excess();
  EXPECT_LE(dirty_mib(), 10u);
  EXPECT_GT(advised(MADV_FREE), 0u);
  EXPECT_EQ(advised(MADV_DONTNEED), 0u);
  bool zeroed = true, due = false;
  hak_span *s = hak_pool_take(20 * SPANS_PER_MIB, 1, HELD_TAGS, false, &zeroed);
  EXPECT_FALSE(zeroed) << "the kernel may not have taken it yet";
  hak_pool_give(s, 0, HELD_TAGS.head, &due);
  hak_deferred d = {};
  EXPECT_EQ(hak_decay_all(0, &d), 64 * HAK_MIB) << "what is left to the kernel is resident";
  hak_pool_take(20 * SPANS_PER_MIB, 1, HELD_TAGS, false, &zeroed);
  EXPECT_TRUE(zeroed);
}

TEST_F(DecayLean, AKernelWithoutFreeGetsDontneed) {
  start(HAK_LEAN_FREE);
  fake_os::fail_if([](const fake_os::Event &e) { return e.call == fake_os::ADVISE && e.detail == MADV_FREE ? EINVAL : 0; });
  make_dirty(64);
  excess();
  EXPECT_LE(dirty_mib(), 10u);
  EXPECT_GT(advised(MADV_DONTNEED), 0u);
}

TEST_F(DecayLean, OffOnlySuppressesPrewarming) {
  start(HAK_LEAN_OFF);
  EXPECT_EQ(hak_decay_ms(), DECAY_MS);
  EXPECT_FALSE(make_dirty(64)) << "balanced";
}

// A monitor whose thread measures and has nothing to give back must not be the one that takes large blocks up (decision 042).
TEST_F(Decay, WhoFindsTheTargetFarStillSparesLargeBlocks) {
  hak_takes_large = false;
  hak_deferred d = {};
  hak_decay_for_target(&d);
  EXPECT_FALSE(hak_takes_large);
}

// --- all at once ---

TEST_F(Decay, KeepBytesAreKept) {
  hak_deferred d = {};
  make_dirty(128);
  EXPECT_EQ(hak_decay_all(32 * HAK_MIB, &d), 96 * HAK_MIB);
  EXPECT_EQ(dirty_mib(), 32u);
}

TEST_F(Decay, RefusalKeepsTheMemoryAndEnds) {
  hak_deferred d = {};
  make_dirty(128);
  fake_os::fail_all(fake_os::ADVISE, EINVAL);
  fake_os::fail_all(fake_os::MAP);
  EXPECT_EQ(hak_decay_all(0, &d), 0u);
  EXPECT_EQ(dirty_mib(), 128u);
  EXPECT_EQ(hak_span_pool.live_spans, 0u);
  fake_os::allow_all();
  EXPECT_EQ(hak_decay_all(0, &d), 128 * HAK_MIB);
}

}  // namespace
