// Figures where a test knows them to the byte, and sums that hold while other threads work.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <thread>
#include <vector>

#include "fake_cpu.h"
#include "hak.h"
#include "run_program.h"
extern "C" {
#include "hakmem/heap.h"
#include "hakmem/stats.h"
#include "report/figures.def"
#include "report/figures.h"
#include "report/page.h"
#include "report/serve.h"
#include "report/sink.h"
}

using testing::HasSubstr;

namespace {

constexpr size_t MIB = 1 << 20;

struct Snapshot {
  hak_class_row rows[HAK_CLASS_COUNT];
  std::vector<uint8_t> map = std::vector<uint8_t>(1 << 20);
  hak_figures f = {};
  const hakmem_stats &stats = f.stats;
  Snapshot() {
    f.rows = rows;
    f.map = map.data();
    f.map_capacity = map.size();
    hak_figures_take(&f);
  }
  const hak_class_row &row(size_t size) const { return rows[hak_class_for(size)]; }
  uint64_t live(size_t size) const { return hak_row_live(&row(size)); }
};

#define EXPECT_SUM(sum, ...) EXPECT_EQ(sum, __VA_ARGS__) << #sum

// Every sum that docs/figures.md names.
void expect_sums(const Snapshot &s) {
  const hakmem_stats &f = s.stats;
  EXPECT_SUM(f.spans, f.slabs + f.extents + f.extents_cached + f.span_heaps + f.free_dirty + f.free_clean + f.claimed + f.guards);
  EXPECT_SUM(f.slabs, f.slab_handed_out + f.slab_free + f.slab_never_allocated + f.slab_rest);
  EXPECT_SUM(f.slab_handed_out, f.slab_live + f.slab_cached + f.slab_depots);
  EXPECT_SUM(f.accessible, f.spans + f.huge_live + f.huge_heaps + f.huge_kept + f.sampled_accessible + f.own);
  EXPECT_SUM(f.own, f.own_metadata + f.own_tables + f.own_other);
  EXPECT_SUM(f.live, f.slab_live + f.extents + f.huge_live + f.sampled_live + f.heaps_live);
  EXPECT_SUM(f.heaps_held, f.span_heaps + f.huge_heaps);
  EXPECT_SUM(f.heaps_held, f.heaps_live + f.heaps_free);
  EXPECT_LE(f.extent_requested, f.extents);
  uint64_t bytes = 0, out = 0, cached = 0, depots = 0, in = 0, never = 0, rest = 0;
  for (const hak_class_row &r : s.rows) {
    EXPECT_SUM(r.slab_bytes, r.handed_out + r.free + r.never_allocated + r.rest);
    EXPECT_LE(r.cached + r.depots, r.handed_out);
    bytes += r.slab_bytes, out += r.handed_out, cached += r.cached, depots += r.depots;
    in += r.free, never += r.never_allocated, rest += r.rest;
  }
  EXPECT_EQ(bytes, f.slabs);
  EXPECT_EQ(out, f.slab_handed_out);
  EXPECT_EQ(cached, f.slab_cached);
  EXPECT_EQ(depots, f.slab_depots);
  EXPECT_EQ(in, f.slab_free);
  EXPECT_EQ(never, f.slab_never_allocated);
  EXPECT_EQ(rest, f.slab_rest);
  size_t codes[256] = {};
  for (size_t i = 0; i < s.f.map_entries; i++) codes[s.map[i]] += HAK_SPAN_SIZE;
  EXPECT_EQ(s.f.map_entries * HAK_SPAN_SIZE, f.spans);
  for (unsigned c = 0; c < HAK_CLASS_COUNT; c++) EXPECT_EQ(codes[c], s.rows[c].slab_bytes) << c;
  EXPECT_EQ(codes[HAK_MAP_EXTENT] + codes[HAK_MAP_EXTENT_BODY], f.extents);
  EXPECT_EQ(codes[HAK_MAP_EXTENT_CACHED], f.extents_cached);
  EXPECT_EQ(codes[HAK_MAP_HEAP], f.span_heaps);
  EXPECT_EQ(codes[HAK_MAP_DIRTY], f.free_dirty);
  EXPECT_EQ(codes[HAK_MAP_CLEAN], f.free_clean);
}

std::vector<void *> blocks_of(size_t size, size_t count) {
  std::vector<void *> blocks;
  for (size_t i = 0; i < count; i++) blocks.push_back(hakmem_malloc(size));
  return blocks;
}

TEST(Figures, BeforeTheStart) {
  if (hak_started()) GTEST_SKIP() << "something has allocated";
  Snapshot s;
  EXPECT_EQ(s.stats.accessible, 0u);
  expect_sums(s);
}

TEST(Figures, BlocksAreLiveCachedOrFree) {
  hakmem_free(hakmem_malloc(1000));
  Snapshot before;
  std::vector<void *> blocks = blocks_of(1000, 500);
  Snapshot with;
  EXPECT_EQ(with.live(1000) - before.live(1000), 500 * 1024u);
  for (int i = 0; i < 5; i++) hakmem_free(blocks[size_t(i)]);
  Snapshot freed;
  EXPECT_EQ(with.live(1000) - freed.live(1000), 5 * 1024u) << "in the cache, or back in their slab";
  for (size_t i = 5; i < 500; i++) hakmem_free(blocks[i]);
  Snapshot cached;
  EXPECT_EQ(cached.live(1000), before.live(1000));
  EXPECT_GT(cached.row(1000).cached, 0u);
  hak_deferred d = {};
  hak_tcache_flush(hak_thread_cache(), &d);
  Snapshot flushed;
  EXPECT_EQ(flushed.row(1000).cached, 0u);
  EXPECT_EQ(flushed.row(1000).handed_out - flushed.row(1000).depots, before.live(1000)) << "the depot has the rest";
  for (const Snapshot *s : {&before, &with, &freed, &cached, &flushed}) expect_sums(*s);
}

TEST(Figures, MagazinesThatAreStackedAreCached) {
  unsigned c = hak_class_for(16);
  std::vector<void *> blocks;
  for (int swing = 0; swing < 8; swing++) {  // a stack grows where refills follow overflows
    for (void *p : blocks) hakmem_free(p);
    blocks = blocks_of(16, 3000);
  }
  uint64_t live = Snapshot().live(16);
  for (int i = 0; i < 600; i++) hakmem_free(blocks[size_t(i)]);
  Snapshot s;
  EXPECT_GT(hak_thread_cache()->bins[c].full_count, 3u);
  EXPECT_EQ(live - s.live(16), 600 * 16u);
  expect_sums(s);
}

// What a thread of another arena frees is in its cache, and when that is full in depots; when the thread has ended, in its slabs.
TEST(Figures, BlocksInDepots) {
  constexpr int kFreed = 30000;
  hakmem_free(hakmem_malloc(1));
  fake_cpu::install();
  std::vector<void *> blocks = blocks_of(208, 40000);
  uint64_t live = Snapshot().live(208);
  std::atomic<int> step{0};
  std::thread other([&] {
    fake_cpu::number = 1;
    hakmem_free(hakmem_malloc(208));  // the arena is made when it is first used
    hak_thread_cache();  // while it has none it puts blocks into slabs
    for (int i = 0; i < kFreed; i++) hakmem_free(blocks[size_t(i)]);
    step = 1;
    while (step != 2) std::this_thread::yield();
  });
  while (step != 1) std::this_thread::yield();
  Snapshot freed;
  EXPECT_LE(live - freed.live(208), kFreed * 208u);
  EXPECT_GE(live - freed.live(208), (kFreed - HAK_MAGAZINE_SLOTS) * 208u);
  EXPECT_GT(freed.row(208).depots, 0u) << "a thread stacks no more than 15 magazines of a class";
  EXPECT_GT(freed.row(208).cached, 0u);
  step = 2;
  other.join();
  Snapshot ended;
  EXPECT_EQ(live - ended.live(208), kFreed * 208u) << "an ended thread leaves nothing in its cache";
  EXPECT_EQ(ended.row(208).depots, freed.row(208).depots) << "nor gives it to depots";
  std::vector<void *> more = blocks_of(208, 30000);
  Snapshot taken;
  EXPECT_LT(taken.row(208).depots, ended.row(208).depots) << "magazines come out of depots whole";
  for (const Snapshot *s : {&freed, &ended, &taken}) expect_sums(*s);
}

TEST(Figures, ExtentsLiveAndFreed) {
  hakmem_free(hakmem_malloc(1));
  Snapshot before;
  void *a = hakmem_malloc(300000), *b = hakmem_malloc(1 * MIB);
  Snapshot live;
  EXPECT_EQ(live.stats.extents - before.stats.extents, 5 * 65536 + 1 * MIB);
  EXPECT_EQ(live.stats.extent_count - before.stats.extent_count, 2u);
  hakmem_free(a);
  hakmem_free(b);
  Snapshot freed;
  EXPECT_EQ(freed.stats.extents, before.stats.extents);
  EXPECT_EQ(freed.stats.extents_cached - live.stats.extents_cached, 5 * 65536 + 1 * MIB);
  EXPECT_EQ(hakmem_malloc(600000) == nullptr, false);  // of another length
  Snapshot settled;
  EXPECT_EQ(settled.stats.extents_cached, 0u);
  EXPECT_GE(settled.stats.free_dirty, 5 * 65536u + 1 * MIB - 10 * 65536u);
  for (const Snapshot *s : {&before, &live, &freed}) expect_sums(*s);
}

TEST(Figures, ExtentsRequested) {
  hak_config.stats = HAK_STATS_TEXT;  // before the start
  if (hak_started()) GTEST_SKIP() << "something has allocated";
  hakmem_free(hakmem_malloc(1));
  uint64_t before = Snapshot().stats.extent_requested;
  void *a = hakmem_malloc(300000);
  EXPECT_EQ(Snapshot().stats.extent_requested - before, 300000u);
  a = hakmem_realloc(a, 320000);
  EXPECT_EQ(Snapshot().stats.extent_requested - before, 320000u) << "the same spans";
  a = hakmem_realloc(a, 1000000);
  EXPECT_EQ(Snapshot().stats.extent_requested - before, 1000000u);
  a = hakmem_realloc(a, 270000);
  EXPECT_EQ(Snapshot().stats.extent_requested - before, 270000u);
  hakmem_free(a);
  a = hakmem_malloc(280000);  // the same spans, most likely
  EXPECT_EQ(Snapshot().stats.extent_requested - before, 280000u);
  hakmem_free(a);
  EXPECT_EQ(Snapshot().stats.extent_requested, before);
}

TEST(Figures, RequestsAreNoted) {
  hak_config.stats = HAK_STATS_JSON;
  if (hak_started()) GTEST_SKIP() << "something has allocated";
  std::vector<void *> blocks = blocks_of(1000, 2000);
  hakmem_stats s;
  ASSERT_EQ(hakmem_stats_get(&s, sizeof s), 0);
  EXPECT_EQ(s.requests_noted, 1u);
  hakmem_class_stats classes[HAK_CLASS_COUNT];
  hakmem_stats_classes(classes, HAK_CLASS_COUNT);
  const hakmem_class_stats &c = classes[hak_class_for(1000)];
  EXPECT_GT(c.requests, 10u);
  EXPECT_EQ(c.requested, c.requests * 1000);
  EXPECT_NEAR(double(s.estimated_rounding), 2000 * 24, 1000);
  EXPECT_EQ(s.estimated_rounding + s.estimated_requested, s.slab_live) << "no class without a request";
}

TEST(Figures, HugeBlocksAndWhereTheyAre) {
  Snapshot before;
  void *a = hakmem_malloc(50 * MIB), *b = hakmem_malloc(40 * MIB);
  hakmem_free(b);
  Snapshot with;
  EXPECT_EQ(with.stats.huge_live - before.stats.huge_live, 50 * MIB + 4096 * (HAK_HARDENED != 0));
  EXPECT_EQ(with.stats.huge_count - before.stats.huge_count, 1u);
  EXPECT_EQ(with.stats.huge_kept, 40 * MIB + 4096 * (HAK_HARDENED != 0));
  EXPECT_EQ(with.stats.huge_kept_count, 1u);
  size_t bytes, found = 0;
  uintptr_t address = 0;
  bool kept;
  while (hak_huge_next(&address, &bytes, &kept)) {
    EXPECT_EQ(address, uintptr_t(kept ? b : a));
    found++;
  }
  EXPECT_EQ(found, 2u);
  expect_sums(with);
  hakmem_free(a);
}

TEST(Figures, SampledBlocks) {
  hak_config.guard_sample = 1;
  hak_sampling_start();
  void *p = nullptr;
  while (!hak_sample_contains(p)) p = hakmem_malloc(5000);
  Snapshot with;
  EXPECT_GE(with.stats.sampled_live, 5000u);
  EXPECT_EQ(with.stats.sampled_accessible, with.stats.sampled_count * 8192);
  struct mallinfo2 m = hakmem_mallinfo2();
  EXPECT_EQ(m.uordblks, with.stats.slab_handed_out + with.stats.sampled_live) << "mallinfo counts them";
  hakmem_free(p);
  Snapshot without;
  EXPECT_EQ(with.stats.sampled_live - without.stats.sampled_live, 5000u);
  EXPECT_EQ(with.stats.sampled_accessible - without.stats.sampled_accessible, 8192u);
  expect_sums(with);
  expect_sums(without);
}

TEST(Figures, MetadataAndWhereItIs) {
  std::vector<void *> blocks;
  for (int i = 0; i < 3000; i++) blocks.push_back(hak_meta_take());
  size_t sum = 0, bytes;
  uintptr_t address;
  for (size_t i = 0; hak_meta_mapping(i, &address, &bytes); i++) {
    sum += bytes;
    for (void *p : blocks) EXPECT_NE(uintptr_t(p), address) << "the block's own header";
  }
  EXPECT_EQ(sum, hak_meta_bytes());
  EXPECT_EQ(Snapshot().stats.own_metadata, sum);
}

// The first and last bytes of the tables' arrays lie in what is counted; behind the last span one page is accessible that is not (region.c).
TEST(Figures, TablesAreWhatIsAccessible) {
  hakmem_free(hakmem_malloc(1));
  const hak_region *r = &hak_main_region;
  FILE *maps = fopen("/proc/self/maps", "r");
  size_t accessible = 0;
  unsigned long lo, hi;
  char mode[8], line[256];
  while (fgets(line, sizeof line, maps) != nullptr) {
    if (sscanf(line, "%lx-%lx %7s", &lo, &hi, mode) != 3 || mode[0] != 'r') continue;
    if (lo >= r->base && lo < r->base + r->reserved_bytes) accessible += std::min(hi, r->base + r->reserved_bytes) - lo;
  }
  fclose(maps);
  Snapshot s;
  EXPECT_EQ(accessible, s.stats.own_tables + s.stats.spans - s.stats.guards + hak_os_page_size());
}

/* --- with other threads --- */

void work(std::atomic<bool> *stop, unsigned seed, std::atomic<void *> *handed) {
  std::vector<void *> slots(1000);
  for (unsigned n = 0; !*stop && n < 200000; n++) {
    seed = seed * 1664525u + 1013904223u;
    size_t i = (seed >> 8) % slots.size(), size = (seed >> 12) % 3000;
    if ((seed & 0x3ff) == 1) size = 200000;
    if (slots[i] == nullptr)
      slots[i] = hakmem_malloc(size);
    else
      hakmem_free(handed[i % 64].exchange(slots[i])), slots[i] = nullptr;  // passes to another thread
  }
  for (void *p : slots) hakmem_free(p);
}

// Threads that come and go: caches change hands while their counters are read.
// Heaps that come and go, with blocks in pieces, slabs, spans and mappings.
void work_in_heaps(std::atomic<bool> *stop, unsigned seed) {
  hakmem_heap *parent = hakmem_heap_new(nullptr);
  for (unsigned r = seed; !*stop; r = r * 1664525u + 1013904223u) {
    hakmem_heap_options o = {};
    o.size = sizeof o;
    o.parent = parent;
    hakmem_heap *heap = hakmem_heap_new(&o);
    std::vector<void *> blocks;
    for (unsigned i = 0, x = r; i < (r >> 8) % 3000; i++, x = x * 1664525u + 1013904223u) {
      size_t size = (x & 0xfff) == 0 ? 40 * MIB : (x & 0xff) == 0 ? 100000 : (x >> 12) % 2000;
      blocks.push_back(hakmem_heap_malloc(heap, size));
      if ((x >> 28) < 6) hakmem_free(blocks[(x >> 8) % blocks.size()]), blocks[(x >> 8) % blocks.size()] = nullptr;
    }
    if ((r >> 20) % 4 != 0) {
      hakmem_heap_destroy(heap);
      continue;
    }
    hakmem_heap_delete(heap);
    for (void *p : blocks) hakmem_free(p);
  }
  hakmem_heap_destroy(parent);
}

TEST(FiguresUnderLoad, SumsHold) {
  std::atomic<bool> stop{false};
  static std::atomic<void *> handed[64];
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 4; t++)
    threads.emplace_back([&stop, t] {
      for (unsigned life = 0; !stop; life++) std::thread(work, &stop, t + 7 * life, handed).join();
    });
  for (unsigned t = 0; t < 2; t++) threads.emplace_back(work_in_heaps, &stop, t);
  int snapshots = HAKMEM_TEST_SANITIZED ? 200 : 3000;
  for (int i = 0; i < snapshots && !testing::Test::HasFailure(); i++) {
    Snapshot s;
    expect_sums(s);
    hakmem_stats st;
    EXPECT_EQ(hakmem_stats_get(&st, sizeof st), 0);
    EXPECT_EQ(st.slabs, st.slab_handed_out + st.slab_free + st.slab_never_allocated + st.slab_rest);
  }
  stop = true;
  for (std::thread &t : threads) t.join();
  for (std::atomic<void *> &p : handed) hakmem_free(p);
  if (HAK_HARDENED) hak_quarantine_flush();
  hakmem_malloc_trim(0);
  EXPECT_EQ(hakmem_heap_check(), 0u);
  Snapshot s;
  EXPECT_EQ(s.stats.slab_cached + s.stats.slab_depots + s.stats.slab_live, s.stats.slab_handed_out);
  EXPECT_EQ(s.stats.slab_live, 0u) << "nothing is counted that nobody has";
  EXPECT_EQ(s.stats.heaps, 0u);
  EXPECT_EQ(s.stats.heaps_live, 0u);
  EXPECT_EQ(s.stats.heaps_blocks, 0u);
  EXPECT_LE(s.stats.heaps_held, HAK_SPAN_SIZE) << "a span of pieces is kept for the next heap";
}

