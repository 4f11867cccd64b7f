/* Threads that come and go: heaps are parked and adopted, blocks outlive their threads, destructors of every kind may
 * use the allocator, and memory stays where it was. */
#include <gtest/gtest.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "here.h"

namespace {

constexpr size_t kMiB = size_t{1} << 20;

unsigned setting(const char *name, unsigned otherwise) {
  const char *value = std::getenv(name);
  return value == nullptr ? otherwise : static_cast<unsigned>(std::atoi(value));
}

/* Each thread frees what an earlier one left and leaves blocks of its own. */
struct Baton {
  std::mutex mutex;
  std::deque<std::vector<unsigned char *>> left;
};

void *short_life(void *argument) {
  Baton *baton = static_cast<Baton *>(argument);
  std::vector<unsigned char *> mine, theirs;
  for (size_t i = 0; i < 40; i++) mine.push_back(here::filled(16 << (i % 10), 7));
  mine.push_back(here::filled(100000, 7));
  {
    std::lock_guard<std::mutex> guard(baton->mutex);
    baton->left.push_back(std::move(mine));
    if (baton->left.size() > 3) {
      theirs = std::move(baton->left.front());
      baton->left.pop_front();
    }
  }
  for (unsigned char *p : theirs) {
    if (p[15] != 7) std::abort();
    std::free(p);
  }
  return nullptr;
}

void run_short_lives(Baton *baton, unsigned count) {
  for (unsigned i = 0; i < count; i += 2) {
    pthread_t threads[2];
    for (pthread_t &t : threads) ASSERT_EQ(0, pthread_create(&t, nullptr, short_life, baton));
    for (pthread_t &t : threads) pthread_join(t, nullptr);
  }
}

TEST(Threads, ManyShortOnesLeaveMemoryFlat) {
  unsigned count = setting("LIFECYCLE_THREADS", 20000);
  Baton baton;
  /* The most of several looks: how many heaps share the blocks that are alive, and so how many slabs are partly used,
   * differs from moment to moment by more than a leak of 50 bytes a thread would show. */
  size_t resident = 0;
  for (int look = 0; look < 10; look++) {
    run_short_lives(&baton, count / 100);
    malloc_trim(0);
    resident = std::max(resident, here::resident_bytes());
  }
  uint64_t caches = here::caches();
  run_short_lives(&baton, count - count / 10);
  /* The release policy may keep 2 MiB of free memory; without that it must be flat to the megabyte. */
  EXPECT_LE(here::resident_bytes(), resident + 3 * kMiB);
  malloc_trim(0);
  EXPECT_LE(here::resident_bytes(), resident + kMiB);
  EXPECT_LE(here::caches(), caches + 1) << "ended threads' caches are not used again";
  for (auto &blocks : baton.left) {
    for (unsigned char *p : blocks) std::free(p);
  }
  EXPECT_EQ(0u, here::heap_check());
}

/* Threads in sequence need one heap between them, and what one cached serves the next. */
TEST(Threads, TheNextUsesTheCacheOfTheLast) {
  std::thread([] {
    for (int k = 0; k < 1000; k++) std::free(std::malloc(100));  // enough for a heap of its own
  }).join();
  uint64_t caches = here::caches();
  for (int i = 0; i < 500; i++) {
    std::thread([] {
      std::vector<void *> blocks;
      for (int k = 0; k < 1000; k++) blocks.push_back(std::malloc(100));
      for (void *p : blocks) std::free(p);
    }).join();
  }
  EXPECT_EQ(here::caches(), caches);
}

/* Many at once, all gone: what they touched must not stay behind, heap by heap. */
TEST(Threads, ParkedHeapsHoldLittle) {
  auto burst = [] {
    std::mutex mutex;
    std::condition_variable all_there;
    unsigned arrived = 0;
    std::vector<std::thread> threads;
    for (int i = 0; i < 64; i++) {
      threads.emplace_back([&] {
        std::vector<void *> blocks;
        for (size_t size = 16; size <= 32768; size += size < 1024 ? 16 : 1024) {
          void *p = std::malloc(size);
          std::memset(p, 1, size);
          blocks.push_back(p);
        }
        {
          std::unique_lock<std::mutex> lock(mutex);
          if (++arrived == 64) all_there.notify_all();
          all_there.wait(lock, [&] { return arrived == 64; });
        }
        for (void *p : blocks) std::free(p);
      });
    }
    for (auto &t : threads) t.join();
  };
  malloc_trim(0);
  size_t resident = here::resident_bytes();
  burst();
  malloc_trim(0);
  /* 64 threads had 37 MiB of blocks, and nothing of it is live. */
  EXPECT_LE(here::resident_bytes(), resident + 8 * kMiB) << "empty slabs stay in arenas";
}

TEST(Threads, ThatNeverAllocatedMayFree) {
  std::vector<unsigned char *> blocks;
  for (int i = 0; i < 2000; i++) blocks.push_back(here::filled(64, 3));
  struct Work {
    std::vector<unsigned char *> *blocks;
    bool right;
  } work{&blocks, true};
  pthread_t thread;
  ASSERT_EQ(0, pthread_create(
                   &thread, nullptr,
                   [](void *argument) -> void * {
                     Work *w = static_cast<Work *>(argument);
                     for (unsigned char *p : *w->blocks) {
                       w->right = w->right && here::holds(p, 64, 3);
                       free(p);
                     }
                     return nullptr;
                   },
                   &work));
  pthread_join(thread, nullptr);
  EXPECT_TRUE(work.right);
  EXPECT_EQ(0u, here::heap_check());
}

/* --- destructors --- */

std::atomic<int> rounds_seen{0};
pthread_key_t round_keys[8];

struct RoundState {
  pthread_key_t key;
  int round;
  unsigned char *block;
};

/* Allocates, frees what the round before allocated, and asks to be called again: all four rounds, the allocator's own
 * destructor runs somewhere among them. */
void each_round(void *argument) {
  auto *state = static_cast<RoundState *>(argument);
  if (!here::holds(state->block, 200, state->round)) std::abort();
  std::free(state->block);
  std::vector<unsigned char *> many;
  for (int i = 0; i < 300; i++) many.push_back(here::filled(1 + static_cast<size_t>(i) * 7, 5));
  for (unsigned char *p : many) std::free(p);
  std::free(here::filled(size_t{1} << 18, 1));
  rounds_seen++;
  if (++state->round == 4) {
    std::free(state);
    return;
  }
  state->block = here::filled(200, state->round);
  pthread_setspecific(state->key, state);
}

TEST(Destructors, OfPthreadKeysMayAllocateInAllFourRounds) {
  for (pthread_key_t &key : round_keys) ASSERT_EQ(0, pthread_key_create(&key, each_round));
  uint64_t caches = 0;
  for (int repeat = 0; repeat < 50; repeat++) {
    rounds_seen = 0;
    std::thread([] {
      for (pthread_key_t key : round_keys) {
        auto *state = static_cast<RoundState *>(std::malloc(sizeof(RoundState)));
        *state = {key, 0, here::filled(200, 0)};
        pthread_setspecific(key, state);
      }
    }).join();
    EXPECT_EQ(rounds_seen, 8 * 4);
    if (repeat == 1) caches = here::caches();
  }
  EXPECT_EQ(here::caches(), caches);
  for (pthread_key_t key : round_keys) pthread_key_delete(key);
  EXPECT_EQ(0u, here::heap_check());
}

/* fork in the last round: the thread has no cache any more. */
TEST(Destructors, MayForkAfterTheCacheIsGone) {
  static std::atomic<int> well{0};
  static pthread_key_t key;
  struct Late {
    static void destroy(void *round) {
      auto n = reinterpret_cast<intptr_t>(round);
      if (n < 4) {
        pthread_setspecific(key, reinterpret_cast<void *>(n + 1));
        return;
      }
      pid_t child = fork();
      if (child == 0) {
        here::limit_child();
        for (size_t i = 0; i < 500; i++) std::free(here::filled(i + 1, 1));
        std::thread([] { std::free(here::filled(100, 1)); }).join();
        _exit(here::heap_check() == 0 ? 0 : 1);
      }
      if (child > 0 && here::ended_well(child)) well++;
    }
  };
  ASSERT_EQ(0, pthread_key_create(&key, Late::destroy));
  for (int i = 0; i < 10; i++) {
    std::thread([] {
      std::free(std::malloc(10));
      pthread_setspecific(key, reinterpret_cast<void *>(1));
    }).join();
  }
  pthread_key_delete(key);
  EXPECT_EQ(well, 10);
}

struct FreesAtThreadEnd {
  std::vector<unsigned char *> blocks;
  ~FreesAtThreadEnd() {
    for (unsigned char *p : blocks) {
      if (!here::holds(p, 333, 9)) std::abort();
      std::free(p);
    }
    std::free(here::filled(5000, 2));
  }
};

TEST(Destructors, OfThreadLocalsFree) {
  unsigned char *foreign = here::filled(333, 9);
  std::thread([foreign] {
    thread_local FreesAtThreadEnd ends;
    for (int i = 0; i < 500; i++) ends.blocks.push_back(here::filled(333, 9));
    ends.blocks.push_back(foreign);
  }).join();
  EXPECT_EQ(0u, here::heap_check());
}

/* --- unusual threads --- */

TEST(Threads, SixteenKibibyteStacks) {
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  size_t least = static_cast<size_t>(sysconf(_SC_THREAD_STACK_MIN));
  ASSERT_EQ(0, pthread_attr_setstacksize(&attributes, std::max(least, size_t{16384})));
  for (int i = 0; i < 50; i++) {
    pthread_t thread;
    ASSERT_EQ(0, pthread_create(
                     &thread, &attributes,
                     [](void *) -> void * {
                       void *blocks[100];
                       for (int round = 0; round < 20; round++) {
                         for (size_t k = 0; k < 100; k++) blocks[k] = malloc(k * 300 + 1);
                         for (void *p : blocks) free(p);
                       }
                       free(malloc(300000));
                       free(malloc(40 << 20));
                       malloc_trim(0);
                       return nullptr;
                     },
                     nullptr));
    pthread_join(thread, nullptr);
  }
  pthread_attr_destroy(&attributes);
}

TEST(Threads, CancelledOnesLeaveTheirCaches) {
  uint64_t caches = 0;
  for (int i = 0; i < 200; i++) {
    pthread_t thread;
    static std::atomic<bool> running;
    running = false;
    ASSERT_EQ(0, pthread_create(
                     &thread, nullptr,
                     [](void *) -> void * {
                       for (;;) {
                         for (size_t k = 0; k < 200; k++) free(here::filled(k + 1, 1));
                         running = true;
                         pthread_testcancel();
                       }
                     },
                     nullptr));
    while (!running) sched_yield();
    pthread_cancel(thread);
    void *result = nullptr;
    pthread_join(thread, &result);
    ASSERT_EQ(result, PTHREAD_CANCELED);
    if (i == 1) caches = here::caches();
  }
  EXPECT_EQ(here::caches(), caches);
  EXPECT_EQ(0u, here::heap_check());
}

/* The process exits while detached threads are inside the allocator. */
TEST(Threads, DetachedOnesAtExit) {
  for (int i = 0; i < 10; i++) {
    std::fflush(nullptr);
    pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      here::limit_child();
      static std::atomic<int> started{0};
      for (int t = 0; t < 4; t++) {
        std::thread([] {
          started++;
          for (size_t k = 0;; k++) std::free(here::filled(k % 3000 + 1, 1));
        }).detach();
      }
      while (started < 4) sched_yield();
      std::exit(0);
    }
    ASSERT_TRUE(here::ended_well(child));
  }
}

