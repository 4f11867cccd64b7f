/* _Fork in signal handlers that interrupt the allocator. POSIX.1-2024: _Fork runs no fork handlers and may be called in a
 * signal handler; the child of a threaded process may then only call what a signal handler may. A process without other
 * threads is copied whole, so its child may return from the handler and go on. */
#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/time.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <thread>
#include <vector>

#include "here.h"

namespace {

/* --- threads: the child does what a signal handler may --- */

std::atomic<unsigned> handled{0}, failed{0};

bool ended_with_zero(pid_t child) {
  int status = 0;
  while (waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) return false;
  }
  return status == 0;
}

void fork_in_handler(int) {
  int saved = errno;
  bool runs_a_program = handled % 16 == 0;
  pid_t child = _Fork();
  if (child == 0) {
    if (runs_a_program) execl("/bin/true", "true", static_cast<char *>(nullptr));
    _exit(0);
  }
  if (child < 0 || !ended_with_zero(child)) failed++;
  handled++;
  errno = saved;
}

void install(void (*handler)(int), int signal) {
  struct sigaction action = {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  sigaction(signal, &action, nullptr);
}

/* Every kind of path: refill, flush, runs that go to the pool and come back, mappings, frees of another thread's blocks. */
class Busy {
 public:
  void step(std::atomic<unsigned char *> *exchange) {
    for (size_t i = 0; i < 200; i++) blocks_.push_back(here::filled(1 + i % 20 * 100, 7));
    std::free(exchange->exchange(here::filled(500, 7)));
    std::free(std::malloc(size_t{2} << 20));
    std::free(std::malloc(size_t{40} << 20));
    for (unsigned char *p : blocks_) {
      if (*p != 7) std::abort();
      std::free(p);
    }
    blocks_.clear();
  }

 private:
  std::vector<unsigned char *> blocks_;
};

TEST(SignalFork, ChildrenOfThreadsInsideTheAllocator) {
  install(fork_in_handler, SIGUSR1);
  static std::atomic<bool> stop{false};
  static std::atomic<unsigned char *> exchange{nullptr};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; t++) {
    threads.emplace_back([] {
      Busy busy;
      while (!stop) busy.step(&exchange);
    });
  }
  auto end = std::chrono::steady_clock::now() + std::chrono::seconds(4);
  for (unsigned i = 0; i < 3000 && (i == 0 || std::chrono::steady_clock::now() < end); i++) {
    ASSERT_EQ(0, pthread_kill(threads[i % 4].native_handle(), SIGUSR1));
    while (handled == i) sched_yield();
  }
  stop = true;
  for (auto &t : threads) t.join();
  std::free(exchange);
  std::printf("%u forks\n", handled.load());
  EXPECT_EQ(failed, 0u);
  EXPECT_EQ(0u, here::heap_check());
}

/* --- no threads: the child goes on where the signal came --- */

volatile sig_atomic_t is_child, pending_child;
pid_t (*make_copy)();

void copy_in_handler(int) {
  if (is_child || pending_child != 0) return;
  int saved = errno;
  pid_t child = make_copy();
  if (child == 0)
    is_child = 1;
  else
    pending_child = child;
  errno = saved;
}

/* With _Fork, and with fork: its handlers must not wait for what the thread they interrupted holds. */
struct Copy {
  const char *name;
  pid_t (*call)();
};

void PrintTo(const Copy &copy, std::ostream *out) { *out << copy.name; }

class LoneThread : public testing::TestWithParam<Copy> {};

TEST_P(LoneThread, CopiesGoOn) {
  make_copy = GetParam().call;
  install(copy_in_handler, SIGALRM);
  itimerval timer = {{0, 1000}, {0, 1000}};
  ASSERT_EQ(0, setitimer(ITIMER_REAL, &timer, nullptr));
  static std::atomic<unsigned char *> exchange{nullptr};
  Busy busy;
  for (unsigned copies = 0; copies < 500;) {
    busy.step(&exchange);
    if (is_child) {
      alarm(20); /* the timer is the parent's alone */
      install(SIG_DFL, SIGALRM);
      for (int i = 0; i < 5; i++) busy.step(&exchange);
      _exit(here::heap_check() == 0 ? 0 : 1);
    }
    if (pending_child == 0) continue;
    ASSERT_TRUE(pending_child > 0 && ended_with_zero(pending_child)) << "copy " << copies;
    pending_child = 0;
    copies++;
  }
  timer = {};
  setitimer(ITIMER_REAL, &timer, nullptr);
  std::free(exchange.exchange(nullptr));
  EXPECT_EQ(0u, here::heap_check());
}

INSTANTIATE_TEST_SUITE_P(SignalFork, LoneThread, testing::Values(Copy{"_Fork", _Fork}, Copy{"fork", fork}));

}  // namespace
