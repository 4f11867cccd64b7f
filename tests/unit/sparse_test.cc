// The free pages of slabs in which a few blocks live on.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "fake_os.h"
#include "fresh_pool.h"
#include "hak.h"

using testing::Contains;
using testing::IsEmpty;
using testing::Not;

namespace {

constexpr uint32_t OWNER = 5;
const size_t PAGE = hak_os_page_size();

class SparseSlabs : public testing::TestWithParam<size_t> {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(start_pool(1 * HAK_GIB));
    c = hak_class_for(GetParam());
    size = hak_class_size(c);
  }
  void TearDown() override { EXPECT_THAT(fake_os::violations(), IsEmpty()); }

  // All blocks of `slabs` slabs, each filled with a byte of its own; the last slab is carved to its end.
  void fill(unsigned slabs) {
    while (set.slabs < slabs || set.bump_slab != nullptr) {
      void *out[63];
      unsigned n = hak_slab_set_take(&set, c, OWNER, out, 63);
      ASSERT_GT(n, 0u);
      while (n-- > 0) {  // as they are handed out
        memset(out[n], mark(out[n]), size);
        blocks.push_back(static_cast<char *>(out[n]));
      }
    }
  }
  static int mark(const void *p) { return int(reinterpret_cast<uintptr_t>(p) / 16 % 251 + 1); }
  // Frees all but each `survive`-th, in random order.
  void free_most(size_t survive) {
    std::vector<char *> rest, all;
    for (size_t i = 0; i < blocks.size(); i++) (i % survive == 7 % survive ? rest : all).push_back(blocks[i]);
    std::mt19937 random(1);
    std::shuffle(all.begin(), all.end(), random);
    for (char *p : all) put(p);
    blocks = rest;
  }
  // Of eight slabs, so that some have whole pages free.
  void leave_few_blocks() {
    fill(8);
    free_most(std::max<size_t>(4, 5 * PAGE / size / 4));
  }
  void put(char *p) {
    hak_verdict verdict;
    ASSERT_EQ(hak_slab_set_put(&set, HAK_TAG(OWNER, c + 1), reinterpret_cast<void **>(&p), 1, &verdict, &due), 1u);
    ASSERT_EQ(verdict, HAK_VERDICT_OK);
  }
  std::vector<hak_span *> find(unsigned round, bool at_once) {
    std::vector<hak_span *> found(64);
    found.resize(hak_slab_find_sparse(&set, c, round, at_once, found.data(), 64));
    return found;
  }
  bool claim(hak_span *s) { return hak_slab_claim_free_pages(&set, s, HAK_TAG(OWNER, c + 1), &holes); }
  size_t give_back() {
    size_t bytes = 0;
    for (unsigned i = 0; i < holes.count; i++) {
      EXPECT_TRUE(hak_os_decommit(holes.pages[i].start, holes.pages[i].bytes));
      bytes += holes.pages[i].bytes;
    }
    return bytes;
  }
  void expect_survivors() {
    for (const char *p : blocks)
      for (size_t i = 0; i < size; i++) ASSERT_EQ(static_cast<unsigned char>(p[i]), mark(p)) << i;
  }
  size_t free_blocks() const {
    size_t n = 0;
    for (const hak_span *list : set.lists)
      for (const hak_span *s = list; s != nullptr; s = s->next) n += hak_slab_free_count(s);
    return n;
  }
  size_t sparse() const {
    size_t n = 0;
    for (const hak_span *s = set.lists[3]; s != nullptr; s = s->next) n++;
    return n;
  }

  unsigned c;
  size_t size;
  hak_slab_set set = {};
  std::vector<char *> blocks;
  hak_free_pages holes = {};
  bool due = false;
};

