// Free spans that become inaccessible where the system limits what a process may have, and serve again.
#include "fresh_pool.h"

#include <gmock/gmock.h>
#include <sys/mman.h>

#include <vector>

using testing::IsEmpty;

namespace {

class Absent : public testing::Test {
 protected:
  void SetUp() override { ASSERT_NO_FATAL_FAILURE(start_pool(size_t(8) * HAK_GIB)); }
  void TearDown() override {
    EXPECT_EQ(hak_heap_check(), 0u);
    EXPECT_THAT(fake_os::violations(), IsEmpty());
  }

  hak_span *take(size_t spans, size_t align = 1) {
    bool zeroed;
    hak_span *s = hak_pool_take(spans, align, HELD_TAGS, false, &zeroed);
    if (s != nullptr && zeroed) {
      // What is said to read as zero does.
      auto *words = static_cast<uint64_t *>(span_address(s));
      for (size_t i = 0; i < (spans << HAK_SPAN_SHIFT) / sizeof *words; i += 500) EXPECT_EQ(words[i], 0u);
    }
    return s;
  }
  static void fill(const hak_span *s) { memset(span_address(s), 7, size_t(s->span_count) << HAK_SPAN_SHIFT); }
  static void give(hak_span *s) {
    bool due = false;
    ASSERT_TRUE(hak_pool_give(s, 0, HELD_TAGS.head, &due));
  }

  // Runs of 40 spans, filled and given back but for each fourth, which pins the heap's end too.
  void leave_gaps(size_t runs) {
    std::vector<hak_span *> all;
    for (size_t i = 0; i < runs; i++) {
      all.push_back(take(40));
      ASSERT_NE(all.back(), nullptr);
      fill(all.back());
    }
    for (size_t i = 0; i < runs; i++) {
      if (i % 4 == 3) {
        kept.push_back(all[i]);
      } else {
        gaps.push_back(span_address(all[i]));
        give(all[i]);
      }
    }
  }

