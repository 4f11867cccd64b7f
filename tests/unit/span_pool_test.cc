// The span pool: which span is taken, coalescing, alignment, what is known zero; and all of it against a model.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <map>
#include <random>

#include "fake_os.h"
#include "fresh_pool.h"
#include "hak.h"

using testing::IsEmpty;

namespace {

class SpanPool : public testing::Test {
 protected:
  void SetUp() override { start(1 * HAK_GIB); }
  void TearDown() override { EXPECT_THAT(fake_os::violations(), IsEmpty()); }

  void start(size_t reserve) {
    ASSERT_NO_FATAL_FAILURE(start_pool(reserve));
    r = &hak_main_region;
  }

  size_t index(const hak_span *s) const { return size_t(s - hak_pool_region_of(s)->spans); }
  size_t take(size_t spans, size_t align = 1) {
    hak_span *s = hak_pool_take(spans, align, HELD_TAGS, false, &zeroed);
    EXPECT_NE(s, nullptr);
    return index(s);
  }
  void give(size_t at, size_t spans) {
    EXPECT_EQ(r->spans[at].span_count, spans);
    EXPECT_TRUE(hak_pool_give(&r->spans[at], 0, HELD_TAGS.head, &due));
    settle_quick();
  }

  hak_region *r;
  bool zeroed = false, due = false;
};

TEST_F(SpanPool, TakesTheLowestAddress) {
  size_t a = take(1), b = take(3), c = take(1);
  EXPECT_EQ(a, r->first_span);
  EXPECT_EQ(b, a + 1);
  EXPECT_EQ(c, a + 4);
  EXPECT_TRUE(zeroed);
  EXPECT_EQ(hak_span_pool.live_spans, 5u);
  EXPECT_EQ(r->spans[b].span_count, 3u);
  for (size_t i = 0; i < 3; i++) EXPECT_EQ(r->spans[b + i].head, &r->spans[b]);
  give(b, 3);
  give(a, 1);
  EXPECT_EQ(take(1), a);
}

TEST_F(SpanPool, PrefersDirtyToCleanEvenAtHigherAddresses) {
  size_t a = take(1), b = take(1);
  size_t first, count;
  give(a, 1);
  ASSERT_TRUE(hak_pool_claim_dirty(r, a / HAK_CHUNK_SPANS, 1, HAK_ANY_RANGE, &first, &count));
  hak_pool_unclaim(r, first, count, HAK_PAGES_PURGED);  // a is clean now
  give(b, 1);
  EXPECT_EQ(take(1), b);
  EXPECT_FALSE(zeroed);
  EXPECT_EQ(take(1), a);
  EXPECT_TRUE(zeroed);
}

TEST_F(SpanPool, NeighboursCoalesce) {
  size_t a = take(2), b = take(3), c = take(4), end = take(1);
  give(a, 2);
  give(c, 4);
  give(b, 3);
  EXPECT_EQ(take(9), a);
  EXPECT_EQ(end, a + 9);
}

// A chunk of huge pages, filled with runs of 256 KiB: eight of them a huge page.
class HugePages : public SpanPool {
 protected:
  void SetUp() override {
    SpanPool::SetUp();
    for (size_t i = 0; i < 8 * 8; i++) runs.push_back(take_dense(4));
    behind = take_dense(4);
    ASSERT_TRUE(hak_region_grow(r, 1, true));
    ASSERT_TRUE(r->chunks[runs[0] / HAK_CHUNK_SPANS].huge);
    ASSERT_EQ(runs[0] % HAK_HUGE_PAGE_SPANS, 0u);
  }
  size_t take_dense(size_t spans) {
    hak_span *s = hak_pool_take(spans, 1, HELD_TAGS, true, &zeroed);
    EXPECT_NE(s, nullptr);
    return index(s);
  }
  // Until what is taken lies behind the chunk.
  void fill(size_t chunk) {
    while (take_dense(4) / HAK_CHUNK_SPANS <= chunk) continue;
  }
  // Gives back the last dirty run; its first span and how many.
  std::pair<size_t, size_t> purge() {
    size_t first = 0, count = 0;
    if (!hak_pool_claim_dirty(r, runs[0] / HAK_CHUNK_SPANS, 256, HAK_ANY_RANGE, &first, &count)) return {0, 0};
    hak_pool_unclaim(r, first, count, HAK_PAGES_PURGED);
    return {first, count};
  }
  std::vector<size_t> runs;
  size_t behind;
};

TEST_F(HugePages, ThePieceThatLeavesNothingBehindGoesWithTheWholePage) {
  for (size_t i = 8; i < 15; i++) {
    give(runs[i], 4);
    EXPECT_EQ(purge(), std::pair(runs[8], 4 * (i - 7))) << "with what is free and clean before it";
  }
  give(runs[15], 4);
  EXPECT_EQ(purge(), std::pair(runs[8], HAK_HUGE_PAGE_SPANS)) << "so that the system may use a huge page again";
  EXPECT_EQ(take_dense(4), runs[8]);
  EXPECT_TRUE(zeroed);
}

// Else a program that gives its memory back and takes it again would have a new chunk each time, and tables for it.
TEST_F(HugePages, AChunkMadeSmallAsksForThemAgainBeforeTheRegionGrows) {
  size_t chunk = runs[0] / HAK_CHUNK_SPANS, first = chunk * HAK_CHUNK_SPANS;
  hak_chunk &c = r->chunks[chunk];
  fill(chunk);
  for (size_t at = first; at < first + HAK_CHUNK_SPANS; at += 4) give(at, 4);
  while (purge().second != 0) continue;
  hak_pool_disable_huge(r, chunk);
  size_t ready = r->ready_spans, again;
  fake_os::reset();
  while ((again = take_dense(4)) / HAK_CHUNK_SPANS != chunk) ASSERT_EQ(r->ready_spans, ready) << "the region has grown";
  EXPECT_TRUE(zeroed);
  EXPECT_EQ(again, first);
  EXPECT_TRUE(c.huge);
  ASSERT_EQ(fake_os::count(fake_os::ADVISE), 1u);
  fake_os::Event asked = fake_os::log().back();
  EXPECT_EQ(asked.detail, MADV_HUGEPAGE);
  EXPECT_EQ(asked.addr, uintptr_t(hak_region_address(r, first)));
  EXPECT_EQ(asked.size_bytes, HAK_CHUNK_SPANS * HAK_SPAN_SIZE);
}

// The system uses no huge page where there is a table of small ones: so the last piece goes with all of its page.
TEST_F(HugePages, PiecesOfAChunkMadeSmallGoWithTheirNeighbours) {
  size_t chunk = runs[0] / HAK_CHUNK_SPANS;
  hak_pool_disable_huge(r, chunk);
  for (size_t i = 8; i < 15; i++) {
    give(runs[i], 4);
    EXPECT_EQ(purge(), std::pair(runs[8], 4 * (i - 7)));
  }
  give(runs[15], 4);
  EXPECT_EQ(purge(), std::pair(runs[8], HAK_HUGE_PAGE_SPANS));
}

TEST_F(HugePages, AChunkOfWhichAPartIsInUseStaysSmall) {
  size_t chunk = runs[0] / HAK_CHUNK_SPANS, first = chunk * HAK_CHUNK_SPANS;
  fill(chunk);
  for (size_t at = first + 4; at < first + HAK_CHUNK_SPANS; at += 4) give(at, 4);
  while (purge().second != 0) continue;
  hak_pool_disable_huge(r, chunk);
  for (size_t ready = r->ready_spans; r->ready_spans == ready;) take_dense(4);
  EXPECT_FALSE(r->chunks[chunk].huge);
}

TEST_F(HugePages, AChunkThatNeverAskedForThemIsLeftAlone) {
  size_t first = r->first_span / HAK_CHUNK_SPANS;
  ASSERT_FALSE(r->chunks[first].huge);
  fill(runs[0] / HAK_CHUNK_SPANS);
  EXPECT_FALSE(r->chunks[first].huge);
}

TEST_F(SpanPool, MixedRunIsNotZeroed) {
  size_t a = take(2);
  take(1);
  give(a, 2);
  size_t b = take(1);
  EXPECT_EQ(b, a);
  give(b, 1);
  size_t first, count;
  ASSERT_TRUE(hak_pool_claim_dirty(r, a / HAK_CHUNK_SPANS, 1, HAK_ANY_RANGE, &first, &count));
  hak_pool_unclaim(r, first, count, HAK_PAGES_PURGED);
  // a is clean, a + 1 is dirty: together they are not known zero.
  EXPECT_EQ(take(2), a);
  EXPECT_FALSE(zeroed);
  EXPECT_EQ(hak_span_pool.dirty_spans, 0u);
}

TEST_F(SpanPool, AlignsByAbsoluteAddress) {
  take(1);
  for (size_t align = 1; align <= HAK_EXTENT_MAX_SPANS; align *= 2) {
    size_t at = take(3, align);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(hak_region_address(r, at)) % (align * HAK_SPAN_SIZE), 0u) << align;
  }
}

