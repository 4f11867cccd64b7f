// The walk where it is hard: in signal handlers, in code that says nothing of itself, on stacks that are broken or made by
// hand, and where it may neither allocate nor call the system.
#include <gtest/gtest.h>
#include <dlfcn.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sys/auxv.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstddef>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

extern "C" {
#include "frames.h"
}
#include "machine_code.h"
#include "stacks.h"

#if !HAKMEM_TEST_SANITIZED
// Every allocation of this program.
static std::atomic<unsigned> allocations;
extern "C" {
void *__libc_malloc(size_t);
void *__libc_calloc(size_t, size_t);
void *__libc_realloc(void *, size_t);
void *malloc(size_t n) { return allocations++, __libc_malloc(n); }
void *calloc(size_t n, size_t m) { return allocations++, __libc_calloc(n, m); }
void *realloc(void *p, size_t n) { return allocations++, __libc_realloc(p, n); }
}
#endif

namespace {

const size_t PAGE = size_t(sysconf(_SC_PAGESIZE));

class Rough : public testing::Test {
 protected:
  void SetUp() override { hak_unwind_start(); }
  Stacks stacks;
};

chain_link *(*const families[])(unsigned) = {o0_frame, o0_bare_frame, o2_frame, o2_bare_frame, os_frame};

// --- signals ---

Stacks *noted;
unsigned least;

void record_in_handler(int, siginfo_t *, void *) {
  record(noted);
  if (noted->ours_count < least) noted->differing++;
}

void catch_signal(int number, int flags, void (*handler)(int, siginfo_t *, void *) = record_in_handler) {
  struct sigaction action = {};
  action.sa_sigaction = handler;
  action.sa_flags = SA_SIGINFO | flags;
  sigaction(number, &action, nullptr);
}

TEST_F(Rough, ThroughASignalHandler) {
  noted = &stacks;
  catch_signal(SIGUSR1, 0);
  raise(SIGUSR1);
  EXPECT_SAME_STACKS(stacks, 5);
  chain_link *links[] = {families[3](0), families[1](2)};
  chain c = {links, 2, 0, [](void *) { raise(SIGUSR1); }, nullptr};
  chain_go_on(&c);
  EXPECT_SAME_STACKS(stacks, 8);
}

TEST_F(Rough, OnASmallStackForSignals) {
  noted = &stacks;
  size_t least_bytes = std::max<size_t>(getauxval(AT_MINSIGSTKSZ), MINSIGSTKSZ);
  size_t bytes = (least_bytes + 2 * PAGE + (HAKMEM_TEST_SANITIZED ? 8 * PAGE : 0)) / PAGE * PAGE;
  for (bool in_thread : {false, true}) {
    auto raise_there = [&] {
      char *memory = static_cast<char *>(mmap(nullptr, bytes + 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
      mprotect(memory + PAGE, bytes, PROT_READ | PROT_WRITE);
      stack_t stack = {}, before;
      stack.ss_sp = memory + PAGE;
      stack.ss_size = bytes;
      ASSERT_EQ(sigaltstack(&stack, &before), 0);
      catch_signal(SIGUSR1, SA_ONSTACK);
      for (int i = 0; i < 3; i++) raise(SIGUSR1);
      sigaltstack(&before, nullptr);
    };
    in_thread ? std::thread(raise_there).join() : raise_there();
    EXPECT_SAME_STACKS(stacks, 5);
  }
  EXPECT_EQ(stacks.times, 6u);
}

int compare_numbers(const void *a, const void *b) { return *static_cast<const int *>(a) - *static_cast<const int *>(b); }

// What the next tests interrupt: the program's functions, libc's, and calls through a table that is filled at first use. No
// function that aligns its stack: between some of its instructions only a register that is not followed has the CFA.
__attribute__((noinline)) void work(unsigned seed) {
  std::vector<chain_link *> links;
  for (unsigned n = 0; n < 10; n++) links.push_back(families[(seed + n) % 5]((seed / 5 + n) % CHAIN_ALIGNED));
  chain c = {links.data(), 10, 0, [](void *) {}, nullptr};
  chain_go_on(&c);
  int numbers[] = {int(seed), 1, 7, 3};
  qsort(numbers, 4, sizeof *numbers, compare_numbers);
  std::string text = std::to_string(seed) + std::string(seed % 100, 'x');
  if (strtol(text.c_str(), nullptr, 10) < 0) abort();
}

// The first difference that is ours: libgcc itself may stop short in a few instructions of libc.
#if defined(__x86_64__) && !HAKMEM_TEST_SANITIZED
std::atomic<unsigned> steps, short_ones;

void trap_on(int, siginfo_t *, void *context) { static_cast<ucontext_t *>(context)->uc_mcontext.gregs[REG_EFL] |= 0x100; }
void trap_off(int, siginfo_t *, void *context) { static_cast<ucontext_t *>(context)->uc_mcontext.gregs[REG_EFL] &= ~0x100; }

void record_step(int, siginfo_t *, void *) {
  steps++;
  record(noted);
  if (noted->same()) return;
  noted->differing = 0;
  short_ones++;
}

TEST_F(Rough, AtEveryInstruction) {
  noted = &stacks;
  catch_signal(SIGTRAP, 0, record_step);
  catch_signal(SIGUSR1, 0, trap_on);
  catch_signal(SIGUSR2, 0, trap_off);
  for (unsigned seed = 1; seed < 9; seed++) {
    raise(SIGUSR1);
    work(seed);
    raise(SIGUSR2);
  }
  EXPECT_GT(steps, 10000u);
  EXPECT_EQ(short_ones, 0u);
}
#endif

// libgcc ends where nothing is said: in procedure linkage tables of aarch64.
void record_moment(int, siginfo_t *, void *) {
  record(noted);
  bool more = noted->ours_count > noted->theirs_count && std::equal(noted->theirs, noted->theirs + noted->theirs_count, noted->ours);
  if (more) {
    noted->differing = 0;
    noted->ours_count = noted->theirs_count;
  }
}

TEST_F(Rough, AtAnyMoment) {
  noted = &stacks;
  catch_signal(SIGUSR1, SA_RESTART, record_moment);
  pthread_t worker = pthread_self();
  std::atomic<bool> end{false};
  std::thread sender([&] {
    for (int i = 0; i < 2000; i++) {
      pthread_kill(worker, SIGUSR1);
      usleep(20);
    }
    end = true;
  });
  for (unsigned seed = 0; !end; seed++) work(seed);
  sender.join();
  EXPECT_SAME_STACKS(stacks, 3);
}

// --- code without call frame information ---

struct CodeAndStacks {
  const MachineCode *code;
  Stacks *s;
  int calls;
};

__attribute__((noinline)) void call_machine_code(void *argument) {
  auto *both = static_cast<CodeAndStacks *>(argument);
  both->code->framed()(record, both->s);
  both->calls++;  // so that the call is no jump
}

TEST_F(Rough, FramePointersOfMachineCode) {
  MachineCode code;
  CodeAndStacks both = {&code, &stacks, 0};
  record(&stacks);
  ASSERT_TRUE(stacks.same());
  std::vector<uintptr_t> outer(stacks.ours, stacks.ours + stacks.ours_count);
  code.framed()(call_machine_code, &both);
  // Machine code, the function in between, machine code, this test, and what called it. libgcc ends at the first.
  ASSERT_EQ(stacks.ours_count, outer.size() + 3);
  EXPECT_TRUE(code.has(stacks.ours[0]));
  EXPECT_FALSE(code.has(stacks.ours[1]));
  EXPECT_TRUE(code.has(stacks.ours[2]));
  for (size_t i = 1; i < outer.size(); i++) EXPECT_EQ(stacks.ours[i + 3], outer[i]);
}

TEST_F(Rough, FramePointersThatAreNone) {
  MachineCode code;
  alignas(16) static uintptr_t loop[4];
  loop[0] = loop[2] = reinterpret_cast<uintptr_t>(loop);
  uintptr_t words[64] = {};
  auto here = reinterpret_cast<uintptr_t>(words);
  char *edge = static_cast<char *>(mmap(nullptr, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  munmap(edge + PAGE, PAGE);
  for (uintptr_t garbage : {uintptr_t(0), uintptr_t(1), uintptr_t(8), uintptr_t(0x4141414141414141), ~uintptr_t(0), ~uintptr_t(7), ~uintptr_t(15),
                            uintptr_t(1) << 47, (uintptr_t(1) << 47) - 8, here, here + 1, here + 8, here - 64 * 8, here + (1 << 19), here + (1 << 21),
                            here + (1 << 24), reinterpret_cast<uintptr_t>(loop), reinterpret_cast<uintptr_t>(edge + PAGE - 8),
                            reinterpret_cast<uintptr_t>(&record), uintptr_t(code.memory)}) {
    stacks.differing = 0;
    code.garbled()(record, &stacks, garbage);
    ASSERT_GE(stacks.ours_count, 1u);
    EXPECT_TRUE(code.has(stacks.ours[0]));
    EXPECT_LE(stacks.ours_count, 64u) << std::hex << garbage << stacks.text();
  }
}

// The words at the frame pointer lead back to this very frame, to data, and to code that calls nothing.
TEST_F(Rough, FramePointersThatLeadAstray) {
  MachineCode code;
  static volatile int data[1024];
  for (uintptr_t to : {uintptr_t(1), uintptr_t(4096), reinterpret_cast<uintptr_t>(&data[512]), reinterpret_cast<uintptr_t>(code.memory + 1024),
                       uintptr_t(0x7fffffffffff), ~uintptr_t(0)}) {
    volatile uintptr_t frame[2];
    auto at = reinterpret_cast<uintptr_t>(frame);
    frame[0] = at;
    frame[1] = to;
    stacks.differing = 0;
    code.garbled()(record, &stacks, at);
    EXPECT_EQ(stacks.ours_count, 1u) << std::hex << to << stacks.text();
  }
}

// --- broken stacks ---

// Overwrites words of its caller's frame and beyond, walks, and puts them back.
__attribute__((noinline, no_sanitize("address"))) void walk_amid(volatile uintptr_t *frame, uintptr_t value, size_t from, size_t count, Stacks *s) {
  uintptr_t saved[64];
  for (size_t i = 0; i < count; i++) saved[i] = frame[from + i];
  for (size_t i = 0; i < count; i++) frame[from + i] = value;
  s->ours_count = hak_unwind(s->ours, Stacks::MAX);
  for (size_t i = 0; i < count; i++) frame[from + i] = saved[i];
}

constexpr uintptr_t ITSELF = 2;  // stands for the frame's own address: the frame pointer leads nowhere else

__attribute__((noinline)) unsigned overwrite_me(uintptr_t value, size_t from, size_t count, Stacks *s) {
  auto *frame = static_cast<volatile uintptr_t *>(__builtin_frame_address(0));
  walk_amid(frame, value == ITSELF ? reinterpret_cast<uintptr_t>(frame) : value, from, count, s);
  return s->ours_count;
}

TEST_F(Rough, OverwrittenStacksDoNoHarm) {
  auto here = reinterpret_cast<uintptr_t>(__builtin_frame_address(0));
  uintptr_t code = reinterpret_cast<uintptr_t>(&record) + 4;
  for (uintptr_t value : {uintptr_t(0), uintptr_t(1), ITSELF, uintptr_t(0x4141414141414141), ~uintptr_t(0), uintptr_t(1) << 63, here, here - 4096, here + 4096,
                          here + 3, here + (1 << 20), here + (1 << 23), here - (1 << 23), code, reinterpret_cast<uintptr_t>(&stacks)}) {
    for (size_t from : {0, 1, 2, 3, 5, 8}) {
      for (size_t count : {1, 2, 16, 64}) EXPECT_LT(overwrite_me(value, from, count, &stacks), Stacks::MAX);
    }
  }
  record(&stacks);
  EXPECT_SAME_STACKS(stacks, 3);
}

// --- stacks made by hand ---

struct Fiber {
  ucontext_t context = {}, back = {};
  char *memory;
  size_t bytes;

  // No guard; the page above cannot be read.
  Fiber(size_t size, void (*f)()) : bytes(size) {
    memory = static_cast<char *>(mmap(nullptr, bytes + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    mprotect(memory + bytes, PAGE, PROT_NONE);
    getcontext(&context);
    context.uc_stack.ss_sp = memory;
    context.uc_stack.ss_size = bytes;
    context.uc_link = &back;
    makecontext(&context, f, 0);
  }
  ~Fiber() { munmap(memory, bytes + PAGE); }
  void run() { swapcontext(&back, &context); }
};

#if !HAKMEM_TEST_SANITIZED
void record_some_deep() {
  std::vector<chain_link *> links;
  for (unsigned i = 0; i < 20; i++) links.push_back(families[i % 5](i % 2));
  chain c = {links.data(), unsigned(links.size()), 0, record, noted};
  chain_go_on(&c);
}

TEST_F(Rough, OnStacksOfTheProgram) {
  noted = &stacks;
  auto run_fibers = [&] {
    for (int i = 0; i < 3; i++) {
      Fiber fiber(64 << 10, record_some_deep);
      fiber.run();
      record(noted);
    }
  };
  run_fibers();
  EXPECT_SAME_STACKS(stacks, 3);
  std::thread(run_fibers).join();
  EXPECT_SAME_STACKS(stacks, 3);
}

void record_at_the_edge() {
  MachineCode code;
  auto top = (reinterpret_cast<uintptr_t>(__builtin_frame_address(0)) + PAGE) & ~uintptr_t(PAGE - 1);
  for (uintptr_t at = top - 128; at < top + 64; at++) {
    noted->differing = 0;
    code.garbled()(record, noted, at);
  }
}

TEST_F(Rough, AtTheEndOfAStack) {
  noted = &stacks;
  auto run_fiber = [](void *) -> void * { return Fiber(64 << 10, record_at_the_edge).run(), nullptr; };
  run_fiber(nullptr);
  // Of a thread with a small stack, below which the other one is put: both are in reach of its top.
  pthread_t small;
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, 256 << 10);
  pthread_create(&small, &attributes, run_fiber, nullptr);
  pthread_join(small, nullptr);
  EXPECT_EQ(stacks.times, 2 * (128 + 64u));
}
#endif

// --- libraries that come and go ---

struct Plugin {
  void *handle;
  int (*call)(void (*)(void *), void *) = nullptr;
  explicit Plugin(const char *path) : handle(dlopen(path, RTLD_NOW | RTLD_LOCAL)) {
    if (handle != nullptr) call = reinterpret_cast<int (*)(void (*)(void *), void *)>(dlsym(handle, "plugin_call"));
  }
  ~Plugin() { dlclose(handle); }
};

TEST_F(Rough, AReloadedLibraryHasOtherFrames) {
  for (const std::vector<const char *> &builds : {std::vector<const char *>{PLUGIN_A, PLUGIN_B}, {PLUGIN_NAMELESS_A, PLUGIN_NAMELESS_B}}) {
    std::vector<void *> addresses;
    for (int round = 0; round < 4; round++) {
      Plugin plugin(builds[size_t(round % 2)]);
      ASSERT_NE(plugin.handle, nullptr) << dlerror();
      addresses.push_back(reinterpret_cast<void *>(plugin.call));
      plugin.call(record, &stacks);
      EXPECT_SAME_STACKS(stacks, 3);
    }
    // Else nothing was shown.
    EXPECT_EQ(std::count(addresses.begin(), addresses.end(), addresses[0]), 4);
  }
}

TEST_F(Rough, BesideDlopenAndDlclose) {
  std::atomic<bool> end{false};
  std::thread other([&] {
    while (!end) Plugin plugin(PLUGIN_B);
  });
  std::thread sampler([&] {
    static Stacks s;
    while (!end) record(&s);
    EXPECT_SAME_STACKS(s, 3);
  });
  for (int round = 0; round < 2000; round++) {
    Plugin plugin(round % 2 == 0 ? PLUGIN_A : PLUGIN_NAMELESS_A);
    plugin.call(record, &stacks);
  }
  end = true;
  other.join();
  sampler.join();
  EXPECT_SAME_STACKS(stacks, 3);
}

// --- without help ---

#if !HAKMEM_TEST_SANITIZED
TEST_F(Rough, AllocatesNothing) {
  static uintptr_t pcs[128];
  unsigned before = allocations, n = 0;
  for (int i = 0; i < 100; i++) n += hak_unwind(pcs, 128);
  EXPECT_EQ(allocations - before, 0u);
  EXPECT_GT(n, 300u);
  free(malloc(1));
  EXPECT_EQ(allocations - before, 1u) << "nothing is counted";
}

// From here on any system call but a few ends the process.
bool allow_only_exit() {
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit_group, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
  };
  sock_fprog program = {sizeof filter / sizeof *filter, filter};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

enum { DONE, REFUSED, FEW };

// A chain of a hundred frames below, so that pages of the stack are known; then as deep again, and less deep.
int walk_without_system_calls() {
  static uintptr_t pcs[256];
  static unsigned n;
  std::vector<chain_link *> links;
  for (unsigned i = 0; i < 100; i++) links.push_back(families[i % 5](i % 2));
  auto walk = [&](unsigned count) {
    chain c = {links.data(), count, 0, [](void *) { n = hak_unwind(pcs, 256); }, nullptr};
    chain_go_on(&c);
    return n > count;
  };
  walk(100);
  if (!allow_only_exit()) return REFUSED;
  for (unsigned i = 0; i < 1000; i++)
    if (!walk(i % 101)) return FEW;
  return DONE;
}

TEST_F(Rough, CallsTheSystemNotAtAllOnceAStackIsKnown) {
  for (bool in_thread : {false, true}) {
    pid_t child = fork();
    if (child == 0) {
      int result = -1;
      auto walk = [&] {
        result = walk_without_system_calls();
        syscall(SYS_exit_group, result);
      };
      in_thread ? std::thread(walk).join() : walk();
    }
    int status = 0;
    waitpid(child, &status, 0);
    if (WIFEXITED(status) && WEXITSTATUS(status) == REFUSED) GTEST_SKIP() << "may not filter system calls";
    EXPECT_EQ(status, 0) << "in_thread " << in_thread;
  }
}
#endif

}  // namespace