TEST_P(SparseSlabs, PagesWithoutALiveBlockGoAndComeBackAsBlocks) {
  fill(8);
  free_most(std::max<size_t>(4, 3 * PAGE / size * 16 / 10));
  size_t free_before = free_blocks(), hollow = sparse();
  EXPECT_GT(hollow, 0u);
  size_t given = 0, slabs = 0;
  for (hak_span *s : find(1, true)) {
    if (!claim(s)) continue;
    slabs++;
    given += give_back();
    EXPECT_EQ(hak_slab_unclaim_free_pages(&set, s, &holes, true, &due), nullptr);
    EXPECT_EQ(s->list, HAK_PURGED_LIST);
  }
  EXPECT_GT(given, 8 * PAGE);
  EXPECT_EQ(hak_span_pool.purged_slab_pages, given / PAGE);
  EXPECT_EQ(sparse(), hollow - slabs);
  EXPECT_EQ(free_blocks(), free_before) << "no block is lost";
  expect_survivors();
  EXPECT_THAT(find(2, true), IsEmpty()) << "not looked at again";
  // All of it can be used again, and be freed to the end.
  for (size_t left = free_before; left > 0;) {
    void *out[63];
    unsigned n = hak_slab_set_take_free(&set, c, out, 63);
    ASSERT_GT(n, 0u);
    for (unsigned i = 0; i < n; i++) {
      memset(out[i], mark(out[i]), size);
      blocks.push_back(static_cast<char *>(out[i]));
    }
    left -= n;
  }
  EXPECT_EQ(hak_span_pool.purged_slab_pages, 0u);
  expect_survivors();
  for (char *p : std::vector<char *>(blocks)) put(p);
  EXPECT_EQ(set.slabs, 0u);
  EXPECT_EQ(sparse(), 0u);
}

// Three quarters of their blocks are free, and no page has gone: such slabs count towards the mark of dirty memory.
TEST_P(SparseSlabs, SparseSlabsAreCounted) {
  auto counted = [&] { return hak_span_pool.sparse_spans / hak_class_table[c].spans; };
  fill(8);
  EXPECT_EQ(counted(), 0u);
  std::vector<char *> all = blocks;
  for (size_t i = 0; i < all.size(); i++) {
    if (i % 16 != 0) put(all[i]);
    if (i % 64 == 0) { ASSERT_EQ(counted(), sparse()); }
  }
  ASSERT_EQ(counted(), sparse());
  EXPECT_GE(counted(), 7u);
  size_t before = counted(), gone = 0;
  for (hak_span *s : find(1, true)) {
    if (!claim(s)) continue;
    gone++;
    give_back();
    hak_slab_unclaim_free_pages(&set, s, &holes, true, &due);
  }
  EXPECT_EQ(counted(), sparse());
  EXPECT_LE(counted(), before - gone) << "what has gone is resident no more";
  for (size_t i = 0; i < all.size(); i += 16) put(all[i]);
  EXPECT_EQ(counted(), 0u);
}

TEST_P(SparseSlabs, SlabsThatNoLookReachesAreNotCounted) {
  set.sampled = true;
  fill(8);
  free_most(16);
  EXPECT_GT(sparse(), 0u);
  EXPECT_EQ(hak_span_pool.sparse_spans, 0u);
}

TEST_P(SparseSlabs, APurgeIsDueWhereTheyAreMoreThanTheMark) {
  fill(8);
  hak_span_pool.mark_spans = 4 * hak_class_table[c].spans;
  hak_span_pool.mark_at_least_live = true;
  std::vector<char *> all = blocks;
  for (size_t i = 0; i < all.size() && !due; i++) {
    if (i % 6 != 0) put(all[i]);
  }
  EXPECT_TRUE(due);
  EXPECT_EQ(hak_span_pool.dirty_spans, 0u);
  EXPECT_EQ(hak_span_pool.sparse_spans, hak_span_pool.mark_spans + hak_class_table[c].spans);
}

// The pages count as gone while blocks come back, until half of what was live has: only then is another look worth it.
TEST_P(SparseSlabs, SlabsStaySparseUntilHalfOfTheirBlocksHaveComeBack) {
  leave_few_blocks();
  unsigned tried = 0;
  for (hak_span *s : find(1, true)) {
    unsigned live = s->bumped - hak_slab_free_count(s);
    if (live < 12 || live > 200 || !claim(s)) continue;
    tried++;
    give_back();
    hak_slab_unclaim_free_pages(&set, s, &holes, true, &due);
    size_t gone = hak_span_pool.purged_slab_pages;
    std::vector<char *> own;
    for (char *p : blocks)
      if (hak_region_span(hak_region_find(p), p) == s) own.push_back(p);
    ASSERT_EQ(own.size(), live);
    unsigned back = 0;
    for (; (live - back - 1) * 2 > live; back++) put(own[back]);
    EXPECT_EQ(s->list, HAK_PURGED_LIST);
    EXPECT_EQ(hak_span_pool.purged_slab_pages, gone);
    EXPECT_THAT(find(2, false), Not(Contains(s)));
    if (back > 0) { EXPECT_THAT(find(2, true), Contains(s)) << "when all is asked for"; }
    put(own[back]);
    EXPECT_EQ(s->list, 3u);
    EXPECT_LT(hak_span_pool.purged_slab_pages, gone);
    EXPECT_EQ(hak_span_pool.refault_bytes, 0u) << "refaults are of spans alone";
    break;
  }
  if (tried == 0) GTEST_SKIP() << "no slab has a few live blocks";
}

