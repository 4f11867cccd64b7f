// How pages go back: free spans, and free pages inside slabs; a system call for each range.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "fake_os.h"
#include "fresh_pool.h"
#include "hak.h"
#include "mapping_flags.h"

using testing::Contains;
using testing::IsEmpty;

namespace {

const size_t PAGE = hak_os_page_size();

// --- free spans ---

constexpr size_t SPANS_PER_MIB = HAK_MIB / HAK_SPAN_SIZE;

class Spans : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(start_pool(1 * HAK_GIB));
    fake_os::on_call([this](const fake_os::Event &e) {
      if (e.call == fake_os::ADVISE && e.detail == MADV_DONTNEED && hak_load_relaxed(&hak_span_pool.lock.state) != 0) advised_under_lock = true;
    });
  }
  void TearDown() override {
    if (IsSkipped()) return;
    EXPECT_FALSE(advised_under_lock);
    EXPECT_EQ(hak_span_pool.claimed_spans, 0u);
    EXPECT_THAT(fake_os::violations(), IsEmpty());
  }
  // Touched runs of 4 MiB.
  static void make_dirty(size_t mib) {
    std::vector<hak_span *> runs;
    bool zeroed, due = false;
    for (size_t i = 0; i < mib / 4; i++) {
      runs.push_back(hak_pool_take(4 * SPANS_PER_MIB, 1, HELD_TAGS, false, &zeroed));
      memset(span_address(runs.back()), 0xcc, 4096);
    }
    for (hak_span *s : runs) hak_pool_give(s, 0, HELD_TAGS.head, &due);
  }
  static size_t dirty_mib() { return hak_span_pool.dirty_spans / SPANS_PER_MIB; }
  static size_t purge(size_t keep_mib) { return hak_purge_spans(keep_mib * SPANS_PER_MIB, false) / SPANS_PER_MIB; }

  bool advised_under_lock = false;
};

TEST_F(Spans, NeighboursGoTogether) {
  make_dirty(256);
  unsigned before = fake_os::count(fake_os::ADVISE);
  EXPECT_EQ(purge(0), 256u);
  EXPECT_EQ(dirty_mib(), 0u);
  EXPECT_LE(fake_os::count(fake_os::ADVISE) - before, 256u / 16 + 8);
}

// Whether the kernel has such a flag for a byte of the range.
bool has_flag(const char *from, const char *to, const std::string &flag) {
  return flags_of(from, to).find(" " + flag + " ") != std::string::npos;
}

struct Advice {
  const char *flag;
  int advice; /* 0: a lock */
};

// Ranges that meet, that lie alone, and a page inside.
void advise(hak_span *s, size_t n, const Advice &a) {
  char *start = static_cast<char *>(span_address(s));
  size_t bytes = n == 1 ? PAGE : s->span_count * HAK_SPAN_SIZE;
  ASSERT_EQ(a.advice == 0 ? mlock(start, PAGE) : madvise(start, bytes, a.advice), 0) << a.flag;
}

TEST_F(Spans, WhatAProgramAdvisedIsReplaced) {
  for (const Advice &a : {Advice{"wf", MADV_WIPEONFORK}, {"dc", MADV_DONTFORK}, {"dd", MADV_DONTDUMP}, {"rr", MADV_RANDOM}, {"lo", 0}}) {
    std::vector<hak_span *> runs;
    bool zeroed, due = false;
    for (size_t i = 0; i < 40; i++) {
      runs.push_back(hak_pool_take(5 * (i % 4) + 1, 1, HELD_TAGS, false, &zeroed));
      memset(span_address(runs.back()), 0xcc, PAGE);
      if (i % 5 < 2) advise(runs.back(), i % 3, a);
    }
    hak_span *last = hak_pool_take(1, 1, HELD_TAGS, false, &zeroed);
    char *from = static_cast<char *>(span_address(runs[0])), *to = static_cast<char *>(span_address(last));
    ASSERT_TRUE(has_flag(from, to, a.flag)) << a.flag;
    // One after the other, so that an advised one goes between live ones that are advised too.
    for (size_t i = 0; i < runs.size(); i += 2) hak_pool_give(runs[i], 0, HELD_TAGS.head, &due);
    purge(0);
    for (size_t i = 1; i < runs.size(); i += 2) hak_pool_give(runs[i], 0, HELD_TAGS.head, &due);
    purge(0);
    EXPECT_EQ(dirty_mib(), 0u);
    EXPECT_FALSE(has_flag(from, to, a.flag)) << a.flag;
    EXPECT_TRUE(has_flag(from, to, "nh"));
    for (const char *p = from; p < to; p += PAGE) ASSERT_EQ(*p, 0);
    hak_pool_give(last, 0, HELD_TAGS.head, &due);
    purge(0);
  }
}

