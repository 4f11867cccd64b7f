/* Moments that a program on the preloaded library cannot choose: fork while another thread makes the very first allocation
 * or gives memory back, all pthread keys used up, and a thread whose cache has gone before its destructors begin. */
#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstring>
#include <thread>
#include <vector>

#include "fake_os.h"
#include "hak.h"

namespace {

std::vector<unsigned char *> many_blocks() {
  std::vector<unsigned char *> blocks;
  for (size_t i = 0; i < 1000; i++) {
    size_t size = 1 + i * 31 % 9000;
    auto *p = static_cast<unsigned char *>(hakmem_malloc(size));
    if (p == nullptr) return {};
    memset(p, static_cast<int>(i), size);
    blocks.push_back(p);
  }
  return blocks;
}

/* How many of them were not as many_blocks left them. */
size_t free_all(const std::vector<unsigned char *> &blocks) {
  size_t wrong = 0;
  for (size_t i = 0; i < blocks.size(); i++) {
    size_t last = i * 31 % 9000;
    wrong += blocks[i][0] != static_cast<unsigned char>(i) || blocks[i][last] != static_cast<unsigned char>(i);
    hakmem_free(blocks[i]);
  }
  return wrong;
}

bool allocator_works() {
  std::vector<unsigned char *> blocks = many_blocks();
  return !blocks.empty() && free_all(blocks) == 0 && hakmem_heap_check() == 0;
}

/* For forked children: here, in a new thread, and in a child of their own. A hang ends by alarm. */
[[noreturn]] void live_as_child(int depth) {
  alarm(20);
  if (!allocator_works()) _exit(10);
  bool thread_works = false;
  std::thread([&] { thread_works = allocator_works(); }).join();
  if (!thread_works) _exit(11);
  int status = 0;
  pid_t child = depth > 0 ? fork() : 0;
  if (depth > 0 && child == 0) live_as_child(depth - 1);
  if (depth > 0 && (waitpid(child, &status, 0) != child || status != 0)) _exit(12);
  _exit(0);
}

int status_of(pid_t child) {
  int status = -1;
  if (child < 0 || waitpid(child, &status, 0) != child) return -1;
  return status;
}

/* --- handlers registered before the allocator's own, which run while every lock is held --- */

bool handlers_are_busy;
pthread_t started_by_handler;
std::atomic<bool> thread_began{false}, thread_works{false};
std::atomic<size_t> faults_in_handlers{0};

void early_prepare() {
  if (handlers_are_busy) faults_in_handlers += hakmem_heap_check();
}
void early_parent() { early_prepare(); }
void early_child() {
  if (!handlers_are_busy) return;
  faults_in_handlers += hakmem_heap_check();
  pthread_create(
      &started_by_handler, nullptr,
      [](void *) -> void * {
        thread_began = true;
        thread_works = allocator_works();
        return nullptr;
      },
      nullptr);
  while (!thread_began) sched_yield();
  usleep(20000); /* so that it waits for a lock by the time they are given up */
}
void register_early() { pthread_atfork(early_prepare, early_parent, early_child); }
__attribute__((section(".preinit_array"), used)) void (*const before_constructors)() = register_early;

TEST(EarlyHandlers, MayWalkTheHeapAndStartThreads) {
  hak_os = &hak_os_linux;
  ASSERT_TRUE(allocator_works());
  handlers_are_busy = true;
  alarm(30);
  for (int i = 0; i < 5; i++) {
    std::thread other([] { EXPECT_TRUE(allocator_works()); });
    pid_t child = fork();
    if (child == 0) {
      handlers_are_busy = false;
      alarm(20);
      if (!allocator_works()) _exit(1);
      pthread_join(started_by_handler, nullptr);
      _exit(thread_works && faults_in_handlers == 0 ? 0 : 2);
    }
    other.join();
    ASSERT_EQ(status_of(child), 0);
    ASSERT_TRUE(allocator_works());
  }
  EXPECT_EQ(faults_in_handlers, 0u);
}

/* --- fork and the first allocation --- */

TEST(FirstAllocation, ForkWhileItReserves) {
  ASSERT_FALSE(hak_started());
  static std::atomic<bool> reserving{false}, forking{false};
  fake_os::on_call([](const fake_os::Event &e) {
    if (e.call != fake_os::MAP || reserving.exchange(true)) return;
    while (!forking) sched_yield();
    usleep(50000);          /* so that the other thread is inside fork by then */
    hak_os = &hak_os_linux; /* the fake's own mutex knows nothing of fork */
  });
  bool first_works = false;
  std::thread first([&] { first_works = allocator_works(); });
  while (!reserving) sched_yield();
  EXPECT_FALSE(hak_started());
  forking = true;
  pid_t child = fork();
  if (child == 0) live_as_child(1);
  EXPECT_EQ(status_of(child), 0);
  first.join();
  EXPECT_TRUE(first_works);
  EXPECT_TRUE(allocator_works());
}

/* In a fresh process each time: one thread begins its first allocation, the other forks after a growing wait. */
TEST(FirstAllocation, ForkAtAnyMomentOfIt) {
  ASSERT_FALSE(hak_started());
  for (unsigned wait = 0; wait < 100; wait++) {
    pid_t fresh = fork();
    if (fresh == 0) {
      alarm(20);
      hak_os = &hak_os_linux;
      static std::atomic<bool> begun{false};
      bool works = false;
      std::thread first([&] {
        begun = true;
        works = allocator_works();
      });
      while (!begun) sched_yield();
      for (volatile unsigned i = 0; i < wait * 400; i++) {
      }
      pid_t child = fork();
      if (child == 0) live_as_child(1);
      int status = status_of(child);
      first.join();
      _exit(works && status == 0 ? 0 : 1);
    }
    ASSERT_EQ(status_of(fresh), 0) << "wait " << wait;
  }
}

/* No address space at all: the allocator does not start. A second thread, because a lone one's fork locks nothing. */
TEST(FirstAllocation, ForkWhereItFails) {
  static std::atomic<bool> stop{false};
  std::thread second([] {
    while (!stop) sched_yield();
  });
  fake_os::fail_all(fake_os::MAP);
  EXPECT_EQ(hakmem_malloc(100), nullptr);
  pid_t child = fork();
  if (child == 0) _exit(hakmem_malloc(100) == nullptr && !hak_started() ? 0 : 1);
  EXPECT_EQ(status_of(child), 0);
  fake_os::allow_all();
  child = fork();
  if (child == 0) live_as_child(1);
  EXPECT_EQ(status_of(child), 0);
  stop = true;
  second.join();
  EXPECT_TRUE(allocator_works());
}

/* --- fork while another thread gives memory back --- */

constexpr size_t kRun = size_t{4} << 20;

std::vector<void *> sixteen_runs() {
  std::vector<void *> runs;
  for (int i = 0; i < 16; i++) {
    runs.push_back(hakmem_malloc(kRun));
    if (runs.back() != nullptr) memset(runs.back(), 1, kRun);
  }
  return runs;
}

TEST(Purge, ForkLosesNoSpans) {
  static std::atomic<bool> purging{false}, forked{false};
  fake_os::set_clock(1000000); /* else a slow machine purges before the trim does */
  for (void *p : sixteen_runs()) hakmem_free(p);
  hak_deferred d = {};
  hak_arena_shrink_all(&d);
  size_t accessible = hak_main_region.ready_spans, live = hak_span_pool.live_spans;
  fake_os::on_call([](const fake_os::Event &e) {
    if (e.call != fake_os::ADVISE || e.detail != MADV_DONTNEED || purging.exchange(true)) return;
    while (!forked) sched_yield();
  });
  std::thread purger([] { hakmem_malloc_trim(0); });
  while (!purging) sched_yield();
  EXPECT_GT(hak_span_pool.claimed_spans, 0u);
  pid_t child = fork();
  if (child == 0) {
    alarm(20);
    if (hak_span_pool.claimed_spans != 0 || hak_span_pool.live_spans != live) _exit(1);
    if (hakmem_heap_check() != 0) _exit(2);
    /* All of it again, without more address space; calloc, because what was being given back is not known to be zero. */
    for (int i = 0; i < 16; i++) {
      auto *p = static_cast<unsigned char *>(hakmem_calloc(1, kRun));
      for (size_t at = 0; at < kRun; at += 512) {
        if (p[at] != 0) _exit(3);
      }
    }
    if (hakmem_heap_check() != 0) _exit(4);
    _exit(hak_main_region.ready_spans == accessible ? 0 : 5);
  }
  forked = true;
  EXPECT_EQ(status_of(child), 0);
  purger.join();
  EXPECT_EQ(hak_span_pool.claimed_spans, 0u);
  EXPECT_TRUE(allocator_works());
}

/* As a signal handler may: both copies go on with the purge that it interrupted, and its spans are nobody else's until then. */
TEST(Purge, WhoForksInItsOwnGoesOn) {
  static std::atomic<bool> stop{false};
  static pid_t child = -1;
  std::thread second([] {
    while (!stop) sched_yield();
  });
  fake_os::set_clock(1000000);
  for (void *p : sixteen_runs()) hakmem_free(p);
  fake_os::on_call([](const fake_os::Event &e) {
    if (e.call != fake_os::ADVISE || e.detail != MADV_DONTNEED || child != -1) return;
    size_t claimed = hak_span_pool.claimed_spans;
    child = fork();
    if (child == 0 && (claimed == 0 || hak_span_pool.claimed_spans != claimed)) _exit(1);
  });
  hakmem_malloc_trim(0);
  bool whole = hak_span_pool.claimed_spans == 0 && hakmem_heap_check() == 0;
  if (child == 0) _exit(whole && allocator_works() ? 0 : 2);
  EXPECT_TRUE(whole);
  EXPECT_EQ(status_of(child), 0);
  stop = true;
  second.join();
}

/* Of slabs whose blocks stayed claimed none would ever be empty. */
TEST(Purge, ForkLosesNoBlocks) {
  static std::atomic<bool> purging{false}, forked{false};
  static std::vector<void *> survivors;
  EXPECT_TRUE(allocator_works());
  hakmem_malloc_trim(0);
  size_t before = hak_span_pool.live_spans;
  std::thread purger([] {
    std::vector<void *> blocks(20000);
    for (void *&p : blocks) memset(p = hakmem_malloc(1000), 1, 1000);
    for (size_t i = 0; i < blocks.size(); i++) {
      if (i % 32 == 0)
        survivors.push_back(blocks[i]);
      else
        hakmem_free(blocks[i]);
    }
    fake_os::on_call([](const fake_os::Event &e) {
      if (e.call != fake_os::ADVISE || e.detail != MADV_DONTNEED || hak_span_pool.purging_slab_pages == 0 || purging.exchange(true)) return;
      while (!forked) sched_yield();
    });
    hakmem_malloc_trim(0);
  });
  while (!purging) sched_yield();
  EXPECT_GT(hak_span_pool.purging_slab_pages, 0u);
  EXPECT_GT(hak_span_pool.live_spans, before + 200);
  pid_t child = fork();
  if (child == 0) {
    alarm(20);
    if (hak_span_pool.purging_slab_pages != 0 || hakmem_heap_check() != 0) _exit(1);
    for (void *p : survivors) {
      for (size_t at = 0; at < 1000; at++) {
        if (static_cast<char *>(p)[at] != 1) _exit(2);
      }
      hakmem_free(p);
    }
    hakmem_malloc_trim(0);
    if (hakmem_heap_check() != 0) _exit(3);
    _exit(hak_span_pool.live_spans <= before ? 0 : 4);
  }
  forked = true;
  EXPECT_EQ(status_of(child), 0);
  purger.join();
  EXPECT_EQ(hak_span_pool.purging_slab_pages, 0u);
  for (void *p : survivors) hakmem_free(p);
  hakmem_malloc_trim(0);
  EXPECT_LE(hak_span_pool.live_spans, before);
  EXPECT_TRUE(allocator_works());
}

/* --- thread ends --- */

uint64_t caches_made() {
  hak_tcache_sums sums;
  hak_tcache_sum(&sums);
  return sums.caches;
}

TEST(Keys, UsedUpBeforeTheFirstAllocation) {
  ASSERT_FALSE(hak_started());
  std::vector<pthread_key_t> keys;
  pthread_key_t key;
  while (pthread_key_create(&key, nullptr) == 0) keys.push_back(key);
  ASSERT_GT(keys.size(), size_t{PTHREAD_KEYS_MAX} / 2);
  size_t wrong = 0;
  std::vector<unsigned char *> left;
  uint64_t made = 0;
  for (int i = 0; i < 50; i++) {
    if (i == 1) made = caches_made();
    std::thread([&] {
      wrong += free_all(left); /* of a thread that has ended */
      left = many_blocks();
      wrong += left.empty();
    }).join();
  }
  wrong += free_all(left);
  EXPECT_EQ(wrong, 0u);
  EXPECT_EQ(caches_made(), made) << "the next thread takes the cache of one that has ended";
  EXPECT_EQ(hakmem_heap_check(), 0u);
  pid_t child = fork();
  if (child == 0) live_as_child(1);
  EXPECT_EQ(status_of(child), 0);
  for (pthread_key_t k : keys) pthread_key_delete(k);
}

pthread_key_t round_key;
std::atomic<unsigned> rounds{0}, wrong_rounds{0};
std::vector<unsigned char *> of_ended_cache[4];

/* Frees what the thread allocated while it had a cache, and allocates and frees without one. */
void each_round(void *value) {
  auto round = reinterpret_cast<uintptr_t>(value);
  wrong_rounds += hak_tls.cache != nullptr || free_all(of_ended_cache[round - 1]) != 0 || !allocator_works();
  rounds++;
  if (round < 4) pthread_setspecific(round_key, reinterpret_cast<void *>(round + 1));
}

TEST(Keys, FourRoundsOfDestructorsAfterTheCacheHasGone) {
  ASSERT_EQ(0, pthread_key_create(&round_key, each_round));
  uint64_t made = 0;
  for (int repeat = 0; repeat < 20; repeat++) {
    std::thread([] {
      for (auto &blocks : of_ended_cache) blocks = many_blocks();
      pthread_setspecific(round_key, reinterpret_cast<void *>(1));
      hak_thread_end();
    }).join();
    if (repeat == 0) made = caches_made();
  }
  EXPECT_EQ(rounds, 20u * 4);
  EXPECT_EQ(wrong_rounds, 0u);
  EXPECT_EQ(caches_made(), made);
  EXPECT_TRUE(allocator_works());
}

}  // namespace
