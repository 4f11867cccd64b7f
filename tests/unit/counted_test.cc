// Counted allocation: every allocation is counted once whatever the program frees and however its cache is used, and what is drawn is
// as likely as it says.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <random>
#include <thread>
#include <vector>

#include "hak.h"

namespace {

TEST(Draw, LogarithmAndExponential) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 100000; i++) {
    double x = std::ldexp(double(random() | 1), int(random() % 200) - 150);
    EXPECT_NEAR(hak_ln(x), std::log(x), 1e-14 * (1 + std::fabs(std::log(x)))) << x;
    double y = std::ldexp(double(random() >> 11), int(random() % 40) - 80);
    EXPECT_NEAR(hak_one_minus_exp(y), -std::expm1(-y), 1e-14 * y) << y;
  }
  EXPECT_EQ(hak_one_minus_exp(0), 0);
  EXPECT_EQ(hak_one_minus_exp(1e300), 1);
  EXPECT_EQ(hak_ln(1), 0);
}

TEST(Draw, TrialsAreGeometric) {
  std::mt19937_64 random(2);
  for (double mean : {0.01, 0.5, 1.0, 10.0, 5000.0}) {
    double p = -std::expm1(-1 / mean), sum = 0, first = 0;
    const int n = 200000;
    for (int i = 0; i < n; i++) {
      uint64_t trials = hak_draw_trials(mean, random());
      ASSERT_GE(trials, 1u);
      sum += double(trials);
      first += trials == 1;
    }
    EXPECT_NEAR(sum / n, 1 / p, 5 * std::sqrt(1 - p) / p / std::sqrt(n)) << mean;
    EXPECT_NEAR(first / n, p, 5 * std::sqrt(p * (1 - p) / n) + 1e-9) << mean;
  }
  EXPECT_EQ(hak_draw_trials(0, 1), 1u);
  EXPECT_EQ(hak_draw_trials(1e300, 1), uint64_t(1) << 62) << "never, and no overflow";
}

// A thread whose next countdown is drawn from the seed.
void begin_at(uint64_t seed) {
  hak_count_seeds = seed;
  hak_tls.count.random = 0;
  hak_tls.countdown = 0;
}

void start(size_t distance, int64_t guard = 0, int64_t a_second = 0) {
  hak_config.heap_profile = distance != 0;
  hak_config.heap_profile_rate = int64_t(distance);
  hak_config.heap_profile_most = a_second;
  hak_config.guard_sample = guard;
  if (distance != 0) ASSERT_TRUE(hak_start());
  hak_sampling_start();
  ASSERT_NE(hak_thread_cache(), nullptr);
  begin_at(88172645463325252u);
}

void expect_estimate(double bytes, double count) {
  const hak_profile_sums &total = hak_profile.total;
  EXPECT_NEAR(total.bytes, bytes, 4.5 * std::sqrt(total.bytes_variance) + 1);
  EXPECT_NEAR(total.count, count, 4.5 * std::sqrt(total.count_variance) + 1);
  EXPECT_EQ(hak_profile.dropped, 0u);
}

void expect_nothing_live() {
  EXPECT_EQ(hak_profile.live_samples, 0u);
  EXPECT_EQ(hak_profile.live.bytes, 0);
  EXPECT_EQ(hak_heap_check(), 0u);
}

// What is freed at once comes back without a slow path.
TEST(Counted, BlocksFreedAtOnceAreCountedToo) {
  start(64 * HAK_KIB);
  for (int i = 0; i < 1000000; i++) hakmem_free(hakmem_malloc(100));
  expect_estimate(1e8, 1e6);
  EXPECT_GT(hak_profile.taken, 1200u);
  expect_nothing_live();
}

TEST(Counted, WithOneByteBetweenSamplesEachBlockIsOne) {
  start(1);
  std::vector<void *> blocks;
  for (size_t i = 0; i < 3000; i++) blocks.push_back(hakmem_malloc(4 + i % 3000 * 100));
  EXPECT_EQ(hak_profile.taken, 3000u);
  EXPECT_EQ(hak_profile.live_samples, 3000u);
  for (void *p : blocks) hakmem_free(p);
  expect_nothing_live();
  EXPECT_NEAR(hak_profile.total.count, 3000, 0.01);
}

class Mode : public testing::TestWithParam<const char *> {};

