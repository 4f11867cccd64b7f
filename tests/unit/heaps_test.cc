// Heaps beside threads that have no processor: nobody waits for them who need not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <future>
#include <utility>
#include <vector>

#include "actor.h"
#include "fake_cpu.h"
#include "fake_os.h"
#include "hak.h"

extern "C" {
#include "heap/cache.h"
#include "heap/heap.h"
}

using testing::IsEmpty;

namespace {

class Heaps : public testing::Test {
 protected:
  void SetUp() override {
    fake_os::reset();
    ASSERT_TRUE(hak_start());
    fake_cpu::install();
    hakmem_free(hakmem_malloc(1));
    heap = hakmem_heap_new(nullptr);
    ASSERT_NE(heap, nullptr);
  }
  void TearDown() override {
    if (heap != nullptr) hakmem_heap_destroy(heap);
    EXPECT_EQ(hakmem_heap_check(), 0u);
    EXPECT_THAT(fake_os::violations(), IsEmpty());
  }

  // The thread has a cache of the heap, with blocks in it.
  void use() const {
    std::vector<void *> blocks;
    for (int i = 0; i < 2000; i++) blocks.push_back(hakmem_heap_malloc(heap, 100));
    for (void *p : blocks) hakmem_free(p);
    ASSERT_NE(hak_heap_find_own(heap->owner), nullptr);
  }
  static size_t cached_bytes(const hak_heap_cache *k) {
    hak_heap_counts sum = {};
    hak_heap_add_cached(&sum, k);
    return sum.bytes;
  }
  // Whether another thread is through with it while the lock is held.
  static bool ends_beside(hak_lock *lock, std::function<void()> what) {
    hak_lock_take(lock);
    auto done = std::async(std::launch::async, std::move(what));
    bool ended = done.wait_for(std::chrono::seconds(20)) == std::future_status::ready;
    hak_lock_drop(lock);
    done.wait();
    return ended;
  }

  // How a child ends that does this; 0: as it should.
  static int run_child(const std::function<void()> &what) {
    pid_t child = fork();
    if (child == 0) {
      what();
      _exit(0);
    }
    int status;
    waitpid(child, &status, 0);
    return status;
  }

  hakmem_heap *heap = nullptr;
};

// They need no slow path, and a thread whose work they are would keep for good what it has freed beside them. One that asks for little
// comes by after a MiB, whatever it did before: which it knows when the countdown of then has ended.
TEST_F(Heaps, LargeBlocksThatAreCachedComeByASlowPath) {
  use();
  for (int i = 0; i < 5000; i++) hakmem_free(hakmem_heap_malloc(heap, 100000));
  uint64_t now = hak_os_now_ms(), waited = 0;
  for (int i = 0; i < 600; i++) {
    fake_os::set_clock(now += 100);
    hakmem_free(hakmem_heap_malloc(heap, 100000));
    if (i > 256) waited = std::max(waited, now - hak_tls.cache->exit_ms);
  }
  EXPECT_LE(waited, 1100u);
}

// Threads that free meanwhile would stand in line for a lock whose holder has no processor, and each after the other.
TEST_F(Heaps, ThatHaveEndedAreLeftToWhoEndsOne) {
  void *p = hakmem_heap_malloc(heap, 100);
  hakmem_heap_delete(heap);
  EXPECT_TRUE(ends_beside(hak_heap_end_lock(nullptr), [&] { hakmem_free(p); }));
  EXPECT_TRUE(hak_heap_some_ended());
  heap = nullptr;
  hak_deferred d = {};
  hak_heap_end_deleted(true, &d);
  EXPECT_FALSE(hak_heap_some_ended());
  EXPECT_FALSE(hak_heap_some());
}

// The clock's turn holds the registry's lock, for which deletes, visits and new limits wait.
TEST_F(Heaps, AreTrimmedByTheClockButWhereSomebodyIsAtThem) {
  use();
  hak_deferred d = {};
  hak_heap_flush(nullptr, &d);
  size_t held = hak_heap_held(heap);
  ASSERT_GT(held, 0u);
  unsigned c = hak_class_for(100);
  EXPECT_TRUE(ends_beside(hak_heap_bin_lock(heap, c), [] {
    hak_deferred other = {};
    hak_heap_trim_some(&other);
  }));
  EXPECT_GT(hak_heap_held(heap), 0u);
  hak_heap_trim_some(&d);
  EXPECT_EQ(hak_heap_held(heap), 0u);
}

// A purge waits for whoever is at them, and holds up nobody meanwhile.
TEST_F(Heaps, ThatAPurgeTrimsHoldUpNobodyWhileItWaits) {
  use();
  hak_deferred d = {};
  hak_heap_flush(nullptr, &d);
  ASSERT_GT(hak_heap_held(heap), 0u);
  hak_lock *bin = hak_heap_bin_lock(heap, hak_class_for(100));
  hak_lock_take(bin);
  std::thread purger([] {
    hak_deferred other = {};
    hak_heap_trim_all(&other);
  });
  while (hak_load_relaxed(&bin->state) < 2) std::this_thread::yield(); /* until it waits */
  bool free = false;
  for (int tries = 0; tries < 1000 && !(free = hak_lock_try(&hak_heaps_lock)); tries++) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  if (free) hak_lock_drop(&hak_heaps_lock);
  EXPECT_TRUE(free);
  hak_lock_drop(bin);
  purger.join();
  EXPECT_EQ(hak_heap_held(heap), 0u);
}

// A purge, a trim or a target takes what it finds; a delete, whose caller counts on it, waits for half a second.
TEST_F(Heaps, WhoseCachesAreInUseKeepThemWhenMemoryGoesBack) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "there is no barrier";
#endif
  Actor user(0);
  hak_heap_cache *k = nullptr;
  user.run([&] {
    use();
    k = hak_heap_find_own(heap->owner);
    ASSERT_TRUE(hak_heap_enter(k, heap->owner));
  });
  fake_os::reset();
  hakmem_purge();
  EXPECT_GT(hak_heap_held(heap), 0u);
  EXPECT_LE(fake_os::count(fake_os::BARRIER), 20u);
  user.run([&] { hak_heap_leave(k); });
  hakmem_purge();
  EXPECT_EQ(hak_heap_held(heap), 0u);
}

