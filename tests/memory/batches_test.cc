// Many pieces go back at one system call where that is asked for: how many calls it takes.
#include <gtest/gtest.h>
#include <malloc.h>

#include <atomic>
#include <thread>

#include "hakmem/stats.h"
#include "loads.h"

namespace {

hakmem_stats stats() {
  hakmem_stats s;
  auto get = reinterpret_cast<int (*)(hakmem_stats *, size_t)>(dlsym(RTLD_DEFAULT, "hakmem_stats_get"));
  if (get(&s, sizeof s) != 0) abort();
  return s;
}

// Whether the kernel does it: 64 free runs amid others that are in use go at fewer calls.
bool is_done_here() {
  std::vector<void *> runs(128);
  for (void *&p : runs) memset(p = malloc(300 * KIB), 1, 300 * KIB);
  for (size_t i = 0; i < runs.size(); i += 2) free(runs[i]);
  uint64_t before = stats().madvise;
  malloc_trim(0);
  uint64_t calls = stats().madvise - before;
  for (size_t i = 1; i < runs.size(); i += 2) free(runs[i]);
  return calls < 32;
}

TEST(Batches, OfHolesInSlabs) {
  if (!is_done_here()) GTEST_SKIP() << "not on this kernel, or under a filter";
  Blocks blocks(64 * MIB, 1000, 1024);
  blocks.free_to(blocks.count() / 32);
  hakmem_stats before = stats();
  size_t resident_before = resident();
  purge();
  hakmem_stats after = stats();
  EXPECT_LT(resident(), resident_before - 16 * MIB);
  EXPECT_GT(after.purges - before.purges, 1000u);
  EXPECT_LT((after.madvise - before.madvise) * 16, after.purges - before.purges);
  EXPECT_TRUE(blocks.whole());
  EXPECT_EQ(heap_faults(), 0u);
}

// What others take, write and free meanwhile stays theirs.
TEST(Batches, WhileOtherThreadsAllocate) {
  std::atomic<bool> over = false;
  auto churn = [&](unsigned seed) {
    bool whole = true;
    while (!over) {
      Blocks blocks(4 * MIB, 16, 40 * KIB, seed++);
      blocks.free_to(blocks.count() / 16);
      whole &= blocks.whole();
    }
    EXPECT_TRUE(whole);
  };
  std::thread first(churn, 1), second(churn, 1001);
  for (int i = 0; i < 300; i++) {
    purge();
    rest(1);
  }
  over = true;
  first.join();
  second.join();
  EXPECT_EQ(heap_faults(), 0u);
}

}  // namespace
