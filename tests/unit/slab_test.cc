// Slabs: carving, reuse, fullness lists, verdicts, and every class against a model.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

#include "fake_os.h"
#include "fresh_pool.h"
#include "hak.h"

using testing::IsEmpty;

namespace {

constexpr uint32_t OWNER = 5;

class Slab : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(start_pool(1 * HAK_GIB));
    r = &hak_main_region;
  }
  void TearDown() override { EXPECT_THAT(fake_os::violations(), IsEmpty()); }

  std::vector<char *> take(unsigned c, unsigned wanted) {
    std::vector<void *> out(wanted);
    unsigned n = hak_slab_set_take(&set, c, OWNER, out.data(), wanted);
    EXPECT_LE(n, wanted);
    std::vector<char *> blocks;
    while (n > 0) blocks.push_back(static_cast<char *>(out[--n]));  // as they are handed out
    return blocks;
  }
  char *one(unsigned c) { return take(c, 1).at(0); }
  // Exactly n blocks, however many batches that takes.
  std::vector<char *> many(unsigned c, size_t n) {
    std::vector<char *> all;
    while (all.size() < n)
      for (char *p : take(c, unsigned(std::min<size_t>(n - all.size(), 63)))) all.push_back(p);
    return all;
  }
  hak_span *span(void *p) { return hak_region_span(r, p); }
  hak_verdict put(void *p) {
    hak_verdict verdict;
    hak_slab_set_put(&set, span(p)->tag, &p, 1, &verdict, &due);
    return verdict;
  }

  hak_region *r;
  hak_slab_set set = {};
  bool due = false;
};

TEST_F(Slab, FreeAndReadyBlocksNeedNoNewSlab) {
  void *out[63];
  EXPECT_EQ(hak_slab_set_take_ready(&set, 3, out, 63), 0u) << "no slab yet";
  auto blocks = many(3, 20);
  put(blocks[4]);
  put(blocks[7]);
  EXPECT_EQ(hak_slab_set_take_free(&set, 3, out, 63), 2u) << "what is not carved does not count";
  EXPECT_EQ(out[1], blocks[4]) << "the last one is handed out first";
  EXPECT_EQ(out[0], blocks[7]);
  EXPECT_EQ(hak_slab_set_take_free(&set, 3, out, 63), 0u);
  EXPECT_EQ(hak_slab_set_take_ready(&set, 3, out, 5), 5u);
  EXPECT_EQ(out[4], blocks[19] + 64);
  size_t left = span(blocks[0])->blocks - 25u;
  for (size_t taken = 0; taken < left;) taken += hak_slab_set_take_ready(&set, 3, out, 63);
  EXPECT_EQ(hak_slab_set_take_ready(&set, 3, out, 63), 0u);
  EXPECT_EQ(set.slabs, 1u);
}

// A program writes all of its small blocks, and of large ones what it needs.
TEST_F(Slab, LargeBlocksAreNeverOnHugePages) {
  hak_span_pool.huge_from_spans = 0;
  for (size_t size : {size_t(1024), size_t(8192), size_t(10240), HAK_SMALL_MAX}) {
    unsigned c = hak_class_for(size);
    set = {};
    char *last = nullptr;
    while (set.slabs < 3) last = one(c);
    EXPECT_EQ(r->chunks[hak_region_index(r, last) / HAK_CHUNK_SPANS].huge, size <= 8192) << size;
  }
}

TEST_F(Slab, PutsBatchesThatLieInManySlabs) {
  auto blocks = many(10, 60 * 300);
  ASSERT_GT(set.slabs, 30u);
  std::mt19937 random(1);
  std::shuffle(blocks.begin(), blocks.end(), random);
  uint32_t tag = span(blocks[0])->tag;
  for (size_t at = 0; at < blocks.size(); at += 60) {
    void *batch[60];
    std::copy_n(blocks.begin() + long(at), 60, batch);
    hak_verdict verdict;
    ASSERT_EQ(hak_slab_set_put(&set, tag, batch, 60, &verdict, &due), 60u);
    ASSERT_EQ(verdict, HAK_VERDICT_OK);
  }
  EXPECT_LE(set.slabs, 1u) << "all are empty; the one that is carved stays";
}

