// The futex mutex and the pass for a forking thread.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "hak.h"

namespace {

TEST(Lock, ExcludesEachOther) {
  hak_lock lock = {0};
  long counter = 0;  // plain: ThreadSanitizer sees a missing acquire or release
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; t++) {
    threads.emplace_back([&] {
      for (int i = 0; i < 50000; i++) {
        hak_lock_take(&lock);
        counter++;
        hak_lock_drop(&lock);
      }
    });
  }
  for (auto &t : threads) t.join();
  EXPECT_EQ(counter, 200000);
  EXPECT_EQ(lock.state, 0u);
}

TEST(Lock, WaiterSleepsAndIsWoken) {
  hak_lock lock = {0};
  std::atomic<bool> inside{false};
  hak_lock_take(&lock);
  std::thread waiter([&] {
    hak_lock_take(&lock);
    inside = true;
    hak_lock_drop(&lock);
  });
  // State 2 is a waiter that went to sleep.
  while (hak_load_relaxed(&lock.state) != 2) std::this_thread::yield();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_FALSE(inside);
  hak_lock_drop(&lock);
  waiter.join();
  EXPECT_TRUE(inside);
}

TEST(Lock, TryNeverWaits) {
  hak_lock lock = {0};
  EXPECT_TRUE(hak_lock_try(&lock));
  EXPECT_FALSE(hak_lock_try(&lock));
  hak_lock_drop(&lock);
  EXPECT_TRUE(hak_lock_try(&lock));
}

TEST(Lock, MarksDifferBetweenThreads) {
  const void *other = nullptr;
  std::thread([&] { other = hak_thread_mark(); }).join();
  EXPECT_NE(other, nullptr);
  EXPECT_EQ(hak_thread_mark(), hak_thread_mark());
}

TEST(Lock, ForkingThreadPassesOthersWait) {
  hak_lock lock = {0};
  hak_lock_take(&lock);
  EXPECT_FALSE(hak_inside_own_fork());
  hak_store_relaxed(&hak_fork_holder, hak_thread_mark());
  EXPECT_TRUE(hak_inside_own_fork());
  hak_lock_take(&lock);  // would never return otherwise
  hak_lock_drop(&lock);
  EXPECT_NE(hak_load_relaxed(&lock.state), 0u) << "the lock stays taken until the fork is over";

  std::atomic<bool> inside{false};
  std::thread other([&] {
    EXPECT_FALSE(hak_inside_own_fork());
    hak_lock_take(&lock);
    inside = true;
    hak_lock_drop(&lock);
  });
  while (hak_load_relaxed(&lock.state) != 2) std::this_thread::yield();
  EXPECT_FALSE(inside);
  hak_store_relaxed(&hak_fork_holder, static_cast<const void *>(nullptr));
  hak_lock_drop(&lock);
  other.join();
  EXPECT_TRUE(inside);
}

}  // namespace