// The sequence, with a writer that never stops: only a reader that keeps to the protocol gets whole snapshots.
TEST(FiguresUnderLoad, PageIsNeverTorn) {
  hak_config.stats_page = 1;
  hak_stats_page_start();
  std::atomic<bool> stop{false};
  static std::atomic<void *> handed[64];
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 2; t++)
    threads.emplace_back([&stop, t] {
      for (unsigned life = 0; !stop; life++) work(&stop, t + 7 * life, handed), usleep(1000);
    });
  threads.emplace_back([&stop] {
    for (uint64_t now = hak_os_now_ms(); !stop; now += HAK_PAGE_REFRESH_MS) {
      hak_stats_page_refresh(now);
      usleep(5000);  // a reader needs some time for a copy
    }
  });
  ProgramResult r = run_program({PYTHON, PAGE, std::to_string(getpid()), "2"});
  stop = true;
  for (std::thread &t : threads) t.join();
  EXPECT_EQ(r.out, "all whole\n") << r.err;
  printf("%s", r.err.c_str());
}

/* --- the interface --- */

TEST(StatsGet, Versions) {
  hakmem_stats s;
  EXPECT_EQ(hakmem_stats_get(nullptr, sizeof s), EINVAL);
  constexpr size_t version_2 = offsetof(hakmem_stats, used_peak);
  EXPECT_EQ(hakmem_stats_get(&s, version_2 - 1), EINVAL) << "older than version 2";
  memset(&s, 0xee, sizeof s);
  EXPECT_EQ(hakmem_stats_get(&s, version_2), 0);
  EXPECT_EQ(s.version, unsigned(HAKMEM_STATS_VERSION));
  EXPECT_EQ(s.size, version_2);
  EXPECT_EQ(s.used_peak, 0xeeeeeeeeeeeeeeeeu) << "not the caller's";
  EXPECT_EQ(hakmem_stats_get(&s, sizeof s), 0);
  EXPECT_EQ(s.version, unsigned(HAKMEM_STATS_VERSION));
  EXPECT_EQ(s.size, sizeof s);
  // A caller of a later version: what this library does not know is 0.
  struct {
    hakmem_stats known;
    uint64_t later[3];
    uint64_t mine;
  } newer;
  memset(&newer, 0xee, sizeof newer);
  EXPECT_EQ(hakmem_stats_get(&newer.known, sizeof newer - sizeof newer.mine), 0);
  EXPECT_EQ(newer.known.size, sizeof s);
  for (uint64_t field : newer.later) EXPECT_EQ(field, 0u);
  EXPECT_EQ(newer.mine, 0xeeeeeeeeeeeeeeeeu);
}