TEST_F(SpanPool, LargestRunAndAlignmentTogether) {
  for (int i = 0; i < 3; i++) {
    take(1);
    size_t at = take(HAK_EXTENT_MAX_SPANS, HAK_EXTENT_MAX_SPANS);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(hak_region_address(r, at)) % (32 * HAK_MIB), 0u);
  }
}

TEST_F(SpanPool, ExtendsOnlyIntoFreeSpansOfTheSameChunk) {
  size_t a = take(2), b = take(1);
  EXPECT_FALSE(hak_pool_extend(&r->spans[a], 1, HAK_CODE_EXTENT_BODY));
  give(b, 1);
  EXPECT_TRUE(hak_pool_extend(&r->spans[a], 2, 9));
  EXPECT_EQ(r->map[a + 2], 9u);
  EXPECT_EQ(r->map[a + 3], 9u);
  EXPECT_EQ(r->spans[a].span_count, 4u);
  EXPECT_EQ(r->spans[a + 3].head, &r->spans[a]);
  EXPECT_EQ(hak_span_pool.live_spans, 4u);
  EXPECT_EQ(take(1), a + 4);
  // At the end of a chunk.
  size_t edge = (r->first_span / HAK_CHUNK_SPANS + 1) * HAK_CHUNK_SPANS;
  while (hak_region_grow(r, 1, false) && r->ready_spans < edge + 64) {
  }
  size_t at;
  do at = take(1);
  while (at < edge - 1);
  EXPECT_EQ(at, edge - 1);
  EXPECT_FALSE(hak_pool_extend(&r->spans[at], 1, HAK_CODE_EXTENT_BODY));
}

