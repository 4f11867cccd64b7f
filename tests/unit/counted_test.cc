// Counted allocation: every allocation is counted once whatever the program frees and however its cache is used, and what is drawn is
// as likely as it says.
#include <gtest/gtest.h>

#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
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

// Of a thread whose blocks of the size come and go.
int64_t longest_countdown(size_t size) {
  int64_t longest = 0;
  for (int i = 0; i < 5000; i++) {
    hakmem_free(hakmem_malloc(size));
    longest = std::max(longest, hak_tls.countdown);
  }
  return longest;
}

// Nothing is sampled: a thread that keeps to what is kept for it takes the slow path now and then. It may have had one large block, and go
// on with small ones: what sleeps then waits for as many bytes of these.
TEST(Off, OneLargeBlockPutsTheNextLookOffByLittle) {
  ASSERT_TRUE(hak_start());
  int64_t longest = longest_countdown(100000);
  EXPECT_GT(longest, HAK_COUNT_OFF_BYTES);
  EXPECT_LE(longest, int64_t(32) * 1024 * 1024);
}

// Nor by much of large blocks that come and go.
TEST(Off, LargeBlocksPutTheNextLookOffByNoMoreThanSmallerOnes) {
  ASSERT_TRUE(hak_start());
  int64_t longest = longest_countdown(4000000);
  EXPECT_GT(longest, 8 * HAK_COUNT_OFF_BYTES);
  EXPECT_LE(longest, int64_t(65) * 1024 * 1024);
}

// A thread that asks for 10 MB in so many milliseconds, and is to come by each 250.
int64_t countdown_of(uint64_t ms) {
  hak_count_visit last = {1000, hak_count_asked()};
  for (int i = 0; i < 100; i++) hakmem_free(hakmem_malloc(100000));
  hak_tls.count.given += HAK_COUNT_OFF_BYTES - hak_tls.countdown;
  hak_tls.countdown = HAK_COUNT_OFF_BYTES;
  hak_count_lengthen(100000, &last, 1000 + ms, 250);
  EXPECT_EQ(last.ms, 1000 + ms);
  EXPECT_EQ(last.asked, hak_count_asked()) << "what it has asked for stays the same";
  return hak_tls.countdown;
}

