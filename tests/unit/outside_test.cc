// What is asked for from outside the process: it is sampled while somebody asks, answers, and leaves nothing behind. The test writes the words as
// `hakmem profile PID` does through /proc/PID/mem, and the semaphores as a tracer's kernel does.
#include <gtest/gtest.h>

#include <dirent.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cmath>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "hak.h"

#if HAK_PROBES
extern "C" {
extern unsigned short hakmem_sample_alloc_semaphore, hakmem_sample_free_semaphore, otel_memory_alloc_semaphore, otel_memory_free_semaphore;
}
#endif

namespace {

#ifdef __SANITIZE_THREAD__
const bool forks = false;
#else
const bool forks = true;
#endif

std::atomic<uint64_t> clock_ms{1000};
std::atomic<bool> refuses{false};
std::atomic<unsigned> refused{0};
std::atomic<bool> halts{false}, halted{false}; /* in the mapping of an answer */
hak_os_ops fake;

void start_off() {
  fake = hak_os_linux;
  fake.now_ms = [] { return clock_ms.load(); };
  fake.map = [](void *hint, size_t bytes, hak_os_access access, bool fixed) -> void * {
    while (halts && __atomic_load_n(&hak_outside.sequence, __ATOMIC_RELAXED) % 2 != 0) halted = true;
    if (refuses && bytes >= 16 * HAK_MIB) return refused++, nullptr;
    return hak_os_linux.map(hint, bytes, access, fixed);
  };
  hak_os = &fake;
  hak_config.heap_profile_most = 0;
  hak_sampling_start();
  ASSERT_NE(hak_thread_cache(), nullptr);
  ASSERT_FALSE(hak_profile_made());
}

// A few slow paths, at another time each.
void work(unsigned rounds = 4) {
  for (unsigned i = 0; i < rounds; i++) {
    clock_ms += 10;
    void *p[300];
    for (void *&one : p) one = hakmem_malloc(1000);
    for (void *one : p) hakmem_free(one);
  }
}

void ask(uint32_t beat, uint64_t rate = 0) {
  __atomic_store_n(&hak_outside.rate, rate, __ATOMIC_RELAXED);
  __atomic_store_n(&hak_outside.beat, beat, __ATOMIC_RELEASE);
}

bool is_on() { return hak_counting() && hak_profile.sampling; }

std::string answer() {
  EXPECT_EQ(hak_outside.sequence % 2, 0u);
  EXPECT_EQ(hak_outside.error, 0u);
  return std::string(reinterpret_cast<const char *>(uintptr_t(hak_outside.answer)), hak_outside.bytes);
}

size_t entries(const char *path) {
  size_t count = 0;
  DIR *directory = opendir(path);
  while (readdir(directory) != nullptr) count++;
  closedir(directory);
  return count;
}

TEST(Outside, NobodyAsks) {
  start_off();
  work(100);
  EXPECT_FALSE(is_on());
  EXPECT_EQ(hak_outside.sequence, 0u);
}

TEST(Outside, SamplesWhileSomebodyAsksAndLeavesNothing) {
  start_off();
  size_t files = entries("/proc/self/fd"), threads = entries("/proc/self/task");
  ask(3, 1);
  work(1);
  EXPECT_TRUE(is_on());
  EXPECT_EQ(hak_profile.distance, 1u);
  uint32_t first = hak_outside.sequence;
  EXPECT_NE(first, 0u);
  void *p = hakmem_malloc(12345);
  ask(4, 1);
  work(1);
  EXPECT_EQ(hak_outside.sequence, first) << "an even beat asks for no answer";
  ask(5, 1);
  work(1);
  EXPECT_NE(hak_outside.sequence, first);
  std::string text = answer();
  EXPECT_EQ(text.rfind("{\"hakmem_heap_profile\":1,", 0), 0u) << text.substr(0, 60);
  EXPECT_NE(text.find("\"live\":[12345,1,"), std::string::npos);
  EXPECT_NE(text.find("\"program\":\"\""), std::string::npos);
  EXPECT_NE(text.find("\"maps\":[]"), std::string::npos) << "no file is opened";
  EXPECT_EQ(text.substr(text.size() - 2), "}\n");
  ask(0);
  work(1);
  EXPECT_FALSE(is_on());
  EXPECT_EQ(hak_outside_on, 0u);
  EXPECT_FALSE(hak_os_is_readable(reinterpret_cast<const uint32_t *>(uintptr_t(hak_outside.answer))));
  EXPECT_EQ(entries("/proc/self/fd"), files);
  EXPECT_EQ(entries("/proc/self/task"), threads);
  hakmem_free(p);
  EXPECT_EQ(hak_profile_occupied, 0u);
}

// Whoever asks may have been killed.
TEST(Outside, EndsByItself) {
  start_off();
  ask(2);
  work(1);
  uint64_t began = clock_ms;
  ASSERT_TRUE(is_on());
  while (is_on() && clock_ms < began + 10 * HAK_OUTSIDE_LEASE_MS) work(1);
  EXPECT_NEAR(double(clock_ms - began), HAK_OUTSIDE_LEASE_MS, 30);
  work(100);
  EXPECT_FALSE(is_on()) << "the beat is the same";
  ask(4);
  work(1);
  EXPECT_TRUE(is_on());
  clock_ms += HAK_OUTSIDE_LEASE_MS - 50;
  uint64_t start_ms = hak_profile.start_ms;
  ask(6);
  work(1);
  clock_ms += HAK_OUTSIDE_LEASE_MS - 50;
  work(1);
  EXPECT_TRUE(is_on());
  clock_ms += 10 * HAK_OUTSIDE_LEASE_MS;
  ask(8);
  work(1);
  EXPECT_TRUE(is_on()) << "at rest meanwhile";
  EXPECT_EQ(hak_profile.start_ms, start_ms) << "and it is the same profile";
}

// A thread whose work never leaves its cache takes part after the bytes that a countdown lasts while nothing is sampled.
TEST(Outside, ThreadsInTheirCachesTakePart) {
  start_off();
  work();
  for (int i = 0; i < 100000; i++) hakmem_free(hakmem_malloc(100));
  ask(2, 1);
  clock_ms += 10;
  size_t bytes = 0;
  for (; !is_on() && bytes < 100 * HAK_MIB; bytes += 100 + 15) hakmem_free(hakmem_malloc(100));
  EXPECT_LE(bytes, HAK_COUNT_OFF_BYTES + 1024u);
  hakmem_free(hakmem_malloc(100));
  hakmem_free(hakmem_malloc(100));
  EXPECT_GE(hak_profile.taken, 1u);
}

TEST(Outside, AProfileOfTheProgramStays) {
  start_off();
  ask(2, 1);
  work(1);
  EXPECT_EQ(hakmem_profile_stop(), 0);
  EXPECT_TRUE(is_on()) << "somebody else wants it";
  EXPECT_EQ(hak_profile.distance, 1u);
  ASSERT_EQ(hakmem_profile_start(1000), 0);
  EXPECT_EQ(hak_profile.distance, 1000u);
  ask(0);
  work();
  EXPECT_TRUE(is_on());
  EXPECT_EQ(hakmem_profile_stop(), 0);
  EXPECT_FALSE(is_on());
}

// It was no setting of the program's, so what a setting brings does not come later either.
TEST(Outside, NoThreadComesWithAnotherOption) {
  start_off();
  ask(2);
  work(1);
  size_t files = entries("/proc/self/fd"), threads = entries("/proc/self/task");
  ASSERT_EQ(hakmem_option_set("HAKMEM_LIMIT", 0), 0);
  EXPECT_EQ(entries("/proc/self/fd"), files);
  EXPECT_EQ(entries("/proc/self/task"), threads);
  EXPECT_TRUE(is_on());
}

TEST(Outside, ChildrenAreNotAsked) {
  start_off();
  ask(3);
  work(1);
  ASSERT_TRUE(is_on());
  ask(5); /* the parent has not seen this one */
  pid_t child = fork();
  if (child == 0) {
    alarm(60);
    if (hak_os_is_readable(reinterpret_cast<const uint32_t *>(uintptr_t(hak_outside.answer)))) _exit(4);
    work(1);
    if (is_on()) _exit(1);
    ask(7);
    work(1);
    _exit(!is_on() ? 2 : hak_outside.sequence % 2 != 0 || hak_outside.bytes == 0 ? 3 : 0);
  }
  int status;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  work(1);
  EXPECT_TRUE(is_on());
}

TEST(Outside, WithoutMemoryItSaysSo) {
  start_off();
  refuses = true;
  ask(3);
  work();
  EXPECT_FALSE(is_on());
  EXPECT_EQ(hak_outside.error, uint32_t(ENOMEM));
  EXPECT_EQ(hak_outside.sequence % 2, 0u);
  unsigned tries = refused;
  EXPECT_GE(tries, 1u);
  work(400);
  EXPECT_EQ(refused, tries) << "once for each beat";
  refuses = false;
  ask(5);
  work();
  EXPECT_TRUE(is_on());
  EXPECT_EQ(hak_outside.error, 0u);
}

TEST(Outside, ATracerSwitches) {
#if HAK_PROBES
  start_off();
  unsigned short *const semaphores[] = {&hakmem_sample_alloc_semaphore, &hakmem_sample_free_semaphore, &otel_memory_alloc_semaphore,
                                        &otel_memory_free_semaphore};
  for (unsigned short *one : semaphores) {
    __atomic_fetch_add(one, 2, __ATOMIC_RELAXED);
    work(1);
    EXPECT_TRUE(is_on());
    __atomic_fetch_sub(one, 1, __ATOMIC_RELAXED);
    work(600);
    EXPECT_TRUE(is_on()) << "one still listens, for however long";
    __atomic_fetch_sub(one, 1, __ATOMIC_RELAXED);
    work(1);
    EXPECT_FALSE(is_on());
  }
  EXPECT_EQ(hak_outside.sequence, 0u);
#else
  GTEST_SKIP() << "built without probes";
#endif
}

// Its parent had switched sampling on, and had not said so yet.
TEST(Outside, AForkWhileSomebodyAnswersIsNotSampled) {
  if (!forks) GTEST_SKIP() << "ThreadSanitizer's children have no threads' past";
  start_off();
  halts = true;
  std::thread answers([] {
    hakmem_free(hakmem_malloc(1));
    ask(3, 1);
    work();
  });
  while (!halted) usleep(100);
  pid_t child = fork();
  if (child == 0) {
    alarm(60);
    halts = false;
    bool sampled = is_on();
    work();
    _exit(sampled && !is_on() ? 0 : 1);
  }
  halts = false;
  answers.join();
  int status;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

// Beats, ends and answers beside threads that allocate, and their children.
TEST(Outside, ToAndFroUnderThreadsAndForks) {
  start_off();
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 8; t++)
    threads.emplace_back([&, t] {
      std::mt19937 random(t);
      std::vector<void *> live;
      while (!stop) {
        clock_ms += 1;
        live.push_back(hakmem_malloc(1 + random() % 3000));
        if (live.size() < 200) continue;
        for (void *p : live) hakmem_free(p);
        live.clear();
      }
      for (void *p : live) hakmem_free(p);
    });
  for (uint32_t i = 0; i < 400; i++) {
    ask(i % 5 == 0 ? 0 : 2 * i + i % 2, 100 + i);
    if (forks && i % 100 == 50) {
      pid_t child = fork();
      if (child == 0) {
        alarm(60);
        work();
        _exit(is_on() || hak_heap_check() != 0);
      }
      int status;
      ASSERT_EQ(waitpid(child, &status, 0), child);
      ASSERT_EQ(status, 0);
    }
    usleep(500);
  }
  stop = true;
  for (auto &t : threads) t.join();
  ask(1001);
  work();
  EXPECT_TRUE(is_on());
  answer();
  ask(0);
  work();
  EXPECT_FALSE(is_on());
  EXPECT_EQ(hak_profile_occupied, 0u) << "each sample has been freed";
  EXPECT_EQ(hak_heap_check(), 0u);
}

}  // namespace