// A block on each page: such slabs are not to stand before others that have pages to give.
TEST_P(SparseSlabs, SlabsWithNothingToGiveStandAside) {
  if (size > PAGE / 8) GTEST_SKIP() << "half-free slabs are looked at too";
  fill(3);
  free_most(PAGE / size);
  auto found = find(1, true);
  ASSERT_FALSE(found.empty());
  for (hak_span *s : found) {
    EXPECT_FALSE(claim(s));
    EXPECT_LT(s->list, 3u);
  }
  EXPECT_EQ(sparse(), 0u);
  EXPECT_THAT(find(2, true), IsEmpty());
  hak_span *touched = hak_region_span(&hak_main_region, blocks.front());
  put(blocks.front());
  EXPECT_EQ(touched->list, 3u) << "worth a look once more";
  EXPECT_EQ(sparse(), 1u);
}

TEST_P(SparseSlabs, OnlySlabsThatRest) {
  fill(8);
  free_most(64);
  EXPECT_THAT(find(1, false), IsEmpty()) << "seen for the first time";
  EXPECT_THAT(find(1, false), IsEmpty()) << "the same round";
  auto found = find(2, false);
  ASSERT_FALSE(found.empty());
  hak_span *touched = found.front();
  // A block of one comes back: it has not rested.
  auto p = std::find_if(blocks.begin(), blocks.end(), [&](char *q) { return hak_region_span(&hak_main_region, q) == touched; });
  if (p != blocks.end()) {
    put(*p);
    blocks.erase(p);
    auto now = find(3, false);
    EXPECT_EQ(std::count(now.begin(), now.end(), touched), 0);
  }
}

// While the system works no lock is held: blocks come back, the slab would be empty, a block is freed twice.
TEST_P(SparseSlabs, TheSlabStaysWhileItsPagesGo) {
  fill(4);
  free_most(std::max<size_t>(8, 4 * PAGE / size * 8));
  for (hak_span *s : find(1, true)) {
    if (!claim(s)) continue;
    size_t slabs = set.slabs;
    for (auto p = blocks.begin(); p != blocks.end();) {
      bool here = hak_region_span(&hak_main_region, *p) == s;
      if (here) put(*p);
      p = here ? blocks.erase(p) : p + 1;
    }
    EXPECT_EQ(set.slabs, slabs) << "its blocks are not all back";
    EXPECT_NE(s->tag, HAK_TAG_NONE);
    give_back();
    EXPECT_EQ(hak_slab_unclaim_free_pages(&set, s, &holes, true, &due), nullptr);
    EXPECT_EQ(s->tag, HAK_TAG_NONE) << "now it is the pool's";
    EXPECT_EQ(set.slabs, slabs - 1);
    EXPECT_EQ(hak_span_pool.purged_slab_pages, 0u);
    return;
  }
  FAIL() << "no slab had holes";
}

TEST_P(SparseSlabs, ABlockFreedTwiceMeanwhileIsTold) {
  fill(4);
  free_most(std::max<size_t>(8, 4 * PAGE / size * 8));
  for (hak_span *s : find(1, true)) {
    if (!claim(s)) continue;
    unsigned w = 0;
    while (holes.claimed[w] == 0) w++;
    char *freed = reinterpret_cast<char *>(s->start) + (w * 64 + hak_ctz64(holes.claimed[w])) * size;
    size_t before = hak_slab_free_count(s) + 1u;
    put(freed);
    for (uint64_t word : holes.claimed) before += size_t(hak_popcount64(word));
    EXPECT_EQ(hak_slab_unclaim_free_pages(&set, s, &holes, true, &due), freed);
    EXPECT_EQ(hak_slab_free_count(s), before - 1) << "counted once";
    return;
  }
  FAIL() << "no slab had holes";
}