TEST(StatsGet, IsTheSnapshot) {
  std::vector<void *> blocks = blocks_of(77, 3000);
  for (size_t i = 0; i < 3000; i += 2) hakmem_free(blocks[i]);
  Snapshot s;
  hakmem_stats g;
  ASSERT_EQ(hakmem_stats_get(&g, sizeof g), 0);
  EXPECT_EQ(g.accessible, s.stats.accessible);
  EXPECT_EQ(g.live, s.stats.live);
  EXPECT_EQ(g.slab_cached, s.stats.slab_cached);
  EXPECT_EQ(g.arenas, hak_arena_count());
  EXPECT_GE(g.caches_used, 1u) << "this thread's cache";
  EXPECT_EQ(g.span_allocs, hakmem_served());
  EXPECT_EQ(g.requests_noted, 0u);
  EXPECT_EQ(g.extent_requested, 0u);
}

TEST(StatsGet, PurgedInSlabsAndBudget) {
  hakmem_stats g;
  std::vector<void *> blocks = blocks_of(2000, 3000);
  for (size_t i = 0; i < blocks.size(); i++)
    if (i % 100 != 0) hakmem_free(blocks[i]);
  hakmem_purge();
  ASSERT_EQ(hakmem_stats_get(&g, sizeof g), 0);
  EXPECT_GT(g.slab_purged, 0u);
  EXPECT_LE(g.slab_purged, g.slab_free);
  EXPECT_EQ(g.budget_limit, 0u);
  constexpr int64_t LIMIT = int64_t{1} << 40;
  ASSERT_EQ(hakmem_option_set("HAKMEM_LIMIT", LIMIT), 0);
  ASSERT_EQ(hakmem_stats_get(&g, sizeof g), 0);
  EXPECT_EQ(g.budget_limit, uint64_t{LIMIT});
  EXPECT_GT(g.budget_used, 0u);
  EXPECT_EQ(g.budget_refused, 0u);
  ASSERT_EQ(hakmem_option_set("HAKMEM_LIMIT", 0), 0);
}