TEST_F(SpanPool, ExtendReachesBeyondWhatIsReadyIfTheSystemLetsIt) {
  size_t last = 0;
  while (last != r->ready_spans - 1) last = take(1);
  fake_os::fail_all(fake_os::PROTECT);
  EXPECT_FALSE(hak_pool_extend(&r->spans[last], 1, HAK_CODE_EXTENT_BODY));
  fake_os::allow_all();
  EXPECT_TRUE(hak_pool_extend(&r->spans[last], 1, HAK_CODE_EXTENT_BODY));
  EXPECT_GT(r->ready_spans, last + 1);
  EXPECT_EQ(r->spans[last + 1].head, &r->spans[last]);
}

TEST_F(SpanPool, RunsNeverCrossAChunk) {
  for (int i = 0; i < 12; i++) {
    size_t at = take(300);
    EXPECT_EQ(at / HAK_CHUNK_SPANS, (at + 299) / HAK_CHUNK_SPANS);
  }
}

TEST_F(SpanPool, GoesOnInFurtherRegionsAndFailsAtLast) {
  start(16 * HAK_MIB);
  unsigned taken = 0;
  bool zero;
  hak_span *s, *last = nullptr;
  while (hak_region_count() < 3) {
    last = hak_pool_take(10, 1, HELD_TAGS, false, &zero);
    ASSERT_NE(last, nullptr);
    taken++;
  }
  EXPECT_GT(taken, 40u);
  fake_os::fail_all(fake_os::MAP);
  fake_os::fail_all(fake_os::PROTECT);
  while ((s = hak_pool_take(10, 1, HELD_TAGS, false, &zero)) != nullptr) last = s;
  EXPECT_EQ(hak_pool_take(10, 1, HELD_TAGS, false, &zero), nullptr);
  // After a free there is room again, without the system's help.
  EXPECT_TRUE(hak_pool_give(last, 0, HELD_TAGS.head, &due));
  EXPECT_EQ(hak_pool_take(10, 1, HELD_TAGS, false, &zero), last);
}

