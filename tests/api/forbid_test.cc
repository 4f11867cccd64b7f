// hakmem_forbid: each allocation and free of a scope is reported, once, and served as ever.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "hak.h"

namespace {

#ifdef HAKMEM_TEST_HARDENED
const bool hardened = true;
size_t told_size(size_t size) { return (size + 15) / 8 * 8; } // with the trailer
#else
const bool hardened = false;
size_t told_size(size_t size) { return size; }
#endif

struct Told {
  size_t allocations = 0, frees = 0;
  std::string text;
};

template <class Work>
Told told_of(Work work) {
  testing::internal::CaptureStderr();
  bool before = hakmem_forbid(true);
  work();
  bool inside = hakmem_forbid(before);
  Told told;
  told.text = testing::internal::GetCapturedStderr();
  EXPECT_FALSE(before);
  EXPECT_TRUE(inside);
  for (size_t at = 0; (at = told.text.find("forbidden allocation of ", at)) != std::string::npos; at++) told.allocations++;
  for (size_t at = 0; (at = told.text.find("forbidden free of ", at)) != std::string::npos; at++) told.frees++;
  return told;
}

TEST(Forbid, EachCallIsReportedOnce) {
  hakmem_free(hakmem_malloc(100));
  for (size_t size : {1, 100, 3000, 30000, 200000, 700000, 90000000}) {
    void *p = nullptr;
    Told made = told_of([&] { p = hakmem_malloc(size); });
    EXPECT_EQ(made.allocations, 1u) << size << made.text;
    EXPECT_EQ(made.frees, 0u);
    EXPECT_NE(made.text.find(" of " + std::to_string(told_size(size)) + " bytes"), std::string::npos) << made.text;
    EXPECT_NE(made.text.find("#0 "), std::string::npos);
    ASSERT_NE(p, nullptr);
    memset(p, 1, size);
    Told freed = told_of([&] { hakmem_free(p); });
    EXPECT_EQ(freed.frees, 1u) << size << freed.text;
    EXPECT_EQ(freed.allocations, 0u);
    p = hakmem_malloc(size);
    Told moved = told_of([&] { p = hakmem_realloc(p, size * 3 + 16); });
    EXPECT_EQ(moved.allocations, 1u) << size << moved.text;
    hakmem_free(p);
  }
  EXPECT_EQ(told_of([] { hakmem_free(hakmem_calloc(3, 50)); }).allocations, 1u);
  EXPECT_EQ(told_of([] { hakmem_free(hakmem_aligned_alloc(256, 500)); }).allocations, 1u);
  Told empty = told_of([] { hakmem_free(hakmem_malloc(0)), hakmem_free(hakmem_calloc(0, 9)), hakmem_free(hakmem_aligned_alloc(64, 0)); });
  EXPECT_EQ(empty.allocations, 3u) << empty.text;
  EXPECT_EQ(empty.frees, 3u) << empty.text;
  EXPECT_EQ(told_of([] { hakmem_free(nullptr); }).frees, 0u);
  EXPECT_EQ(hak_heap_check(), 0u);
}

// They take longest: all that is kept is given back first.
TEST(Forbid, RequestsThatFailAreReportedToo) {
  void *p = &p;
  for (volatile size_t size : {size_t(1) << 47, size_t(PTRDIFF_MAX) - 100}) {
    EXPECT_EQ(told_of([&] { p = hakmem_malloc(size); }).allocations, 1u) << size;
    EXPECT_EQ(p, nullptr);
  }
}

TEST(Forbid, ProfilesKnowWhatIsAllocated) {
  hak_config.heap_profile_most = 0;
  hak_sampling_start();
  ASSERT_EQ(hakmem_profile_start(1), 0);
  std::vector<void *> blocks;
  blocks.reserve(5);
  Told told = told_of([&] {
    for (size_t size : {0, 100, 30000, 300000, 90000000}) blocks.push_back(hakmem_malloc(size));
  });
  EXPECT_EQ(told.allocations, 5u);
  EXPECT_EQ(hak_profile.live_samples, 5u);
  EXPECT_EQ(told_of([&] { for (void *p : blocks) hakmem_free(p); }).frees, 5u);
  EXPECT_EQ(hak_profile_occupied, 0u);
  ASSERT_EQ(hakmem_profile_start(64 << 10), 0);
  hakmem_free(hakmem_malloc(100));  // ends the countdown of before
  double before = hak_profile.total.bytes, variance = hak_profile.total.bytes_variance;
  told_of([] { for (int i = 0; i < 20000; i++) hakmem_free(hakmem_malloc(1000)); });
  EXPECT_NEAR(hak_profile.total.bytes - before, 20000.0 * double(told_size(1000)), 4.5 * std::sqrt(hak_profile.total.bytes_variance - variance) + 1);
  EXPECT_EQ(hak_heap_check(), 0u);
}

TEST(Forbid, OutsideNothingIsReported) {
  testing::internal::CaptureStderr();
  bool before = hakmem_forbid(true), again = hakmem_forbid(true);
  std::vector<std::thread> others;
  hakmem_forbid(false);
  EXPECT_FALSE(before);
  EXPECT_TRUE(again);
  EXPECT_FALSE(hakmem_forbid(false));
  for (int i = 0; i < 10000; i++) hakmem_free(hakmem_malloc(size_t(i)));
  std::string text = testing::internal::GetCapturedStderr();
  EXPECT_EQ(text, "");
}

// The cache is what it was: blocks come back in the order that they would have come in, and the countdown goes on.
TEST(Forbid, TheCacheIsPutAside) {
  void *a = hakmem_malloc(64), *b = hakmem_malloc(64);
  hakmem_free(a);
  hakmem_free(b);
  uint64_t asked = hakmem_thread_allocated();
  for (int i = 0; i < 1000; i++) {
    hakmem_forbid(true);
    hakmem_forbid(false);
  }
  EXPECT_EQ(hakmem_thread_allocated(), asked);
  void *c = hakmem_malloc(64), *d = hakmem_malloc(64);
  if (!hardened) EXPECT_TRUE(c == b && d == a);
  EXPECT_EQ(hakmem_thread_allocated(), asked + 2 * (told_size(64) + 15));
  uint64_t before = hakmem_thread_allocated();
  told_of([] { hakmem_free(hakmem_malloc(100)); });
  EXPECT_GE(hakmem_thread_allocated(), before + 115) << "what is asked for in the scope counts";
}

TEST(Forbid, AThreadMayEndInIt) {
  size_t caches = 0;
  for (int i = 0; i < 50; i++) {
    std::thread([] {
      for (int k = 0; k < 1000; k++) hakmem_free(hakmem_malloc(100));
      hakmem_forbid(true);
      hak_thread_end();
    }).join();
    hak_tcache_sums sums;
    hak_tcache_sum(&sums);
    if (i == 0) caches = sums.caches;
    EXPECT_EQ(sums.caches, caches) << "its cache serves the next one";
  }
  EXPECT_EQ(hak_heap_check(), 0u);
}

// Threads that have blocks of many sizes, go in and out of scopes, and end in them: beside a thief, who may take what a cache
// keeps (docs/locking.md), and who sums up and walks over all. ThreadSanitizer watches; without its barrier the thief takes nothing there.
struct Kept {
  unsigned char *p;
  size_t size;
  unsigned char fill;
};

void check(const Kept &k) {
  for (size_t i = 0; i < k.size; i += 61) ASSERT_EQ(k.p[i], k.fill);
}

void replace(Kept &k, std::minstd_rand &random) {
  check(k);
  hakmem_free(k.p);
  k.size = random() % (random() % 20 == 0 ? 60000 : 600) + 1;
  k.fill = static_cast<unsigned char>(random());
  k.p = static_cast<unsigned char *>(hakmem_malloc(k.size));
  ASSERT_NE(k.p, nullptr);
  memset(k.p, k.fill, k.size);
}

void go_in_and_out(unsigned seed, unsigned rounds) {
  std::minstd_rand random(seed);
  std::vector<Kept> kept(200, Kept{nullptr, 0, 0});
  for (unsigned round = 0; round < rounds; round++) {
    for (int i = 0; i < 200; i++) replace(kept[random() % kept.size()], random);
    hakmem_forbid(true);
    for (const Kept &k : kept) check(k);
    if (round % 20 == 0) replace(kept[round % 200], random);
    if (round % 4 == 0) std::this_thread::yield();
    if (round + 1 < rounds) hakmem_forbid(false);
  }
  for (Kept &k : kept) hakmem_free(k.p);
}

TEST(Forbid, BesideThievesAndWalks) {
  constexpr unsigned THREADS = 4, ROUNDS = HAKMEM_TEST_SANITIZED ? 40 : 400;
  std::atomic<bool> stop = false;
  testing::internal::CaptureStderr();
  std::thread thief([&] {
    for (unsigned i = 0; !stop; i++) {
      hak_deferred d = {};
      hak_tcache_reach(UINT64_MAX, true, &d);
      EXPECT_EQ(d.verdict, HAK_VERDICT_OK);
      if (i % 16 == 0) hakmem_purge();
    }
  });
  std::thread walker([&] {
    while (!stop) {
      hak_tcache_sums sums;
      hak_tcache_sum(&sums);
      EXPECT_EQ(hak_heap_check(), 0u);
    }
  });
  for (unsigned generation = 0; generation < 3; generation++) {
    std::vector<std::thread> threads;
    for (unsigned i = 0; i < THREADS; i++) threads.emplace_back(go_in_and_out, generation * THREADS + i + 1, ROUNDS);
    for (std::thread &t : threads) t.join();
  }
  stop = true;
  thief.join();
  walker.join();
  std::string text = testing::internal::GetCapturedStderr();
  EXPECT_NE(text.find("forbidden allocation of "), std::string::npos) << text;
  EXPECT_EQ(hak_heap_check(), 0u);
}

TEST(Forbid, AChildOfAForkGoesOn) {
  std::vector<void *> blocks;
  for (int i = 0; i < 100; i++) blocks.push_back(hakmem_malloc(64));
  for (void *p : blocks) hakmem_free(p);
  hakmem_forbid(true);
  pid_t child = fork();
  if (child == 0) {
    hakmem_forbid(false);
    std::vector<void *> mine;
    for (int i = 0; i < 100; i++) mine.push_back(hakmem_malloc(64));
    std::thread([] { hakmem_free(hakmem_malloc(64)); }).join();
    for (void *p : mine) hakmem_free(p);
    _exit(hak_heap_check() == 0 ? 0 : 1);
  }
  hakmem_forbid(false);
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(ForbidDeath, EndsTheProgramWhereTheOptionSaysSo) {
  ASSERT_EQ(hakmem_option_set("FORBID", 1), 0);
  EXPECT_EXIT(
      {
        hakmem_forbid(true);
        hakmem_free(hakmem_malloc(123));
      },
      testing::KilledBySignal(SIGABRT), "forbidden allocation of " + std::to_string(told_size(123)) + " bytes");
}

}  // namespace