TEST(Off, WhoAsksForLittleComesByAsOftenAsLooksAreDue) {
  ASSERT_TRUE(hak_start());
  for (int i = 0; i < 5000; i++) hakmem_free(hakmem_malloc(100000));
  EXPECT_EQ(countdown_of(1000), HAK_COUNT_OFF_BYTES) << "2.5 MB until then";
  EXPECT_EQ(countdown_of(90), 256 * HAK_COUNTED_BYTES(100000)) << "28 MB";
  EXPECT_EQ(countdown_of(110), HAK_COUNT_OFF_BYTES) << "23 MB";
  EXPECT_EQ(countdown_of(0), 256 * HAK_COUNTED_BYTES(100000)) << "a coarse clock may stand still";
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
  EXPECT_NEAR(hak_profile.peak.bytes, 100000, 1);
  EXPECT_NEAR(hak_profile.live.bytes, 41000, 1);
  double peak = 0, freed = 0;
  size_t place = 0;
  const hak_profile_stack *s;
  while ((s = hak_profile_next(&place)) != nullptr) {
    peak += s->peak.bytes;
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
  EXPECT_LE(hak_profile_own_bytes(), HAK_MIB + 100000 * 16);
}

TEST(Profile, FreedTwiceIsReported) {
  start(1);
  void *p = hakmem_malloc(100);
  void *other = hakmem_malloc(100);
  hakmem_free(p);
  EXPECT_DEATH(hakmem_free(p), "double free");
  EXPECT_DEATH(hakmem_free(static_cast<char *>(other) + 16), "no block starts|invalid");
}

// --- switched while the program runs ---

void start_off() {
  hak_config.heap_profile_most = 0;
  hak_sampling_start();
  ASSERT_NE(hak_thread_cache(), nullptr);
  ASSERT_FALSE(hak_profile_made());
}

TEST(Switched, WhatWasThereBeforeIsUnknown) {
  start_off();
  EXPECT_EQ(hakmem_profile_stop(), ENOTSUP);
  EXPECT_EQ(hakmem_profile_reset(), ENOTSUP);
  EXPECT_EQ(hakmem_profile_start(SIZE_MAX), EINVAL);
  std::vector<void *> before, after;
  for (size_t i = 0; i < 3000; i++) before.push_back(hakmem_malloc(16 + i * 100));
  ASSERT_EQ(hakmem_profile_start(1), 0);
  for (size_t i = 0; i < 3000; i++) after.push_back(hakmem_malloc(16 + i * 100));
  EXPECT_EQ(hak_profile.taken, 3000u) << "from the next request on";
  for (void *p : before) hakmem_free(p);
  EXPECT_EQ(hak_profile.live_samples, 3000u);
  for (void *p : after) hakmem_free(p);
  expect_nothing_live();
  EXPECT_EQ(hak_profile_occupied, 0u);
}

TEST(Switched, FreesAreNotedWhenItHasStopped) {
  start_off();
  ASSERT_EQ(hakmem_profile_start(1), 0);
  std::vector<void *> blocks, later;
  for (size_t i = 0; i < 1000; i++) blocks.push_back(hakmem_malloc(i * 500));
  ASSERT_EQ(hakmem_profile_stop(), 0);
  EXPECT_GE(hak_profile.stop_unix_ms, hak_profile.start_unix_ms);
  for (size_t i = 0; i < 1000; i++) later.push_back(hakmem_malloc(i * 500));
  EXPECT_EQ(hak_profile.taken, 1000u);
  EXPECT_EQ(hak_profile.live_samples, 1000u);
  for (size_t i = 0; i < 500; i++) hakmem_free(blocks[i]);
  EXPECT_EQ(hak_profile.live_samples, 500u);
  ASSERT_EQ(hakmem_profile_start(1), 0);
  EXPECT_EQ(hak_profile.live_samples, 0u) << "it begins anew";
  EXPECT_EQ(hak_profile.total.bytes, 0);
  EXPECT_EQ(hak_profile_occupied, 500u);
  blocks.push_back(hakmem_malloc(77));
  EXPECT_EQ(hak_profile.live.count, 1);
  for (size_t i = 500; i < blocks.size(); i++) hakmem_free(blocks[i]);
  for (void *p : later) hakmem_free(p);
  expect_nothing_live();
  EXPECT_EQ(hak_profile_occupied, 0u);
  double freed = 0;
  size_t place = 0;
  while (const hak_profile_stack *s = hak_profile_next(&place))
    for (double n : s->freed) freed += n;
  EXPECT_NEAR(freed, 1, 0.01) << "lifetimes are those of the new era";
}

TEST(Switched, AResetForgetsAllButTheBlocks) {
  start_off();
  ASSERT_EQ(hakmem_profile_start(1), 0);
  void *p = hakmem_malloc(100), *large = hakmem_malloc(HAK_MIB), *huge = hakmem_malloc(256 * HAK_MIB);
  ASSERT_EQ(hakmem_profile_reset(), 0);
  EXPECT_EQ(hak_profile.taken, 0u);
  EXPECT_EQ(hak_profile.live.bytes, 0);
  huge = hakmem_realloc(huge, 300 * HAK_MIB);
  EXPECT_EQ(hak_profile.live_samples, 1u);
  hakmem_free(p);
  hakmem_free(large);
  hakmem_free(huge);
  expect_nothing_live();
  EXPECT_EQ(hak_profile_occupied, 0u);
}

TEST(Switched, ByItsOptions) {
  start_off();
  ASSERT_EQ(hakmem_option_set("HEAP_PROFILE_RATE", 1), 0);
  EXPECT_FALSE(hak_profile_made());
  ASSERT_EQ(hakmem_option_set("HEAP_PROFILE", 1), 0);
  hakmem_free(hakmem_malloc(50));
  EXPECT_EQ(hak_profile.taken, 1u);
  ASSERT_EQ(hakmem_option_set("HEAP_PROFILE", 0), 0);
  hakmem_free(hakmem_malloc(50));
  EXPECT_EQ(hak_profile.taken, 1u);
  ASSERT_EQ(hakmem_option_set("GUARD_SAMPLE", 1), 0);
  void *p = nullptr;
  for (int i = 0; i < 100; i++) p = hakmem_malloc(100); /* by the earlier rates first */
  EXPECT_TRUE(hak_sample_contains(p));
  ASSERT_EQ(hakmem_option_set("GUARD_SAMPLE", 0), 0);
  for (int i = 0; i < 100; i++) p = hakmem_malloc(100);
  EXPECT_FALSE(hak_sample_contains(p));
  EXPECT_EQ(hak_heap_check(), 0u);
}

// Neither loses what was asked for in between.
TEST(Switched, RateAndBoundWhileItIsOn) {
  start_off();
  auto work = [] {
    uint64_t before = hak_profile.taken;
    for (int i = 0; i < 200000; i++) hakmem_free(hakmem_malloc(200));
    return hak_profile.taken - before;
  };
  ASSERT_EQ(hakmem_profile_start(256), 0);
  EXPECT_GT(work(), 80000u);
  ASSERT_EQ(hakmem_option_set("HEAP_PROFILE_MOST", 1000), 0);
  EXPECT_LT(work(), 20000u) << "of 108,000";
  ASSERT_EQ(hakmem_option_set("HEAP_PROFILE_MOST", 0), 0);
  ASSERT_EQ(hakmem_option_set("HEAP_PROFILE_RATE", 2048), 0);
  uint64_t taken = work();
  EXPECT_GT(taken, 16000u) << "of 19,600";
  EXPECT_LT(taken, 26000u);
  EXPECT_EQ(hak_profile.distance, 2048u);
  expect_estimate(1.2e8, 6e5);
}

// The countdown of a rate of 1 TiB would last for the program's life.
TEST(Switched, ANewRateIsTakenUpSoon) {
  start_off();
  ASSERT_EQ(hakmem_profile_start(size_t(1) << 40), 0);
  for (int i = 0; i < 1000; i++) hakmem_free(hakmem_malloc(100));
  ASSERT_EQ(hakmem_profile_start(64 * HAK_KIB), 0);
  double bytes = 0;
  for (int i = 0; i < 100000; i++) {
    void *p[64]; /* more than a magazine gives: slow paths */
    for (void *&one : p) one = hakmem_malloc(1000);
    for (void *one : p) hakmem_free(one);
    bytes += 64 * 1000;
  }
  EXPECT_NEAR(hak_profile.total.bytes, bytes, 4.5 * std::sqrt(hak_profile.total.bytes_variance) + 2 * HAK_MIB);
}

// A thread that has long been running, in its cache.
TEST(Switched, OtherThreadsTakePart) {
  start_off();
  std::atomic<int> stage{0};
  std::thread worker([&] {
    while (stage < 2) {
      hakmem_free(hakmem_malloc(200));
      if (stage == 0) stage = 1;
    }
    for (int i = 0; i < 1000000; i++) hakmem_free(hakmem_malloc(200));
  });
  while (stage < 1) std::this_thread::yield();
  ASSERT_EQ(hakmem_profile_start(64 * HAK_KIB), 0);
  ASSERT_EQ(hakmem_profile_reset(), 0);
  stage = 2;
  worker.join();
  EXPECT_GT(hak_profile.total.bytes, 2e8 - 4.5 * std::sqrt(hak_profile.total.bytes_variance) - 2 * HAK_MIB);
}

// 95 % intervals hold the truth in about 95 % of the cases, whatever was on before.
TEST(Switched, EstimatesOfWhatComesAfter) {
  start_off();
  double covered = 0, cases = 0, errors = 0;
  for (size_t size : {8u, 1000u, 30000u, 200000u, 4000000u, 64u << 20}) {
    size_t rate = std::max<size_t>(512, size / 2), n = std::max<size_t>(400, 400 * rate / size);
    double error = 0;
    for (uint64_t seed = 1; seed <= 100; seed++) {
      ASSERT_EQ(seed % 3 == 0 ? hakmem_profile_reset() : hakmem_profile_start(rate), 0);
      if (seed % 3 != 0) hak_count_seeds = hak_draw_scrambled(seed * size);
      double before = hak_profile.total.bytes, before_variance = hak_profile.total.bytes_variance, truth = double(n) * double(size);
      for (size_t i = 0; i < n; i++) hakmem_free(hakmem_malloc(size));
      double estimate = hak_profile.total.bytes - before;
      covered += std::fabs(estimate - truth) <= 1.96 * std::sqrt(hak_profile.total.bytes_variance - before_variance);
      error += (estimate - truth) / truth / 100;
      cases++;
      if (seed % 3 == 2) ASSERT_EQ(hakmem_profile_stop(), 0);
      if (seed % 3 == 2) hakmem_free(hakmem_malloc(3 * HAK_MIB)); /* off, counted by nobody */
      if (seed % 3 == 2) ASSERT_EQ(hakmem_profile_start(rate), 0);
    }
    errors += error / 6;
  }
  printf("mean error %.3f %%, 95 %% intervals cover %.1f %% of %g\n", 100 * errors, 100 * covered / cases, cases);
  EXPECT_NEAR(errors, 0, 0.005);
  EXPECT_GE(covered / cases, 0.93);
  EXPECT_LE(covered / cases, 0.97);
}

#ifdef __SANITIZE_THREAD__
// Else ThreadSanitizer ends a child of threads that starts one, as the profile's.
extern "C" const char *__tsan_default_options() { return "die_after_fork=0"; }
#endif

std::atomic<uint64_t> plain_signals{0}, labelling_signals{0};
thread_local volatile uint64_t labelled; // by the handler, in this thread

void on_plain_signal(int) { plain_signals++; }

// Reading and setting the label is what a handler may do.
void on_labelling_signal(int) {
  hakmem_label_set((hakmem_label_get() + 1) % 8);
  labelled = labelled + 1;
  labelling_signals++;
}

void handle(int number, void (*handler)(int)) {
  struct sigaction action = {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  ASSERT_EQ(sigaction(number, &action, nullptr), 0);
}

void mask_signals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGUSR1);
  sigaddset(&set, SIGUSR2);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
}