TEST_F(SpanPool, CodesComeWithTheSpansAndGoWithThem) {
  take(2);
  hak_pool_tags tags = {HAK_TAG(7, 5), 5, HAK_CODE_EXTENT_BODY};
  hak_span *s = hak_pool_take(3, 1, tags, false, &zeroed);
  ASSERT_NE(s, nullptr);
  size_t first = index(s);
  EXPECT_EQ(s->start, reinterpret_cast<uintptr_t>(hak_region_address(r, first)));
  EXPECT_EQ(s->tag, tags.head);
  EXPECT_EQ(r->map[first - 1], unsigned(HAK_CODE_EXTENT_BODY));
  EXPECT_EQ(r->map[first], 5u);
  EXPECT_EQ(r->map[first + 1], unsigned(HAK_CODE_EXTENT_BODY));
  EXPECT_EQ(r->map[first + 2], unsigned(HAK_CODE_EXTENT_BODY));
  EXPECT_EQ(r->map[first + 3], 0u);
  EXPECT_TRUE(hak_pool_give(s, 1, tags.head, &due));  // the tail
  EXPECT_EQ(s->tag, tags.head);
  EXPECT_EQ(r->map[first], 5u);
  EXPECT_EQ(r->map[first + 1], 0u);
  EXPECT_FALSE(hak_pool_give(s, 0, HAK_TAG(8, 5), &due)) << "held by somebody else";
  EXPECT_TRUE(hak_pool_give(s, 0, tags.head, &due));
  EXPECT_EQ(r->map[first], 0u);
  EXPECT_FALSE(hak_pool_give(s, 0, tags.head, &due)) << "returned already";
}

TEST_F(SpanPool, GiveSaysWhenMoreIsDirtyThanTheMarkAndThanIsHeld) {
  std::vector<size_t> runs;
  for (int i = 0; i < 6; i++) runs.push_back(take(64));
  hak_span_pool.mark_spans = 2 * 64;
  hak_span_pool.mark_at_least_live = true;
  for (int i = 0; i < 3; i++) {
    give(runs[i], 64);
    EXPECT_FALSE(due) << i;  // in the end as much is dirty as is held
  }
  give(runs[3], 64);
  EXPECT_TRUE(due);
  due = false;
  hak_span_pool.mark_spans = 5 * 64;
  give(runs[4], 64);
  EXPECT_FALSE(due) << "not more than the mark";
}

TEST_F(SpanPool, ClaimedSpansAreNobodysUntilTheyComeBack) {
  size_t a = take(8);
  give(a, 8);
  size_t first, count;
  ASSERT_TRUE(hak_pool_claim_dirty(r, a / HAK_CHUNK_SPANS, 5, HAK_ANY_RANGE, &first, &count));
  EXPECT_EQ(first, a + 3) << "high addresses go first";
  EXPECT_EQ(count, 5u);
  EXPECT_EQ(take(1), a);
  hak_pool_unclaim(r, first, count, HAK_PAGES_KEPT);  // the system refused
  EXPECT_EQ(hak_span_pool.dirty_spans, 7u);
  EXPECT_EQ(take(1), a + 1);
  EXPECT_FALSE(zeroed);
  EXPECT_EQ(take(1), a + 2);
  EXPECT_EQ(take(1), a + 3);
  give(a + 2, 1);
  ASSERT_TRUE(hak_pool_claim_dirty(r, a / HAK_CHUNK_SPANS, 100, HAK_ANY_RANGE, &first, &count));
  EXPECT_EQ(first, a + 4);
  EXPECT_EQ(count, 4u);
  hak_pool_unclaim(r, first, count, HAK_PAGES_PURGED);
  ASSERT_TRUE(hak_pool_claim_dirty(r, a / HAK_CHUNK_SPANS, 100, HAK_ANY_RANGE, &first, &count));
  EXPECT_EQ(first, a + 2);
  hak_pool_unclaim(r, first, count, HAK_PAGES_PURGED);
  EXPECT_FALSE(hak_pool_claim_dirty(r, a / HAK_CHUNK_SPANS, 100, HAK_ANY_RANGE, &first, &count));
}

