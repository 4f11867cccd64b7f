// hakmem_thread_idle: what the thread caches goes back into slabs, and nothing else changes.
#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "fake_os.h"
#include "hak.h"
extern "C" {
#include "hakmem/stats.h"
}

namespace {

constexpr size_t MIB = 1 << 20;

hakmem_stats stats() {
  hakmem_stats s;
  EXPECT_EQ(hakmem_stats_get(&s, sizeof s), 0);
  return s;
}

// Leaves the calling thread with something cached of many classes.
void fill_cache() {
  hak_thread_cache();
  std::vector<void *> blocks;
  blocks.reserve(4000);
  for (size_t i = 0; i < 4000; i++) blocks.push_back(hakmem_malloc(16 + i % 2000));
  for (void *p : blocks) hakmem_free(p);
}

TEST(ThreadIdle, NothingStaysCached) {
  fill_cache();
  hakmem_stats before = stats();
  EXPECT_GT(before.slab_cached, 10000u);
  errno = 4711;
  hakmem_thread_idle();
  EXPECT_EQ(errno, 4711);
  hakmem_stats after = stats();
  EXPECT_EQ(after.slab_cached, 0u);
  EXPECT_LE(after.slab_depots, before.slab_depots) << "slabs have them, and so the pages";
  EXPECT_EQ(after.slab_live, before.slab_live);
  EXPECT_EQ(hakmem_heap_check(), 0u);
}

TEST(ThreadIdle, AgainDoesNothing) {
  fill_cache();
  hakmem_thread_idle();
  hakmem_stats before = stats();
  fake_os::reset();
  for (int i = 0; i < 100; i++) hakmem_thread_idle();
  hakmem_stats after = stats();
  EXPECT_EQ(after.slow_paths, before.slow_paths);
  EXPECT_EQ(after.span_frees, before.span_frees);
  EXPECT_EQ(fake_os::count(fake_os::MAP) + fake_os::count(fake_os::UNMAP), 0u);
}

TEST(ThreadIdle, TheThreadGoesOn) {
  for (int round = 0; round < 50; round++) {
    fill_cache();
    hakmem_thread_idle();
  }
  fill_cache();
  EXPECT_GT(stats().slab_cached, 10000u) << "it caches again";
  EXPECT_EQ(stats().caches_used, 1u) << "in the cache that it had";
  EXPECT_EQ(hakmem_heap_check(), 0u);
}

// Neither a cache nor the start of the allocator comes of it.
TEST(ThreadIdle, OfAThreadWithoutACache) {
  if (hak_started()) GTEST_SKIP() << "something has allocated";
  hakmem_thread_idle();
  EXPECT_FALSE(hak_started());
  hakmem_free(hakmem_malloc(1));
  uint64_t caches = stats().caches_used;
  std::thread([] { hakmem_thread_idle(); }).join();
  EXPECT_EQ(stats().caches_used, caches);
}

class Waiting : public testing::TestWithParam<bool> {};

// Whether it says that it waits or not.
TEST_P(Waiting, AnothersPurgeGetsAtTheMemory) {
  if (HAK_HARDENED) GTEST_SKIP() << "the quarantine holds blocks";
  hak_config.hot_ring[8] = 16384;  // C8 is 2 KiB: all that the thread frees stays with it
  std::mutex lock;
  std::condition_variable changed;
  int step = 0;
  auto wait_for = [&](int wanted) {
    std::unique_lock<std::mutex> held(lock);
    changed.wait(held, [&] { return step >= wanted; });
  };
  auto go_to = [&](int next) {
    std::lock_guard<std::mutex> held(lock);
    step = next;
    changed.notify_all();
  };
  std::thread worker([&] {
    hak_thread_cache();
    std::vector<void *> blocks;
    for (int i = 0; i < 10000; i++) blocks.push_back(hakmem_malloc(2000));
    for (void *p : blocks) hakmem_free(p);
    if (GetParam()) hakmem_thread_idle();
    go_to(1);
    wait_for(2);
  });
  wait_for(1);
  hakmem_stats cached = stats();
  EXPECT_GT(hakmem_purge(), 15 * MIB);
  hakmem_stats idle = stats();
  EXPECT_LT(idle.slab_cached, MIB);
  EXPECT_LE(idle.slabs, cached.slabs);
  go_to(2);
  worker.join();
}
INSTANTIATE_TEST_SUITE_P(Says, Waiting, testing::Bool());

// Threads that idle now and then, while others free what they have allocated.
TEST(ThreadIdle, AmidOthers) {
  static std::atomic<void *> handed[256];
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 4; t++)
    threads.emplace_back([t] {
      uint64_t seed = t + 1;
      for (int i = 0; i < 40000; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        auto *p = static_cast<unsigned char *>(hakmem_malloc(16 + (seed >> 40) % 3000));
        p[0] = 1;
        hakmem_free(handed[(seed >> 33) % 256].exchange(p));
        if ((seed >> 20) % 500 == 0) hakmem_thread_idle();
      }
      hakmem_thread_idle();
    });
  for (std::thread &t : threads) t.join();
  for (std::atomic<void *> &p : handed) hakmem_free(p.exchange(nullptr));
  hakmem_thread_idle();
  EXPECT_EQ(hakmem_heap_check(), 0u);
  EXPECT_EQ(stats().slab_cached, 0u);
  EXPECT_EQ(stats().slab_live, 0u);
}

}  // namespace