// A thread ends: its caches have no life any more, and it is not through with the others. One was of a heap that has ended, too.
TEST_F(Heaps, WhoseThreadsAreEndingHaveNothingToTake) {
  Actor user(0);
  user.run([&] {
    use();
    hak_heap_cache *k = hak_heap_find_own(heap->owner);
    hakmem_heap_destroy(std::exchange(heap, nullptr));
    hak_store_relaxed(&k->life, uint64_t{0});
  });
  hakmem_purge();
  EXPECT_EQ(run_child([] { hakmem_purge(); }), 0);
}

// All threads that come by when a target is near, or a program has doubled, would do so one after the other.
TEST_F(Heaps, AreFlushedByOneThreadForAll) {
  fake_os::set_clock(hak_os_now_ms() + 60000);
  void *first = hakmem_malloc(HAK_MIB); // the clock's look, of which there is no other
  auto grow = [] {
    std::vector<void *> blocks;
    for (int i = 0; i < 300; i++) blocks.push_back(hakmem_malloc(HAK_MIB));
    return blocks;
  };
  hak_lock_take(&hak_tcache_reach_lock);
  auto one = std::async(std::launch::async, grow), other = std::async(std::launch::async, grow);
  auto is_done = [](std::future<std::vector<void *>> &f) { return f.wait_for(std::chrono::milliseconds(5)) == std::future_status::ready; };
  bool done = false;
  for (int tries = 0; tries < 2000 && !done; tries++) done = is_done(one) || is_done(other);
  hak_lock_drop(&hak_tcache_reach_lock);
  EXPECT_TRUE(done);
  for (auto *f : {&one, &other})
    for (void *p : f->get()) hakmem_free(p);
  hakmem_free(first);
}

// No target is set, and no group's limit. Each time a program has doubled, what threads that sleep have cached of heaps
// goes back; and nobody waits for one that was stopped at its cache.
TEST_F(Heaps, HaveNothingInSleepersCachesThatAProgramGrowsBy) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "there is no barrier";
#endif
  Actor sleeper(0), stopped(1);
  fake_os::set_clock(hak_os_now_ms() + 60000);
  std::vector<void *> blocks = {hakmem_malloc(HAK_MIB)}; // the clock's look, of which there is no other until the end
  hak_heap_cache *asleep = nullptr, *in_use = nullptr;
  sleeper.run([&] {
    use();
    asleep = hak_heap_find_own(heap->owner);
  });
  stopped.run([&] {
    use();
    in_use = hak_heap_find_own(heap->owner);
    ASSERT_TRUE(hak_heap_enter(in_use, heap->owner));
  });
  ASSERT_GT(cached_bytes(asleep), 0u);
  unsigned barriers = fake_os::count(fake_os::BARRIER);
  for (int i = 0; i < 300; i++) blocks.push_back(hakmem_malloc(HAK_MIB));
  EXPECT_EQ(cached_bytes(asleep), 0u);
  EXPECT_GT(cached_bytes(in_use), 0u);
  EXPECT_LE(fake_os::count(fake_os::BARRIER), barriers + 60);
  stopped.run([&] { hak_heap_leave(in_use); });
  for (void *p : blocks) hakmem_free(p);
}

}  // namespace