// A program that advises nothing pays for one question a chunk.
TEST_F(Spans, NothingIsReplacedWhereNothingWasAdvised) {
  make_dirty(256);
  unsigned mapped = fake_os::count(fake_os::MAP);
  uint64_t asked = hak_os_stats.mremap;
  EXPECT_EQ(purge(0), 256u);
  EXPECT_EQ(fake_os::count(fake_os::MAP), mapped);
  EXPECT_LE(hak_os_stats.mremap - asked, 2 * (256u / 64 + 1));
}

TEST_F(Spans, NoMoreGoesThanIsAskedForButForAHugePage) {
  make_dirty(128);
  for (size_t keep : {127, 120, 119, 100, 33, 32}) {
    purge(keep);
    EXPECT_LE(dirty_mib(), keep);
    EXPECT_GE(dirty_mib() + 2, keep);
  }
}

TEST_F(Spans, PagesAreGoneAndKnownZero) {
  make_dirty(8);
  char *p = static_cast<char *>(hak_region_address(&hak_main_region, hak_main_region.first_span));
  EXPECT_EQ(p[0], char(0xcc));
  EXPECT_EQ(purge(0), 8u);
  EXPECT_EQ(p[0], 0);
  bool zeroed = false;
  hak_pool_take(1, 1, HELD_TAGS, false, &zeroed);
  EXPECT_TRUE(zeroed);
}

TEST_F(Spans, HighAddressesGoFirst) {
  make_dirty(192);
  purge(100);
  uintptr_t lowest = UINTPTR_MAX;
  for (const auto &e : fake_os::log())
    if (e.call == fake_os::ADVISE && e.detail == MADV_DONTNEED) lowest = std::min(lowest, e.addr);
  ASSERT_NE(lowest, UINTPTR_MAX);
  EXPECT_GE(lowest, hak_main_region.base + 64 * HAK_MIB) << "allocation prefers low addresses: those stay warm";
}

TEST_F(Spans, WholeHugePagesGoFirst) {
  bool zeroed, due = false;
  hak_span *whole = hak_pool_take(2 * HAK_HUGE_PAGE_SPANS, HAK_HUGE_PAGE_SPANS, HELD_TAGS, false, &zeroed);
  std::vector<hak_span *> pieces(64);
  for (hak_span *&s : pieces) s = hak_pool_take(1, 1, HELD_TAGS, false, &zeroed);
  for (size_t i = 0; i < 64; i += 2) hak_pool_give(pieces[i], 0, HELD_TAGS.head, &due);
  hak_pool_give(whole, 0, HELD_TAGS.head, &due);
  EXPECT_EQ(hak_purge_spans(32, false), 2 * HAK_HUGE_PAGE_SPANS) << "though it lies below the pieces";
  EXPECT_EQ(hak_purge_spans(0, false), 32u);
}

TEST_F(Spans, AllRegionsTakePart) {
  ASSERT_NO_FATAL_FAILURE(start_pool(16 * HAK_MIB));
  make_dirty(60);
  EXPECT_GE(hak_region_count(), 4u);
  EXPECT_EQ(purge(0), 60u);
}