TEST_F(SpanPool, DenseSpansComeFromHugePagesOnceEnoughIsHeld) {
  hak_span_pool.huge_from_spans = 100;
  bool zero;
  auto chunk_is_huge = [&](hak_span *s) { return r->chunks[index(s) / HAK_CHUNK_SPANS].huge; };
  EXPECT_FALSE(chunk_is_huge(hak_pool_take(99, 1, HELD_TAGS, true, &zero)));
  EXPECT_FALSE(chunk_is_huge(hak_pool_take(1, 1, HELD_TAGS, true, &zero)));
  hak_span *dense = hak_pool_take(1, 1, HELD_TAGS, true, &zero);
  EXPECT_TRUE(chunk_is_huge(dense));
  EXPECT_TRUE(zero);
  hak_span *sparse = hak_pool_take(1, 1, HELD_TAGS, false, &zero);
  EXPECT_FALSE(chunk_is_huge(sparse));
  // What is dirty already goes before clean memory of the right kind.
  EXPECT_TRUE(hak_pool_give(dense, 0, HELD_TAGS.head, &due));
  EXPECT_EQ(hak_pool_take(1, 1, HELD_TAGS, false, &zero), dense);
  EXPECT_TRUE(hak_pool_give(sparse, 0, HELD_TAGS.head, &due));
  EXPECT_EQ(hak_pool_take(1, 1, HELD_TAGS, true, &zero), sparse);
}

TEST_F(SpanPool, OfHugePagesOnlyWholeOnesAreClaimedWhereAsked) {
  hak_span_pool.huge_from_spans = 0;
  bool zero;
  constexpr size_t PAGE_SPANS = HAK_HUGE_PAGE_SPANS;
  hak_span *before = hak_pool_take(3, 1, HELD_TAGS, true, &zero), *s = hak_pool_take(4 * PAGE_SPANS, 1, HELD_TAGS, true, &zero);
  hak_pool_take(1, 1, HELD_TAGS, true, &zero);
  size_t at = index(s), chunk = at / HAK_CHUNK_SPANS, first, count;
  ASSERT_EQ(index(before) % PAGE_SPANS, 0u);
  EXPECT_TRUE(hak_pool_give(before, 0, HELD_TAGS.head, &due));
  EXPECT_FALSE(hak_pool_claim_dirty(r, chunk, 1000, HAK_WHOLE_PAGES, &first, &count)) << "three spans are no huge page";
  EXPECT_TRUE(hak_pool_give(s, 0, HELD_TAGS.head, &due));
  settle_quick();
  ASSERT_TRUE(hak_pool_claim_dirty(r, chunk, 1000, HAK_WHOLE_PAGES, &first, &count));
  EXPECT_EQ(first, index(before));
  EXPECT_EQ(count, 4 * PAGE_SPANS) << "the three spans behind the last whole one stay";
  hak_pool_unclaim(r, first, count, HAK_PAGES_PURGED);
  EXPECT_FALSE(hak_pool_claim_dirty(r, chunk, 1000, HAK_WHOLE_PAGES, &first, &count));
  ASSERT_TRUE(hak_pool_claim_dirty(r, chunk, 1000, HAK_ANY_RANGE, &first, &count));
  EXPECT_EQ(count, 3u);
  hak_pool_unclaim(r, first, count, HAK_PAGES_PURGED);
}

