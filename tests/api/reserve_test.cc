// hakmem_reserve: memory that is ready before it is asked for.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "fake_os.h"
#include "hak.h"
#include "hakmem/hakmem.h"
#include "hakmem/stats.h"
#include "proc_status.h"
#include "run_program.h"

namespace {

constexpr size_t KIB = 1024, MIB = 1024 * KIB;
constexpr int POPULATE_WRITE = 23; /* of madvise */

hakmem_stats stats() {
  hakmem_stats s = {};
  hakmem_stats_get(&s, sizeof s);
  return s;
}
size_t resident() { return proc_status_kib("VmRSS:") * KIB; }
long faults() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_minflt;
}

// So many bytes in small blocks, written to.
class Small {
 public:
  void take(size_t bytes) {
    blocks_.reserve(blocks_.size() + bytes / SIZE + 1);
    for (size_t taken = 0; taken < bytes; taken += SIZE) {
      blocks_.push_back(hakmem_malloc(SIZE));
      memset(blocks_.back(), 1, SIZE);
    }
  }
  void free() {
    for (void *p : blocks_) hakmem_free(p);
    blocks_.clear();
  }
  ~Small() { free(); }

 private:
  static constexpr size_t SIZE = 2000;
  std::vector<void *> blocks_;
};

// A clock of its own, so that decay is the test's.
class Reserve : public testing::Test {
 protected:
  void SetUp() override {
    Small().take(4 * MIB); /* the hardened library guards the first blocks */
    now_ = hak_os_linux.now_ms() + 10000;
    fake_os::set_clock(now_);
    hakmem_purge();
  }
  void TearDown() override {
    EXPECT_EQ(hakmem_heap_check(), 0u);
    for (const std::string &violation : fake_os::violations())
      if (violation.rfind("name(", 0) != 0) ADD_FAILURE() << violation;
  }
  // Many decay times, in which somebody comes by.
  void wait_long() {
    for (int i = 0; i < 60; i++) {
      fake_os::set_clock(now_ += 200);
      for (size_t size : {size_t{40000}, 300 * KIB}) hakmem_free(hakmem_malloc(size));
      hakmem_thread_idle();
    }
  }
  uint64_t now_ = 0;
};

TEST_F(Reserve, PopulatedMemoryIsThereWithoutAFaultOrACall) {
  size_t before = resident();
  errno = 4711;
  ASSERT_EQ(hakmem_reserve(64 * MIB, HAKMEM_RESERVE_POPULATE), 0);
  EXPECT_EQ(errno, 4711);
  EXPECT_GE(stats().free_dirty, 64 * MIB);
  EXPECT_EQ(stats().claimed, 0u);
  if (!HAKMEM_TEST_SANITIZED) {
    EXPECT_GE(resident(), before + 56 * MIB);
  }
  Small blocks;
  long first = faults();
  fake_os::reset();
  blocks.take(40 * MIB);
  EXPECT_EQ(fake_os::count(fake_os::PROTECT) + fake_os::count(fake_os::ADVISE), 0u);
  if (!HAKMEM_TEST_SANITIZED) {
    EXPECT_LE(faults() - first, 1000) << "of 10240 pages, and what metadata and the test's array take";
  }
}

TEST_F(Reserve, AccessibleMemoryStaysUntouched) {
  size_t before = resident();
  hakmem_stats s = stats();
  ASSERT_EQ(hakmem_reserve(64 * MIB, 0), 0);
  EXPECT_GE(stats().free_clean + stats().free_dirty, 64 * MIB);
  EXPECT_LE(stats().free_dirty, s.free_dirty);
  if (!HAKMEM_TEST_SANITIZED) {
    EXPECT_LE(resident(), before + 4 * MIB);
  }
  fake_os::reset();
  Small blocks;
  blocks.take(40 * MIB);
  EXPECT_EQ(fake_os::count(fake_os::PROTECT), 0u);
  void *zeroed = hakmem_calloc(1, 3 * MIB);
  EXPECT_TRUE(std::string(static_cast<char *>(zeroed), 3 * MIB) == std::string(3 * MIB, '\0'));
  hakmem_free(zeroed);
}