  std::vector<hak_span *> kept;
  std::vector<void *> gaps;
};

TEST_F(Absent, GoesAndServesAgain) {
  ASSERT_NO_FATAL_FAILURE(leave_gaps(60));
  size_t before = fake_os::mapped_bytes(), ready = hak_main_region.ready_spans;
  size_t gone = hak_purge_withdraw_all(4 * HAK_GIB);
  EXPECT_GE(gone, gaps.size() * 40 * HAK_SPAN_SIZE);
  EXPECT_LE(fake_os::mapped_bytes(), before - gaps.size() * 40 * HAK_SPAN_SIZE);
  EXPECT_EQ(hak_span_pool.dirty_spans, 0u);
  EXPECT_EQ(hak_heap_check(), 0u);
  // Whoever has these addresses now, they are not the region's.
  for (void *p : gaps) EXPECT_EQ(hak_region_find(p), nullptr);
  for (hak_span *s : kept) {
    EXPECT_EQ(hak_region_find(span_address(s)), &hak_main_region);
    EXPECT_EQ(static_cast<char *>(span_address(s))[4097], 7) << "what is held stays";
  }
  for (size_t i = 0; i < gaps.size() / 2; i++) {
    hak_span *s = take(35, 4);
    ASSERT_NE(s, nullptr);
    fill(s);
    EXPECT_EQ(hak_region_find(span_address(s)), &hak_main_region);
  }
  EXPECT_EQ(hak_main_region.ready_spans, ready) << "the region grew while spans were absent";
}

// By decay only what was purged and stays so.
// The thread that unmaps them may stand still behind the call: a fork's child unmaps them then, once more.
TEST_F(Absent, WhatIsOnItsWayServesNobody) {
  static const hak_os_ops *fake;
  static hak_span *meanwhile;
  static void *gone;
  static size_t bytes;
  ASSERT_NO_FATAL_FAILURE(leave_gaps(4)); /* one */
  fake = hak_os;
  meanwhile = nullptr;
  hak_os_ops racing = *hak_os;
  racing.unmap = [](void *p, size_t size) {
    int done = fake->unmap(p, size);
    bool zeroed;
    if (meanwhile != nullptr) return done;
    gone = p;
    bytes = size;
    meanwhile = hak_pool_take(100, 1, HELD_TAGS, false, &zeroed);
    return done;
  };
  hak_os = &racing;
  EXPECT_GT(hak_purge_withdraw_all(4 * HAK_GIB), 0u);
  hak_os = fake;
  ASSERT_NE(meanwhile, nullptr);
  size_t offset = static_cast<size_t>(static_cast<char *>(span_address(meanwhile)) - static_cast<char *>(gone));
  EXPECT_GE(offset, bytes);
  fill(meanwhile);
}

TEST_F(Absent, IdleSpansGoOnceTheyAreClean) {
  ASSERT_NO_FATAL_FAILURE(leave_gaps(40));
  size_t left = hak_purge_withdraw_idle(0);
  for (void *p : gaps) EXPECT_NE(hak_region_find(p), nullptr) << "dirty";
  hak_purge_spans(0, false);
  hak_pool_set_look(hak_pool_look() + 2);
  EXPECT_EQ(hak_purge_withdraw_idle(3), 0u) << "they came back lately";
  EXPECT_GE(left + hak_purge_withdraw_idle(2), gaps.size() * 40 * HAK_SPAN_SIZE);
  for (void *p : gaps) EXPECT_EQ(hak_region_find(p), nullptr);
}

// What comes and goes holds what lies near it, not its chunk.
TEST_F(Absent, IdleSpansGoBesideBusyOnes) {
  ASSERT_NO_FATAL_FAILURE(leave_gaps(40));
  hak_purge_spans(0, false);
  hak_pool_set_look(hak_pool_look() + 2);
  hak_span *busy = take(1);
  void *p = span_address(busy);
  give(busy);
  hak_purge_spans(0, false);
  hak_purge_withdraw_idle(2);
  EXPECT_NE(hak_region_find(p), nullptr);
  size_t left = 0;
  for (void *gap : gaps) left += hak_region_find(gap) != nullptr;
  EXPECT_LE(left, 2u);
}

// Somebody's memory in the gap stays his, and is asked for once.
TEST_F(Absent, WhatOthersTookIsLost) {
  ASSERT_NO_FATAL_FAILURE(leave_gaps(20));
  hak_purge_withdraw_all(4 * HAK_GIB);
  std::vector<char *> others;
  for (void *p : gaps) {
    void *mine = mmap(p, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    ASSERT_EQ(mine, p);
    others.push_back(static_cast<char *>(mine));
    *others.back() = 42;
  }
  std::vector<hak_span *> taken;
  for (int i = 0; i < 40; i++) {
    taken.push_back(take(38));
    ASSERT_NE(taken.back(), nullptr);
    fill(taken.back());
  }
  for (char *p : others) {
    EXPECT_EQ(*p, 42);
    EXPECT_EQ(hak_region_find(p), nullptr);
  }
  for (hak_span *s : taken) give(s);
  fake_os::reset();
  for (int i = 0; i < 40; i++) ASSERT_NE(take(38), nullptr);
  EXPECT_EQ(fake_os::count(fake_os::MAP), 0u) << "lost addresses are asked for again";
  for (char *p : others) munmap(p, 4096);
}

// A refusal to cut a mapping leaves the spans free; one to give memory leaves them absent, for later.
TEST_F(Absent, Refusals) {
  ASSERT_NO_FATAL_FAILURE(leave_gaps(20));
  size_t live = hak_span_pool.live_spans;
  fake_os::fail_all(fake_os::UNMAP);
  hak_purge_withdraw_all(4 * HAK_GIB);
  for (void *p : gaps) EXPECT_NE(hak_region_find(p), nullptr);
  EXPECT_EQ(hak_heap_check(), 0u);
  fake_os::allow_all();
  hak_purge_withdraw_all(4 * HAK_GIB);
  for (fake_os::Call call : {fake_os::MAP, fake_os::PROTECT}) {
    fake_os::fail_all(call);
    EXPECT_EQ(take(39), nullptr);
    EXPECT_EQ(hak_span_pool.live_spans, live);
    EXPECT_EQ(hak_heap_check(), 0u);
    fake_os::allow_all();
  }
  EXPECT_NE(take(39), nullptr);
}

// What a region of 8 GiB reserves ahead goes, tables for what cannot be any more too; it grows again in place.
TEST_F(Absent, ReservedAheadGoes) {
  ASSERT_NE(take(100), nullptr);
  hak_purge_withdraw_all(512 * HAK_MIB);
  EXPECT_LE(fake_os::mapped_bytes(), 32 * HAK_MIB);
  EXPECT_EQ(hak_region_find(reinterpret_cast<void *>(hak_main_region.base + HAK_SPAN_SIZE)), nullptr) << "no block is in the tables";
  for (int i = 0; i < 10; i++) {
    hak_span *s = take(300);
    ASSERT_NE(s, nullptr);
    fill(s);
  }
  hak_purge_withdraw_all(256 * HAK_MIB);
  hak_span *s = take(200);
  ASSERT_NE(s, nullptr);
  fill(s);
}

}  // namespace