// --- the model: one state a span, the rules of span_pool.h written down directly ---

enum State { FREE_CLEAN, FREE_DIRTY, HELD };

class Model {
 public:
  explicit Model(hak_region *region) : r(region), first(region->first_span), states(region->ready_spans, FREE_CLEAN) {}

  void follow_growth() { states.resize(r->ready_spans, FREE_CLEAN); }
  // Start of the run the pool must take, or SIZE_MAX: it must grow.
  size_t expect_take(size_t spans, size_t align) const {
    size_t at = dirty() >= spans ? lowest(spans, align, true) : SIZE_MAX;
    return at != SIZE_MAX ? at : lowest(spans, align, false);
  }
  void set(size_t at, size_t spans, State s) { std::fill_n(states.begin() + long(at), spans, s); }
  bool all(size_t at, size_t spans, State s) const {
    for (size_t i = 0; i < spans; i++)
      if (states[at + i] != s) return false;
    return true;
  }
  bool extendable(size_t at, size_t extra) const {
    if (at % HAK_CHUNK_SPANS == 0 || at % HAK_CHUNK_SPANS + extra > HAK_CHUNK_SPANS || at + extra > r->span_count) return false;
    for (size_t i = at; i < std::min(at + extra, states.size()); i++)
      if (states[i] == HELD) return false;
    return true;
  }
  // The highest chunk below `end` with so many that are dirty and fill one huge page, or as many single ones; `end` if there is none.
  size_t last_dirty(size_t end, size_t spans) const {
    for (size_t at = std::min(end * HAK_CHUNK_SPANS, states.size()) / spans; at-- > 0;)
      if ((at + 1) * spans <= states.size() && all(at * spans, spans, FREE_DIRTY)) return at * spans / HAK_CHUNK_SPANS;
    return end;
  }
  size_t dirty() const { return size_t(std::count(states.begin(), states.end(), FREE_DIRTY)); }
  size_t held() const { return size_t(std::count(states.begin() + long(first), states.end(), HELD)); }

 private:
  // Per chunk, because runs stay inside one: the lowest aligned place at the beginning of which enough is free.
  size_t lowest(size_t spans, size_t align, bool dirty_only) const {
    for (size_t at = first; at + spans <= states.size(); at++) {
      if (((r->base >> HAK_SPAN_SHIFT) + at) % align != 0) continue;
      if (at / HAK_CHUNK_SPANS != (at + spans - 1) / HAK_CHUNK_SPANS) continue;
      bool fits = true;
      for (size_t i = 0; i < spans && fits; i++) fits = dirty_only ? states[at + i] == FREE_DIRTY : states[at + i] != HELD;
      if (fits) return at;
    }
    return SIZE_MAX;
  }
  hak_region *r;
  size_t first;
  std::vector<State> states;
};

class SpanPoolModel : public SpanPool, public testing::WithParamInterface<unsigned> {};

