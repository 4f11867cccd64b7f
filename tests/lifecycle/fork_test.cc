/* fork in threaded programs: whatever the other threads were doing at that instant, the child can allocate, free what it
 * inherited, start threads and fork again. Every child ends by alarm if it hangs. */
#include <gtest/gtest.h>
#include <pthread.h>
#include <spawn.h>

#include <atomic>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "here.h"

extern char **environ;

namespace {

/* --- handlers that allocate; the first set is registered before the allocator's own --- */

std::atomic<int> early_calls{0}, late_calls{0};
void *kept[3];

void use_memory(std::atomic<int> *calls) {
  ++*calls;
  static const size_t sizes[] = {1, 24, 100, 1000, 5000, 30000, 100000, 3000000, size_t{40} << 20};
  for (size_t size : sizes) {
    auto *p = static_cast<char *>(std::malloc(size));
    if (p == nullptr) std::abort();
    p[0] = p[size - 1] = 1;
    p = static_cast<char *>(std::realloc(p, size * 2));
    std::free(p);
  }
  /* Many of one class, so that refill and flush happen here too. */
  static const int kMany = 3000;
  std::vector<void *> many;
  for (int i = 0; i < kMany; i++) many.push_back(std::malloc(48));
  for (void *p : many) std::free(p);
}

void early_prepare() {
  use_memory(&early_calls);
  kept[0] = std::malloc(64); /* allocated while every lock is held, freed after */
}
void early_parent() {
  use_memory(&early_calls);
  std::free(kept[0]);
}
void early_child() {
  use_memory(&early_calls);
  std::free(kept[0]);
}
void late_prepare() { use_memory(&late_calls); }
void late_after() { use_memory(&late_calls); }

}  // namespace

/* Called by first_library.c. */
extern "C" void before_the_allocator() { pthread_atfork(early_prepare, early_parent, early_child); }

namespace {

/* --- threads that keep the allocator busy and pass blocks around --- */

class Churn {
 public:
  explicit Churn(unsigned threads) {
    for (unsigned i = 0; i < threads; i++) threads_.emplace_back([this, i] { run(i + 1); });
  }
  ~Churn() {
    stop_ = true;
    for (auto &t : threads_) t.join();
    for (void *p : shared_) std::free(p);
  }

  /* A block that another thread allocated, or nullptr. */
  void *steal() {
    std::lock_guard<std::mutex> guard(mutex_);
    if (shared_.empty()) return nullptr;
    void *p = shared_.back();
    shared_.pop_back();
    return p;
  }

 private:
  void run(uint64_t state) {
    std::vector<void *> mine;
    while (!stop_) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      size_t dice = static_cast<size_t>(state >> 33);
      if (dice % 3 != 0 && mine.size() < 500) {
        size_t size = dice % 97 == 0 ? dice % 300000 : dice % 2000;
        mine.push_back(std::malloc(size + 1));
      } else if (!mine.empty()) {
        std::swap(mine[dice % mine.size()], mine.back());
        if (dice % 5 == 0)
          share(mine.back());
        else
          std::free(mine.back());
        mine.pop_back();
      }
      if (dice % 4096 == 0) std::thread([] { std::free(std::malloc(100)); }).join();
    }
    for (void *p : mine) std::free(p);
  }

  void share(void *p) {
    void *old = nullptr;
    {
      std::lock_guard<std::mutex> guard(mutex_);
      shared_.push_back(p);
      if (shared_.size() > 200) {
        old = shared_.front();
        shared_.erase(shared_.begin());
      }
    }
    std::free(old);
  }

  std::atomic<bool> stop_{false};
  std::mutex mutex_;
  std::vector<void *> shared_;
  std::vector<std::thread> threads_;
};

/* What every child does. Exit codes tell which step failed. */
[[noreturn]] void live_as_child(const std::vector<unsigned char *> &inherited, void *foreign, bool with_threads, int depth) {
  here::limit_child();
  if (here::heap_check() != 0) _exit(10);
  for (size_t i = 0; i < inherited.size(); i++) {
    if (!here::holds(inherited[i], 40 + i, static_cast<int>(i))) _exit(11);
    std::free(inherited[i]);
  }
  std::free(foreign); /* its owner does not exist here */
  std::vector<unsigned char *> blocks;
  for (size_t i = 0; i < 1500; i++) blocks.push_back(here::filled(1 + i % 100 * 20, static_cast<int>(i)));
  for (size_t i = 0; i < blocks.size(); i++) {
    if (!here::holds(blocks[i], 1 + i % 100 * 20, static_cast<int>(i))) _exit(12);
  }
  std::free(std::malloc(size_t{1} << 20));
  std::free(std::malloc(size_t{40} << 20));
  if (with_threads) {
    /* New threads adopt the heaps of the threads that are not here, and free what this one allocated. */
    std::vector<std::thread> threads;
    for (unsigned t = 0; t < 3; t++) {
      threads.emplace_back([&blocks, t] {
        for (size_t i = t; i < blocks.size(); i += 3) {
          std::free(blocks[i]);
          blocks[i] = here::filled(1 + i % 100 * 20, static_cast<int>(i));
        }
      });
    }
    for (auto &t : threads) t.join();
  }
  for (unsigned char *p : blocks) std::free(p);
  if (depth > 0) {
    pid_t grandchild = fork();
    if (grandchild == 0) live_as_child({}, nullptr, with_threads, depth - 1);
    if (grandchild < 0 || !here::ended_well(grandchild)) _exit(13);
  }
  if (here::heap_check() != 0) _exit(14);
  _exit(0);
}

std::vector<unsigned char *> some_blocks() {
  std::vector<unsigned char *> blocks;
  for (size_t i = 0; i < 100; i++) blocks.push_back(here::filled(40 + i, static_cast<int>(i)));
  return blocks;
}