TEST_F(Spans, PurgedIsCounted) {
  make_dirty(32);
  uint64_t before = hak_purge_stats.bytes;
  purge(0);
  EXPECT_EQ(hak_purge_stats.bytes - before, 32 * HAK_MIB);
  EXPECT_EQ(hak_span_pool.purged_spans, 32 * SPANS_PER_MIB);
  bool zeroed;
  hak_pool_take(4 * SPANS_PER_MIB, 1, HELD_TAGS, false, &zeroed);
  EXPECT_EQ(hak_span_pool.refault_bytes, 4 * HAK_MIB);
  EXPECT_EQ(hak_span_pool.purged_spans, 28 * SPANS_PER_MIB);
}

// --- free spans in pieces: every second one of 4 MiB ---

class SpanPieces : public Spans {
 protected:
  static constexpr size_t COUNT = 32;
  void SetUp() override {
    Spans::SetUp();
    bool zeroed, due = false;
    hak_span *spans[2 * COUNT];
    for (hak_span *&s : spans) {
      s = hak_pool_take(1, 1, HELD_TAGS, true, &zeroed);
      memset(span_address(s), 0xaa, HAK_SPAN_SIZE);
    }
    for (size_t i = 0; i < COUNT; i++) {
      piece[i] = uintptr_t(span_address(spans[2 * i]));
      hak_pool_give(spans[2 * i], 0, HELD_TAGS.head, &due);
    }
    ASSERT_EQ(hak_span_pool.dirty_spans, COUNT);
    calls = hak_os_stats.madvise;
  }
  static bool is_gone(uintptr_t p) { return *reinterpret_cast<char *>(p) == 0; }
  size_t gone() const { return size_t(std::count_if(piece, piece + COUNT, is_gone)); }
  uint64_t calls_since() const { return hak_os_stats.madvise - calls; }

  uintptr_t piece[COUNT];
  uint64_t calls;
};

// What is claimed counts as used, and is missing until the system has been asked.
TEST_F(SpanPieces, GoOneByOne) {
  size_t claimed_most = 0;
  fake_os::on_call([&](const fake_os::Event &) { claimed_most = std::max<size_t>(claimed_most, hak_span_pool.claimed_spans); });
  EXPECT_EQ(hak_purge_spans(0, false), COUNT);
  EXPECT_EQ(hak_span_pool.dirty_spans, 0u);
  EXPECT_EQ(gone(), COUNT);
  EXPECT_EQ(claimed_most, 1u);
  EXPECT_EQ(calls_since(), COUNT);
}

TEST_F(SpanPieces, ThatTheSystemRefusesStayAndAreNotTriedForEver) {
  fake_os::fail_all(fake_os::ADVISE, EINVAL);
  fake_os::fail_all(fake_os::MAP);
  EXPECT_EQ(hak_purge_spans(0, false), 0u);
  EXPECT_TRUE(hak_purge_refused());
  EXPECT_EQ(hak_span_pool.dirty_spans, COUNT);
  EXPECT_LE(fake_os::count(fake_os::ADVISE), 8 * COUNT);
}

TEST_F(SpanPieces, BehindOneThatTheSystemRefusesGoAtTheNextPurge) {
  unsigned n = 0;
  fake_os::fail_if([&](const fake_os::Event &e) { return e.call == fake_os::ADVISE && n++ >= 5 && n < 8 ? EINVAL : 0; });
  size_t purged = hak_purge_spans(0, false);
  EXPECT_EQ(purged, 5u);
  EXPECT_EQ(hak_span_pool.dirty_spans, COUNT - purged);
  fake_os::allow_all();
  EXPECT_EQ(hak_purge_spans(0, false), COUNT - purged);
  EXPECT_EQ(gone(), COUNT);
}