TEST_P(SpanPoolModel, AgreesWithTheModel) {
  std::mt19937 random(GetParam());
  auto below = [&](size_t n) { return size_t(random() % n); };
  start(256 * HAK_MIB);
  Model model(r);
  std::map<size_t, size_t> held;  // start -> spans
  for (int step = 0; step < 2500; step++) {
    unsigned action = unsigned(below(100));
    if (action < 45) {
      size_t spans = below(20) == 0 ? 1 + below(200) : 1 + below(6), align = size_t(1) << (below(4) == 0 ? below(7) : 0);
      size_t expected = model.expect_take(spans, align);
      bool zero = false;
      hak_span *s = hak_pool_take(spans, align, HELD_TAGS, false, &zero);
      if (s == nullptr || hak_pool_region_of(s) != r) break;  // the region is full: enough was seen
      size_t at = index(s);
      if (expected == SIZE_MAX) {
        model.follow_growth();
        expected = model.expect_take(spans, align);
      }
      ASSERT_EQ(at, expected) << "step " << step << ", " << spans << " spans by " << align;
      ASSERT_EQ(zero, model.all(at, spans, FREE_CLEAN));
      for (size_t i = 0; i < spans; i++) {
        auto *word = static_cast<uint64_t *>(hak_region_address(r, at + i));
        if (zero) ASSERT_TRUE(word[0] == 0 && word[4096] == 0) << "known zero, and is not";
        word[0] = word[4096] = ~uint64_t(0);
        ASSERT_EQ(r->spans[at + i].head, s);
      }
      model.set(at, spans, HELD);
      held[at] = spans;
    } else if (action < 80 && !held.empty()) {
      auto it = std::next(held.begin(), long(below(held.size())));
      auto [at, spans] = *it;
      held.erase(it);
      size_t keep = below(3) == 0 ? below(spans) : 0;  // sometimes only the tail, as a shrinking run does
      if (keep > 0) held[at] = keep;
      ASSERT_TRUE(hak_pool_give(&r->spans[at], keep, HELD_TAGS.head, &due));
      settle_quick();
      ASSERT_EQ(r->spans[at].span_count, keep);
      model.set(at + keep, spans - keep, FREE_DIRTY);
    } else if (action < 92 && !held.empty()) {
      auto it = std::next(held.begin(), long(below(held.size())));
      size_t extra = 1 + below(4);
      bool expected = model.extendable(it->first + it->second, extra);
      ASSERT_EQ(hak_pool_extend(&r->spans[it->first], extra, HAK_CODE_EXTENT_BODY), expected) << "step " << step;
      if (!expected) continue;
      model.follow_growth();
      model.set(it->first + it->second, extra, HELD);
      for (size_t i = 0; i < extra; i++)
        *static_cast<uint64_t *>(hak_region_address(r, it->first + it->second + i)) = ~uint64_t(0);
      it->second += extra;
    } else {
      size_t end = 1 + below((r->ready_spans + HAK_CHUNK_SPANS - 1) / HAK_CHUNK_SPANS), first, count;
      hak_worth worth = below(2) == 0 ? HAK_ANY_RANGE : HAK_WHOLE_PAGES;
      size_t chunk = hak_pool_last_dirty(r, end, worth), last = model.last_dirty(end, worth == HAK_ANY_RANGE ? 1 : HAK_HUGE_PAGE_SPANS);
      if (last != end) ASSERT_TRUE(chunk >= last && chunk < end) << "step " << step << ": " << last << " below " << end << " was passed over";
      if (chunk == end || !hak_pool_claim_dirty(r, chunk, 1 + below(20), worth, &first, &count)) {
        if (chunk < end) ASSERT_NE(hak_pool_last_dirty(r, chunk + 1, worth), chunk) << "it is looked at in vain once";
        continue;
      }
      ASSERT_TRUE(model.all(first, count, FREE_DIRTY));
      bool gone = below(4) != 0 && hak_os_decommit(hak_region_address(r, first), count << HAK_SPAN_SHIFT);
      hak_pool_unclaim(r, first, count, gone ? HAK_PAGES_PURGED : HAK_PAGES_KEPT);
      model.set(first, count, gone ? FREE_CLEAN : FREE_DIRTY);
    }
    ASSERT_EQ(hak_span_pool.dirty_spans, model.dirty());
    ASSERT_EQ(hak_span_pool.live_spans, model.held());
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, SpanPoolModel, testing::Range(1u, 9u));

// Under mlockall every step is memory: dense spans, which would rather lie in a chunk of huge pages, take what is there.
TEST_F(SpanPool, LockedMemoryGrowsByWhatIsTaken) {
#if HAKMEM_TEST_SANITIZED
  GTEST_SKIP() << "would lock the sanitizer's shadow";
#endif
  if (mlockall(MCL_FUTURE) != 0) GTEST_SKIP() << "may not lock memory";
  start(1 * HAK_GIB);
  take(1);  // the region finds that its memory is resident at once
  size_t before = r->ready_spans;
  for (int i = 0; i < 300; i++) ASSERT_NE(hak_pool_take(1, 1, {1, 1, 1}, true, &zeroed), nullptr);
  EXPECT_LE(r->ready_spans - before, 300u + 2 * 64u);
  munlockall();
}

}  // namespace