unsigned forks() {
  const char *n = std::getenv("LIFECYCLE_FORKS");
  unsigned many = std::getenv("TEST_DAY") == nullptr ? 1500 : 150; /* `make test` has one share of all that is long */
  return n == nullptr ? many : static_cast<unsigned>(std::atoi(n));
}

TEST(Fork, ChildrenOfAThreadedProgramLive) {
  Churn churn(3);
  std::vector<unsigned char *> inherited = some_blocks();
  for (unsigned i = 0; i < forks(); i++) {
    void *foreign = churn.steal();
    pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) live_as_child(inherited, foreign, i % 8 == 0, i % 32 == 0 ? 2 : 0);
    std::free(foreign);
    ASSERT_TRUE(here::ended_well(child)) << "fork " << i;
  }
  for (size_t i = 0; i < inherited.size(); i++) {
    EXPECT_TRUE(here::holds(inherited[i], 40 + i, static_cast<int>(i)));
    std::free(inherited[i]);
  }
  EXPECT_GT(here::served(), 0u);
}

TEST(Fork, FromSeveralThreadsAtOnce) {
  Churn churn(1);
  std::atomic<unsigned> failed{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; t++) {
    threads.emplace_back([&] {
      std::vector<unsigned char *> inherited = some_blocks();
      for (unsigned i = 0; i < forks() / 12; i++) {
        void *foreign = churn.steal();
        pid_t child = fork();
        if (child == 0) live_as_child(inherited, foreign, i % 8 == 0, i % 16 == 0 ? 1 : 0);
        if (child < 0 || !here::ended_well(child)) failed++;
        std::free(foreign);
      }
      for (unsigned char *p : inherited) std::free(p);
    });
  }
  for (auto &t : threads) t.join();
  EXPECT_EQ(failed, 0u);
}

/* The only thread of the child is one that has never allocated. */
TEST(Fork, FromAThreadWithoutHeap) {
  Churn churn(2);
  for (int i = 0; i < 50; i++) {
    pthread_t thread;
    ASSERT_EQ(0, pthread_create(
                     &thread, nullptr,
                     [](void *) -> void * {
                       pid_t child = fork();
                       if (child == 0) live_as_child({}, nullptr, true, 1);
                       return reinterpret_cast<void *>(static_cast<intptr_t>(child >= 0 && here::ended_well(child)));
                     },
                     nullptr));
    void *well = nullptr;
    pthread_join(thread, &well);
    ASSERT_NE(well, nullptr);
  }
}

TEST(Fork, HandlersRegisteredBeforeAndAfterOursMayAllocate) {
  ASSERT_EQ(0, pthread_atfork(late_prepare, late_after, late_after));
  Churn churn(3);
  int early = early_calls, late = late_calls;
  for (int i = 0; i < 60; i++) {
    pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) live_as_child({}, nullptr, i % 4 == 0, i % 8 == 0 ? 1 : 0);
    ASSERT_TRUE(here::ended_well(child));
  }
  EXPECT_EQ(early_calls - early, 2 * 60);
  EXPECT_EQ(late_calls - late, 2 * 60);
}

TEST(Fork, ExitHandlersOfTheChildAllocate) {
  for (int i = 0; i < 20; i++) {
    std::fflush(nullptr);
    pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      here::limit_child();
      static void *at_exit_block = std::malloc(300);
      std::atexit([] {
        std::free(at_exit_block);
        std::free(std::malloc(2000));
      });
      std::exit(0);
    }
    ASSERT_TRUE(here::ended_well(child));
  }
}

/* The walk finds nothing where there is nothing, whatever other threads do meanwhile. */
TEST(HeapCheck, WhileOthersAllocate) {
  Churn churn(2);
  for (int i = 0; i < 5000; i++) ASSERT_EQ(0u, here::heap_check()) << "walk " << i;
}

// Their slabs go to the pool whole, and become extents, while the walk is on its way.
TEST(HeapCheck, WhileWholeSpansComeAndGo) {
  std::atomic<bool> end{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; t++)
    threads.emplace_back([&end, t] {
      std::mt19937 random(t);
      std::vector<void *> blocks(40);
      while (!end) {
        void *&p = blocks[random() % blocks.size()];
        if (random() % 4 == 0)
          std::free(std::exchange(p, nullptr));
        else
          p = std::realloc(p, 33000 + random() % 300000);
      }
      for (void *p : blocks) std::free(p);
    });
  unsigned bad = 0;
  for (int i = 0; i < 3000; i++) bad += here::heap_check() != 0;
  end = true;
  for (std::thread &t : threads) t.join();
  EXPECT_EQ(bad, 0u);
}

TEST(Fork, PopenSystemSpawnVfork) {
  Churn churn(2);
  for (int i = 0; i < 10; i++) {
    FILE *f = popen("echo from the child", "r");
    ASSERT_NE(f, nullptr);
    char line[64] = "";
    ASSERT_NE(std::fgets(line, sizeof line, f), nullptr);
    EXPECT_STREQ(line, "from the child\n");
    EXPECT_EQ(pclose(f), 0);

    EXPECT_EQ(std::system("exit 0"), 0);

    pid_t child = 0;
    const char *const command[] = {"true", nullptr};
    ASSERT_EQ(0, posix_spawnp(&child, "true", nullptr, nullptr, const_cast<char *const *>(command), environ));
    EXPECT_TRUE(here::ended_well(child));

    child = vfork();
    if (child == 0) {
      execlp("true", "true", static_cast<char *>(nullptr));
      _exit(127);
    }
    ASSERT_GT(child, 0);
    EXPECT_TRUE(here::ended_well(child));
  }
  EXPECT_EQ(0u, here::heap_check());
}

}  // namespace
