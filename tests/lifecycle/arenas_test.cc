/* Threads and CPUs as arenas see them: numbers in place of CPUs, a thread that is stopped while it has an arena's lock, ten
 * thousand threads, threads that come and go. */
#include <gtest/gtest.h>
#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#include "accounting.h"
#include "hak.h"
extern "C" {
#include "proc_status.h"
}

namespace {

constexpr size_t KIB = 1024;

/* Each thread has a number of its own in place of a CPU's, as where rseq is off; one CPU more than one makes two arenas. */
void number_threads() {
  ASSERT_TRUE(hak_start());
  hak_os_cpu_offset = 0;
}

/* As many blocks as overflow a cache, each filled and checked. */
void burst(size_t size, size_t count = 300) {
  std::vector<unsigned char *> blocks;
  for (size_t i = 0; i < count; i++) {
    auto *p = static_cast<unsigned char *>(hakmem_malloc(size));
    if (p == nullptr) abort();
    memset(p, int(i), size);
    blocks.push_back(p);
  }
  for (size_t i = 0; i < count; i++) {
    if (blocks[i][0] != (i & 0xff) || blocks[i][size - 1] != (i & 0xff)) abort();
    hakmem_free(blocks[i]);
  }
}

void expect_nothing_left() {
  hakmem_malloc_trim(0);
  EXPECT_EQ(hakmem_heap_check(), 0u);
  EXPECT_EQ(accounting_check_nothing_live(), 0u);
}

TEST(Arenas, NoMoreThanCpusWhereThreadsAreNumbered) {
  number_threads();
  std::vector<std::thread> threads;
  for (int t = 0; t < 16; t++) threads.emplace_back([] { burst(64); });
  for (std::thread &t : threads) t.join();
  EXPECT_LE(hak_arena_count(), static_cast<uint32_t>(sysconf(_SC_NPROCESSORS_ONLN)));
  expect_nothing_left();
}

TEST(Arenas, OneCpuNeedsFew) {
  cpu_set_t all, one;
  ASSERT_EQ(sched_getaffinity(0, sizeof all, &all), 0);
  CPU_ZERO(&one);
  for (int cpu = 0; CPU_COUNT(&one) == 0; cpu++) {
    if (CPU_ISSET(cpu, &all)) CPU_SET(cpu, &one);
  }
  ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
  std::vector<std::thread> threads;
  for (int t = 0; t < 16; t++)
    threads.emplace_back([] {
      for (int i = 0; i < 20; i++) burst(64), sched_yield();
    });
  for (std::thread &t : threads) t.join();
  printf("%u arenas\n", hak_arena_count());
  EXPECT_LE(hak_arena_count(), static_cast<uint32_t>(CPU_COUNT(&all))) << "a number may be that of the CPU";
  expect_nothing_left();
}

/* A thread that has taken the lock of a bin of the first arena, and is stopped. */
class StoppedThread {
 public:
  explicit StoppedThread(size_t size) : lock_(&hak_arena_at(0)->bins[hak_class_for(size)].lock), thread_([this] {
    hak_lock_take(lock_);
    holds_ = true;
    while (!goes_on_) usleep(1000);
    hak_lock_drop(lock_);
  }) {
    while (!holds_) sched_yield();
  }
  ~StoppedThread() {
    goes_on_ = true;
    thread_.join();
  }