// Sizes, orders and entry points as they come, and caches emptied in between.
TEST_P(Mode, AnyOrderIsCounted) {
  std::string mode = GetParam();
  if (mode == "front metrics") hak_config.front_metrics = 1;
  if (mode == "no caches") hak_config.hot_ring_enable = 0;
  start(32 * HAK_KIB, mode == "guards" ? 50 : 0);
  std::mt19937 random(3);
  std::vector<void *> live;
  double bytes = 0, count = 0;
  for (int i = 0; i < 400000; i++) {
    if (!live.empty() && random() % 2 == 0) {
      std::swap(live[random() % live.size()], live.back());
      hakmem_free(live.back());
      live.pop_back();
      continue;
    }
    size_t size = size_t(std::exp(random() % 1000 / 1000.0 * 9)) + 1;
    void *p = random() % 8 == 0   ? hakmem_aligned_alloc(64, size)
              : random() % 7 == 0 ? hakmem_calloc(1, size)
                                  : hakmem_malloc(size);
    ASSERT_NE(p, nullptr);
    ASSERT_GE(hakmem_malloc_usable_size(p), size);
    live.push_back(p);
    bytes += double(size);
    count++;
    hak_deferred d = {};
    if (random() % 5000 == 0) hak_tcache_flush(hak_tls.cache, &d);
    if (random() % 5000 == 0) hak_tcache_decay(hak_tls.cache, false, &d);
  }
  expect_estimate(bytes, count);
  for (void *p : live) hakmem_free(p);
  expect_nothing_live();
}
INSTANTIATE_TEST_SUITE_P(Counted, Mode, testing::Values("plain", "guards", "front metrics", "no caches"));

TEST(Counted, LargeBlocksAndTheirResizing) {
  start(HAK_MIB);
  double bytes = 0, count = 0;
  for (int i = 0; i < 2000; i++) {
    size_t size = (size_t(i) % 40 + 1) * 200 * HAK_KIB;
    void *p = hakmem_malloc(size);
    bytes += double(size);
    count++;
    for (int k = 0; k < 3; k++) {
      size += 500 * HAK_KIB;
      p = hakmem_realloc(p, size);
      ASSERT_NE(p, nullptr);
      bytes += double(size);
      count++;
    }
    hakmem_free(p);
  }
  expect_estimate(bytes, count);
  expect_nothing_live();
}

TEST(Counted, ThreadsComeAndGo) {
  start(4 * HAK_KIB);
  for (int round = 0; round < 20; round++) {
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; i++)
      threads.emplace_back([] {
        std::vector<void *> blocks;
        for (size_t k = 0; k < 5000; k++) blocks.push_back(hakmem_malloc(16 + k % 500));
        for (void *p : blocks) hakmem_free(p);
      });
    for (auto &t : threads) t.join();
  }
  EXPECT_NEAR(hak_profile.total.count, 20 * 4 * 5000, 4.5 * std::sqrt(hak_profile.total.count_variance) + 100 /* of the library */);
  EXPECT_EQ(hak_heap_check(), 0u);
}

// Beyond the bound the distance grows; each sample stands for more, and the sums stay right.
TEST(Counted, ABoundOnSamplesKeepsEstimatesRight) {
  start(256, 0, 1000);
  for (int i = 0; i < 3000000; i++) hakmem_free(hakmem_malloc(200));
  EXPECT_LT(hak_profile.taken, 200000u) << "of 3,000,000 x 200 / 256";
  expect_estimate(6e8, 3e6);
}