TEST_F(Reserve, StaysUntilItIsAskedFor) {
  ASSERT_EQ(hakmem_reserve(64 * MIB, HAKMEM_RESERVE_POPULATE), 0);
  wait_long();
  EXPECT_GE(stats().free_dirty + stats().extents_cached, 62 * MIB) << "all but blocks that arenas keep";
  Small blocks;
  blocks.take(20 * MIB);
  wait_long();
  EXPECT_GE(stats().free_dirty, 40 * MIB) << "and what is left of it";
  blocks.free();
  wait_long();
  EXPECT_GE(stats().free_dirty, 60 * MIB);
}

TEST_F(Reserve, IsAsOtherMemoryOnceItWasUsed) {
  ASSERT_EQ(hakmem_reserve(32 * MIB, HAKMEM_RESERVE_POPULATE), 0);
  {
    Small blocks;
    blocks.take(50 * MIB);
    wait_long();
  }
  wait_long();
  EXPECT_LE(stats().free_dirty, 10 * MIB);
}

TEST_F(Reserve, EndsWithAPurgeOrAnotherCall) {
  ASSERT_EQ(hakmem_reserve(64 * MIB, HAKMEM_RESERVE_POPULATE), 0);
  ASSERT_EQ(hakmem_reserve(0, 0), 0);
  wait_long();
  EXPECT_LE(stats().free_dirty, 10 * MIB);
  ASSERT_EQ(hakmem_reserve(64 * MIB, HAKMEM_RESERVE_POPULATE), 0);
  EXPECT_GE(hakmem_purge(), 60 * MIB);
  EXPECT_LE(stats().free_dirty, MIB);
  hakmem_free(hakmem_malloc(20 * MIB));
  wait_long();
  EXPECT_LE(stats().free_dirty, 10 * MIB) << "nothing is kept any more";
}

TEST_F(Reserve, OfMoreThanAChunkAndOfLittle) {
  for (size_t bytes : {size_t{1}, 64 * KIB, 64 * KIB + 1, 200 * MIB}) {
    ASSERT_EQ(hakmem_reserve(bytes, 0), 0);
    EXPECT_GE(stats().free_clean + stats().free_dirty, bytes);
  }
}

TEST_F(Reserve, TakesNoMoreAddressesThanAreAskedFor) {
  for (unsigned flags : {0u, unsigned{HAKMEM_RESERVE_POPULATE}, unsigned{HAKMEM_RESERVE_HUGE}}) {
    uint64_t before = stats().regions;
    for (size_t mib = 1; mib <= 64; mib *= 2) ASSERT_EQ(hakmem_reserve(mib * MIB, flags), 0);
    EXPECT_EQ(stats().regions, before) << flags;
  }
}

TEST_F(Reserve, Errors) {
  EXPECT_EQ(hakmem_reserve(MIB, 4), EINVAL);
  EXPECT_EQ(hakmem_reserve(MIB, ~0u), EINVAL);
  EXPECT_EQ(hakmem_reserve(SIZE_MAX, 0), ENOMEM);
  EXPECT_EQ(hakmem_reserve(PTRDIFF_MAX, HAKMEM_RESERVE_POPULATE), ENOMEM);
  EXPECT_EQ(stats().claimed, 0u);
}

TEST_F(Reserve, WhereTheKernelKnowsNoPopulating) {
  size_t before = resident();
  fake_os::fail_if([](const fake_os::Event &e) { return e.call == fake_os::ADVISE && e.detail == POPULATE_WRITE ? EINVAL : 0; });
  ASSERT_EQ(hakmem_reserve(32 * MIB, HAKMEM_RESERVE_POPULATE), 0);
  if (!HAKMEM_TEST_SANITIZED) {
    EXPECT_GE(resident(), before + 28 * MIB);
  }
  fake_os::allow_all();
}

TEST_F(Reserve, WhereNoPagesAreLeft) {
  fake_os::fail_if([](const fake_os::Event &e) { return e.call == fake_os::ADVISE && e.detail == POPULATE_WRITE ? ENOMEM : 0; });
  EXPECT_EQ(hakmem_reserve(32 * MIB, HAKMEM_RESERVE_POPULATE), ENOMEM);
  EXPECT_EQ(stats().claimed, 0u);
  fake_os::allow_all();
  fake_os::fail_all(fake_os::PROTECT);
  EXPECT_EQ(hakmem_reserve(500 * MIB, 0), ENOMEM);
  fake_os::allow_all();
  EXPECT_EQ(stats().claimed, 0u);
  EXPECT_EQ(hakmem_reserve(32 * MIB, HAKMEM_RESERVE_POPULATE), 0);
}

