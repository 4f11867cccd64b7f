// What stays where a load ends and its threads sleep: a call or two of another thread give it back.
#include <gtest/gtest.h>
#include <pthread.h>
#include <semaphore.h>

#include <atomic>
#include <thread>

#include "loads.h"

namespace {

constexpr unsigned CONSUMERS = 3;

// A producer hands its blocks to consumers, which free them; the producer sleeps, and so do the consumers, or they end.
class HandOver {
 public:
  HandOver(size_t bytes, bool in_order, bool consumers_end) {
    capacity_ = bytes / MIN;
    size_t array = capacity_ * sizeof *blocks_;
    blocks_ = static_cast<void **>(mmap(nullptr, array, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (blocks_ == MAP_FAILED) abort();
    sem_t made, freed;
    sem_init(&made, 0, 0);
    sem_init(&freed, 0, 0);
    std::thread([&, this] {
      std::mt19937 random(3);
      for (size_t done = 0; done < bytes;) {
        size_t size = MIN + random() % (MAX - MIN + 1);
        blocks_[count_] = malloc(size);
        memset(blocks_[count_++], 1, size);
        done += size;
      }
      if (!in_order) std::shuffle(blocks_, blocks_ + count_, random);
      for (unsigned i = 0; i < CONSUMERS; i++) sem_post(&made);
      for (;;) pause();
    }).detach();
    std::vector<std::thread> consumers;
    for (unsigned i = 0; i < CONSUMERS; i++) {
      consumers.emplace_back([&, i, consumers_end, this] {
        sem_wait(&made);
        for (size_t at = i; at < count_; at += CONSUMERS) free(blocks_[at]);
        sem_post(&freed);
        while (!consumers_end) pause();
      });
    }
    for (unsigned i = 0; i < CONSUMERS; i++) sem_wait(&freed);
    for (std::thread &t : consumers) {
      if (consumers_end)
        t.join();
      else
        t.detach();
    }
    munmap(blocks_, array);
  }

 private:
  static constexpr size_t MIN = 30, MAX = 1100;
  void **blocks_;
  size_t capacity_, count_ = 0;
};

class OneCall : public testing::TestWithParam<std::tuple<bool, bool>> {};

TEST_P(OneCall, AfterARestGivesBackWhatOthersFreed) {
  auto [in_order, consumers_end] = GetParam();
  size_t before = resident();
  free(malloc(1));
  HandOver load(260 * MIB, in_order, consumers_end);
  rest(1500);
  free(malloc(300000)); // what caches serve is no slow path
  size_t left = resident() > before ? resident() - before : 0;
  EXPECT_LE(left, 26 * MIB) << left / MIB;
}

INSTANTIATE_TEST_SUITE_P(, OneCall, testing::Combine(testing::Bool(), testing::Bool()), [](const auto &info) {
  return std::string(std::get<0>(info.param) ? "InOrder" : "Shuffled") + (std::get<1>(info.param) ? "ConsumersEnd" : "ConsumersSleep");
});

}  // namespace