// Switched to and fro beside 16 threads, and in their children, while signals interrupt them all.
TEST(Switched, ToAndFroUnderThreadsForksAndSignals) {
  start_off();
  handle(SIGUSR1, on_plain_signal);
  handle(SIGUSR2, on_labelling_signal);
  const char *long_run = getenv("HAKMEM_TEST_SWITCHES");
  const int switches = long_run != nullptr ? atoi(long_run) : 400;
  std::atomic<bool> stop{false}, quiet{false};
  std::atomic<unsigned> wrong_labels{0};
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 16; t++)
    threads.emplace_back([&, t] {
      std::mt19937 random(t);
      std::vector<std::pair<unsigned char *, size_t>> live;
      while (!stop) {
        if (live.size() > 50 || (!live.empty() && random() % 2 == 0)) {
          std::swap(live[random() % live.size()], live.back());
          auto [p, size] = live.back();
          if (p[0] != (unsigned char)size || p[size - 1] != (unsigned char)size) abort();
          hakmem_free(p);
          live.pop_back();
          continue;
        }
        size_t size = random() % 500 == 0 ? 300000 + random() % 1000000 : 1 + random() % 3000;
        auto *p = static_cast<unsigned char *>(hakmem_malloc(size));
        p[0] = p[size - 1] = (unsigned char)size;
        live.emplace_back(p, size);
      }
      for (auto [p, size] : live) hakmem_free(p);
      mask_signals();
      if (hakmem_label_get() != labelled % 8) wrong_labels++;
    });
  pthread_t switching = pthread_self();
  std::thread sender([&] {
    mask_signals();
    for (unsigned i = 0; !quiet; i++) {
      unsigned t = i % unsigned(threads.size() + 1);
      pthread_kill(t == threads.size() ? switching : threads[t].native_handle(), i % 2 == 0 ? SIGUSR1 : SIGUSR2);
      usleep(20);
    }
  });
  for (int i = 0; i < switches; i++) {
    if (i % 100 == 50) {
      pid_t child = fork();
      if (child == 0) {
        alarm(60);
        if (hakmem_profile_stop() != 0 || hakmem_profile_start(1) != 0) _exit(2);
        hakmem_free(hakmem_malloc(100));
        _exit(hak_heap_check() == 0 && hak_profile.taken >= 1 ? 0 : 1);
      }
      int status;
      ASSERT_EQ(waitpid(child, &status, 0), child);
      ASSERT_EQ(status, 0);
    }
    int error = i % 4 == 0   ? hakmem_profile_start(1 + size_t(i) * 7 % 5000)
                : i % 4 == 1 ? hakmem_option_set("GUARD_SAMPLE", i % 8 == 1 ? 50 : 0)
                : i % 4 == 2 ? hakmem_profile_reset()
                             : hakmem_profile_stop();
    ASSERT_EQ(error, 0);
    usleep(200);
  }
  quiet = true;
  sender.join();
  stop = true;
  for (auto &t : threads) t.join();
  printf("%d switches, %lu signals\n", switches, (unsigned long)(plain_signals + labelling_signals));
  EXPECT_GT(plain_signals, 0u);
  EXPECT_GT(labelling_signals, 0u);
  EXPECT_EQ(wrong_labels, 0u) << "each handler's label is kept";
  EXPECT_EQ(hak_profile_occupied, 0u) << "each sample has been freed";
  EXPECT_EQ(hak_profile.live_samples, 0u);
  EXPECT_EQ(hak_heap_check(), 0u);
}

