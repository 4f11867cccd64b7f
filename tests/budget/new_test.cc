// operator new at the limit, the target where all is in slabs, and the pressure callback, in a program that is linked with the library.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <new>
#include <thread>
#include <vector>

#include "hakmem/hakmem.h"

namespace {

constexpr size_t MIB = size_t{1} << 20;

TEST(New, ThrowsBadAllocAtTheLimitAndWorksAfterwards) {
  ASSERT_EQ(hakmem_option_set("HAKMEM_LIMIT", 48 * MIB), 0);
  std::vector<char *> blocks(1000, nullptr);
  size_t count = 0;
  bool thrown = false;
  try {
    for (; count < blocks.size(); count++) blocks[count] = new char[MIB];
  } catch (const std::bad_alloc &) {
    thrown = true;
  }
  EXPECT_TRUE(thrown);
  EXPECT_GE(count, 40u);
  EXPECT_LE(count, 48u);
  EXPECT_EQ(new (std::nothrow) char[MIB], nullptr);
  for (char *&b : blocks) delete[] b, b = nullptr;
  char *p = new char[40 * MIB];
  EXPECT_NE(p, nullptr);
  delete[] p;
  ASSERT_EQ(hakmem_option_set("HAKMEM_LIMIT", 0), 0);
  EXPECT_EQ(hakmem_heap_check(), 0u);
}

// Blocks of a few sizes come and go: the load beside the cache. A single-threaded one so that the cache needs no lock.
void churn(int milliseconds) {
  std::vector<char *> blocks(2000, nullptr);
  unsigned random = 1;
  for (int ms = 0; ms < milliseconds; ms += 5) {
    for (int i = 0; i < 20000; i++) {
      random = random * 1664525u + 1013904223u;
      char *&b = blocks[(random >> 8) % blocks.size()];
      delete[] b;
      b = new char[16 << (random >> 28) % 8];
      b[0] = 1;
    }
    usleep(5000);
  }
  for (char *b : blocks) delete[] b;
}

size_t resident() {
  char text[128] = "";
  int fd = open("/proc/self/statm", O_RDONLY);
  if (fd < 0 || read(fd, text, sizeof text - 1) <= 0) abort();
  close(fd);
  return strtoull(strchr(text, ' ') + 1, nullptr, 10) * size_t(sysconf(_SC_PAGESIZE));
}

// 48 MiB of blocks of each size, of which one in ten stays: slabs of which no other size can use what is free.
TEST(Target, IsHeldByPagesInsideSlabs) {
  constexpr size_t TARGET = 160 * MIB;
  ASSERT_EQ(hakmem_option_set("HAKMEM_RSS_TARGET", TARGET), 0);
  std::vector<char *> kept, blocks;
  blocks.reserve(64 << 10);
  kept.reserve(64 << 10);
  churn(600);  // until it has been looked at
  size_t peak = 0;
  unsigned random = 1;
  for (size_t size : {1000, 5000, 20000, 2500, 12000, 1400, 30000, 7000}) {
    for (size_t bytes = 0; bytes < 48 * MIB; bytes += size) {
      blocks.push_back(new char[size]);
      memset(blocks.back(), 1, size);
      if (bytes / MIB != (bytes + size) / MIB) peak = std::max(peak, resident());
    }
    for (size_t i = blocks.size(); i-- > 1;) {
      random = random * 1664525u + 1013904223u;
      std::swap(blocks[i], blocks[(random >> 8) % (i + 1)]);
    }
    for (size_t i = 0; i < blocks.size(); i++) {
      if (i % 10 == 0)
        kept.push_back(blocks[i]);
      else
        delete[] blocks[i];
    }
    blocks.clear();
  }
  /* What docs/tuning.md says may stay dirty, and what may be filled between two looks. Without pages given back inside of slabs
   * it is all 384 MiB. */
  EXPECT_LE(peak / MIB, (TARGET + TARGET / 16 + TARGET / 32) / MIB);
  for (char *p : kept) delete[] p;
  ASSERT_EQ(hakmem_option_set("HAKMEM_RSS_TARGET", 0), 0);
  EXPECT_EQ(hakmem_heap_check(), 0u);
}

struct Cache {
  std::atomic<int> calls{0};
  std::atomic<int> inside{0};
  std::atomic<bool> entered_twice{false};
  std::vector<char *> blocks;
};

// What a program's cache would do: frees all it holds. It may allocate, too.
void shed(size_t resident, size_t target, void *context) {
  auto *cache = static_cast<Cache *>(context);
  if (cache->inside++ != 0) cache->entered_twice = true;
  if (resident > target) cache->calls++;
  std::vector<int> own(1000, 1);
  for (char *b : cache->blocks) delete[] b;
  cache->blocks.clear();
  cache->inside--;
}

TEST(Callback, IsCalledWhenNothingElseHelpedAndMayFree) {
  Cache cache;
  ASSERT_EQ(hakmem_option_set("HAKMEM_RSS_TARGET", 64 * MIB), 0);
  for (int i = 0; i < 100; i++) {
    cache.blocks.push_back(new char[MIB]);
    memset(cache.blocks.back(), i, MIB);
  }
  hakmem_set_pressure_callback(shed, &cache); /* now: where filling takes some looks' time, it would be called in the midst of it */
  for (int i = 0; i < 100 && cache.calls == 0; i++) churn(100);
  EXPECT_EQ(cache.calls, 1);
  EXPECT_TRUE(cache.blocks.empty());
  churn(1500);
  EXPECT_EQ(cache.calls, 1) << "what it freed is gone, and it is left alone";
  EXPECT_FALSE(cache.entered_twice);
  hakmem_set_pressure_callback(nullptr, nullptr);
  EXPECT_EQ(hakmem_heap_check(), 0u);
}

void count_call(size_t, size_t, void *context) {
  auto *cache = static_cast<Cache *>(context);
  if (cache->inside++ != 0) cache->entered_twice = true;
  cache->calls++;
  usleep(2000);
  churn(5);
  cache->inside--;
}

// Four threads, of which any may be the one that calls; nothing is freed, so it is called in every epoch.
TEST(Callback, IsCalledByOneThreadAtATime) {
  Cache cache;
  hakmem_set_pressure_callback(count_call, &cache);
  ASSERT_EQ(hakmem_option_set("HAKMEM_RSS_TARGET", 1 * MIB), 0);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; i++)
    threads.emplace_back([&cache] {
      for (int round = 0; round < 100 && cache.calls < 3; round++) churn(100);
    });
  for (std::thread &t : threads) t.join();
  hakmem_set_pressure_callback(nullptr, nullptr);
  EXPECT_GE(cache.calls, 3);
  EXPECT_FALSE(cache.entered_twice);
  EXPECT_EQ(hakmem_heap_check(), 0u);
}

}  // namespace
