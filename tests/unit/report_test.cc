// Totals that add up, and a heap check that finds what is seeded: a check that finds nothing proves nothing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "fake_os.h"
#include "hak.h"
extern "C" {
#include "os/glibc_malloc.h"
#include "report/figures.h"
#include "report/serve.h"
}

using testing::HasSubstr;

namespace {

std::string stderr_of(const std::function<void()> &body) {
  testing::internal::CaptureStderr();
  body();
  return testing::internal::GetCapturedStderr();
}

// Caches, depots, and slabs that are empty.
void flush_all() {
  hak_deferred d = {};
  hak_tcache_flush(hak_thread_cache(), &d);
  hak_arena_shrink_all(&d);
}

TEST(Totals, FollowWhatIsAllocated) {
  hakmem_free(hakmem_malloc(1));
  struct mallinfo2 before = hakmem_mallinfo2();
  std::vector<void *> blocks;
  for (int i = 0; i < 10000; i++) blocks.push_back(hakmem_malloc(1000));
  void *run = hakmem_malloc(5 * HAK_MIB), *huge = hakmem_malloc(100 * HAK_MIB);
  struct mallinfo2 after = hakmem_mallinfo2();
  EXPECT_EQ(after.hblkhd - before.hblkhd, 100 * HAK_MIB);
  EXPECT_EQ(after.hblks - before.hblks, 1u);
  size_t expected = 10000 * 1024 + 5 * HAK_MIB;
  EXPECT_GE(after.uordblks - before.uordblks, expected);
  EXPECT_LE(after.uordblks - before.uordblks, expected + expected / 20);
  hak_figures f = {};
  hak_figures_take(&f);
  EXPECT_GE(f.stats.accessible, after.arena + after.hblkhd);
  for (void *p : blocks) hakmem_free(p);
  hakmem_free(run);
  hakmem_free(huge);
  flush_all();
  struct mallinfo2 end = hakmem_mallinfo2();
  EXPECT_LE(end.uordblks, before.uordblks + 64 * HAK_KIB);
  EXPECT_GE(end.keepcost, 5 * HAK_MIB) << "the rest of 15 MiB may have been purged";
  EXPECT_EQ(end.hblks, before.hblks);
}

TEST(Totals, SlabsCountWhatIsFreeInThem) {
  hak_config.hot_ring_enable = 0;  // nothing stays in a cache
  std::vector<void *> blocks;
  for (int i = 0; i < 1000; i++) blocks.push_back(hakmem_malloc(500));
  struct mallinfo2 before = hakmem_mallinfo2();
  for (int i = 0; i < 1000; i += 2) hakmem_free(blocks[size_t(i)]);
  struct mallinfo2 after = hakmem_mallinfo2();
  EXPECT_EQ((after.fordblks - after.keepcost) - (before.fordblks - before.keepcost), 500 * 512u);
  EXPECT_EQ(before.uordblks - after.uordblks, 500 * 512u);
}

TEST(Totals, TextNamesThem) {
  void *p = hakmem_malloc(50 * HAK_MIB);
  std::string text = stderr_of([] { hakmem_malloc_stats(); });
  EXPECT_THAT(text, testing::ContainsRegex("\n  huge blocks +52428800\n"));
  EXPECT_THAT(text, HasSubstr("hakmem " HAKMEM_VERSION_STRING ": figures of process "));
  hakmem_free(p);
}

TEST(Reports, OsStatsLineHasItsFieldsInOrder) {
  std::string text = stderr_of([] { hak_report_os_stats(); });
  EXPECT_THAT(text, testing::MatchesRegex(
                        "\\[SS_OS_STATS\\] alloc=[0-9]+ free=[0-9]+ madvise=[0-9]+ madvise_enomem=[0-9]+ "
                        "madvise_other=[0-9]+ madvise_disabled=[0-9]+ mmap_total=[0-9]+ fallback_mmap=[0-9]+ "
                        "huge_alloc=[0-9]+ huge_fail=[0-9]+ lean_decommit=[0-9]+ lean_retire=[0-9]+\n"));
}

TEST(Reports, CacheCsvHasOneRowAClass) {
  hakmem_free(hakmem_malloc(1));
  std::string text = stderr_of([] { hak_report_cache_csv(); });
  EXPECT_THAT(text, HasSubstr("class,block_size,aligned,hits,misses,refills,flushes\n0,16,0,"));
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1 + HAK_CLASS_COUNT);
}

// --- seeded faults ---