hakmem_stats stats_now() {
  hakmem_stats g;
  EXPECT_EQ(hakmem_stats_get(&g, sizeof g), 0);
  EXPECT_GE(g.used_peak, g.budget_used);
  EXPECT_GE(g.resident_peak, g.resident);
  return g;
}

TEST(StatsPeaks, StayWhenMemoryIsGone) {
  hakmem_free(hakmem_malloc(1));
  hakmem_stats before = stats_now();
  std::vector<void *> small = blocks_of(1000, 20000);
  void *extent = hakmem_malloc(10 * MIB), *huge = hakmem_malloc(100 * MIB);
  memset(huge, 1, 100 * MIB);
  hakmem_stats with = stats_now();
  EXPECT_GE(with.budget_used, before.budget_used + 20000 * 1000 + 110 * MIB);
  EXPECT_GE(with.resident, before.resident + 90 * MIB) << "it was written to";
  for (void *p : small) hakmem_free(p);
  hakmem_free(extent);
  hakmem_free(huge);
  if (HAK_HARDENED) hak_quarantine_flush();
  hakmem_purge();
  hakmem_stats after = stats_now();
  EXPECT_LT(after.budget_used, with.budget_used - 100 * MIB);
  EXPECT_GE(after.used_peak, with.budget_used);
  EXPECT_LT(after.used_peak, with.budget_used + 10 * MIB) << "and not the sum of all there ever was";
  if (!HAKMEM_TEST_SANITIZED) EXPECT_LT(after.resident, with.resident - 90 * MIB);
  EXPECT_GE(after.resident_peak, with.resident - 4 * MIB) << "the kernel sums up what each processor counts, some pages late";
}