TEST_F(Slab, CarvesInAddressOrder) {
  auto a = take(3, 10), b = take(3, 10);
  ASSERT_EQ(a.size(), 10u);
  a.insert(a.end(), b.begin(), b.end());
  for (size_t i = 1; i < a.size(); i++) EXPECT_EQ(a[i] - a[i - 1], 64);
  EXPECT_EQ(hak_region_code(r, a[0]), 3u + 1);
  EXPECT_EQ(span(a[0])->tag, HAK_TAG(OWNER, 3 + 1));
  EXPECT_EQ(set.slabs, 1u);
}

TEST_F(Slab, ColoursVaryInStepsOf64) {
  std::set<uintptr_t> colours;
  for (int i = 0; i < 32; i++) {
    hak_slab_set fresh = {};
    void *p;
    ASSERT_EQ(hak_slab_set_take(&fresh, 20, OWNER, &p, 1), 1u);
    uintptr_t colour = reinterpret_cast<uintptr_t>(p) % HAK_SPAN_SIZE;
    EXPECT_EQ(colour % 64, 0u);
    EXPECT_LT(colour, 64u * 16);
    colours.insert(colour);
  }
  EXPECT_EQ(colours.size(), 16u);
}

// A slab of one block has a page of colours, where the class leaves one.
TEST_F(Slab, WholeSpansStartAtEachCacheSetOfAPage) {
  std::set<uintptr_t> colours;
  for (int i = 0; i < 64; i++) {
    hak_slab_set fresh = {};
    void *p;
    ASSERT_EQ(hak_slab_set_take(&fresh, hak_class_for(45000), OWNER, &p, 1), 1u);
    colours.insert(reinterpret_cast<uintptr_t>(p) % HAK_SPAN_SIZE);
    EXPECT_EQ(hak_slab_examine(span(p), p), HAK_VERDICT_OK);
    ASSERT_EQ(hak_slab_set_take(&fresh, hak_class_for(HAK_SPAN_SIZE), OWNER, &p, 1), 1u);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(p) % HAK_SPAN_SIZE, 0u) << "no room";
  }
  EXPECT_EQ(colours.size(), 64u);
  EXPECT_LT(*colours.rbegin(), 4096u);
}

TEST_F(Slab, FreeBlocksComeBeforeNewOnes) {
  auto a = take(3, 20);
  EXPECT_EQ(put(a[7]), HAK_VERDICT_OK);
  EXPECT_EQ(put(a[3]), HAK_VERDICT_OK);
  auto b = take(3, 3);
  ASSERT_EQ(b.size(), 3u);
  EXPECT_EQ(b[0], a[3]);
  EXPECT_EQ(b[1], a[7]);
  EXPECT_EQ(b[2], a[19] + 64);
}

TEST_F(Slab, FullestSlabFirst) {
  constexpr unsigned c = 31;  // 1 KiB: 63 or 64 blocks a slab
  auto blocks = many(c, 200);
  std::vector<std::vector<char *>> by_slab;
  for (char *p : blocks) {
    if (by_slab.empty() || span(p) != span(by_slab.back()[0])) by_slab.emplace_back();
    by_slab.back().push_back(p);
  }
  ASSERT_GE(by_slab.size(), 3u);
  // The first slab nearly empty, the second nearly full.
  for (size_t i = 0; i < 55; i++) put(by_slab[0][i]);
  put(by_slab[1][10]);
  EXPECT_EQ(span(by_slab[0][0])->list, 3);
  EXPECT_EQ(span(by_slab[1][0])->list, 0);
  auto next = take(c, 2);
  EXPECT_EQ(next[0], by_slab[1][10]);
  EXPECT_EQ(next[1], by_slab[0][0]);
}

