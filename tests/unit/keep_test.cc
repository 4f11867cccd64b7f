// Which freed memory stays: the rule alone, with a clock, a load and a purge of the test's own.
#include <gtest/gtest.h>

#include <algorithm>
#include <climits>
#include <cstdint>
#include <cstring>

extern "C" {
#include "reclaim/keep.h"
}

namespace {

constexpr size_t MIB = 16;  // in spans, as everything here
constexpr uint64_t DECAY_MS = 1000, LOOK_MS = DECAY_MS / HAK_KEEP_LOOKS, YEAR_MS = 365ull * 24 * 3600 * 1000;

hak_keep fresh() {
  hak_keep k = {};
  k.mib = MIB;
  return k;
}

// A program and its purges: what is taken comes from dirty spans first, then from purged ones.
class Program {
 public:
  explicit Program(uint64_t ms = 1000000) : ms_(ms) {
    now_.room = SIZE_MAX;
    look(0);
  }

  void take(size_t spans) {
    size_t clean = spans - std::min(spans, now_.dirty), again = std::min(clean, young_);
    now_.dirty -= spans - clean;
    young_ -= again;
    now_.refaults += again;
    now_.live += spans;
    now_.peak = std::max(now_.peak, now_.live);
  }
  void give(size_t spans) {
    now_.live -= spans;
    now_.dirty += spans;
  }
  void free_at_once(size_t spans) {
    take(spans);
    give(spans);
  }
  void purge(size_t spans) {
    spans = std::min(spans, now_.dirty);
    now_.dirty -= spans;
    now_.purged += spans;
    young_ += spans;
    hak_keep_note_purged(&keep, spans);
  }
  void purge_all() { purge(now_.dirty); }

  // Some time later. Returns what is dirty then.
  size_t look(uint64_t ms = LOOK_MS) {
    ms_ += ms;
    EXPECT_TRUE(hak_keep_due(&keep, ms_, decay_ms));
    last = hak_keep_begin(&keep, ms_, decay_ms);
    if (last.idle) hak_keep_all_old(&keep, now_.dirty);
    young_ = std::min(young_, hak_keep_next_interval(&keep, &last, now_.peak, now_.purged));
    now_.peak = now_.live;
    now_.in_use = now_.live + mapped;
    allowed = hak_keep_at_look(&keep, &last, &now_);
    if (now_.dirty > allowed) purge(now_.dirty - allowed);
    hak_keep_end(&keep, &last, &now_);
    return now_.dirty;
  }
  size_t look_times(unsigned n, uint64_t ms = LOOK_MS) {
    while (n-- > 0) look(ms);
    return now_.dirty;
  }
  // A free that leaves more than the mark, or what is live, dirty: whether it began a purge, which this ends.
  bool free_beyond_mark(size_t spans) {
    free_at_once(spans);
    size_t limit = std::max(hak_keep_mark(&keep, takes_none, now_.live + mapped), now_.live);
    if (now_.dirty <= limit || hak_keep_raise_mark(&keep, &now_)) return false;
    size_t goal = hak_keep_at_mark(&keep, &now_, limit);
    purge(now_.dirty - std::min(goal, now_.dirty));
    keep.mark_purges = false;
    return true;
  }
  // So much is purged too early. Then what is free has gone, and refaults are judged.
  void refault(size_t spans) {
    free_at_once(spans);
    purge_all();
    free_at_once(spans);
    purge_all();
    look_times(HAK_KEEP_LOOKS);
  }

  size_t dirty() const { return now_.dirty; }
  uint64_t purged() const { return now_.purged; }
  hak_keep_now &now() { return now_; }

  hak_keep keep = fresh();
  hak_keep_look last = {};
  size_t allowed = 0, mapped = 0;
  uint64_t decay_ms = DECAY_MS;
  bool takes_none = false;