TEST_F(Reserve, WithinTheLimit) {
  size_t limit = stats().budget_used + 48 * MIB;
  ASSERT_EQ(hakmem_option_set("HAKMEM_LIMIT", static_cast<int64_t>(limit)), 0);
  EXPECT_EQ(hakmem_reserve(64 * MIB, 0), ENOMEM);
  EXPECT_EQ(hakmem_reserve(64 * MIB, HAKMEM_RESERVE_POPULATE), ENOMEM);
  EXPECT_LE(stats().budget_used, limit);
  EXPECT_EQ(hakmem_reserve(24 * MIB, HAKMEM_RESERVE_POPULATE), 0);
  EXPECT_LE(stats().budget_used, limit);
  void *p = hakmem_malloc(30 * MIB);
  EXPECT_NE(p, nullptr) << "what is reserved serves any block, and is given back where it is in the way";
  hakmem_free(p);
  ASSERT_EQ(hakmem_option_set("HAKMEM_LIMIT", 0), 0);
}

TEST(ReserveUnderALimitOfTheSystem, Fails) {
  if (HAKMEM_TEST_SANITIZED) GTEST_SKIP();
  ProgramResult result = run_forked([] {
    hakmem_free(hakmem_malloc(1));
    rlimit data = {100 * MIB, 100 * MIB};
    if (setrlimit(RLIMIT_DATA, &data) != 0) return 1;
    if (hakmem_reserve(1000 * MIB, HAKMEM_RESERVE_POPULATE) != ENOMEM) return 2;
    if (hakmem_reserve(20 * MIB, HAKMEM_RESERVE_POPULATE) != 0) return 3;
    void *p = hakmem_malloc(MIB);
    if (p == nullptr) return 4;
    memset(p, 1, MIB);
    hakmem_free(p);
    return hakmem_heap_check() == 0 ? 0 : 5;
  });
  EXPECT_EQ(result.exit_code, 0) << result.err;
}

size_t huge_pages() {
  std::ifstream file("/proc/self/smaps_rollup");
  for (std::string line; std::getline(file, line);)
    if (line.rfind("AnonHugePages:", 0) == 0) return std::stoul(line.substr(14)) * KIB;
  return 0;
}

TEST_F(Reserve, OfHugePages) {
  std::string mode;
  std::getline(std::ifstream("/sys/kernel/mm/transparent_hugepage/enabled"), mode);
  if (HAKMEM_TEST_SANITIZED || mode.empty() || mode.find("[never]") != std::string::npos) GTEST_SKIP() << "SKIPPED: no huge pages (" << mode << ")";
  size_t before = huge_pages();
  ASSERT_EQ(hakmem_reserve(128 * MIB, HAKMEM_RESERVE_POPULATE | HAKMEM_RESERVE_HUGE), 0);
  if (huge_pages() == before) GTEST_SKIP() << "SKIPPED: the system has none left";
  EXPECT_GE(stats().free_dirty, 128 * MIB);
  EXPECT_GE(huge_pages(), before + 64 * MIB);
}

// A child has nothing in hand of what another thread was reserving.
TEST(ReserveAndFork, TheChildHasItAll) {
  hak_os = &hak_os_linux; /* the fake one has a lock, which a child may find taken */
  std::atomic<bool> end{false};
  std::thread other([&] {
    while (!end) {
      if (hakmem_reserve(16 * MIB, HAKMEM_RESERVE_POPULATE) != 0) abort();
      hakmem_purge();
    }
  });
  for (int i = 0; i < (HAK_HARDENED ? 8 : 30); i++) {
    pid_t child = fork();
    if (child == 0) {
      alarm(30);
      if (stats().claimed != 0) _exit(1);
      void *p = hakmem_malloc(20 * MIB);
      memset(p, 1, 20 * MIB);
      hakmem_free(p);
      _exit(hakmem_reserve(8 * MIB, 0) == 0 && hakmem_heap_check() == 0 ? 0 : 2);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_EQ(status, 0) << "fork " << i;
  }
  end = true;
  other.join();
}

}  // namespace