/* --- an owner that never comes back --- */

/* Allocates `count` blocks of `size` for another thread to free, then sleeps until released. */
class SleepingProducer {
 public:
  SleepingProducer(size_t count, size_t size)
      : thread_([this, count, size] {
          for (size_t i = 0; i < count; i++) blocks.push_back(here::filled(size, 1));
          std::unique_lock<std::mutex> lock(mutex_);
          asleep_ = true;
          changed_.notify_all();
          changed_.wait(lock, [this] { return released_; });
        }) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return asleep_; });
  }
  ~SleepingProducer() {
    {
      std::lock_guard<std::mutex> guard(mutex_);
      released_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  std::vector<unsigned char *> blocks;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool asleep_ = false, released_ = false;
  std::thread thread_;
};

class SleepingOwner : public testing::TestWithParam<size_t> {};

TEST_P(SleepingOwner, DoesNotPinWhatOthersFree) {
  size_t size = GetParam(), total = 128 * kMiB;
  std::unique_ptr<SleepingProducer> producer(new SleepingProducer(total / size, size));
  size_t live = here::live_bytes(), resident = here::resident_bytes();
  std::vector<std::thread> consumers;
  for (size_t c = 0; c < 2; c++) {
    consumers.emplace_back([&, c] {
      for (size_t i = c; i < producer->blocks.size(); i += 2) std::free(producer->blocks[i]);
    });
  }
  for (auto &t : consumers) t.join();
  /* All but the last backlog is back, though the owner has not moved. */
  EXPECT_LE(here::live_bytes(), live - total + 6 * kMiB);
  malloc_trim(0);
  EXPECT_LE(here::resident_bytes(), resident - total + 16 * kMiB);
  EXPECT_EQ(0u, here::heap_check());
}

INSTANTIATE_TEST_SUITE_P(Sizes, SleepingOwner, testing::Values(64, 512, 4096, 32768));

}  // namespace