class HeapCheck : public testing::Test {
 protected:
  void SetUp() override {
    for (int i = 0; i < 300; i++) blocks.push_back(hakmem_malloc(1000));
    run = hakmem_malloc(300000);
    freed_run = hakmem_malloc(300000);
    hakmem_free(freed_run);
    flush_all();
    // Two slabs with free blocks in their bitmaps.
    hak_deferred d = {};
    for (size_t i = 0; i < 128; i += 2) hak_arena_free(blocks[i], c, &d);
    r = &hak_main_region;
    slab = hak_region_span(r, blocks[1]);
    bin = &hak_arena_at(HAK_TAG_OWNER(slab->tag) - 1)->bins[c];
    for (hak_span *list : bin->slabs.lists)
      if (list != nullptr && list->next != nullptr) linked = list;
    ASSERT_NE(linked, nullptr);
    ASSERT_EQ(hak_heap_check(), 0u);
  }
  // The fault must be found, and nothing after it is mended.
  template <typename T>
  void seed(T *field, T bad, const char *message) {
    T good = *field;
    seed([&](bool is_bad) { *field = is_bad ? bad : good; }, message);
  }
  // The same of what has no address.
  template <typename Set>
  void seed(Set set, const char *message) {
    set(true);
    size_t faults = 0;
    std::string text = stderr_of([&] { faults = hak_heap_check(); });
    EXPECT_GE(faults, 1u);
    EXPECT_THAT(text, HasSubstr(message));
    set(false);
    EXPECT_EQ(hak_heap_check(), 0u);
  }
  uint8_t &code_of(const void *p) { return r->map[hak_region_index(r, p)]; }
  hak_chunk &chunk_of(const void *p) { return r->chunks[hak_region_index(r, p) / HAK_CHUNK_SPANS]; }
  // The last blocks, as a magazine that another arena's thread gave back.
  void put_magazine() {
    auto **magazine = reinterpret_cast<void **>(hak_meta_take());
    std::copy(blocks.end() - hak_magazine_usable[c], blocks.end(), hak_magazine_empty_top(magazine, c) + 1);
    ASSERT_TRUE(hak_arena_put_magazine(magazine, c));
  }
  unsigned bit_of(const void *p) { return hak_region_index(r, p) % HAK_CHUNK_SPANS; }

  std::vector<void *> blocks;
  void *run, *freed_run;
  const unsigned c = hak_class_for(1000);
  hak_arena_bin *bin;
  hak_region *r;
  hak_span *slab, *linked = nullptr;
};

TEST_F(HeapCheck, FreeCount) { seed(&slab->frees_left, uint16_t(slab->frees_left - 1), "counted free"); }
TEST_F(HeapCheck, FreeBit) { seed(&slab->bits[0], slab->bits[0] ^ 2, "bits set"); }
TEST_F(HeapCheck, NeverAllocatedBit) {
  while (bin->slabs.bump_slab == nullptr) hakmem_malloc(1000);
  hak_span *s = bin->slabs.bump_slab;
  unsigned last = unsigned(s->blocks) - 1;
  seed(&s->bits[last / 64], s->bits[last / 64] | uint64_t(1) << (last % 64), "never allocated");
}
TEST_F(HeapCheck, AllocatedBeyondBlocks) { seed(&slab->bumped, uint16_t(slab->blocks + 1), "ever allocated"); }
TEST_F(HeapCheck, ClassOfSlab) { seed(&slab->class_code, uint8_t(3), "class 3"); }
TEST_F(HeapCheck, BackLink) { seed(&linked->next->prev, static_cast<hak_span *>(nullptr), "back link"); }
TEST_F(HeapCheck, ListNumber) {
  unsigned good = slab->list;
  seed([&](bool is_bad) { slab->list = (is_bad ? (good + 1) % 4 : good) & 7; }, "says");
}
TEST_F(HeapCheck, TagOfSlab) { seed(&slab->tag, HAK_TAG(HAK_TAG_OWNER(slab->tag), 3), "tag"); }
TEST_F(HeapCheck, TagNamesNobody) { seed(&slab->tag, HAK_TAG(9999, c + 1), "names no arena"); }
TEST_F(HeapCheck, CodeOfSlab) { seed(&code_of(blocks[1]), uint8_t(3), "tag"); }
TEST_F(HeapCheck, RangeOnAQuickList) {
  hak_span *s = hak_region_span(r, freed_run);
  seed(&s->tag, uint32_t(HAK_EXTENT_TAG), "somebody's as well");
  seed(&s->span_count, uint16_t(s->span_count + 1), "another length");
  seed(&hak_quick_lists.ranges, hak_quick_lists.ranges + 1, "as many as counted");
}
TEST_F(HeapCheck, CodeOfFreeSpan) {
  hak_quick_settle_all();
  seed(&code_of(freed_run), uint8_t(3), "has a code");
}
TEST_F(HeapCheck, RunBody) {
  seed(&code_of(static_cast<char *>(run) + HAK_SPAN_SIZE), uint8_t(0), "wrong code");
}
TEST_F(HeapCheck, RunStart) { seed(&hak_region_span(r, run)->start, uintptr_t(1), "metadata"); }
TEST_F(HeapCheck, HeldSpanMarkedFree) {
  unsigned bit = bit_of(blocks[1]);
  uint64_t *word = &chunk_of(blocks[1]).free[bit / 64];
  seed(word, *word | uint64_t(1) << (bit % 64), "has a code");
}
TEST_F(HeapCheck, HeldSpanMarkedDirty) {
  unsigned bit = bit_of(blocks[1]);
  uint64_t *word = &chunk_of(blocks[1]).dirty[bit / 64];
  seed(word, *word | uint64_t(1) << (bit % 64), "marked dirty");
}
TEST_F(HeapCheck, ChunkFreeCount) { seed(&chunk_of(run).free_spans, chunk_of(run).free_spans + 1, "free bits"); }
TEST_F(HeapCheck, ChunkDirtyCount) { seed(&chunk_of(run).dirty_spans, chunk_of(run).dirty_spans + 1, "dirty bits"); }
TEST_F(HeapCheck, PoolDirtyCount) { seed(&hak_span_pool.dirty_spans, hak_span_pool.dirty_spans + 1, "dirty spans found"); }