// --- what a thread has asked for ---

uint64_t ask(std::mt19937 &random) {
  static const size_t bounds[] = {100, 3000, 30000, 200000, 5000000};
  size_t size = random() % bounds[random() % 5], align = size_t(16) << random() % 9;
  void *p = nullptr;
  switch (random() % 4) {
    case 0: p = hakmem_calloc(1, size); break;
    case 1: p = hakmem_aligned_alloc(align, size); break;
    default: p = hakmem_malloc(size);
  }
  if (p == nullptr) abort();
  hakmem_free(p);
  return size + 15;
}

TEST(Asked, IsExactWhateverIsSampled) {
  start_off();
  std::mt19937 random(5);
  for (int stage = 0; stage < 5; stage++) {
    uint64_t before = hakmem_thread_allocated(), asked = 0;
    for (int i = 0; i < 30000; i++) asked += ask(random);
    EXPECT_EQ(hakmem_thread_allocated() - before, asked) << stage;
    if (stage == 0) ASSERT_EQ(hakmem_profile_start(1000), 0);
    if (stage == 1) ASSERT_EQ(hakmem_option_set("GUARD_SAMPLE", 7), 0);
    if (stage == 2) ASSERT_EQ(hakmem_profile_stop(), 0);
    if (stage == 3) ASSERT_EQ(hakmem_option_set("GUARD_SAMPLE", 0), 0);
    EXPECT_EQ(hakmem_thread_allocated() - before, asked) << "a switch is no request";
  }
}