// Only what is above the peak raises it: memory that comes again does not.
TEST(StatsPeaks, AreNotASum) {
  hakmem_free(hakmem_malloc(50 * MIB));
  hakmem_purge();
  uint64_t peak = stats_now().used_peak;
  for (int i = 0; i < 10; i++) {
    hakmem_free(hakmem_malloc(50 * MIB));
    hakmem_purge();
  }
  EXPECT_EQ(stats_now().used_peak, peak);
  void *p = hakmem_malloc(40 * MIB);
  p = hakmem_realloc(p, peak + 40 * MIB);
  EXPECT_GE(stats_now().used_peak, peak + 40 * MIB) << "grown in place, or moved by the system";
  hakmem_free(p);
}

// Nobody looks while it is there, and no mapping is made for it.
TEST(StatsPeaks, OfSpansThatNobodyLookedAt) {
  hakmem_free(hakmem_malloc(1));
  uint64_t peak = stats_now().used_peak;
  std::vector<void *> extents;
  extents.reserve(1000);
  for (uint64_t bytes = 0; bytes < peak + 40 * MIB; bytes += 20 * MIB) extents.push_back(hakmem_malloc(20 * MIB));
  for (void *p : extents) hakmem_free(p);
  hakmem_purge();
  EXPECT_GE(stats_now().used_peak, peak + 40 * MIB);
}

