// Every call to the system fails once, and every kind of call from its n-th on, for n = 1, 2, … until a run makes no
// such call: under each part of the load, from the allocator's start on. The allocator answers NULL with ENOMEM, keeps
// what is live, and serves everything once the failures are over.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ostream>
#include <string>

#include "accounting.h"
#include "fake_os.h"
#include "hak.h"
#include "load.h"
#include "rotation.h"

namespace {

constexpr int ANY = -1;
constexpr unsigned CHILD_SECONDS = 30, SHOWN_MAX = 3;
// Where all calls from the n-th on fail, neighbours are much the same: behind the 20th, each ninth is begun at.
constexpr unsigned STRIDE = 9;

struct Fault {
  int call;  // a fake_os::Call, or ANY
  int error;
  bool onward;  // the n-th call and all after it
};

struct Case {
  const char *name, *load;
  void (*configure)();  // before the allocator starts
  void (*begin)();      // when calls fail already
};

// What a child tells; its calls may come from children of its own.
struct Seen {
  unsigned calls;  // of the kind
  bool failed;     // one of them
};

void prewarm_all() {
  hak_tcache *t = hak_thread_make_cache();
  hak_deferred d = {};
  for (unsigned c = 0; t != nullptr && c < HAK_PLAIN_CLASSES; c++) hak_tcache_prewarm(t, c, 64, &d);
}

// Named in the list of tests.
void PrintTo(const Case &c, std::ostream *out) { *out << c.name; }

// Where memory goes back and forth, huge pages would only cost the time to clear them.
void without_huge_pages() { hak_config.thp = HAK_THP_OFF; }

const Case cases[] = {
    {"blocks", "blocks", nullptr, nullptr},
    {"blocks_front_off", "blocks", [] { hak_config.hot_ring_enable = 0; }, nullptr},
    {"blocks_prewarmed", "blocks", nullptr, prewarm_all},
    {"runs", "runs", without_huge_pages, nullptr},
    {"huge", "huge", nullptr, nullptr},
    {"table", "table", nullptr, nullptr},
    {"threads", "threads", nullptr, nullptr},
    {"release", "release", without_huge_pages, nullptr},
    {"growth", "growth", nullptr, nullptr},
    {"growth_huge_pages", "growth", [] { hak_config.thp = HAK_THP_ON; }, nullptr},
    {"growth_small_regions", "growth", [] { hak_config.reserve_mb = 16; }, nullptr},
    {"fronts", "fronts", [] { hak_config.hot_ring[1] = hak_config.hot_ring[2] = 16384; }, nullptr},
};

void pass_time(unsigned ms) {
  static uint64_t now = 1000000;
  fake_os::set_clock(now += ms);
}

const faults_api api = {hakmem_malloc,         hakmem_calloc,      hakmem_realloc,           hakmem_aligned_alloc,
                        hakmem_posix_memalign, hakmem_free,        hakmem_malloc_trim,       hakmem_malloc_usable_size,
                        hakmem_heap_check,     pass_time};

// The life of one allocator: a run of the load with the n-th call failing, and one without failures. Returns faults.
int live_through(const Case &c, const Fault &fault, unsigned n, Seen *seen) {
  fake_os::reset();
  pass_time(0);
  if (c.configure != nullptr) c.configure();
  fake_os::fail_if([&](const fake_os::Event &e) {
    if (fault.call != ANY && e.call != fault.call) return 0;
    unsigned at = ++seen->calls;
    if (fault.onward ? at < n : at != n) return 0;
    seen->failed = true;
    return fault.error;
  });
  if (c.begin != nullptr) c.begin();
  int faults = faults_run_load(&api, c.load, true);
  fake_os::allow_all();
  faults += faults_run_load(&api, c.load, false);
  hakmem_malloc_trim(0);
  faults += static_cast<int>(accounting_check_nothing_live());
  for (const std::string &line : fake_os::violations()) {
    fprintf(stderr, "%s\n", line.c_str());
    faults++;
  }
  return faults;
}

// _Fork runs no fork handlers: the allocator's would start it before its start can fail. By hand, where the tests of a
// program share a parent that forks, and under sanitizers, it has started.
pid_t fork_pristine() { return HAKMEM_TEST_SANITIZED ? fork() : _Fork(); }

// Wait status of the child.
int run_child(const Case &c, const Fault &fault, unsigned n, Seen *seen) {
  *seen = {0, false};
  pid_t child = fork_pristine();
  if (child == 0) {
    alarm(CHILD_SECONDS);
    _exit(live_through(c, fault, n, seen) == 0 ? 0 : 1);
  }
  int status = -1;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return status;
}

class Sweep : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    void *shared = mmap(nullptr, sizeof *seen_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(shared, MAP_FAILED);
    seen_ = static_cast<Seen *>(shared);
  }

  // Returns the number of runs in which a call failed.
  unsigned sweep(const Fault &fault) {
    unsigned runs = 0, bad = 0;
    for (unsigned n = 1;; n += fault.onward && n > 20 ? STRIDE : 1) {
      if (!rotation_has(n)) continue;
      int status = run_child(GetParam(), fault, n, seen_);
      if (status != 0 && ++bad <= SHOWN_MAX)
        ADD_FAILURE() << "call " << n << (fault.onward ? " and all after it" : "") << " of kind " << fault.call
                      << " with " << strerrorname_np(fault.error) << ": "
                      << (WIFSIGNALED(status) ? "signal " : "exit status ")
                      << (WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
      if (!seen_->failed) return runs;
      runs++;
    }
  }

  Seen *seen_;
};

TEST_P(Sweep, EachCallFailsOnce) {
  unsigned runs = sweep({ANY, ENOMEM, false});
  EXPECT_GT(runs, 0u) << "no call was made";
  // The other primitives tell their callers only that they failed.
  for (int error : {EPERM, ENOSYS, EAGAIN}) runs += sweep({fake_os::ADVISE, error, false});
  printf("%u runs\n", runs);
}

TEST_P(Sweep, AllCallsFailFromOneOn) {
  unsigned runs = sweep({ANY, ENOMEM, true});
  for (int call : {fake_os::MAP, fake_os::UNMAP, fake_os::PROTECT, fake_os::REMAP}) runs += sweep({call, ENOMEM, true});
  for (int error : {ENOMEM, EAGAIN, EPERM}) runs += sweep({fake_os::ADVISE, error, true});
  printf("%u runs\n", runs);
}

INSTANTIATE_TEST_SUITE_P(Loads, Sweep, testing::ValuesIn(cases),
                         [](const testing::TestParamInfo<Case> &info) { return std::string(info.param.name); });

}  // namespace