TEST_F(Slab, ListsFollowTheFreeCount) {
  constexpr unsigned c = 31;
  auto blocks = many(c, 130);  // the first slab is fully carved
  hak_span *s = span(blocks[0]);
  ASSERT_NE(s, set.bump_slab);
  EXPECT_EQ(s->list, HAK_NO_LIST);
  unsigned quarter = s->blocks / 4;
  for (unsigned n = 1; n < s->blocks; n++) {
    ASSERT_EQ(put(blocks[n - 1]), HAK_VERDICT_OK);
    unsigned expected = std::min(3u, n / quarter);
    ASSERT_EQ(s->list, expected) << n;
    ASSERT_EQ(set.lists[expected], s);
    ASSERT_EQ(hak_slab_free_count(s), n);
  }
}

TEST_F(Slab, EmptySlabGoesToThePool) {
  constexpr unsigned c = 31;
  auto blocks = many(c, 130);
  hak_span *first = span(blocks[0]);
  uint64_t live = hak_span_pool.live_spans;
  for (char *p : blocks)
    if (span(p) == first) ASSERT_EQ(put(p), HAK_VERDICT_OK);
  EXPECT_EQ(hak_span_pool.live_spans, live - 1);
  EXPECT_EQ(hak_region_code(r, blocks[0]), unsigned(HAK_CODE_NONE));
  for (hak_span *s : set.lists) EXPECT_NE(s, first);
}

TEST_F(Slab, CarvingSlabIsKeptAndStartsOver) {
  auto blocks = take(3, 30);
  hak_span *s = span(blocks[0]);
  for (char *p : blocks) ASSERT_EQ(put(p), HAK_VERDICT_OK);
  EXPECT_EQ(set.bump_slab, s);
  EXPECT_EQ(s->bumped, 0);
  EXPECT_EQ(hak_slab_free_count(s), 0);
  EXPECT_EQ(hak_span_pool.live_spans, 1u);
  EXPECT_EQ(one(3), blocks[0]);
  EXPECT_EQ(put(blocks[0]), HAK_VERDICT_OK);
  hak_slab_set_trim(&set, &due);
  EXPECT_EQ(set.bump_slab, nullptr);
  EXPECT_EQ(set.slabs, 0u);
  EXPECT_EQ(hak_span_pool.live_spans, 0u);
  hak_slab_set_trim(&set, &due);
}

TEST_F(Slab, TrimLeavesSlabsInUse) {
  one(3);
  hak_slab_set_trim(&set, &due);
  EXPECT_NE(set.bump_slab, nullptr);
  EXPECT_EQ(hak_span_pool.live_spans, 1u);
}

TEST_F(Slab, Verdicts) {
  constexpr unsigned c = 5;  // 96 bytes
  auto blocks = take(c, 10);
  char *p = blocks[4];
  EXPECT_EQ(hak_slab_examine(span(p), p), HAK_VERDICT_OK);
  for (long d : {1, 8, 16, 32, 48, 64, 95, -1}) {
    EXPECT_EQ(put(p + d), HAK_VERDICT_NO_BLOCK_START) << d;
    EXPECT_EQ(hak_slab_examine(span(p), p + d), HAK_VERDICT_NO_BLOCK_START) << d;
  }
  EXPECT_EQ(put(p), HAK_VERDICT_OK);
  EXPECT_EQ(put(p), HAK_VERDICT_DOUBLE_FREE);
  EXPECT_EQ(hak_slab_examine(span(p), p), HAK_VERDICT_DOUBLE_FREE);
  EXPECT_EQ(put(blocks[9] + 96), HAK_VERDICT_NO_BLOCK_START) << "never carved";
  hak_span *s = span(p);
  hak_slab_set coloured = {}; /* a slab that does not start where its span does has room below its first block */
  void *first = nullptr;
  do ASSERT_EQ(hak_slab_set_take(&coloured, c, OWNER, &first, 1), 1u);
  while (span(first)->start % HAK_SPAN_SIZE == 0);
  EXPECT_EQ(put(reinterpret_cast<char *>(span(first)->start) - 16), HAK_VERDICT_NO_BLOCK_START);
  EXPECT_EQ(put(reinterpret_cast<char *>(s->start) + HAK_SPAN_SIZE - 1), HAK_VERDICT_NO_BLOCK_START);
  EXPECT_EQ(hak_slab_free_count(s), 1) << "bad frees change nothing";
}

