// Statistics in glibc's forms: what is mapped for one block is apart from the arena, and the arena is what it has in use and free.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <climits>
#include <cstdio>
#include <thread>
#include <utility>
#include <vector>

#include "hak.h"
extern "C" {
#include "report/figures.h"
}

namespace {

constexpr size_t MIB = 1 << 20;

struct mallinfo int_form() {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
  return hakmem_mallinfo();
#pragma GCC diagnostic pop
}

hakmem_stats snapshot() {
  hak_figures f = {};
  hak_figures_take(&f);
  return f.stats;
}

void expect_invariants(const struct mallinfo2 &m) {
  EXPECT_EQ(m.uordblks + m.fordblks, m.arena);
  EXPECT_LE(m.keepcost, m.fordblks);
  EXPECT_EQ(m.hblks == 0, m.hblkhd == 0);
  EXPECT_EQ(m.smblks + m.usmblks + m.fsmblks, 0u);
}

TEST(Mallinfo, IsOfTheSnapshot) {
  std::vector<void *> blocks;
  for (int i = 0; i < 5000; i++) blocks.push_back(hakmem_malloc(300));
  void *extent = hakmem_malloc(MIB), *huge = hakmem_malloc(50 * MIB);
  for (size_t i = 0; i < 5000; i += 3) hakmem_free(blocks[i]);
  hakmem_stats s = snapshot();
  struct mallinfo2 m = hakmem_mallinfo2();
  EXPECT_EQ(m.uordblks, s.slab_handed_out - s.slab_depots + s.extents + s.sampled_live) << "what threads cache is theirs";
  EXPECT_EQ(m.fordblks, s.slab_depots + s.slab_free + s.slab_never_allocated + s.free_dirty + s.claimed + s.extents_cached + s.huge_kept);
  EXPECT_EQ(m.hblkhd, s.huge_live);
  EXPECT_EQ(m.hblks, s.huge_count);
  expect_invariants(m);
  hakmem_free(extent);
  hakmem_free(huge);
  for (size_t i = 0; i < 5000; i++) {
    if (i % 3 != 0) hakmem_free(blocks[i]);
  }
}

TEST(Mallinfo, MappedBlocksAreInNoOtherField) {
  hakmem_free(hakmem_malloc(1));
  struct mallinfo2 before = hakmem_mallinfo2();
  std::vector<void *> blocks;
  size_t bytes = 0;
  for (size_t mib : {70, 123, 200}) {
    blocks.push_back(hakmem_malloc(mib * MIB));
    bytes += mib * MIB;
    struct mallinfo2 m = hakmem_mallinfo2();
    EXPECT_EQ(m.hblks - before.hblks, blocks.size());
    EXPECT_GE(m.hblkhd - before.hblkhd, bytes);
    EXPECT_LE(m.hblkhd - before.hblkhd, bytes + MIB);
    EXPECT_EQ(m.uordblks, before.uordblks);
    EXPECT_LE(m.arena, before.arena + MIB);
    expect_invariants(m);
  }
  for (void *p : blocks) hakmem_free(p);
  struct mallinfo2 end = hakmem_mallinfo2();
  EXPECT_EQ(end.hblkhd, before.hblkhd);
  EXPECT_EQ(end.uordblks, before.uordblks);
}

TEST(Mallinfo, WhatIsFreedMovesFromOneToTheOther) {
  hakmem_free(hakmem_malloc(2000));
  std::vector<void *> blocks;
  for (int i = 0; i < 4000; i++) blocks.push_back(hakmem_malloc(2000));
  struct mallinfo2 with = hakmem_mallinfo2();
  for (int i = 0; i < 4000; i += 2) hakmem_free(blocks[size_t(i)]);
  hakmem_thread_idle();
  struct mallinfo2 half = hakmem_mallinfo2();
  EXPECT_GE(with.uordblks - half.uordblks, 2000 * 2000u);
  EXPECT_GE(half.fordblks - with.fordblks, 2000 * 2000u);
  EXPECT_GE(half.ordblks - with.ordblks, 2000u) << "each is a free block";
  expect_invariants(with);
  expect_invariants(half);
  for (int i = 1; i < 4000; i += 2) hakmem_free(blocks[size_t(i)]);
}

TEST(Mallinfo, InvariantsHoldUnderLoad) {
  std::atomic<bool> stop{false};
  std::atomic<size_t> steps{0};
  std::vector<std::thread> threads;
  for (unsigned seed = 1; seed <= 3; seed++)
    threads.emplace_back([&, seed] {
      uint64_t state = seed;
      std::vector<std::pair<void *, size_t>> blocks(300);
      while (!stop) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        auto &[p, size] = blocks[state >> 33 & 255];
        hakmem_free(p);
        unsigned kind = unsigned(state >> 50 & 255);
        size = kind == 0 ? 40 * MIB : kind < 8 ? 500000 : 1 + (state >> 42 & 4095);
        p = hakmem_malloc(size);
        steps++;
      }
      for (auto &[p, size] : blocks) hakmem_free(p);
    });
  for (int i = 0; i < 100 || steps < 20000; i++) {
    struct mallinfo2 m = hakmem_mallinfo2();
    EXPECT_EQ(m.uordblks + m.fordblks, m.arena);
    EXPECT_LE(m.keepcost, m.fordblks);
    struct mallinfo old = int_form();
    EXPECT_GE(old.arena, 0);
    EXPECT_GE(old.hblkhd, 0);
    EXPECT_LE(m.uordblks, 600 * MIB) << "3 threads, 256 blocks each, most of 4 KiB: what is mapped would be more";
  }
  stop = true;
  for (std::thread &t : threads) t.join();
  expect_invariants(hakmem_mallinfo2());
}

TEST(Mallinfo, SaturatesInTheOldForm) {
  std::vector<void *> blocks;
  for (int i = 0; i < 3; i++) blocks.push_back(hakmem_malloc(1000 * MIB));
  struct mallinfo2 m = hakmem_mallinfo2();
  struct mallinfo old = int_form();
  EXPECT_GT(m.hblkhd, size_t(INT_MAX));
  EXPECT_EQ(old.hblkhd, INT_MAX);
  EXPECT_EQ(old.hblks, int(m.hblks));
  EXPECT_EQ(size_t(old.uordblks), m.uordblks) << "which has none of them";
  EXPECT_EQ(size_t(old.arena), m.arena);
  for (void *p : blocks) hakmem_free(p);
}

TEST(MallocInfo, MappedIsApart) {
  void *huge = hakmem_malloc(90 * MIB);
  char *text = nullptr;
  size_t length = 0;
  FILE *f = open_memstream(&text, &length);
  ASSERT_EQ(hakmem_malloc_info(0, f), 0);
  fclose(f);
  size_t live = 0, count = 0, rest = 0, mapped_count = 0, mapped = 0, accessible = 0;
  ASSERT_EQ(sscanf(text, "<malloc version=\"%*[^\"]\">\n<heap nr=\"0\">\n<total type=\"live\" size=\"%zu\"/>\n"
                   "<total type=\"rest\" count=\"%zu\" size=\"%zu\"/>\n<total type=\"mmap\" count=\"%zu\" size=\"%zu\"/>\n"
                   "<system type=\"current\" size=\"%zu\"/>", &live, &count, &rest, &mapped_count, &mapped, &accessible), 6) << text;
  free(text);
  EXPECT_GE(mapped, 90 * MIB);
  EXPECT_LT(live, 50 * MIB);
  EXPECT_GE(accessible, live + rest + mapped);
  hakmem_free(huge);
}

}  // namespace