TEST(Asked, IsOfTheThread) {
  start_off();
  hakmem_free(hakmem_malloc(1 << 20));
  std::thread([] {
    uint64_t before = hakmem_thread_allocated();
    EXPECT_LT(before, 100000u);
    for (int i = 0; i < 1000; i++) hakmem_free(hakmem_malloc(85));
    EXPECT_EQ(hakmem_thread_allocated() - before, 100000u);
  }).join();
}

TEST(Asked, ResizingCountsWhereTheBlockIsNew) {
  start_off();
  void *p = hakmem_malloc(100);
  uint64_t before = hakmem_thread_allocated();
  p = hakmem_realloc(p, 101);
  EXPECT_EQ(hakmem_thread_allocated() - before, 0u);
  p = hakmem_realloc(p, 5000);
  EXPECT_EQ(hakmem_thread_allocated() - before, 5015u);
  p = hakmem_realloc(p, 600000);
  EXPECT_EQ(hakmem_thread_allocated() - before, 605030u);
  p = hakmem_realloc(p, 700000);
  EXPECT_EQ(hakmem_thread_allocated() - before, 1305045u);
  p = hakmem_realloc(p, 70000000);
  EXPECT_EQ(hakmem_thread_allocated() - before, 71305060u);
  hakmem_free(p);
}

}  // namespace
