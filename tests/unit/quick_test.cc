// Quick lists: ranges of large blocks that came back lately, and when they go into the bitmaps.
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <random>
#include <vector>

#include "fake_os.h"
#include "fresh_pool.h"
#include "hak.h"

namespace {

class Quick : public testing::Test {
 protected:
  void SetUp() override { ASSERT_NO_FATAL_FAILURE(start_pool(1 * HAK_GIB)); }
  hak_span *take(size_t spans, size_t align = 1) {
    hak_span *s = hak_pool_take(spans, align, HELD_TAGS, false, &zeroed);
    EXPECT_NE(s, nullptr);
    return s;
  }
  void give(hak_span *s) { EXPECT_TRUE(hak_pool_give(s, 0, HELD_TAGS.head, &due)); }
  size_t ready() { return hak_main_region.ready_spans; }

  bool zeroed = false, due = false;
};

TEST_F(Quick, TheLatestOfALengthComesFirst) {
  hak_span *a = take(5), *between = take(1), *b = take(5), *c = take(6);
  for (hak_span *s : {a, b, c}) give(s);
  EXPECT_EQ(hak_quick_spans(), 16u);
  EXPECT_EQ(hak_span_pool.dirty_spans, 16u);
  EXPECT_EQ(hak_span_pool.live_spans, 1u);
  EXPECT_EQ(take(5), b);
  EXPECT_FALSE(zeroed);
  EXPECT_EQ(take(6), c);
  EXPECT_EQ(take(5), a);
  EXPECT_EQ(hak_quick_spans(), 0u);
  EXPECT_EQ(hak_span_pool.live_spans, 17u);
  give(between);
}

TEST_F(Quick, OfLengthsThatShareAListEachIsFound) {
  hak_span *a = take(3), *b = take(3 + HAK_QUICK_LISTS), *c = take(3 + 2 * HAK_QUICK_LISTS);
  for (hak_span *s : {a, b, c}) give(s);
  EXPECT_EQ(take(3), a);
  EXPECT_EQ(take(3 + HAK_QUICK_LISTS), b);
  EXPECT_EQ(take(3 + 2 * HAK_QUICK_LISTS), c);
}

TEST_F(Quick, NoNewMemoryWhileTheyWouldDoTogether) {
  std::vector<hak_span *> parts;
  for (size_t spans : {5, 6, 7, 8}) parts.push_back(take(spans));
  hak_span *end = take(1);
  size_t before = ready();
  for (hak_span *s : parts) give(s);
  EXPECT_EQ(take(26), parts[0]) << "they coalesce";
  EXPECT_FALSE(zeroed);
  EXPECT_EQ(ready(), before);
  EXPECT_EQ(hak_quick_spans(), 0u);
  give(end);
}

TEST_F(Quick, SlabsHaveThemBeforeNewMemory) {
  hak_span *large = take(4);
  give(large);
  hak_pool_tags slab = {HAK_TAG(1, 1), 1, 1};
  EXPECT_EQ(hak_pool_take(4, 1, slab, false, &zeroed), large);
  EXPECT_FALSE(zeroed);
}

TEST_F(Quick, SpansOfSlabsOfSeveralBlocksAreInTheBitmapsAtOnce) {
  hak_pool_tags slab = {HAK_TAG(1, 1), 1, 1};
  hak_span *s = hak_pool_take(4, 1, slab, false, &zeroed);
  EXPECT_TRUE(hak_pool_give(s, 0, slab.head, &due));
  EXPECT_EQ(hak_quick_spans(), 0u);
}

TEST_F(Quick, APurgeFindsThem) {
  give(take(8));
  EXPECT_EQ(hak_quick_spans(), 8u);
  EXPECT_EQ(hak_purge_spans(0, false), 8u);
  EXPECT_EQ(hak_quick_spans(), 0u);
  EXPECT_EQ(hak_span_pool.dirty_spans, 0u);
}

TEST_F(Quick, ABlockGrowsOverThem) {
  hak_span *a = take(4), *b = take(5), *c = take(1);
  give(b);
  EXPECT_TRUE(hak_pool_extend(a, 3, HAK_CODE_EXTENT_BODY));
  EXPECT_EQ(hak_quick_spans(), 0u);
  EXPECT_EQ(hak_span_pool.dirty_spans, 2u);
  EXPECT_FALSE(hak_pool_extend(a, 3, HAK_CODE_EXTENT_BODY)) << "what is held stays";
  give(a);
  give(c);
}

TEST_F(Quick, OneThatIsNotAlignedIsLeft) {
  hak_span *first = take(1), *a = take(4);
  while (hak_region_span_index(&hak_main_region, a) % 8 == 0) a = take(4 + 1);
  give(a);
  hak_span *b = take(a->span_count, 8);
  EXPECT_NE(b, a);
  EXPECT_EQ(b->start % (8 * HAK_SPAN_SIZE), 0u);
  give(first);
}

TEST_F(Quick, OfManyAllSettleAtOnce) {
  std::vector<hak_span *> spans;
  for (unsigned i = 0; i < HAK_QUICK_RANGES + 1; i++) spans.push_back(take(2));
  for (unsigned i = 0; i < HAK_QUICK_RANGES; i++) give(spans[i]);
  EXPECT_EQ(hak_quick_spans(), 2 * HAK_QUICK_RANGES);
  give(spans.back());
  EXPECT_EQ(hak_quick_spans(), 2u);
  EXPECT_EQ(hak_span_pool.dirty_spans, 2 * (HAK_QUICK_RANGES + 1));
}

TEST_F(Quick, WhatCameBackIsGivenOnce) {
  hak_span *s = take(3);
  give(s);
  EXPECT_FALSE(hak_pool_give(s, 0, HELD_TAGS.head, &due));
  settle_quick();
  EXPECT_FALSE(hak_pool_give(s, 0, HELD_TAGS.head, &due));
}

TEST_F(Quick, AgesByWhenTheyCame) {
  hak_span *s = take(3);
  hak_pool_set_look(7);
  give(s);
  hak_pool_set_look(9);
  settle_quick();
  size_t index = hak_region_span_index(&hak_main_region, s);
  EXPECT_EQ(hak_main_region.chunks[index / HAK_CHUNK_SPANS].look[index % HAK_CHUNK_SPANS / 64], 7u);
}

// Whatever comes and goes, no span is two blocks', and counts add up.
TEST_F(Quick, RandomRanges) {
  std::mt19937 random(1);
  std::map<hak_span *, uint64_t> held;
  uint64_t number = 0;
  for (int step = 0; step < 30000; step++) {
    unsigned action = random() % 100;
    if (action < 50 || held.empty()) {
      size_t spans = random() % 4 == 0 ? 1 + random() % 600 : 1 + random() % 20, align = size_t{1} << (random() % 4);
      hak_span *s = take(spans, random() % 3 == 0 ? align : 1);
      ASSERT_EQ(s->span_count, spans);
      for (size_t i = 0; i < spans; i++) {
        ASSERT_EQ(s[i].head, s);
        *static_cast<uint64_t *>(span_address(s + i)) = number + 1;
      }
      held[s] = ++number;
    } else if (action < 90) {
      auto it = std::next(held.begin(), long(random() % held.size()));
      for (size_t i = 0; i < it->first->span_count; i++)
        ASSERT_EQ(*static_cast<uint64_t *>(span_address(it->first + i)), it->second) << "somebody else's as well";
      give(it->first);
      held.erase(it);
    } else if (action < 97) {
      auto it = std::next(held.begin(), long(random() % held.size()));
      size_t had = it->first->span_count;
      if (!hak_pool_extend(it->first, 1 + random() % 3, HAK_CODE_EXTENT_BODY)) continue;
      for (size_t i = had; i < it->first->span_count; i++)
        *static_cast<uint64_t *>(span_address(it->first + i)) = it->second;
    } else {
      hak_purge_spans(random() % 100, false);
    }
    if (held.size() > 60) {
      give(held.begin()->first);
      held.erase(held.begin());
    }
    size_t live = 0;
    for (auto &[s, n] : held) live += s->span_count;
    ASSERT_EQ(hak_span_pool.live_spans, live) << "step " << step;
    const hak_span *range;
    hak_lock_take(&hak_span_pool.lock);
    ASSERT_EQ(hak_quick_fault(&range), nullptr);
    hak_lock_drop(&hak_span_pool.lock);
  }
}

}  // namespace