TEST_P(SparseSlabs, ASlabThatIsGoneOrAnothersIsLeftAlone) {
  fill(4);
  free_most(64);
  auto found = find(1, true);
  ASSERT_FALSE(found.empty());
  EXPECT_FALSE(hak_slab_claim_free_pages(&set, found[0], HAK_TAG(OWNER + 1, c), &holes));
  for (char *p : std::vector<char *>(blocks)) put(p);
  for (hak_span *s : found) EXPECT_FALSE(claim(s));
}

// More slabs than are looked at in one hold of the lock, with two blocks left in each.
class ManySparseSlabs : public SparseSlabs {
 protected:
  static constexpr unsigned SLABS = 7000, IN_ONE_HOLD = 2048;
  void SetUp() override {
    SparseSlabs::SetUp();
    while (set.slabs < SLABS || set.bump_slab != nullptr) {
      void *out[63];
      unsigned n = hak_slab_set_take(&set, c, OWNER, out, 63);
      ASSERT_GT(n, 0u);
      for (unsigned i = 0; i < n; i++) blocks.push_back(static_cast<char *>(out[i]));
    }
    free_most(4);
    for (hak_span *s = set.lists[3]; s != nullptr; s = s->next) slabs.push_back(s);
    ASSERT_EQ(slabs.size(), SLABS);
  }
  static bool is_stamped(const hak_span *s) { return s->scan.free_blocks != 0 || s->scan.round != 0; }
  size_t stamped() const {
    return size_t(std::count_if(slabs.begin(), slabs.end(), [](const hak_span *s) { return is_stamped(s); }));
  }
  // Calls by the clock until one finds something.
  unsigned rounds_until_found() {
    for (unsigned round = 1; round < 50; round++) {
      found = find(round, false);
      if (!found.empty()) return round;
    }
    return 0;
  }

  std::vector<hak_span *> slabs, found;
};

// A walk takes four rounds, whose stamps are those of the next walk's.
TEST_P(ManySparseSlabs, OneHoldLooksAtABoundedNumberAndTheNextGoesOn) {
  for (unsigned round = 1; round <= 3; round++) {
    EXPECT_THAT(find(round, false), IsEmpty());
    EXPECT_EQ(stamped(), round * IN_ONE_HOLD);
  }
  EXPECT_THAT(find(4, false), IsEmpty());
  EXPECT_EQ(stamped(), SLABS);
  for (unsigned seen = 0; seen < SLABS; seen += unsigned(found.size())) {
    found = find(5, false);
    ASSERT_EQ(found.size(), std::min(64u, SLABS - seen));
    EXPECT_EQ(found[0], slabs[seen]);
  }
  EXPECT_EQ(find(5, true).size(), 64u);
}

TEST_P(ManySparseSlabs, TheHopelessCountToo) {
  for (unsigned i = 0; i + 1 < SLABS; i++) {
    slabs[i]->scan = {};
    slabs[i]->scan.free_blocks = uint16_t(hak_slab_free_count(slabs[i]));
    slabs[i]->scan.unpurgeable = 1;
  }
  EXPECT_EQ(rounds_until_found(), 8u) << "two walks of four rounds";
  EXPECT_EQ(found[0], slabs.back());
}

// Where the next look would have gone on is another list's, or nobody's.
TEST_P(ManySparseSlabs, OneThatLeavesMeanwhileIsNotWaitedFor) {
  EXPECT_THAT(find(1, false), IsEmpty());
  hak_span *next = slabs[IN_ONE_HOLD];
  hak_slab_taken_again(&set, next);
  hak_slab_unlink(&set, next);
  EXPECT_THAT(find(2, false), IsEmpty());
  EXPECT_FALSE(is_stamped(next));
  EXPECT_EQ(stamped(), 2 * IN_ONE_HOLD);
  EXPECT_TRUE(is_stamped(slabs[IN_ONE_HOLD + 1]));
}

INSTANTIATE_TEST_SUITE_P(Sizes, ManySparseSlabs, testing::Values(8192));
INSTANTIATE_TEST_SUITE_P(Sizes, SparseSlabs, testing::Values(16, 48, 400, 1024, 3000, 8192));

}  // namespace