// To a cgroup a huge page counts whole until it is split.
TEST_F(SpanPieces, AreSplitFirst) {
  hak_config.rss_target = -80;
  hak_store_relaxed(&hak_budget_ceiling, HAK_GIB);
  size_t logged = fake_os::log().size();
  EXPECT_EQ(hak_purge_spans(0, false), COUNT);
  std::vector<uintptr_t> split;
  auto log = fake_os::log();
  for (auto e = log.begin() + long(logged); e != log.end(); ++e) {
    if (e->call == fake_os::ADVISE && e->detail == MADV_FREE && e->error == 0) split.push_back(e->addr);
    if (e->call == fake_os::ADVISE && e->detail == MADV_DONTNEED && e->error == 0) EXPECT_THAT(split, Contains(e->addr));
  }
  hak_store_relaxed(&hak_budget_ceiling, SIZE_MAX);
  hak_config.rss_target = 0;
}

// --- free pages inside slabs ---

class Slabs : public testing::TestWithParam<size_t> {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(start_pool(1 * HAK_GIB));
    c = hak_class_for(GetParam());
    size = hak_class_size(c);
    a = hak_arena_at(0);
    if (PAGE * 4 > hak_class_table[c].spans * HAK_SPAN_SIZE) GTEST_SKIP() << "such a slab has few pages of this size";
    fake_os::on_call([this](const fake_os::Event &e) {
      bool locked = hak_load_relaxed(&hak_span_pool.lock.state) != 0 || hak_load_relaxed(&a->bins[c].lock.state) != 0;
      if (e.call == fake_os::ADVISE && e.detail == MADV_DONTNEED && locked) advised_under_lock = true;
    });
  }
  void TearDown() override {
    EXPECT_FALSE(advised_under_lock);
    EXPECT_EQ(hak_span_pool.purging_slab_pages, 0u);
    EXPECT_EQ(hak_heap_check(), 0u);
    EXPECT_THAT(fake_os::violations(), IsEmpty());
  }
  // Many slabs in which each so many-th block is used.
  void leave_few_blocks(size_t survive) {
    std::vector<void *> all;
    while (a->bins[c].slabs.slabs < SLABS || a->bins[c].slabs.bump_slab != nullptr) {
      void *out[63];
      unsigned n = hak_arena_take(a, c, out, 63, &d);
      ASSERT_GT(n, 0u);
      all.insert(all.end(), out, out + n);
    }
    for (size_t i = 0; i < all.size(); i++) {
      memset(all[i], mark(all[i]), size);
      if (i % survive == 0)
        blocks.push_back(static_cast<unsigned char *>(all[i]));
      else
        hak_arena_free(all[i], c, &d);
    }
  }
  void leave_few_blocks() { leave_few_blocks(std::max<size_t>(4, 5 * PAGE / size)); }
  static int mark(const void *p) { return int(reinterpret_cast<uintptr_t>(p) / 16 % 251 + 1); }
  void expect_survivors() const {
    for (const unsigned char *p : blocks)
      for (size_t i = 0; i < size; i++) ASSERT_EQ(p[i], mark(p)) << i;
  }
  size_t purge(bool at_once, size_t wanted = SIZE_MAX) { return hak_purge_slabs(a, round++, at_once, wanted, &d); }
  size_t used() const { return (hak_span_pool.live_spans << HAK_SPAN_SHIFT) - hak_span_pool.purged_slab_pages * PAGE; }

  static constexpr unsigned SLABS = 40;
  unsigned c, round = 0;
  size_t size;
  hak_arena *a;
  hak_deferred d = {};
  std::vector<unsigned char *> blocks;
  bool advised_under_lock = false;
};

TEST_P(Slabs, FreePagesGoAndSurvivorsStay) {
  leave_few_blocks();
  size_t before = used();
  size_t purged = purge(true);
  EXPECT_GT(purged, before / 3);
  EXPECT_EQ(hak_span_pool.purged_slab_pages * PAGE, purged);
  expect_survivors();
  EXPECT_EQ(purge(true), 0u) << "once";
  // All of it is usable again.
  std::vector<void *> again;
  uint32_t slabs = a->bins[c].slabs.slabs;
  for (void *out[63]; a->bins[c].slabs.slabs == slabs;) {
    unsigned n = hak_arena_take(a, c, out, 63, &d);
    again.insert(again.end(), out, out + n);
  }
  EXPECT_EQ(hak_span_pool.purged_slab_pages, 0u);
  for (void *p : again) memset(p, 0xee, size);
  expect_survivors();
  for (void *p : again) hak_arena_free(p, c, &d);
  EXPECT_EQ(d.verdict, HAK_VERDICT_OK);
}

