/* Allocations that are sampled, in every place where a profiler of others has hung or crashed: in the middle of the loader's
 * work, of an exception, of a thread's end, of a fork. The library is preloaded; the environment says what is sampled. */
#include <gtest/gtest.h>
#include <limits.h>
#include <link.h>
#include <pthread.h>
#include <spawn.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/time.h>

#include <atomic>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "../lifecycle/here.h"

extern char **environ;

namespace {

/* Blocks of every kind, written to and freed. */
void use_memory() {
  static const size_t sizes[] = {1, 24, 100, 1000, 5000, 30000, 100000, 600000};
  for (size_t size : sizes) {
    unsigned char *p = here::filled(size, 1);
    p = static_cast<unsigned char *>(std::realloc(p, size * 2));
    if (p == nullptr || !here::holds(p, size, 1)) std::abort();
    std::free(p);
  }
}

/* Runs it in `count` threads until `work` returns. */
template <class Busy, class Work>
void beside(unsigned count, Busy busy, Work work) {
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < count; i++) {
    threads.emplace_back([&] {
      while (!stop) busy();
    });
  }
  work();
  stop = true;
  for (auto &t : threads) t.join();
}

/* --- before main and after it --- */

struct BeforeMain {
  BeforeMain() { use_memory(); }
  ~BeforeMain() { use_memory(); }
  std::string text = std::string(100, 'x');
} before_main;

__attribute__((constructor(103))) void early() { use_memory(); }
__attribute__((destructor(103))) void late() { use_memory(); }

/* --- the loader --- */

void with_plugin(const char *path) {
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(library, nullptr) << dlerror();
  auto call = reinterpret_cast<int (*)(void (*)(void *), void *)>(dlsym(library, "plugin_call"));
  ASSERT_NE(call, nullptr);
  call([](void *) { use_memory(); }, nullptr);
  dlclose(library);
}

TEST(Places, LibrariesComeAndGo) {
  beside(2, use_memory, [] {
    beside(1, [] { with_plugin(PLUGIN_NAMELESS_A); }, [] {
      for (int i = 0; i < 150; i++) with_plugin(i % 2 == 0 ? PLUGIN_A : PLUGIN_B);
    });
  });
}

int allocate_for_each(dl_phdr_info *, size_t, void *) {
  use_memory();
  return 0;
}

TEST(Places, InsideTheLoadersWalk) {
  auto walk_and_rest = [] { /* else the loader's lock, which is not fair, is theirs for seconds */
    dl_iterate_phdr(allocate_for_each, nullptr);
    usleep(50);
  };
  beside(2, walk_and_rest, [] {
    for (int i = 0; i < 50; i++) {
      with_plugin(PLUGIN_A);
      dl_iterate_phdr(allocate_for_each, nullptr);
    }
  });
}

/* --- ends of threads --- */

pthread_key_t key;

struct Local {
  ~Local() {
    use_memory();
    for (void *p : blocks) std::free(p);
  }
  std::vector<void *> blocks;
};
thread_local Local local;

/* In each of the rounds that there are, and then once more than anybody cleans up after. */
void end_of_key(void *rounds_left) {
  auto rounds = reinterpret_cast<uintptr_t>(rounds_left);
  use_memory();
  if (rounds > 1) pthread_setspecific(key, reinterpret_cast<void *>(rounds - 1));
}

TEST(Places, EndsOfThreads) {
  ASSERT_EQ(pthread_key_create(&key, end_of_key), 0);
  for (int i = 0; i < 40; i++) {
    std::vector<std::thread> threads;
    for (int t = 0; t < 8; t++) {
      threads.emplace_back([] {
        pthread_setspecific(key, reinterpret_cast<void *>(uintptr_t{PTHREAD_DESTRUCTOR_ITERATIONS}));
        for (int n = 0; n < 40; n++) local.blocks.push_back(std::malloc(48));
      });
    }
    for (auto &t : threads) t.join();
  }
}

TEST(Places, ThreadsByTheThousand) {
  std::atomic<long> sum{0};
  for (int i = 0; i < 200; i++) {
    std::vector<std::thread> threads;
    for (int t = 0; t < 10; t++) threads.emplace_back([&] {
      std::vector<int> numbers(100, 1);
      for (int n : numbers) sum += n;
    });
    for (auto &t : threads) t.join();
  }
  EXPECT_EQ(sum, 200000);
}

/* --- fork --- */

void register_handlers() {
  static bool done;
  if (!done) pthread_atfork(use_memory, use_memory, use_memory);
  done = true;
}

[[noreturn]] void child(int depth, unsigned char *inherited) {
  here::limit_child();
  if (!here::holds(inherited, 3000, 7)) _exit(3);
  std::free(inherited);
  use_memory();
  std::thread(use_memory).join();
  if (here::heap_check() != 0) _exit(4);
  if (depth > 0) {
    unsigned char *more = here::filled(3000, 7);
    pid_t next = fork();
    if (next == 0) child(depth - 1, more);
    if (!here::ended_well(next)) _exit(5);
  }
  if (depth == 1) execl("/bin/true", "true", nullptr);
  if (depth % 2 == 0) std::exit(0);
  _exit(0);
}