 private:
  uint64_t ms_;
  hak_keep_now now_ = {};
  size_t young_ = 0;  // purged, and a refault when it is taken again
};

// --- by age ---

TEST(Keep, FollowsASmoothstepOfTheAge) {
  Program p;
  p.free_at_once(256 * MIB);
  for (double x : {0.125, 0.375, 0.625, 0.875}) {
    double stays = 256 * MIB * (1 - x * x * (3 - 2 * x));
    EXPECT_NEAR(double(p.look()), stays, MIB) << x;
  }
  EXPECT_EQ(p.look(), 0u);
}

TEST(Keep, OfASteadyLoadPurgesWhatItLeavesAloneAndNothingElse) {
  Program p;
  p.take(500 * MIB);
  p.give(100 * MIB);
  for (int i = 0; i < 5; i++) {
    p.look();
    p.take(std::min(p.dirty(), 10 * MIB));  // less than it leaves alone
    p.give(std::min(p.now().live, 10 * MIB));
  }
  p.look_times(5);
  EXPECT_EQ(p.dirty(), 0u);
  p.take(10 * MIB);
  p.give(10 * MIB);
  uint64_t before = p.purged();
  for (int i = 0; i < 100; i++) {  // what it frees it takes again before the next look
    p.take(10 * MIB);
    EXPECT_EQ(p.look(), 0u);
    p.give(10 * MIB);
  }
  EXPECT_EQ(p.purged(), before);
}

TEST(Keep, ALoadThatEndsLeavesNothingAfterADecayTime) {
  Program p;
  for (int i = 0; i < 20; i++) {
    p.take(50 * MIB);
    p.look();
    p.give(50 * MIB);
  }
  EXPECT_EQ(p.look_times(HAK_KEEP_LOOKS + 1), 0u);
}

// What is older than a decay time goes at the next look. Of the time between two looks whole quarters of a decay time
// count, so that what is dirty may be as old as five looks.
TEST(Keep, HoweverRarelySomebodyLooks) {
  for (uint64_t ms : {LOOK_MS, LOOK_MS + 1, 2 * LOOK_MS - 1, 2 * LOOK_MS, 3 * LOOK_MS, DECAY_MS, DECAY_MS + 1,
                      YEAR_MS}) {
    Program p;
    p.free_at_once(100 * MIB);
    p.look();
    unsigned counted = unsigned(std::min<uint64_t>(ms / LOOK_MS, HAK_KEEP_LOOKS));
    EXPECT_EQ(p.look_times((HAK_KEEP_LOOKS + counted - 1) / counted, ms), 0u) << ms;
  }
}

TEST(Keep, WhatIsPurgedBetweenTwoLooksDoesNotMakeUpForWhatBecomesDirty) {
  Program p;
  p.free_at_once(4 * MIB);
  p.look();
  p.purge_all();
  p.free_at_once(4 * MIB);
  EXPECT_GE(p.look(), 4 * MIB * 95 / 100);
}

// --- peaks ---

TEST(Keep, WhatALoadComesBackForStaysOnceRefaultsHaveShownIt) {
  Program p;
  uint64_t settled = 0;
  for (int i = 0; i < 40; i++) {
    p.take(60 * MIB);
    p.look(), p.look();
    p.give(60 * MIB);
    p.look_times(3 + i % 2);
    if (i == 5) settled = p.purged();
  }
  EXPECT_GT(settled, 0u);
  EXPECT_EQ(p.purged(), settled);
  EXPECT_EQ(p.dirty(), 60 * MIB);
}

TEST(Keep, WhatItKeptGoesWithinTwoDecayTimesOfItsEnd) {
  Program p;
  p.refault(100 * MIB);
  ASSERT_TRUE(p.keep.keeps_peaks);
  p.free_at_once(100 * MIB);
  for (int i = 0; i < 7; i++) EXPECT_EQ(p.look(), 100 * MIB) << i;
  EXPECT_EQ(p.look(), 0u);
  p.look_times(HAK_KEEP_LOOKS);
  EXPECT_FALSE(p.keep.keeps_peaks) << "and is not kept again";
}

TEST(Keep, ForSomeTimeAQuarterMoreThanThePeakStaysAsNotAllFitsWhereItWas) {
  Program p;
  p.take(1000 * MIB);
  p.refault(100 * MIB); // the more that is purged, the more may be a refault
  ASSERT_TRUE(p.keep.keeps_peaks);
  p.free_at_once(240 * MIB);
  p.look_times(HAK_KEEP_WINDOW + 1); // peaks are 1,000 MiB again, and no age lets anything stay
  EXPECT_EQ(p.dirty(), 240 * MIB) << "less than a quarter";
  for (int i = 0; i < 4 * HAK_KEEP_LOOKS; i++) { // a swing that is kept has no refaults
    p.take(40 * MIB);
    p.give(40 * MIB);
    p.look();
  }
  EXPECT_TRUE(p.keep.keeps_peaks);
  EXPECT_EQ(p.dirty(), 40 * MIB) << "nobody has taken more";
}

TEST(Keep, NothingMoreStaysOfAProgramThatSwingsNoMore) {
  Program p;
  p.take(200 * MIB);
  p.refault(100 * MIB);
  ASSERT_TRUE(p.keep.keeps_peaks);
  p.look_times(HAK_KEEP_WINDOW + HAK_KEEP_LOOKS);
  EXPECT_FALSE(p.keep.keeps_peaks);
  p.look();
  EXPECT_EQ(p.allowed, 0u);
}

TEST(Keep, RefaultsAreWeighedAgainstWhatIsPurgedAndWhatIsInUse) {
  struct {
    size_t purged, again, mapped;
    bool keeps;
  } rows[] = {
      {40 * MIB, 11 * MIB, 0, true},                // more than a quarter
      {40 * MIB, 10 * MIB, 0, false},
      {8 * MIB, 8 * MIB, 0, true},                  // 8 MiB at least
      {8 * MIB - 1, 8 * MIB - 1, 0, false},
      {20 * MIB, 20 * MIB, 120 * MIB, true},        // an eighth of what is in use
      {20 * MIB, 20 * MIB, 160 * MIB, false},
      {32 * MIB, 32 * MIB, 10000 * MIB, true},      // or 32 MiB
      {32 * MIB - 1, 32 * MIB - 1, 10000 * MIB, false},
  };
  for (const auto &row : rows) {
    Program p;
    p.mapped = row.mapped;
    p.free_at_once(row.purged);
    p.purge_all();
    p.take(row.again);
    p.look_times(HAK_KEEP_LOOKS);
    EXPECT_EQ(p.keep.keeps_peaks, row.keeps) << row.purged << " " << row.again << " " << row.mapped;
  }
}

TEST(Keep, WhatIsTakenAtTheSecondLookOrLaterIsNoRefault) {
  for (unsigned looks = 0; looks < 6; looks++) {
    Program p;
    p.free_at_once(32 * MIB);
    p.purge_all();
    p.look_times(looks);
    p.take(32 * MIB);
    EXPECT_EQ(p.now().refaults, looks < 2 ? 32 * MIB : 0) << looks;
  }
}

TEST(Keep, WhatIsTakenAfterARestIsNoRefault) {
  Program p;
  p.free_at_once(32 * MIB);
  p.purge_all();
  p.look(DECAY_MS);
  p.take(32 * MIB);
  EXPECT_EQ(p.now().refaults, 0u);
}

// Of the window no time between two looks is lost.
TEST(Keep, PeaksGoAfterTheirTimeHoweverRarelySomebodyLooks) {
  for (uint64_t ms : {LOOK_MS * 3 / 2, 2 * LOOK_MS - 1, LOOK_MS * 7 / 2}) {
    Program p;
    p.refault(100 * MIB);
    p.free_at_once(100 * MIB);
    uint64_t passed = 0;
    for (; p.look(ms) != 0 && passed < 10 * DECAY_MS; passed += ms) continue;
    EXPECT_LE(passed, 2 * DECAY_MS) << ms;
  }
}

// --- room, floor, what is reserved ---

TEST(Keep, NearATargetOnlyTheCurveStays) {
  Program p;
  p.refault(100 * MIB);
  p.free_at_once(100 * MIB);
  p.look();
  hak_keep_reserve(&p.keep, 50 * MIB, 0);
  p.now().floor = 2 * MIB;
  EXPECT_EQ(p.look(), 100 * MIB);
  p.now().room = 80 * MIB;
  EXPECT_EQ(p.look(), 80 * MIB) << "less room, less stays";
  p.now().room = 0;
  EXPECT_LE(p.look(), 5 * MIB);
  EXPECT_EQ(p.look(), 0u);
}

TEST(Keep, RoomTakesNothingFromTheCurve) {
  Program p;
  p.now().room = 0;
  p.free_at_once(100 * MIB);
  EXPECT_GE(p.look(), 95 * MIB);
}

TEST(Keep, TheFloorStays) {
  Program p;
  p.now().floor = 2 * MIB;
  p.free_at_once(100 * MIB);
  EXPECT_EQ(p.look_times(20), 2 * MIB);
  p.now().floor = 0;
  EXPECT_EQ(p.look(), 0u);
}

TEST(Keep, WhatIsReservedStaysUntilItIsInUse) {
  Program p;
  p.take(10 * MIB);
  hak_keep_reserve(&p.keep, 100 * MIB, p.now().live);
  p.free_at_once(100 * MIB);
  EXPECT_EQ(p.look_times(20), 100 * MIB);
  p.take(30 * MIB);
  EXPECT_EQ(hak_keep_reserved(&p.keep, p.now().live), 70 * MIB);
  EXPECT_EQ(p.look_times(20), 70 * MIB);
  p.take(200 * MIB);
  EXPECT_EQ(hak_keep_reserved(&p.keep, p.now().live), 0u);
  hak_keep_reserve(&p.keep, 0, p.now().live);
  p.give(200 * MIB);
  EXPECT_EQ(p.look_times(5), 0u);
}

TEST(Keep, ByAgeAloneRefaultsCountForNothing) {
  Program p;
  p.now().by_age_alone = true;
  p.refault(100 * MIB);
  p.free_at_once(100 * MIB);
  EXPECT_EQ(p.look_times(HAK_KEEP_LOOKS + 1), 0u);
  for (int i = 0; i < 3; i++) EXPECT_TRUE(p.free_beyond_mark(100 * MIB)) << i;
}

// --- the mark ---

TEST(Keep, BeyondTheMarkHalfOfItStays) {
  Program p;
  EXPECT_FALSE(p.free_beyond_mark(64 * MIB));
  EXPECT_TRUE(p.free_beyond_mark(65 * MIB));
  EXPECT_EQ(p.dirty(), 32 * MIB);
  p.take(300 * MIB);
  EXPECT_FALSE(p.free_beyond_mark(300 * MIB)) << "or what is live";
}

TEST(Keep, WhereAProgramTakesNothingTheMarkIsLower) {
  Program p;
  p.takes_none = true;
  EXPECT_FALSE(p.free_beyond_mark(16 * MIB));
  EXPECT_TRUE(p.free_beyond_mark(17 * MIB));
  EXPECT_EQ(p.dirty(), 8 * MIB);
  p.take(300 * MIB);
  EXPECT_FALSE(p.free_beyond_mark(300 * MIB));
}

// However much it holds: a purge that takes too little to be judged would be one each time.
TEST(Keep, TheLowerMarkRisesWhereItsPurgeWasTooEarly) {
  for (size_t held : {0, 60, 150, 300, 1000}) {
    Program p;
    p.takes_none = true;
    p.mapped = held * MIB;
    unsigned purges = 0;
    for (int i = 0; i < 20; i++) {
      p.now().in_use = p.now().live + p.mapped;
      purges += p.free_beyond_mark(70 * MIB);
    }
    EXPECT_LE(purges, 2u) << held;
  }
}

// What comes and goes does not always fit where it was.
TEST(Keep, ARaisedMarkLeavesAQuarterMoreThanThePeak) {
  Program p;
  EXPECT_TRUE(p.free_beyond_mark(100 * MIB));
  EXPECT_FALSE(p.free_beyond_mark(100 * MIB));
  p.look_times(2 * HAK_KEEP_LOOKS - 2);
  EXPECT_EQ(hak_keep_mark(&p.keep, false, 0), 125 * MIB) << "still when refaults are judged";
}

TEST(Keep, TheMarkRisesToThePeakWhereItsPurgeWasTooEarly) {
  Program p;
  EXPECT_TRUE(p.free_beyond_mark(100 * MIB));
  EXPECT_FALSE(p.free_beyond_mark(100 * MIB));
  EXPECT_EQ(hak_keep_mark(&p.keep, false, 0), 125 * MIB) << "and a quarter";
  EXPECT_EQ(p.look(), 100 * MIB);
  p.look_times(4 * HAK_KEEP_LOOKS);
  EXPECT_EQ(hak_keep_mark(&p.keep, false, 0), 64 * MIB) << "and falls with the window";
  EXPECT_EQ(p.dirty(), 0u);
}

TEST(Keep, TheMarkIsJudgedByItsLastPurge) {
  Program p;
  for (int i = 0; i < 2; i++) {
    EXPECT_TRUE(p.free_beyond_mark(100 * MIB));
    if (i == 0) p.look_times(2);
  }
  p.take(p.dirty() + 20 * MIB);
  EXPECT_TRUE(hak_keep_raise_mark(&p.keep, &p.now())) << "more than a quarter of 68 MiB, though not of two such purges";
}

TEST(Keep, TheMarkLeavesWhatIsReserved) {
  Program p;
  hak_keep_reserve(&p.keep, 50 * MIB, 0);
  EXPECT_TRUE(p.free_beyond_mark(100 * MIB));
  EXPECT_EQ(p.dirty(), 50 * MIB);
}

// --- the clock ---

TEST(Keep, ALookIsDueAQuarterOfTheDecayTimeLater) {
  hak_keep k = fresh();
  EXPECT_TRUE(hak_keep_due(&k, 0, DECAY_MS)) << "none yet";
  hak_keep_begin(&k, 5000, DECAY_MS);
  EXPECT_FALSE(hak_keep_due(&k, 5000 + LOOK_MS - 1, DECAY_MS));
  EXPECT_TRUE(hak_keep_due(&k, 5000 + LOOK_MS, DECAY_MS));
  EXPECT_TRUE(hak_keep_due(&k, 5000 + 63, 250)) << "another decay time holds at once";
  EXPECT_FALSE(hak_keep_due(&k, 5000, 0));
  EXPECT_TRUE(hak_keep_due(&k, 5001, 0)) << "no more than one a millisecond";
}

TEST(Keep, AClockThatGoesBackBeginsAnew) {
  Program p(YEAR_MS);
  p.free_at_once(100 * MIB);
  p.look();
  EXPECT_GE(p.look(0 - YEAR_MS / 2), 65 * MIB) << "as one look later";
  EXPECT_EQ(p.last.passed, 1u);
  EXPECT_FALSE(p.last.idle);
  EXPECT_EQ(p.look_times(4), 0u);
}

TEST(Keep, AClockThatJumpsIsARest) {
  hak_keep k = fresh();
  hak_keep_look look = hak_keep_begin(&k, YEAR_MS, DECAY_MS);
  EXPECT_FALSE(look.idle) << "the first one";
  EXPECT_EQ(look.steps, 1u);
  look = hak_keep_begin(&k, YEAR_MS + DECAY_MS - 1, DECAY_MS);
  EXPECT_FALSE(look.idle);
  look = hak_keep_begin(&k, YEAR_MS + 2 * DECAY_MS - 1, DECAY_MS);
  EXPECT_TRUE(look.idle);
  EXPECT_EQ(look.steps, DECAY_MS / 64 + 1);
  for (uint64_t ms : {2 * YEAR_MS, UINT64_MAX}) {
    look = hak_keep_begin(&k, ms, DECAY_MS);
    EXPECT_TRUE(look.idle);
    EXPECT_EQ(look.passed, unsigned(HAK_KEEP_LOOKS));
    EXPECT_EQ(look.peaks_passed, unsigned(HAK_KEEP_WINDOW));
    EXPECT_EQ(look.steps, 32u);
  }
  EXPECT_FALSE(hak_keep_due(&k, UINT64_MAX, DECAY_MS)) << "nor does the end of the clock overflow";
  EXPECT_TRUE(hak_keep_due(&k, 1, DECAY_MS));
}

TEST(Keep, OfTheLongestDecayTimeNothingOverflows) {
  Program p;
  p.decay_ms = INT64_MAX;
  EXPECT_FALSE(hak_keep_due(&p.keep, 1000000 + YEAR_MS, p.decay_ms));
  p.free_at_once(100 * MIB);
  EXPECT_GE(p.look(INT64_MAX / 4), 95 * MIB);
}

// A pool as large as there are addresses; counters that have been counting for ever.
TEST(Keep, OfLargeSizesNothingOverflows) {
  constexpr size_t ALL = size_t(1) << (57 - 16);
  Program p;
  p.now().purged = p.keep.purged_judged = p.keep.purged_at_look = UINT64_MAX - MIB;
  p.now().refaults = p.keep.refaults_judged = UINT64_MAX - MIB;
  p.refault(ALL);
  EXPECT_TRUE(p.keep.keeps_peaks);
  p.free_at_once(ALL);
  EXPECT_EQ(p.look_times(7), ALL);
  EXPECT_EQ(p.look(), 0u);
  p.keep.looks = UINT_MAX;
  p.look();
  EXPECT_TRUE(p.last.time_over && p.last.slabs_due) << "a decay time is a whole part of what the count holds";
}

TEST(Keep, SlabsAreDueAtEverySecondLookDepotsAtEveryFourth) {
  hak_keep k = fresh();
  uint64_t ms = 1000;
  unsigned slabs = 0, times = 0, round = 0;
  for (int i = 0; i < 40; i++) {
    hak_keep_look look = hak_keep_begin(&k, ms += LOOK_MS, DECAY_MS);
    slabs += look.slabs_due, times += look.time_over;
    if (look.slabs_due) EXPECT_EQ(look.slab_round, ++round);
  }
  EXPECT_EQ(slabs, 20u);
  EXPECT_EQ(times, 10u);
}

// --- a value ---

TEST(Keep, IsAValue) {
  Program p;
  p.refault(100 * MIB);
  p.free_at_once(70 * MIB);
  Program q = p;
  for (int i = 0; i < 3; i++) q.look();
  q.purge_all();
  Program r = p;
  for (int i = 0; i < 10; i++) EXPECT_EQ(p.look(), r.look()) << i << ": what happened to another one says nothing";
  EXPECT_EQ(memcmp(&p.keep, &r.keep, sizeof p.keep), 0);
}

}  // namespace