TEST_P(Slabs, OnlyThoseThatStayedAsTheyWere) {
  leave_few_blocks();
  EXPECT_EQ(purge(false), 0u) << "seen for the first time";
  EXPECT_GT(purge(false), 0u);
}

TEST_P(Slabs, StopsWhereEnoughHasGone) {
  leave_few_blocks();
  size_t purged = purge(true, 3 * PAGE);
  EXPECT_GE(purged, 3 * PAGE);
  EXPECT_LE(purged, 3 * PAGE + hak_class_table[c].spans * HAK_SPAN_SIZE) << "one slab more at most";
}

TEST_P(Slabs, ThatTheSystemRefusesStayAndAreNotTriedAgain) {
  leave_few_blocks();
  fake_os::fail_all(fake_os::ADVISE, EINVAL);
  EXPECT_EQ(purge(true), 0u);
  unsigned asked = fake_os::count(fake_os::ADVISE);
  EXPECT_EQ(purge(true), 0u);
  EXPECT_EQ(fake_os::count(fake_os::ADVISE), asked);
  EXPECT_EQ(hak_span_pool.purged_slab_pages, 0u);
  expect_survivors();
}

// While the system works no lock is held.
TEST_P(Slabs, BlocksComeBackMeanwhile) {
  leave_few_blocks();
  size_t back = 0;
  fake_os::on_call([&](const fake_os::Event &e) {
    if (e.call != fake_os::ADVISE || e.detail != MADV_DONTNEED || blocks.empty()) return;
    for (int i = 0; i < 4 && !blocks.empty(); i++, back++) {
      hak_arena_free(blocks.back(), c, &d);
      blocks.pop_back();
    }
  });
  EXPECT_GT(purge(true), 0u);
  EXPECT_GT(back, 0u);
  EXPECT_EQ(d.verdict, HAK_VERDICT_OK);
  fake_os::on_call(nullptr);
  expect_survivors();
  for (void *p : blocks) hak_arena_free(p, c, &d);
  EXPECT_EQ(a->bins[c].slabs.slabs, 0u);
  EXPECT_EQ(hak_span_pool.purged_slab_pages, 0u);
}

TEST_P(Slabs, ABlockFreedTwiceMeanwhileIsTold) {
  leave_few_blocks();
  void *twice = nullptr;
  fake_os::on_call([&](const fake_os::Event &e) {
    if (e.call != fake_os::ADVISE || e.detail != MADV_DONTNEED || twice != nullptr) return;
    hak_span *s = hak_region_span(&hak_main_region, reinterpret_cast<void *>(e.addr));
    twice = reinterpret_cast<void *>(s->start + (e.addr - s->start) / size * size);  // the block that reaches there first
    hak_arena_free(twice, c, &d);
  });
  purge(true);
  ASSERT_NE(twice, nullptr);
  EXPECT_EQ(d.verdict, HAK_VERDICT_DOUBLE_FREE);
  EXPECT_EQ(d.bad, twice);
  EXPECT_EQ(d.bad_code, c + 1);
}

TEST_P(Slabs, OneThreadAtATime) {
  leave_few_blocks();
  size_t by_another = 1;
  bool asked = false;
  fake_os::on_call([&](const fake_os::Event &e) {
    if (e.call != fake_os::ADVISE || e.detail != MADV_DONTNEED || asked) return;
    asked = true;
    std::thread([&] {
      hak_deferred others = {};
      by_another = hak_purge_slabs(a, 0, true, SIZE_MAX, &others);
    }).join();
  });
  EXPECT_GT(purge(true), 0u);
  EXPECT_EQ(by_another, 0u);
}

INSTANTIATE_TEST_SUITE_P(Sizes, Slabs, testing::Values(48, 400, 3072, 8192));

}  // namespace