 private:
  hak_lock *lock_;
  std::atomic<bool> holds_{false}, goes_on_{false};
  std::thread thread_;
};

/* Makes the calling thread one of arena `wanted`, and gives it a cache. */
void be_of_arena(uint32_t wanted) {
  hak_thread_cache();
  ASSERT_EQ(hak_arena_current()->id, wanted);
}

/* Runs body on a thread whose number leads to the arena. */
std::thread on_arena(uint32_t wanted, std::function<void()> body) {
  return std::thread([=] {
    if (hak_arena_current()->id == wanted) {
      be_of_arena(wanted);
      body();
    } else {
      on_arena(wanted, body).join(); /* the next number is another one */
    }
  });
}

TEST(StoppedInALock, OthersGoOn) {
  hak_config.decay_ms = 20; /* before the start: arenas decay meanwhile */
  if (hak_started()) GTEST_SKIP() << "something has allocated";
  number_threads();
  if (sysconf(_SC_NPROCESSORS_ONLN) < 2) GTEST_SKIP() << "one CPU: one arena";
  burst(100); /* this thread's arena */
  on_arena(0, [] { burst(64); }).join();
  on_arena(1, [] { burst(64); }).join();
  std::atomic<bool> served{false};
  std::thread waits;
  {
    StoppedThread stopped(64);
    std::vector<std::thread> others;
    uint64_t begin = hak_os_now_ms();
    auto work = [begin](size_t size) {
      for (int i = 0; i < 50 || hak_os_now_ms() - begin < 200; i++) burst(size);
    };
    others.push_back(on_arena(1, [work] { work(64); }));   /* the same class, another arena */
    others.push_back(on_arena(0, [work] { work(2000); })); /* the same arena, another class */
    for (std::thread &t : others) t.join();
    /* Who needs that very bin waits, and is served when the thread goes on. */
    waits = on_arena(0, [&] {
      burst(64);
      served = true;
    });
    usleep(50000);
    EXPECT_FALSE(served);
  }
  waits.join();
  EXPECT_TRUE(served);
  expect_nothing_left();
}

TEST(ManyThreads, HoldLittleEach) {
  constexpr size_t THREADS = HAKMEM_TEST_SANITIZED ? 500 : 10000, STACK_BYTES = 16 * KIB;
  static std::atomic<size_t> ready{0};
  static pthread_rwlock_t leave = PTHREAD_RWLOCK_INITIALIZER; /* written while they are to stay */
  pthread_rwlock_wrlock(&leave);
  hakmem_free(hakmem_malloc(1));
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  size_t stack = STACK_BYTES < size_t(PTHREAD_STACK_MIN) ? PTHREAD_STACK_MIN : STACK_BYTES;
  if (HAKMEM_TEST_SANITIZED) stack = 256 * KIB;
  pthread_attr_setstacksize(&attributes, stack);
  auto body = [](void *) -> void * {
    void *blocks[20];
    for (size_t i = 0; i < 20; i++) memset(blocks[i] = hakmem_malloc(16 + i * 50), 1, 16 + i * 50);
    for (size_t i = 10; i < 20; i++) hakmem_free(blocks[i]);
    ready++;
    pthread_rwlock_rdlock(&leave);
    pthread_rwlock_unlock(&leave);
    for (size_t i = 0; i < 10; i++) hakmem_free(blocks[i]);
    return nullptr;
  };
  long before = proc_status_kib("VmRSS:");
  std::vector<pthread_t> threads;
  for (size_t i = 0; i < THREADS; i++) {
    pthread_t t;
    if (pthread_create(&t, &attributes, body, nullptr) != 0) break;
    threads.push_back(t);
  }
  while (ready < threads.size()) usleep(1000);
  long kib = proc_status_kib("VmRSS:") - before;
  hak_tcache_sums sums;
  hak_tcache_sum(&sums);
  printf("%zu threads: %ld KiB resident, %.1f each; %zu caches, %u arenas\n", threads.size(), kib,
         double(kib) / double(threads.size()), size_t(sums.caches), hak_arena_count());
  size_t made = threads.size();
  pthread_rwlock_unlock(&leave);
  for (pthread_t t : threads) pthread_join(t, nullptr);
  if (made < THREADS) GTEST_SKIP() << "this machine allows " << made << " threads";
  EXPECT_LE(sums.used, 2u) << "a thread that allocates a little has no cache";
  /* Live are 2.4 KiB; stack and thread control block touch 8 to 12. */
  if (!HAKMEM_TEST_SANITIZED) EXPECT_LE(kib, long(THREADS) * 24);
  expect_nothing_left();
}

TEST(ThreadChurn, LeavesNothingBehind) {
  auto life = [] {
    hak_thread_cache();
    for (size_t size : {16, 100, 1000, 5000, 32768}) burst(size, 100);
    hakmem_free(hakmem_malloc(200000));
  };
  for (int i = 0; i < 50; i++) std::thread(life).join();
  hak_tcache_sums first, last;
  hak_tcache_sum(&first);
  size_t metadata = hak_meta_bytes();
  for (int i = 0; i < 1000; i++) std::thread(life).join();
  hak_tcache_sum(&last);
  EXPECT_EQ(last.caches, first.caches) << "ended threads' caches are not used again";
  EXPECT_LE(hak_meta_bytes(), metadata + 256 * KIB);
  EXPECT_LE(hak_load_relaxed(&hak_span_pool.live_spans) * HAK_SPAN_SIZE, size_t{32} << 20) << "depots hold 16 MiB";
  expect_nothing_left();
}

}  // namespace
