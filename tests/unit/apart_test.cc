// Slabs and large blocks apart: a program may have registered large blocks with userfaultfd, which goes on when they are freed and purged.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "fake_os.h"
#include "fresh_pool.h"
#include "hak.h"
#include "whole_steps.h"

using testing::IsEmpty;

namespace {

constexpr hak_pool_tags SMALL_TAGS = {HAK_TAG(1, 1), 1, 1};

class Apart : public testing::Test {
 protected:
  static void SetUpTestSuite() { std::thread([] {}).join(); } /* libc takes the process for one with threads from then on */
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(start_pool(1 * HAK_GIB));
    hak_config.rss_target = 0;
    hak_decay_worth_spans = 0;
    hak_takes_large = true;
  }
  void TearDown() override {
    EXPECT_THAT(fake_os::violations(), IsEmpty());
    hak_large_left_to_others = false;
  }

  static hak_span *take(size_t spans, hak_pool_tags tags) {
    bool zeroed;
    hak_span *s = hak_pool_take(spans, 1, tags, false, &zeroed);
    EXPECT_NE(s, nullptr);
    return s;
  }
  static void give(hak_span *s) {
    bool due = false;
    EXPECT_TRUE(hak_pool_give(s, 0, s->tag, &due));
  }
  static size_t dirty() { return hak_span_pool.dirty_spans; }
  static void *large(size_t spans) {
    hak_span *s = take(spans, HELD_TAGS);
    void *p = span_address(s);
    give(s);
    return p;
  }
  static bool lies_in(const hak_span *s, const void *p, size_t spans) {
    return reinterpret_cast<uintptr_t>(span_address(s)) - reinterpret_cast<uintptr_t>(p) < spans * HAK_SPAN_SIZE;
  }
};

TEST_F(Apart, ASlabHasNoPurgedSpanOfALargeBlock) {
  for (size_t spans : {40, 700, 9}) {
    void *p = large(spans);
    hak_purge_spans(0, false);
    for (int i = 0; i < 60; i++) EXPECT_FALSE(lies_in(take(i % 2 == 0 ? 1 : 4, SMALL_TAGS), p, spans)) << spans << " " << i;
  }
}

TEST_F(Apart, AClassOfWholeSpansIsLarge) {
  unsigned code = hak_class_for(100000) + 1;
  hak_span *s = take(2, {HAK_TAG(1, code), code, code});
  void *p = span_address(s);
  give(s);
  hak_purge_spans(0, false);
  EXPECT_FALSE(lies_in(take(1, SMALL_TAGS), p, 2));
}

TEST_F(Apart, WhatALargeBlockGrewIntoToo) {
  hak_span *s = take(3, HELD_TAGS);
  ASSERT_TRUE(hak_pool_extend(s, 30, HELD_TAGS.body_code));
  void *p = span_address(s);
  give(s);
  hak_purge_spans(0, false);
  for (int i = 0; i < 20; i++) EXPECT_FALSE(lies_in(take(1, SMALL_TAGS), p, 33));
}

TEST_F(Apart, ASlabPrefersTheDirtySpansOfSlabs) {
  hak_span *block = take(20, HELD_TAGS), *slab = take(4, SMALL_TAGS);
  void *p = span_address(slab);
  give(block); /* at the lower address */
  give(slab);
  EXPECT_EQ(span_address(take(4, SMALL_TAGS)), p);
}

TEST_F(Apart, OfDirtyLargeBlocksOnlyAPartIsPassedOver) {
  const size_t SPANS = 1000;
  void *p = large(SPANS);
  size_t over = 0;
  for (size_t i = 0; i < SPANS / 2; i++) over += !lies_in(take(1, SMALL_TAGS), p, SPANS);
  EXPECT_GE(over, SPANS / 16);
  EXPECT_LE(over, SPANS / 16 + 16 * HAK_MIB / HAK_SPAN_SIZE) << "the memory of the process grows by no more";
}

TEST_F(Apart, WhereThereIsNothingElseItServes) {
  ASSERT_NO_FATAL_FAILURE(start_pool(1 * HAK_GIB));
  void *p = large(300);
  hak_purge_spans(0, false);
  fake_os::fail_all(fake_os::MAP);
  fake_os::fail_all(fake_os::PROTECT);
  bool zeroed = false, served = false;
  for (int i = 0; i < 300 && !served; i++) {
    hak_span *s = hak_pool_take(1, 1, SMALL_TAGS, false, &zeroed);
    ASSERT_NE(s, nullptr);
    served = lies_in(s, p, 300);
  }
  EXPECT_TRUE(served);
}

// A program of small and of large blocks by turns, all of it purged between: what is accessible is bounded.
TEST_F(Apart, TurnsDoNotGrowWithoutEnd) {
  const size_t SPANS = 2000;
  for (int turn = 0; turn < 40; turn++) {
    std::vector<hak_span *> held;
    for (size_t i = 0; i < SPANS; i++) held.push_back(take(1, SMALL_TAGS));
    for (hak_span *s : held) give(s);
    if (turn % 3 != 0) hak_purge_spans(0, false);
    held.clear();
    for (size_t i = 0; i < SPANS; i += 50) held.push_back(take(50, HELD_TAGS));
    for (hak_span *s : held) give(s);
    if (turn % 2 != 0) hak_purge_spans(0, false);
  }
  EXPECT_LE(hak_main_region.ready_spans - hak_main_region.first_span, 3 * SPANS);
}

// --- who gives large blocks' pages back ---

class Spared : public Apart {
 protected:
  static constexpr uint64_t LOOK_MS = 250;
  void SetUp() override {
    Apart::SetUp();
    fake_os::set_clock(now_ms);
    look(true);
    block = take(600, HELD_TAGS);
    slab = take(100, SMALL_TAGS);
    give(block);
    give(slab);
  }
  void look(bool by_large, uint64_t ms = LOOK_MS) {
    hak_deferred d = {};
    fake_os::set_clock(now_ms += ms);
    hak_takes_large = by_large;
    hak_decay_tick(now_ms, &d);
    for (int i = 0; i < 100; i++) hak_decay_step(now_ms, false);
    hak_takes_large = true;
  }

  uint64_t now_ms = 5000000;
  hak_span *block, *slab;
};

TEST_F(Spared, AThreadOfSmallBlocksLeavesThem) {
  for (int i = 0; i < 4; i++) look(false);
  EXPECT_GE(dirty(), 600u);
  EXPECT_LE(dirty(), 610u) << "and gives back what slabs had";
}

TEST_F(Spared, AThreadOfLargeBlocksTakesUpWhatWasLeft) {
  for (int i = 0; i < 4; i++) look(false);
  look(true, 20); /* no look is due */
  EXPECT_LE(dirty(), 50u);
}

/* What is free for a decay time goes back before two are over, though those that had it rest. */
TEST_F(Spared, WhereNoneComesByAllGiveThemBack) {
  for (int i = 0; i < 7; i++) look(false);
  EXPECT_EQ(dirty(), 0u);
}

TEST_F(Spared, WhoTrimsGivesAllBack) {
  hak_deferred d = {};
  hak_takes_large = false;
  hak_decay_all(0, &d);
  EXPECT_EQ(dirty(), 0u);
}

}  // namespace