TEST_F(HeapCheck, PoolLiveCount) { seed(&hak_span_pool.live_spans, hak_span_pool.live_spans + 1, "live"); }
TEST_F(HeapCheck, LeakedSpan) {
  unsigned bit = bit_of(freed_run);
  hak_chunk &chunk = chunk_of(freed_run);
  chunk.dirty_spans--;
  chunk.free_spans--;
  hak_span_pool.dirty_spans--;
  chunk.dirty[bit / 64] &= ~(uint64_t(1) << (bit % 64));
  uint64_t *word = &chunk.free[bit / 64];
  *word &= ~(uint64_t(1) << (bit % 64));
  EXPECT_GE(hak_heap_check(), 1u) << "a span that is neither free nor anybody's";
}
TEST_F(HeapCheck, DepotCount) {
  put_magazine();
  ASSERT_EQ(bin->full_count, 1u);
  seed(&bin->full_count, 2u, "2 counted");
}
TEST_F(HeapCheck, DepotBlockThatIsFree) {
  put_magazine();
  EXPECT_EQ(hak_heap_check(), 0u);
  /* In a child: at its end a process reports such a block. */
  auto free_again = [&] {
    hak_deferred d = {};
    hak_arena_free(blocks.back(), c, &d);
    _exit(hak_heap_check() >= 1 ? 7 : 1);
  };
  EXPECT_EXIT(free_again(), testing::ExitedWithCode(7), "") << "a block is in a depot and in its slab";
}
TEST_F(HeapCheck, CachedBlockThatIsFree) {
  hakmem_free(blocks[1]);
  unsigned index = unsigned((uintptr_t(blocks[1]) - slab->start) / 1024);
  slab->bits[index / 64] |= uint64_t(1) << (index % 64);
  slab->frees_left--;
  EXPECT_GE(hak_heap_check(), 1u) << "a block is in the cache and in its slab";
  slab->bits[index / 64] &= ~(uint64_t(1) << (index % 64));
  slab->frees_left++;
}

/* exit in a signal handler that has interrupted this thread under a lock: the report cannot wait for it. */
struct Held {
  const char *name;
  hak_lock *lock; /* NULL: of a bin */
};

void PrintTo(const Held &held, std::ostream *out) { *out << held.name; }

using ExitDeathTest = testing::TestWithParam<Held>;

TEST_P(ExitDeathTest, DoesNotWaitForALockOfItsOwn) {
  auto end = [] {
    alarm(20);
    hakmem_free(hakmem_malloc(1));
    hak_config.stats = HAK_STATS_TEXT;
    hak_config.os_stats = 1;
    hak_lock_take(GetParam().lock != nullptr ? GetParam().lock : &hak_arena_current()->bins[0].lock);
    exit(7);
  };
  EXPECT_EXIT(end(), testing::ExitedWithCode(7), "HAKMEM_STATS, .*: nothing is printed: .*\n.SS_OS_STATS. alloc=");
}

INSTANTIATE_TEST_SUITE_P(Locks, ExitDeathTest,
                         testing::Values(Held{"pool", &hak_span_pool.lock}, Held{"metadata", &hak_meta_lock},
                                         Held{"huge", &hak_huge_lock}, Held{"bin", nullptr}));

}  // namespace