TEST(Places, ChildrenOfBusyThreads) {
  register_handlers();
  beside(3, use_memory, [] {
    for (int i = 0; i < 40; i++) {
      unsigned char *inherited = here::filled(3000, 7);
      pid_t pid = fork();
      if (pid == 0) child(i % 3, inherited);
      ASSERT_TRUE(here::ended_well(pid));
      std::free(inherited);
    }
  });
}

TEST(Places, SpawnedWithoutAFork) {
  beside(2, use_memory, [] {
    for (int i = 0; i < 30; i++) {
      pid_t pid;
      char name[] = "true";
      char *words[] = {name, nullptr};
      ASSERT_EQ(posix_spawn(&pid, "/bin/true", nullptr, nullptr, words, environ), 0);
      ASSERT_TRUE(here::ended_well(pid));
      pid = vfork();
      if (pid == 0) {
        execl("/bin/true", "true", nullptr);
        _exit(1);
      }
      ASSERT_TRUE(here::ended_well(pid));
    }
  });
}

/* --- signals --- */

std::atomic<unsigned> signals{0};

void on_signal(int) {
  for (size_t size : {16, 200, 3000}) std::free(here::filled(size, 1));
  signals++;
}

/* So much beyond what the kernel puts there as fibers have, see lifecycle/shallow.c: there is one page, then nothing. */
TEST(Places, OnASmallSignalStack) {
  size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE)), bytes = (getauxval(AT_MINSIGSTKSZ) + STACK_BYTES + page - 1) / page * page;
  auto *memory = static_cast<char *>(mmap(nullptr, page + bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  ASSERT_EQ(mprotect(memory + page, bytes, PROT_READ | PROT_WRITE), 0);
  stack_t stack = {};
  stack.ss_sp = memory + page;
  stack.ss_size = bytes;
  ASSERT_EQ(sigaltstack(&stack, nullptr), 0);
  struct sigaction action = {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_ONSTACK | SA_RESTART;
  sigaction(SIGUSR1, &action, nullptr);
  for (int i = 0; i < 3000; i++) raise(SIGUSR1);
  EXPECT_EQ(signals, 3000u);
  stack.ss_flags = SS_DISABLE;
  sigaltstack(&stack, nullptr);
}

TEST(Places, InATimersHandler) {
  struct sigaction action = {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  sigaction(SIGALRM, &action, nullptr);
  signals = 0;
  itimerval timer = {{0, 200}, {0, 200}};
  setitimer(ITIMER_REAL, &timer, nullptr);
  sigset_t alarm_only;
  sigemptyset(&alarm_only);
  sigaddset(&alarm_only, SIGALRM);
  volatile double x = 1;
  while (signals < 500) {
    for (int i = 0; i < 20000; i++) x = x * 1.0000001 + 1e-9; /* it comes in the middle of this */
    pthread_sigmask(SIG_BLOCK, &alarm_only, nullptr); /* and not of that */
    use_memory();
    pthread_sigmask(SIG_UNBLOCK, &alarm_only, nullptr);
  }
  timer = {};
  setitimer(ITIMER_REAL, &timer, nullptr);
}

/* --- exceptions --- */

struct Allocates {
  ~Allocates() { use_memory(); }
};

__attribute__((noinline)) int thrower(int depth) {
  Allocates here;
  std::string message(static_cast<size_t>(depth) * 10 + 1, 'e');
  if (depth == 0) throw std::runtime_error(message);
  return thrower(depth - 1) + 1;
}

TEST(Places, WhileExceptionsAreThrown) {
  std::atomic<int> caught{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; t++) {
    threads.emplace_back([&] {
      for (int i = 0; i < 60; i++) {
        try {
          thrower(i % 20);
        } catch (const std::exception &e) {
          std::string copy = e.what();
          use_memory();
          caught += copy.size() == 1;
        }
      }
    });
  }
  for (auto &t : threads) t.join();
  EXPECT_EQ(caught, 240);
}

/* --- deep stacks --- */

__attribute__((noinline)) int deep(int n) {
  volatile char frame[64] = {};
  void *p = std::malloc(40);
  int below = n == 0 ? 0 : deep(n - 1);
  std::free(p);
  return below + 1 + frame[0];
}

TEST(Places, DeepRecursion) {
  EXPECT_EQ(deep(5000), 5001);
  std::thread([] { EXPECT_EQ(deep(2000), 2001); }).join();
}

/* --- the end --- */

class Whole : public testing::Environment {
 public:
  void TearDown() override {
    EXPECT_EQ(here::heap_check(), 0u);
    if (std::getenv("HAKMEM_HEAP_PROFILE") == nullptr) return;
    auto dump = here::look_up<int (*)(const char *, int)>("hakmem_profile_dump");
    std::string path = std::string(SCRATCH) + "/places." + std::to_string(getpid());
    for (int kind = 0; kind < 3; kind++) EXPECT_EQ(dump(path.c_str(), kind), 0);
    unlink(path.c_str());
  }
};
const testing::Environment *whole = testing::AddGlobalTestEnvironment(new Whole);

}  // namespace