TEST(StatsPeaks, WhatWasRefusedWasNeverUsed) {
  hakmem_free(hakmem_malloc(40 * MIB));
  uint64_t peak = stats_now().used_peak;
  EXPECT_EQ(hakmem_malloc(size_t{1} << 50), nullptr);
  void *p = hakmem_malloc(40 * MIB);
  EXPECT_EQ(hakmem_realloc(p, size_t{1} << 50), nullptr);
  ASSERT_EQ(hakmem_option_set("LIMIT", int64_t(stats_now().budget_used + 10 * MIB)), 0);
  EXPECT_EQ(hakmem_malloc(500 * MIB), nullptr);
  EXPECT_LT(stats_now().used_peak, peak + 10 * MIB);
  hakmem_free(p);
}

TEST(StatsPeaks, BeginAnewInAChild) {
  void *p = hakmem_malloc(100 * MIB);
  hakmem_free(p);
  hakmem_purge();
  ASSERT_GE(stats_now().used_peak, 100 * MIB);
  pid_t child = fork();
  if (child == 0) _exit(stats_now().used_peak < 100 * MIB ? 0 : 1);
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(StatsClasses, AsManyAsAreAskedFor) {
  void *p = hakmem_malloc(5);
  hakmem_class_stats rows[HAK_CLASS_COUNT + 1];
  EXPECT_EQ(hakmem_stats_classes(nullptr, 0), size_t(HAK_CLASS_COUNT));
  memset(rows, 0xee, sizeof rows);
  EXPECT_EQ(hakmem_stats_classes(rows, 1), size_t(HAK_CLASS_COUNT));
  EXPECT_EQ(rows[0].block_size, 16u);
  EXPECT_GE(rows[0].live, 16u);
  EXPECT_EQ(rows[0].slab_bytes, rows[0].handed_out + rows[0].free + rows[0].never_allocated + rows[0].rest);
  EXPECT_EQ(rows[1].slabs, 0xeeeeeeeeeeeeeeeeu);
  EXPECT_EQ(hakmem_stats_classes(rows, HAK_CLASS_COUNT + 1), size_t(HAK_CLASS_COUNT));
  EXPECT_EQ(rows[HAK_CLASS_COUNT - 1].block_size, 32768u);
  EXPECT_EQ(rows[HAK_CLASS_COUNT - 1].aligned, 1u);
  EXPECT_EQ(rows[HAK_CLASS_COUNT].slabs, 0xeeeeeeeeeeeeeeeeu);
  hakmem_free(p);
}

std::string printed(int json) {
  char path[] = "/tmp/hakmem-figures-XXXXXX";
  int fd = mkstemp(path);
  EXPECT_EQ(hakmem_stats_print(fd, json), 0);
  close(fd);
  return path;
}

TEST(StatsPrint, JsonAddsUp) {
  std::vector<void *> blocks = blocks_of(500, 3000);
  void *run = hakmem_malloc(MIB);
  std::string path = printed(1);
  ProgramResult r = run_program({PYTHON, SUMS, path});
  unlink(path.c_str());
  EXPECT_EQ(r.out, "all sums hold\n") << r.err;
  hakmem_free(run);
}

// What report/figures.def does not name is nowhere printed, unless code of its own does it.
TEST(FigureRows, EachFieldHasOne) {
  const std::map<size_t, const char *> printed_otherwise = {
      {offsetof(hakmem_stats, time_ms), "monotonic_ms"},
  };
  std::set<size_t> named;
#define FIGURE(object, member, field, ...) named.insert(offsetof(hakmem_stats, field));
#define NOTED(...)
#define FIELD(field, text) EXPECT_TRUE(named.insert(offsetof(hakmem_stats, field)).second) << #field;
  HAK_FIGURES(FIGURE, FIGURE, NOTED)
  HAK_UNSHOWN_FIGURES(FIELD)
#undef FIGURE
#undef NOTED
#undef FIELD
  for (size_t at = offsetof(hakmem_stats, time_ms); at < sizeof(hakmem_stats); at += sizeof(uint64_t))
    EXPECT_NE(named.count(at), printed_otherwise.count(at)) << "offset " << at;
}

TEST(FigureRows, EachIsInTheJson) {
  std::string path = printed(1);
  ProgramResult r = run_program({"cat", path});
  unlink(path.c_str());
  auto expect_member = [&](const std::string &object, const std::string &member) {
    size_t begin = r.out.find("\"" + object + "\":{"), end = r.out.find('}', begin);
    ASSERT_NE(begin, std::string::npos) << object;
    EXPECT_THAT(r.out.substr(begin, end - begin), HasSubstr("\"" + member + "\":")) << object;
  };
#define FIGURE(object, member, ...) expect_member(#object, #member);
#define COUNTER(name, meaning) expect_member("counters", #name);
  HAK_FIGURES(FIGURE, FIGURE, FIGURE)
  HAK_OS_COUNTERS(COUNTER)
#undef FIGURE
#undef COUNTER
}

TEST(StatsPrint, TextHasALineForEachClassInUse) {
  void *p = hakmem_malloc(1000);
  std::string path = printed(0);
  ProgramResult r = run_program({"cat", path});
  unlink(path.c_str());
  EXPECT_THAT(r.out, HasSubstr("accessible"));
  EXPECT_THAT(r.out, HasSubstr("\n  1024 "));
  EXPECT_THAT(r.out, testing::Not(HasSubstr("estimated"))) << "no request is noted";
  hakmem_free(p);
}

TEST(StatsPrint, SaysWhatFailed) {
  errno = 77;
  EXPECT_EQ(hakmem_stats_print(-1, 1), EBADF);
  EXPECT_EQ(hakmem_stats_print(9999, 1), EBADF);
  int full = open("/dev/full", O_WRONLY);
  errno = 77;
  EXPECT_EQ(hakmem_stats_print(full, 0), ENOSPC);
  EXPECT_EQ(errno, 77);
  close(full);
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  close(ends[0]);
  EXPECT_EQ(hakmem_stats_print(ends[1], 1), EPIPE) << "and no signal";
  close(ends[1]);
}

TEST(Sink, MemoryThatIsTooSmall) {
  char memory[10];
  hak_sink sink;
  hak_sink_to_memory(&sink, memory, sizeof memory);
  hak_sink_text(&sink, "0123456789");
  EXPECT_EQ(hak_sink_finish(&sink), 0);
  hak_sink_text(&sink, "x");
  EXPECT_EQ(hak_sink_finish(&sink), ENOSPC);
}

TEST(Sink, Numbers) {
  char memory[100];
  hak_sink sink;
  hak_sink_to_memory(&sink, memory, sizeof memory);
  for (uint64_t n : {uint64_t(0), uint64_t(10), UINT64_MAX}) hak_sink_number(&sink, n), hak_sink_text(&sink, " ");
  hak_sink_column(&sink, 7, 3);
  EXPECT_EQ(std::string(memory, size_t(sink.at - memory)), "0 10 18446744073709551615   7");
}

}  // namespace