// As a flush gives them: in runs of one slab, in any order.
TEST_F(Slab, PutsManyOfSeveralSlabs) {
  constexpr unsigned c = 31;  // 63 or 64 blocks of 1 KiB a slab
  auto blocks = many(c, 300);
  std::mt19937 random(1);
  std::shuffle(blocks.begin() + 100, blocks.begin() + 200, random);
  std::vector<void *> list(blocks.begin(), blocks.end() - 1);
  hak_verdict verdict;
  unsigned n = hak_slab_set_put(&set, HAK_TAG(OWNER, c + 1), list.data(), unsigned(list.size()), &verdict, &due);
  EXPECT_EQ(n, list.size());
  EXPECT_EQ(verdict, HAK_VERDICT_OK);
  EXPECT_EQ(set.slabs, 1u) << "all but the slab of the block that is left are empty";
  EXPECT_EQ(put(blocks.back()), HAK_VERDICT_OK);
}

TEST_F(Slab, PutEndsAtABadBlockAndNamesIt) {
  constexpr unsigned c = 5;
  auto blocks = take(c, 20);
  struct {
    std::vector<void *> list;
    unsigned bad;
    hak_verdict verdict;
  } cases[] = {
      {{blocks[0], blocks[1], blocks[0], blocks[2]}, 2, HAK_VERDICT_DOUBLE_FREE},
      {{blocks[3], blocks[4] + 16}, 1, HAK_VERDICT_NO_BLOCK_START},
      {{blocks[19] + 96, blocks[5]}, 0, HAK_VERDICT_NO_BLOCK_START},
  };
  for (auto &one : cases) {
    hak_verdict verdict;
    EXPECT_EQ(hak_slab_set_put(&set, HAK_TAG(OWNER, c + 1), one.list.data(), unsigned(one.list.size()), &verdict, &due), one.bad);
    EXPECT_EQ(verdict, one.verdict);
  }
  EXPECT_EQ(hak_slab_free_count(span(blocks[0])), 3) << "those before the bad ones";
  hak_slab_set sixth = {};
  void *other = nullptr;
  ASSERT_EQ(hak_slab_set_take(&sixth, 6, OWNER, &other, 1), 1u);
  hak_verdict verdict;
  EXPECT_EQ(hak_slab_set_put(&set, HAK_TAG(OWNER, c + 1), &other, 1, &verdict, &due), 0u);
  EXPECT_EQ(verdict, HAK_VERDICT_FREE_MEMORY) << "of another class";
}

// Reached when a block comes twice and its slab has gone with the first.
TEST_F(Slab, PutOfABlockWhoseSlabHasGone) {
  constexpr unsigned c = 31;
  auto blocks = many(c, 130);
  std::vector<void *> list;
  hak_span *first = span(blocks[0]);
  for (char *p : blocks)
    if (span(p) == first) list.push_back(p);
  size_t in_slab = list.size();
  for (char *p : blocks)
    if (span(p) != first && list.size() == in_slab) list.push_back(p);
  list.push_back(blocks[0]);
  hak_verdict verdict;
  unsigned n = hak_slab_set_put(&set, HAK_TAG(OWNER, c + 1), list.data(), unsigned(list.size()), &verdict, &due);
  EXPECT_EQ(n, in_slab + 1);
  EXPECT_EQ(verdict, HAK_VERDICT_OK) << "it may be another set's by now";
  EXPECT_EQ(hak_slab_set_put(&set, HAK_TAG(OWNER, c + 1), list.data() + n, 1, &verdict, &due), 0u);
  EXPECT_EQ(verdict, HAK_VERDICT_FREE_MEMORY);
}

