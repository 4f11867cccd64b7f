// Thread caches across threads: the life of a thread, blocks that one allocates and another frees, and what is left of it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "actor.h"
#include "fake_cpu.h"
#include "fake_os.h"
#include "hak.h"
#include "whole_steps.h"

using testing::IsEmpty;

namespace {

hak_arena_bin &arena_bin(uint32_t arena, size_t size) { return hak_arena_at(arena)->bins[hak_class_for(size)]; }
size_t in_depot(uint32_t arena, size_t size) {
  const hak_arena_bin &bin = arena_bin(arena, size);
  return bin.full_count * size_t(hak_magazine_usable[hak_class_for(size)]);
}
size_t live_bytes() { return hak_load_relaxed(&hak_span_pool.live_spans) * HAK_SPAN_SIZE; }
hak_tcache_sums sums() {
  hak_tcache_sums s;
  hak_tcache_sum(&s);
  return s;
}
void shrink_depots() {
  hak_deferred d = {};
  hak_arena_shrink_all(&d);
  EXPECT_EQ(d.verdict, HAK_VERDICT_OK);
}

class Threads : public testing::Test {
 protected:
  void SetUp() override {
    fake_os::reset();
    ASSERT_TRUE(hak_start());
    fake_cpu::install();
    hakmem_free(hakmem_malloc(1));  // the process's first thread has its cache at once
    for (uint32_t cpu : {0, 1, 2}) {
      fake_cpu::number = cpu;
      hak_arena_current();
    }
    fake_cpu::number = 0;
  }
  void TearDown() override {
    EXPECT_EQ(hak_heap_check(), 0u);
    EXPECT_THAT(fake_os::violations(), IsEmpty());
  }
  static void in_new_thread(const std::function<void()> &body) { std::thread(body).join(); }
};

// --- the life of a thread ---

TEST_F(Threads, FreshOnesAreIdleUntilTheFirstCall) {
  in_new_thread([] {
    for (void **top : hak_tls.top) EXPECT_EQ(top, HAK_NULL_TOP);
    hakmem_free(nullptr);
    EXPECT_EQ(hak_tls.calls, 0u) << "free(NULL) is no call";
    EXPECT_EQ(hak_tls.phase, unsigned(HAK_THREAD_FRESH));
    hak_thread_cache();
    EXPECT_EQ(hak_tls.phase, unsigned(HAK_THREAD_CACHED));
    hak_thread_end();
    EXPECT_EQ(hak_tls.phase, unsigned(HAK_THREAD_ENDED));
    EXPECT_EQ(hak_tls.cache, nullptr);
    for (void **top : hak_tls.top) EXPECT_EQ(top, HAK_NULL_TOP);
    void *p = hakmem_malloc(100);
    ASSERT_NE(p, nullptr) << "its arena serves it";
    EXPECT_EQ(hak_tls.cache, nullptr);
    hakmem_free(p);
    EXPECT_EQ(hak_thread_cache(), nullptr) << "and no cache is made any more";
  });
}

// A thread that allocates a little holds nothing.
TEST_F(Threads, YoungOnesAreServedByTheirArena) {
  in_new_thread([] {
    uint64_t used = sums().used;
    fake_cpu::number = 1;
    for (size_t size : {1, 24, 100, 700, 5000}) {
      std::vector<void *> blocks;
      for (int i = 0; i < 20; i++) {
        blocks.push_back(hakmem_malloc(size));
        EXPECT_EQ(HAK_TAG_OWNER(hak_region_span(hak_region_find(blocks[0]), blocks[0])->tag), 1u + 1);
      }
      for (void *p : blocks) hakmem_free(p);
      EXPECT_EQ(arena_bin(1, size).slabs.bump_slab->bumped, 0u) << "back at once";
    }
    EXPECT_EQ(hak_tls.cache, nullptr);
    EXPECT_EQ(sums().used, used);
    for (int i = 0; i < 100; i++) hakmem_free(hakmem_malloc(24));
    EXPECT_NE(hak_tls.cache, nullptr) << "grown up";
    EXPECT_EQ(sums().used, used + 1);
  });
}

TEST_F(Threads, ThoseThatEndLeaveNothingBehind) {
  uint64_t caches = 0, used = sums().used;
  unsigned long metadata = 0;
  size_t live = 0;
  for (int i = 0; i < 300; i++) {
    in_new_thread([] {
      hak_thread_cache();
      for (size_t size : {16, 100, 1000, 10000}) {
        std::vector<void *> blocks(300);
        for (void *&p : blocks) p = hakmem_malloc(size);
        for (void *p : blocks) hakmem_free(p);
      }
    });
    EXPECT_EQ(sums().used, used);
    if (i == 20) {
      caches = sums().caches;
      metadata = hak_meta_bytes();
      live = live_bytes();
    }
  }
  EXPECT_EQ(sums().caches, caches) << "the next one takes the cache of one that has ended";
  EXPECT_EQ(hak_meta_bytes(), metadata) << "magazines leak";
  EXPECT_EQ(live_bytes(), live) << "and what it had cached";
  shrink_depots();
  EXPECT_EQ(hak_depot_bytes, 0u);
}

TEST_F(Threads, WhatAnEndedOneHadCachedServesTheNextOnItsCpu) {
  Actor first(1), second(1);
  auto blocks = first.alloc(48, 100);
  void *kept = first.alloc(48, 1)[0];
  first.free(blocks);
  first.end();
  auto again = second.alloc(48, 100);
  std::sort(again.begin(), again.end());
  std::sort(blocks.begin(), blocks.end());
  size_t same = 0;
  for (void *p : again) same += std::binary_search(blocks.begin(), blocks.end(), p);
  EXPECT_GE(same, 63u);
  second.free(again);
  second.free({kept});
}

// --- blocks that another thread frees ---

TEST_F(Threads, AFreedBlockServesTheThreadThatFreedIt) {
  Actor owner(1), other(2);
  auto blocks = owner.alloc(64, 3);
  other.free(blocks);
  EXPECT_EQ(other.alloc(64, 3), std::vector<void *>(blocks.rbegin(), blocks.rend())) << "the last freed first";
  other.free(blocks);
}

// A producer gets its blocks back, whole magazines at a time.
TEST_F(Threads, SurplusGoesToTheDepotOfTheArenaThatOwnsIt) {
  constexpr size_t SIZE = 512;
  Actor producer(1), consumer(2);
  producer.free(producer.alloc(32768, 200));  // else a request finds the pool full, and empties caches and depots
  auto blocks = producer.alloc(SIZE, 3000);
  producer.flush();
  shrink_depots();
  ASSERT_FALSE(hak_pool_is_full());
  consumer.run([] { grow_capacity(SIZE); });
  consumer.flush();
  consumer.free(blocks);
  EXPECT_GT(in_depot(1, SIZE), 2000u);
  EXPECT_EQ(in_depot(2, SIZE), 0u);
  uint32_t slabs = arena_bin(1, SIZE).slabs.slabs;
  auto again = producer.alloc(SIZE, 2000);
  EXPECT_EQ(arena_bin(1, SIZE).slabs.slabs, slabs) << "no slab was made";
  producer.free(again);
}

TEST_F(Threads, FlushedBlocksFindTheirSlabs) {
  Actor a(0), b(1), c(2);
  std::vector<void *> all;
  for (Actor *x : {&a, &b, &c})
    for (void *p : x->alloc(100, 500)) all.push_back(p);
  for (size_t i = 0; i < all.size(); i++) (i % 3 == 0 ? a : i % 3 == 1 ? b : c).free(all, i, i + 1);
  for (Actor *x : {&a, &b, &c}) x->flush();
  shrink_depots();
  for (uint32_t i = 0; i < 3; i++) EXPECT_EQ(arena_bin(i, 100).slabs.slabs, 0u);
}

// Its memory comes back though it never wakes up.
TEST_F(Threads, OneThatSleepsPinsABoundedAmount) {
  constexpr size_t N = 40000;  // 40 MB
  Actor owner(1), other(2);
  auto blocks = owner.alloc(1024, N);
  size_t live = live_bytes();
  other.free(blocks);
  EXPECT_LE(hak_depot_bytes, 16 * HAK_MIB);
  other.run([] { hakmem_malloc_trim(0); });
  EXPECT_LT(live_bytes(), live / 16) << "the owner's cache, and what shares slabs with it";
}

TEST_F(Threads, DoubleFreesAcrossThreadsAreSeenAtFlush) {
  auto twice = [] {
    Actor a(1), b(2);
    auto blocks = a.alloc(64, 200);
    b.free(blocks);
    a.free(blocks);
    b.flush();
    a.flush();
    _exit(0);
  };
  EXPECT_EXIT(twice(), testing::KilledBySignal(SIGABRT), "double free");
}

TEST_F(Threads, AlignedBlocksAndExtentsTravelToo) {
  Actor owner(1), other(2);
  std::vector<void *> blocks;
  owner.run([&] {
    for (int i = 0; i < 500; i++) blocks.push_back(hakmem_aligned_alloc(4096, 5000));
    for (int i = 0; i < 10; i++) blocks.push_back(hakmem_malloc(100000));
  });
  size_t live = live_bytes();
  other.free(blocks);
  other.flush();
  shrink_depots();
  EXPECT_LT(live_bytes(), live / 4);
}

// --- memory that comes back ---

TEST_F(Threads, AfterASpikeMemoryComesBackWithLightWork) {
  uint64_t now = hak_os_now_ms();
  fake_os::set_clock(now);
  hak_decay_worth_spans = 0;
  {
    std::vector<std::unique_ptr<Actor>> actors;
    for (uint32_t cpu : {0, 1, 2, 1}) actors.push_back(std::make_unique<Actor>(cpu));
    for (size_t size : {48, 1000, 20000}) {
      for (auto &actor : actors) actor->free(actor->alloc(size, 30 * HAK_MIB / size));
    }
  }
  for (int i = 0; i < 400; i++) {
    fake_os::set_clock(now += 50);
    hakmem_free(hakmem_malloc(300000));
  }
  EXPECT_EQ(hak_depot_bytes, 0u);
  EXPECT_LE(live_bytes() + hak_load_relaxed(&hak_span_pool.dirty_spans) * HAK_SPAN_SIZE, 2 * HAK_MIB);
}

// One malloc after two decay times, by a thread that slept meanwhile: what depots hold is no younger than what is dirty. What it makes
// dirty goes by steps, of which each slow path does one.
TEST_F(Threads, AProducerThatWakesUpGivesBackWhatOthersFreed) {
  for (bool in_order : {true, false}) {
    uint64_t now = hak_os_now_ms();
    fake_os::set_clock(now);
    Actor producer(1);
    std::vector<void *> blocks = producer.alloc(700, 60 * HAK_MIB / 704);
    std::mt19937 random(1);
    if (!in_order) std::shuffle(blocks.begin(), blocks.end(), random);
    {
      Actor first(2), second(0);
      first.free(blocks, 0, blocks.size() / 2);
      second.free(blocks, blocks.size() / 2);
      EXPECT_GT(hak_depot_bytes, 8 * HAK_MIB);
      first.end();
      second.end();
    }
    fake_os::set_clock(now + 2000);
    producer.run([] {
      hakmem_free(hakmem_malloc(5000));
      hak_deferred d = {};
      whole_steps::finish();
      EXPECT_EQ(d.verdict, HAK_VERDICT_OK);
    });
    EXPECT_EQ(hak_depot_bytes, 0u);
    EXPECT_LE(live_bytes() + hak_load_relaxed(&hak_span_pool.dirty_spans) * HAK_SPAN_SIZE, 6 * HAK_MIB) << in_order;
  }
}

// --- fork ---

// Which ThreadSanitizer watches.
TEST_F(Threads, CountersAreReadWhileTheirOwnersCount) {
  constexpr uint64_t ROUNDS = 20000;
  hak_config.front_metrics = 1;
  unsigned c = hak_class_for(100);
  std::atomic<bool> done{false};
  std::thread owner([&] {
    for (uint64_t i = 0; i < ROUNDS; i++) {
      void *p = hakmem_malloc(100);
      hakmem_free(p);
    }
    done = true;
  });
  hak_cache_counts sum = {};
  for (uint64_t last = 0; !done; last = sum.hits) {
    sum = hak_tcache_sum_class(c).counts;
    EXPECT_GE(sum.hits, last);
  }
  owner.join();
  sum = hak_tcache_sum_class(c).counts;
  EXPECT_GE(sum.hits + sum.misses, 2 * ROUNDS);
}

TEST_F(Threads, AForksChildForgetsTheCachesOfTheOthers) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "ThreadSanitizer starts no thread in the child of a fork";
#endif
  hak_os = &hak_os_linux;  // the fake's own mutex knows nothing of fork
  Actor other(1);
  other.free(other.alloc(100, 500));
  uint64_t caches = sums().caches;
  pid_t child = fork();
  if (child == 0) {
    alarm(20);
    if (sums().used != 1 || hak_tcache_sum_class(hak_class_for(100)).published != 0 || hak_heap_check() != 0) _exit(1);
    bool works = false;
    std::thread([&works] {
      hak_thread_cache();
      std::vector<void *> blocks(1000);
      for (void *&p : blocks) memset(p = hakmem_malloc(100), 1, 100);
      for (void *p : blocks) hakmem_free(p);
      works = true;
    }).join();
    _exit(works && sums().caches == caches && hak_heap_check() == 0 ? 0 : 2);
  }
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

// --- many ---

TEST_F(Threads, EverythingComesBack) {
  constexpr int THREADS = 4, ROUNDS = 200, BATCH = 200;
  static std::atomic<void *> mailboxes[THREADS][BATCH];
  std::vector<std::thread> threads;
  for (int t = 0; t < THREADS; t++) {
    threads.emplace_back([t] {
      for (int round = 0; round < ROUNDS; round++) {
        fake_cpu::number = uint32_t(round / 10 + t) % 5;
        for (int i = 0; i < BATCH; i++) {
          size_t size = size_t(16 + (i * 37 + round) % 2000);
          auto *p = static_cast<unsigned char *>(hakmem_malloc(size));
          p[0] = static_cast<unsigned char>(t);
          p[size - 1] = static_cast<unsigned char>(t);
          // Into the neighbour's box; what was in there is ours to free.
          hakmem_free(mailboxes[(t + 1) % THREADS][i].exchange(p));
        }
      }
    });
  }
  for (auto &t : threads) t.join();
  for (auto &box : mailboxes)
    for (auto &p : box) hakmem_free(p);
  hak_deferred d = {};
  hak_tcache_flush(hak_tls.cache, &d);
  shrink_depots();
  EXPECT_EQ(live_bytes(), 0u);
}

}  // namespace