// 100 seeds for each site: the mean error is small, and 95 % intervals hold the truth in about 95 % of the cases.
TEST(Accuracy, EstimatesAreUnbiasedAndIntervalsCover) {
  struct Site {
    size_t size, distance;
  };
  const Site sites[] = {{8, 512},          {100, 4096},          {1000, 16384},        {5000, 65536},      {30000, 262144},
                        {100000, 524288},  {200000, 524288},     {HAK_MIB, 524288},    {HAK_MIB, HAK_MIB},  {4 * HAK_MIB, 8 * HAK_MIB},
                        {64 * HAK_MIB, 32 * HAK_MIB}, {64 * HAK_MIB, 64 * HAK_MIB}};
  start(HAK_MIB);
  double covered = 0, error_sum = 0, cases = 0;
  for (const Site &site : sites) {
    hak_counting_rates rates = {};
    rates.profile_bytes = double(site.distance);
    hak_counting_start(&rates);
    double site_error = 0;
    int n = std::max(400, int(400 * site.distance / site.size));
    for (uint64_t seed = 1; seed <= 100; seed++) {
      begin_at(hak_draw_scrambled(seed) + site.size);
      hak_profile_sums before = hak_profile.total;
      for (int i = 0; i < n; i++) hakmem_free(hakmem_malloc(site.size));
      double truth = double(n) * double(site.size), estimate = hak_profile.total.bytes - before.bytes;
      double deviation = std::sqrt(hak_profile.total.bytes_variance - before.bytes_variance);
      site_error += (estimate - truth) / truth / 100;
      covered += std::fabs(estimate - truth) <= 1.96 * deviation;
      cases++;
    }
    EXPECT_NEAR(site_error, 0, 0.02) << site.size << " bytes: 4 standard errors";
    error_sum += site_error;
  }
  RecordProperty("mean_error", std::to_string(error_sum / std::size(sites)));
  printf("mean error %.3f %%, 95 %% intervals cover %.1f %%\n", 100 * error_sum / double(std::size(sites)), 100 * covered / cases);
  EXPECT_NEAR(error_sum / double(std::size(sites)), 0, 0.005);
  EXPECT_GE(covered / cases, 0.93);
  EXPECT_LE(covered / cases, 0.97);
}

const hak_profile_stack *only_stack() {
  size_t place = 0;
  const hak_profile_stack *found = nullptr, *s;
  while ((s = hak_profile_next(&place)) != nullptr)
    if (s->live.count > 0) found = s;
  return found;
}

void settle() {
  hak_lock_take(&hak_profile_lock);
  hak_profile_settle(hak_os_now_ms());
  hak_lock_drop(&hak_profile_lock);
}

// Of 32 blocks of 128 bytes on a page one survives: it pins the other 31.
TEST(Profile, ASurvivorPinsItsPage) {
  start(16 * HAK_KIB);
  std::vector<void *> blocks;
  for (int i = 0; i < 320000; i++) blocks.push_back(hakmem_malloc(128));
  for (size_t i = 0; i < blocks.size(); i++)
    if (i % 32 != 0) hakmem_free(blocks[i]);
  hak_deferred d = {};
  hak_tcache_flush(hak_tls.cache, &d);
  hak_arena_shrink_all(&d);
  settle();
  const hak_profile_stack *s = only_stack();
  ASSERT_NE(s, nullptr);
  EXPECT_EQ(hak_profile.dropped, 0u);
  EXPECT_NEAR(s->live.count, 10000, 5 * std::sqrt(s->live.count_variance));
  double each = s->pinned_bytes / s->live.count;
  EXPECT_GT(each, 20 * 128) << "the pages of companions are as sparse as the others";
  EXPECT_LT(each, 34 * 128) << "a block across the border of two pages pins both";
}

TEST(Profile, ThePeakAndLifetimesAreKept) {
  start(1);
  std::vector<void *> blocks;
  for (int i = 0; i < 100; i++) blocks.push_back(hakmem_malloc(1000));
  for (int i = 0; i < 60; i++) hakmem_free(blocks[i]);
  for (int i = 0; i < 10; i++) hakmem_malloc(100);
  settle();
  EXPECT_NEAR(hak_profile.peak_bytes, 100000, 1);
  EXPECT_NEAR(hak_profile.live.bytes, 41000, 1);
  double peak = 0, freed = 0;
  size_t place = 0;
  const hak_profile_stack *s;
  while ((s = hak_profile_next(&place)) != nullptr) {
    peak += s->peak_bytes;
    for (double n : s->freed) freed += n;
  }
  EXPECT_NEAR(peak, 100000, 1);
  EXPECT_NEAR(freed, 60, 0.01);
}

// Its memory is bounded: what has no room is no sample, and is counted.
TEST(Profile, WhatHasNoRoomIsCounted) {
  start(1);
  for (int i = 0; i < 100000; i++) hakmem_malloc(16);
  EXPECT_GT(hak_profile.dropped, 0u);
  EXPECT_EQ(hak_profile.dropped + hak_profile.taken, 100000u);
  EXPECT_LE(hak_profile.own_bytes, HAK_MIB + 100000 * 16);
}

TEST(Profile, FreedTwiceIsReported) {
  start(1);
  void *p = hakmem_malloc(100);
  void *other = hakmem_malloc(100);
  hakmem_free(p);
  EXPECT_DEATH(hakmem_free(p), "double free");
  EXPECT_DEATH(hakmem_free(static_cast<char *>(other) + 16), "no block starts|invalid");
}

}  // namespace