TEST_F(Slab, OutOfMemoryTakesNothing) {
  fake_os::fail_all(fake_os::PROTECT);
  fake_os::fail_all(fake_os::MAP);
  size_t taken = 0;
  std::vector<char *> batch;
  while (!(batch = take(51, 4)).empty()) taken += batch.size();
  EXPECT_GT(taken, 0u);
  EXPECT_EQ(set.bump_slab, nullptr);
  fake_os::allow_all();
  EXPECT_EQ(take(51, 1).size(), 1u);
}

TEST_F(Slab, PurgeDueIsPassedOnAndNeverCleared) {
  due = true;
  auto blocks = take(3, 2);
  put(blocks[0]);
  EXPECT_TRUE(due);
}

class SlabClass : public Slab, public testing::WithParamInterface<unsigned> {};

// Random takes and puts of one class: no two live blocks overlap, alignment is that of the class, lists and counters
// agree with a count by hand.
TEST_P(SlabClass, AgreesWithTheModel) {
  unsigned c = GetParam();
  size_t size = hak_class_size(c);
  std::mt19937 random(c);
  std::set<char *> live;
  std::vector<char *> order;
  for (int step = 0; step < 600; step++) {
    if (random() % 100 < (step < 300 ? 60 : 35)) {
      for (char *p : many(c, 1 + random() % 63)) {
        auto [at, fresh] = live.insert(p);
        ASSERT_TRUE(fresh) << "handed out twice";
        if (at != live.begin()) ASSERT_LE(*std::prev(at) + size, p) << "overlap";
        if (std::next(at) != live.end()) ASSERT_LE(p + size, *std::next(at)) << "overlap";
        ASSERT_EQ(reinterpret_cast<uintptr_t>(p) % (c >= HAK_PLAIN_CLASSES ? size : 16), 0u);
        uintptr_t slab = reinterpret_cast<uintptr_t>(span_address(span(p)));
        ASSERT_LE(reinterpret_cast<uintptr_t>(p) + size, slab + span(p)->span_count * HAK_SPAN_SIZE) << "beyond its slab";
        order.push_back(p);
      }
    } else {
      for (unsigned n = random() % 90; n > 0 && !order.empty(); n--) {
        size_t at = random() % order.size();
        ASSERT_EQ(put(order[at]), HAK_VERDICT_OK);
        live.erase(order[at]);
        order[at] = order.back();
        order.pop_back();
      }
    }
    size_t handed_out = 0;
    std::set<hak_span *> slabs;
    for (unsigned list = 0; list < HAK_FULLNESS_LISTS; list++)
      for (hak_span *s = set.lists[list]; s != nullptr; s = s->next) {
        ASSERT_TRUE(slabs.insert(s).second) << "on two lists";
        handed_out += size_t(s->bumped - hak_slab_free_count(s));
      }
    if (set.bump_slab != nullptr && slabs.insert(set.bump_slab).second) handed_out += size_t(set.bump_slab->bumped - hak_slab_free_count(set.bump_slab));
    std::set<hak_span *> full;
    for (char *p : order)
      if (slabs.count(span(p)) == 0) {
        full.insert(span(p));
        handed_out++;
      }
    ASSERT_EQ(handed_out, order.size());
    ASSERT_EQ(set.slabs, slabs.size() + full.size());
    ASSERT_EQ(hak_span_pool.live_spans, set.slabs * hak_class_table[c].spans);
  }
  while (!order.empty()) {
    ASSERT_EQ(put(order.back()), HAK_VERDICT_OK);
    order.pop_back();
  }
  hak_slab_set_trim(&set, &due);
  EXPECT_EQ(hak_span_pool.live_spans, 0u);
}

INSTANTIATE_TEST_SUITE_P(Classes, SlabClass, testing::Values(0u, 1u, 7u, 15u, 23u, 31u, 32u, 40u, 47u, 51u, 52u, 55u, 60u));

}  // namespace
