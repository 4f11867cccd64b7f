// MallocExtension_…: each figure against what the program did and what the system says.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "hakmem/hakmem.h"
#include "hakmem/heap.h"
#include "hakmem/stats.h"
#include "names.h"
#include "run_program.h"

namespace {

constexpr size_t MIB = 1 << 20;
using testing::HasSubstr;

size_t property(const char *name) {
  size_t value = 4711;
  EXPECT_EQ(MallocExtension_GetNumericProperty(name, &value), 1) << name;
  return value;
}

hakmem_stats stats() {
  hakmem_stats s;
  EXPECT_EQ(hakmem_stats_get(&s, sizeof s), 0);
  return s;
}

size_t resident() {
  char text[128] = "";
  FILE *f = fopen("/proc/self/statm", "r");
  unsigned long all = 0, pages = 0;
  if (f == nullptr || fgets(text, sizeof text, f) == nullptr || sscanf(text, "%lu %lu", &all, &pages) != 2) ADD_FAILURE();
  if (f != nullptr) fclose(f);
  return pages * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

// Blocks in memory that is none of the allocator's, so that only they come and go.
struct Blocks {
  static constexpr size_t MOST = 20000;
  static void *at[MOST];
  size_t count = 0, bytes = 0;
  void add(size_t size, size_t times = 1) {
    for (; times > 0; times--) {
      void *p = at[count++] = malloc(size);
      ASSERT_NE(p, nullptr);
      memset(p, 1, size);
      bytes += malloc_usable_size(p);
    }
  }
  void fill() {
    for (size_t i = 0; i < 4000; i++) add(16 + i % 2000);
  }
  void drop() {
    while (count > 0) free(at[--count]);
  }
};
void *Blocks::at[MOST];

TEST(Property, AllocatedBytesAreTheProgramsBlocks) {
  Blocks b;
  property("generic.current_allocated_bytes");
  b.add(24, 500), b.drop(), b.bytes = 0; // the thread has a cache now
  size_t before = property("generic.current_allocated_bytes");
  b.add(24, 1000), b.add(1000, 1000), b.add(100000, 100), b.add(327000, 20), b.add(5 * MIB, 3), b.add(40 * MIB, 2);
  size_t held = property("generic.current_allocated_bytes"), asked = b.bytes;
  b.drop();
  size_t after = property("generic.current_allocated_bytes");
  hakmem_stats s = stats();
  if (s.guards == 0) { // the hardened build has a trailer in each block
    EXPECT_EQ(held - before, asked);
  } else {
    EXPECT_GE(held - before, asked);
    EXPECT_LE(held - before, asked + asked / 20);
  }
  EXPECT_LT(after - before, MIB) << "but for what the quarantine of the hardened build holds";
}

TEST(Property, BlocksOfHeapsCount) {
  size_t before = property("generic.current_allocated_bytes");
  hakmem_heap *heap = hakmem_heap_new(nullptr);
  size_t bytes = 0;
  for (int i = 0; i < 100; i++) bytes += malloc_usable_size(hakmem_heap_malloc(heap, 10000));
  EXPECT_EQ(property("generic.current_allocated_bytes") - before, bytes);
  hakmem_heap_destroy(heap);
}

TEST(Property, TheHeapIsTheSumOfItsParts) {
  Blocks b;
  b.add(100, 5000), b.add(50000, 500), b.add(40 * MIB, 1);
  for (size_t i = 0; i < b.count; i += 2) free(b.at[i]), b.at[i] = nullptr;
  hakmem_stats s = stats();
  size_t lost = s.slab_rest + s.sampled_accessible - s.sampled_live, sum = lost;
  for (const char *part : {"generic.current_allocated_bytes", "tcmalloc.pageheap_free_bytes", "tcmalloc.pageheap_unmapped_bytes",
                           "tcmalloc.central_cache_free_bytes", "tcmalloc.transfer_cache_free_bytes", "tcmalloc.thread_cache_free_bytes"})
    sum += property(part);
  EXPECT_EQ(property("generic.heap_size"), sum);
  size_t given_back = std::min(s.free_clean, s.purged);
  EXPECT_EQ(property("generic.heap_size"), s.accessible - s.own - s.guards - s.free_clean + given_back) << "without what was never used";
  EXPECT_GT(s.free_clean, given_back);
  EXPECT_EQ(property("tcmalloc.pageheap_unmapped_bytes"), given_back);
  EXPECT_LT(lost, property("generic.heap_size") / 20);
  EXPECT_EQ(property("tcmalloc.slack_bytes"), property("tcmalloc.pageheap_free_bytes") + property("tcmalloc.pageheap_unmapped_bytes"));
  EXPECT_EQ(property("tcmalloc.current_total_thread_cache_bytes"), property("tcmalloc.thread_cache_free_bytes"));
  EXPECT_GT(property("tcmalloc.central_cache_free_bytes"), 0u);
}

TEST(Property, PhysicalBytesFollowWhatIsResident) {
  Blocks b;
  size_t before = property("generic.total_physical_bytes"), resident_before = resident();
  b.add(60000, 2000); // 114 MiB
  size_t grown = property("generic.total_physical_bytes") - before, resident_grown = resident() - resident_before;
  EXPECT_NEAR(double(grown), double(resident_grown), double(resident_grown) / 30);
  b.drop();
  EXPECT_GT(property("tcmalloc.pageheap_free_bytes"), 50 * MIB);
  MallocExtension_ReleaseFreeMemory();
  EXPECT_LT(property("tcmalloc.pageheap_free_bytes"), MIB);
  EXPECT_LT(resident(), resident_before + 16 * MIB);
  EXPECT_LT(property("generic.total_physical_bytes"), before + 16 * MIB);
  EXPECT_GT(property("tcmalloc.pageheap_unmapped_bytes"), 100 * MIB);
}

// gperftools' relation: what is committed is what ever was, without what was given back.
TEST(Property, ThoseOfThePageHeapAddUp) {
  size_t committed = property("tcmalloc.pageheap_committed_bytes");
  EXPECT_NEAR(double(committed), double(property("generic.heap_size") - property("tcmalloc.pageheap_unmapped_bytes")), double(MIB));
  EXPECT_NEAR(double(property("tcmalloc.pageheap_total_commit_bytes") - property("tcmalloc.pageheap_total_decommit_bytes")), double(committed), double(MIB));
  EXPECT_GE(property("tcmalloc.pageheap_total_reserve_bytes"), committed);
  for (const char *name : {"commit", "reserve"}) EXPECT_GT(property(("tcmalloc.pageheap_" + std::string(name) + "_count").c_str()), 0u);
  for (const char *name : {"decommit", "scavenge"}) property(("tcmalloc.pageheap_" + std::string(name) + "_count").c_str());
  EXPECT_GT(property("tcmalloc.impl.thread_cache_count"), 0u);
}

TEST(Property, BoundsOfCachesAreKept) {
  for (const char *name : {"tcmalloc.max_total_thread_cache_bytes", "tcmalloc.min_per_thread_cache_bytes", "tcmalloc.sample_parameter"}) {
    size_t before = property(name);
    EXPECT_EQ(MallocExtension_SetNumericProperty(name, 77 * MIB), 1);
    EXPECT_EQ(property(name), 77 * MIB);
    EXPECT_EQ(MallocExtension_SetNumericProperty(name, before), 1);
  }
}

TEST(Property, UnknownOnesAreLeftAlone) {
  for (const char *name : {"", "generic", "generic.heap_siz", "generic.heap_size2", "tcmalloc.max_total_thread_cache_byte", "HAKMEM_LIMIT"}) {
    size_t value = 4711;
    EXPECT_EQ(MallocExtension_GetNumericProperty(name, &value), 0) << name;
    EXPECT_EQ(value, 4711u);
    EXPECT_EQ(MallocExtension_SetNumericProperty(name, 1), 0) << name;
  }
  size_t heap = property("generic.heap_size");
  EXPECT_EQ(MallocExtension_SetNumericProperty("generic.heap_size", 1), 0) << "a figure";
  EXPECT_EQ(property("generic.heap_size"), heap);
}

TEST(Property, TheLimitHolds) {
  EXPECT_EQ(property("tcmalloc.heap_limit_mb"), 0u);
  EXPECT_EQ(MallocExtension_SetNumericProperty("tcmalloc.heap_limit_mb", 100), 1);
  EXPECT_EQ(property("tcmalloc.heap_limit_mb"), 100u);
  void *volatile p = malloc(120 * MIB);
  EXPECT_EQ(p, nullptr);
  EXPECT_EQ(MallocExtension_SetNumericProperty("tcmalloc.heap_limit_mb", SIZE_MAX), 0);
  EXPECT_EQ(MallocExtension_SetNumericProperty("tcmalloc.heap_limit_mb", 0), 1);
  p = malloc(120 * MIB);
  EXPECT_NE(p, nullptr);
  free(p);
}

// --- decay ---

int64_t decay_ms() {
  int64_t ms = -1;
  EXPECT_EQ(hakmem_option_get("DECAY_MS", &ms), 0);
  return ms;
}

TEST(Decay, ARateIsATime) {
  EXPECT_EQ(MallocExtension_GetMemoryReleaseRate(), 1.0) << "a second, by default";
  struct {
    double rate;
    int64_t ms;
    double said;
  } rows[] = {{10, 100, 10}, {0.5, 2000, 0.5}, {4000, 0, 1000}, {1, 1000, 1}, {0, 3600000, 0}, {-1, 3600000, 0}, {1e-9, 3600000, 0}, {2, 500, 2}};
  for (auto &row : rows) {
    MallocExtension_SetMemoryReleaseRate(row.rate);
    EXPECT_EQ(decay_ms(), row.ms) << row.rate;
    EXPECT_EQ(MallocExtension_GetMemoryReleaseRate(), row.said) << row.rate;
  }
}

TEST(Decay, Decommit) {
  EXPECT_EQ(property("tcmalloc.aggressive_memory_decommit"), 0u);
  EXPECT_EQ(MallocExtension_SetNumericProperty("tcmalloc.aggressive_memory_decommit", 1), 1);
  EXPECT_EQ(property("tcmalloc.aggressive_memory_decommit"), 1u);
  EXPECT_EQ(decay_ms(), 0);
  EXPECT_EQ(MallocExtension_SetNumericProperty("tcmalloc.aggressive_memory_decommit", 0), 1);
  EXPECT_EQ(decay_ms(), 1000);
}

TEST(Decay, OfMallopt) {
  for (int parameter : {M_MXFAST, M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD, M_MMAP_MAX, M_CHECK_ACTION, M_PERTURB, M_ARENA_TEST, M_ARENA_MAX})
    EXPECT_EQ(mallopt(parameter, 1), 1) << parameter;
  EXPECT_EQ(mallopt(-99, 1), 0);
  EXPECT_EQ(mallopt(99, 1), 0);
  EXPECT_EQ(mallopt(M_MMAP_THRESHOLD, -1), 1);
  EXPECT_EQ(decay_ms(), 1000);
  EXPECT_EQ(tc_mallopt(M_TRIM_THRESHOLD, -1), 1);
  EXPECT_EQ(decay_ms(), 3600000);
}

// What the administrator sets stays.
TEST(Settings, OfTheEnvironmentStay) {
  ProgramResult r = run_program({SETTINGS}, {"HAKMEM_DECAY_MS=333", "HAKMEM_LIMIT=512M"});
  EXPECT_EQ(r.exit_code, 0) << r.err;
  EXPECT_EQ(r.out, "decommit 0 limit 0 decay 333 limit_mb 512\n");
}

TEST(Settings, WithoutOneTheProgramsHold) {
  ProgramResult r = run_program({SETTINGS}, {"HAKMEM_DECAY_MS=333"});
  EXPECT_EQ(r.exit_code, 0) << r.err;
  EXPECT_EQ(r.out, "decommit 0 limit 1 decay 333 limit_mb 256\n");
  r = run_program({SETTINGS});
  EXPECT_EQ(r.exit_code, 0) << r.err;
  EXPECT_EQ(r.out, "decommit 1 limit 1 decay 0 limit_mb 256\n");
}

// --- giving back ---

TEST(Release, SoManyBytes) {
  Blocks b;
  b.add(60000, 1500);
  b.drop();
  MallocExtension_MarkThreadIdle();
  size_t unmapped = property("tcmalloc.pageheap_unmapped_bytes"), there = resident();
  ASSERT_GT(property("tcmalloc.pageheap_free_bytes"), 40 * MIB);
  MallocExtension_ReleaseToSystem(0);
  EXPECT_EQ(property("tcmalloc.pageheap_unmapped_bytes"), unmapped);
  MallocExtension_ReleaseToSystem(16 * MIB - 1);
  size_t gone = property("tcmalloc.pageheap_unmapped_bytes") - unmapped;
  EXPECT_GE(gone, 16 * MIB);
  EXPECT_LE(gone, 20 * MIB) << "whole huge pages";
  EXPECT_NEAR(double(there) - double(resident()), double(gone), double(MIB));
  MallocExtension_ReleaseToSystem(SIZE_MAX);
  EXPECT_LT(property("tcmalloc.pageheap_free_bytes"), MIB);
}

TEST(Release, ThreadsCacheIsItsOwn) {
  Blocks b;
  b.fill(), b.drop();
  size_t cached = MallocExtension_GetThreadCacheSize();
  EXPECT_EQ(cached, stats().slab_cached);
  EXPECT_GE(cached, 10000u);
  size_t others = 4711;
  std::thread([&] { others = MallocExtension_GetThreadCacheSize(); }).join();
  EXPECT_EQ(others, 0u);
  MallocExtension_MarkThreadBusy();
  EXPECT_GE(MallocExtension_GetThreadCacheSize(), 10000u);
  MallocExtension_MarkThreadTemporarilyIdle();
  EXPECT_EQ(MallocExtension_GetThreadCacheSize(), 0u);
  b.fill(), b.drop();
  EXPECT_GE(MallocExtension_GetThreadCacheSize(), 10000u);
  MallocExtension_MarkThreadIdle();
  EXPECT_EQ(MallocExtension_GetThreadCacheSize(), 0u);
  EXPECT_EQ(stats().slab_cached, 0u);
}

// --- blocks ---

TEST(Block, Sizes) {
  for (size_t size : {0, 1, 16, 100, 1000, 1024, 5000, 32768, 100000, 300000, 5000000, 50000000}) {
    for (int i = 0; i < 200; i++) free(malloc(size)); // a thread's first blocks may be larger
    void *p = malloc(size);
    EXPECT_EQ(MallocExtension_GetAllocatedSize(p), malloc_usable_size(p)) << size;
    EXPECT_EQ(MallocExtension_GetEstimatedAllocatedSize(size), malloc_usable_size(p)) << size;
    EXPECT_EQ(tc_malloc_size(p), malloc_usable_size(p));
    free(p);
  }
  EXPECT_EQ(MallocExtension_GetAllocatedSize(nullptr), 0u);
  EXPECT_EQ(MallocExtension_GetEstimatedAllocatedSize(SIZE_MAX), 0u);
}

TEST(Block, SizesOfAlignedOnes) {
  for (size_t size : {0, 1, 100, 1000, 5000, 32768, 100000, 300000, 5000000, 50000000}) {
    EXPECT_EQ(tc_nallocx(size, 0), MallocExtension_GetEstimatedAllocatedSize(size));
    for (int log2 : {3, 5, 6, 8, 12, 16, 21}) {
      for (int i = 0; i < 200; i++) free(memalign(size_t(1) << log2, size));
      void *p = memalign(size_t(1) << log2, size);
      EXPECT_EQ(nallocx(size, log2), malloc_usable_size(p)) << size << " aligned to 2^" << log2;
      free(p);
    }
  }
  EXPECT_EQ(nallocx(SIZE_MAX, 12), 0u);
}

// Mappings of their own. A later one may have a freed one's, and its size.
TEST(Block, SizesOfWidelyAlignedOnes) {
  void *p = memalign(64 * MIB, 100), *q = memalign(64 * MIB, 40 * MIB + 1);
  EXPECT_EQ(nallocx(100, 26), malloc_usable_size(p));
  EXPECT_EQ(nallocx(40 * MIB + 1, 26), malloc_usable_size(q));
  free(p), free(q);
}

TEST(Block, Ownership) {
  int on_stack;
  static int in_data;
  for (size_t size : {0, 100, 100000, 1000000, 50000000}) {
    void *p = malloc(size);
    EXPECT_EQ(MallocExtension_GetOwnership(p), MallocExtension_kOwned);
    free(p);
  }
  EXPECT_EQ(MallocExtension_GetOwnership(&on_stack), MallocExtension_kNotOwned);
  EXPECT_EQ(MallocExtension_GetOwnership(&in_data), MallocExtension_kNotOwned);
  EXPECT_EQ(MallocExtension_GetOwnership(nullptr), MallocExtension_kNotOwned);
}

TEST(Block, Verify) {
  int on_stack;
  for (auto verify : {MallocExtension_VerifyMallocMemory, MallocExtension_VerifyNewMemory, MallocExtension_VerifyArrayNewMemory}) {
    for (size_t size : {0, 100, 100000, 1000000, 50000000}) {
      void *p = malloc(size);
      EXPECT_EQ(verify(p), 1) << size;
      free(p);
    }
    EXPECT_EQ(verify(nullptr), 1) << "as tcmalloc";
    EXPECT_EQ(verify(&on_stack), 0);
  }
  EXPECT_EQ(MallocExtension_VerifyAllMemory(), 1);
}

TEST(Block, Histogram) {
  struct {
    int blocks;
    size_t bytes;
    int of[64];
  } was, is;
  Blocks b;
  b.add(100, 300), b.drop(), b.bytes = 0;
  EXPECT_EQ(MallocExtension_MallocMemoryStats(&was.blocks, &was.bytes, was.of), 1);
  bool hardened = stats().guards != 0;
  b.add(100, 500), b.add(5000, 70), b.add(150000, 6), b.add(327000, 10), b.add(3 * MIB, 4), b.add(40 * MIB, 2), b.add(70 * MIB, 1);
  EXPECT_EQ(MallocExtension_MallocMemoryStats(&is.blocks, &is.bytes, is.of), 1);
  EXPECT_EQ(is.blocks - was.blocks, 593);
  if (!hardened) EXPECT_EQ(is.bytes - was.bytes, b.bytes);
  int sum = 0, wanted[64] = {};
  wanted[6] = 500, wanted[12] = 70, wanted[17] = 6, wanted[18] = 10, wanted[21] = 4, wanted[25] = 2, wanted[26] = 1;
  for (int i = 0; i < 64; i++) {
    EXPECT_EQ(is.of[i] - was.of[i], wanted[i]) << i;
    sum += is.of[i];
  }
  EXPECT_EQ(sum, is.blocks);
  hakmem_heap *heap = hakmem_heap_new(nullptr);
  for (int i = 0; i < 30; i++) EXPECT_NE(hakmem_heap_malloc(heap, 3000), nullptr);
  EXPECT_EQ(MallocExtension_MallocMemoryStats(&was.blocks, &was.bytes, was.of), 1);
  EXPECT_EQ(was.blocks - is.blocks, 30);
  EXPECT_EQ(was.of[11] - is.of[11], 30);
  hakmem_heap_destroy(heap);
  b.drop();
}

TEST(Block, StatsAreCutToFit) {
  std::vector<char> all(100000, 'x');
  MallocExtension_GetStats(all.data(), int(all.size()));
  std::string text = all.data();
  EXPECT_THAT(text, HasSubstr("hakmem"));
  EXPECT_THAT(text, HasSubstr("* for alignments above 64\n"));
  EXPECT_LT(text.size(), all.size() - 1);
  for (int length : {1, 2, 100}) {
    char buffer[104];
    memset(buffer, 'x', sizeof buffer);
    MallocExtension_GetStats(buffer, length);
    EXPECT_EQ(strlen(buffer), size_t(length) - 1);
    EXPECT_EQ(text.compare(0, 10, buffer, 0, 10), length > 10 ? 0 : text.compare(0, 10, buffer, 0, 10));
    for (size_t i = size_t(length); i < sizeof buffer; i++) EXPECT_EQ(buffer[i], 'x') << i;
  }
  char untouched = 'x';
  MallocExtension_GetStats(&untouched, 0);
  MallocExtension_GetStats(&untouched, -1);
  EXPECT_EQ(untouched, 'x');
}

}  // namespace
