/* Threads that end in unusual ways, and the smallest stacks: cancellation around the allocator's calls, a first
 * allocation in a destructor. */
#include <gtest/gtest.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "here.h"

namespace {

/* --- cancellation --- */

std::atomic<bool> inside{false};

/* Cancels `count` threads that run body, each once it has said that it is inside. */
void cancel_each(int count, void *(*body)(void *)) {
  uint64_t before = here::caches();
  for (int i = 0; i < count; i++) {
    inside = false;
    pthread_t thread;
    ASSERT_EQ(0, pthread_create(&thread, nullptr, body, nullptr));
    while (!inside) sched_yield();
    pthread_cancel(thread);
    void *result = nullptr;
    pthread_join(thread, &result);
    ASSERT_EQ(result, PTHREAD_CANCELED);
  }
  /* One thread lives at a time; one that is cancelled soon has no cache yet. */
  EXPECT_LE(here::caches(), before + 1) << "cancelled threads' caches are not used again";
  EXPECT_EQ(0u, here::heap_check());
}

/* malloc and free may not be cancelled asynchronously (POSIX 2.9.5.4); what lies between two calls may. No C++ objects in
 * the thread: gcc's tables for unwinding them know of calls only. */
unsigned char *of_cancelled[50];

TEST(Cancel, AsynchronousBetweenCalls) {
  cancel_each(300, [](void *) -> void * {
    for (;;) {
      for (size_t i = 0; i < 50; i++) {
        free(of_cancelled[i]); /* at first of the thread before */
        of_cancelled[i] = here::filled(1 + i * 77, 1);
      }
      int old;
      inside = true;
      pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, &old);
      for (volatile int spin = 0; spin < 1000; spin = spin + 1) {
      }
      pthread_setcanceltype(PTHREAD_CANCEL_DEFERRED, &old);
    }
  });
  for (unsigned char *p : of_cancelled) {
    EXPECT_EQ(*p, 1);
    std::free(p);
  }
}

TEST(Cancel, DeferredUnwindsThroughFrees) {
  cancel_each(300, [](void *) -> void * {
    unsigned char *block = here::filled(3000, 1);
    pthread_cleanup_push(free, block);
    for (;;) {
      std::string text(300, 'x');
      std::vector<unsigned char> bytes(50000, 1);
      inside = true;
      usleep(1);
    }
    pthread_cleanup_pop(0);
    return nullptr;
  });
}

char outside[64];

/* free is no cancellation point (POSIX 2.9.5.2), not even when it reads and writes files for a report. */
TEST(Cancel, WaitsWhileFreeReports) {
  auto set = here::look_up<int (*)(const char *, int64_t)>("hakmem_option_set");
  ASSERT_EQ(0, set("HAKMEM_EXTERNAL_GUARD_LOG", 1));
  static std::atomic<bool> came_back;
  pthread_t thread;
  ASSERT_EQ(0, pthread_create(
                   &thread, nullptr,
                   [](void *) -> void * {
                     pthread_cancel(pthread_self());
                     void *volatile foreign = outside;
                     free(foreign);
                     came_back = true;
                     pthread_testcancel();
                     return nullptr;
                   },
                   nullptr));
  void *result = nullptr;
  pthread_join(thread, &result);
  EXPECT_EQ(result, PTHREAD_CANCELED);
  EXPECT_TRUE(came_back);
}

TEST(Cancel, DoesNotLetADoubleFreePass) {
  pid_t child = fork();
  if (child == 0) {
    here::limit_child();
    pthread_t thread;
    pthread_create(
        &thread, nullptr,
        [](void *) -> void * {
          pthread_cancel(pthread_self());
          void *volatile block = malloc(100);
          free(block);
          free(block);
          return nullptr;
        },
        nullptr);
    pthread_join(thread, nullptr);
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT) << "status " << status;
}

/* --- a first allocation in a destructor --- */

pthread_key_t late_key;
std::atomic<unsigned> late_calls{0};

/* The value counts down: the allocator is used when it is 1. */
void late_first_use(void *value) {
  auto left = reinterpret_cast<uintptr_t>(value);
  if (left > 1) {
    pthread_setspecific(late_key, reinterpret_cast<void *>(left - 1));
    return;
  }
  for (size_t i = 1; i < 300; i++) std::free(here::filled(i * 10, 1));
  late_calls++;
}

TEST(Destructors, MayBeTheFirstToAllocate) {
  ASSERT_EQ(0, pthread_key_create(&late_key, late_first_use));
  for (uintptr_t round = 1; round <= 4; round++) {
    uint64_t caches = here::caches();
    for (int i = 0; i < 50; i++) {
      pthread_t thread;
      ASSERT_EQ(0, pthread_create(
                       &thread, nullptr,
                       [](void *first_round) -> void * {
                         pthread_setspecific(late_key, first_round);
                         return nullptr;
                       },
                       reinterpret_cast<void *>(round)));
      pthread_join(thread, nullptr);
    }
    std::printf("first used in round %d: %u caches more\n", static_cast<int>(round), static_cast<unsigned>(here::caches() - caches));
    if (round == 1) {
      EXPECT_LE(here::caches(), caches + 1);
    }
  }
  EXPECT_EQ(late_calls, 4u * 50);
  pthread_key_delete(late_key);
  EXPECT_EQ(0u, here::heap_check());
}

/* --- the smallest stacks --- */

/* What needs most of the stack: reports with their buffers, reading the mappings, trimming, fork. */
void *with_reports(void *log) {
  auto set = reinterpret_cast<int (*)(const char *, int64_t)>(log);
  for (size_t i = 0; i < 2000; i++) std::free(std::malloc(i * 20));
  if (set("HAKMEM_EXTERNAL_GUARD_LOG", 1) != 0) return nullptr;
  void *volatile foreign = outside;
  std::free(foreign);
  if (std::realloc(foreign, 10) != nullptr) return nullptr;
  set("HAKMEM_EXTERNAL_GUARD_LOG", 0);
  malloc_stats();
  malloc_trim(0);
  pid_t child = fork();
  if (child == 0) {
    here::limit_child();
    for (size_t i = 0; i < 2000; i++) std::free(std::malloc(i * 20));
    _exit(here::heap_check() == 0 ? 0 : 1);
  }
  int status = -1;
  if (child < 0 || waitpid(child, &status, 0) != child || status != 0) return nullptr;
  return here::heap_check() == 0 ? outside : nullptr;
}

TEST(SmallestStacks, HoldReportsAndForks) {
  auto set = here::look_up<int (*)(const char *, int64_t)>("hakmem_option_set");
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  size_t least = static_cast<size_t>(sysconf(_SC_THREAD_STACK_MIN));
  ASSERT_EQ(0, pthread_attr_setstacksize(&attributes, std::max(least, size_t{16384})));
  for (int i = 0; i < 20; i++) {
    pthread_t thread;
    void *well = nullptr;
    ASSERT_EQ(0, pthread_create(&thread, &attributes, with_reports, reinterpret_cast<void *>(set)));
    pthread_join(thread, &well);
    ASSERT_NE(well, nullptr);
  }
  pthread_attr_destroy(&attributes);
}

}  // namespace
