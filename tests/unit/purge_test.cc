// Many pieces given back at one system call: what went, what was refused, and where it is not done.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <thread>
#include <vector>

#include "fake_os.h"
#include "fresh_pool.h"
#include "hak.h"

using testing::Contains;
using testing::Each;
using testing::ElementsAre;
using testing::IsEmpty;

namespace {

const size_t PAGE = hak_os_page_size();

// From now on the calling thread is killed, and all others with it, for process_madvise. False: no filter may be installed.
bool filter_this_thread() {
  sock_filter code[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_madvise, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  sock_fprog program = {sizeof code / sizeof code[0], code};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

class Batch : public testing::Test {
 protected:
  void SetUp() override {
    fake_os::reset();
    memory = static_cast<char *>(hak_os_map(PAGES * PAGE, PAGE));
    hak_os_own(memory, PAGES * PAGE);
    memset(memory, 0xaa, PAGES * PAGE);
    hak_config.batch_advice = HAK_BATCH_ADVICE_ON;
  }
  void TearDown() override { EXPECT_THAT(fake_os::violations(), IsEmpty()); }

  // Whether this kernel, and what stands before it, does it at all.
  static bool is_known() {
    void *page = hak_os_map(PAGE, PAGE);
    hak_os_piece piece = {page, PAGE};
    size_t bytes;
    bool known = hak_os_is_unfiltered() && hak_os_linux.advise_all(&piece, 1, MADV_DONTNEED, &bytes) == 0 && bytes == PAGE;
    hak_os_unmap(page, PAGE);
    return known;
  }
  bool is_gone(size_t page) const { return memory[page * PAGE] == 0; }
  void expect_gone(const std::vector<size_t> &pages) const {
    for (size_t i = 0; i < PAGES; i++)
      EXPECT_EQ(is_gone(i), std::find(pages.begin(), pages.end(), i) != pages.end()) << "page " << i;
  }

  static constexpr size_t PAGES = 16;
  char *memory;
};

TEST_F(Batch, GoesAtOneCall) {
  if (!is_known()) GTEST_SKIP() << "not on this kernel";
  hak_os_piece pieces[] = {{memory, 2 * PAGE}, {memory + 4 * PAGE, PAGE}, {memory + 8 * PAGE, 3 * PAGE}};
  uint64_t calls = hak_os_stats.madvise;
  errno = 4711;
  EXPECT_EQ(hak_os_decommit_pieces(pieces, 3), 3u);
  EXPECT_EQ(errno, 4711);
  EXPECT_EQ(hak_os_stats.madvise, calls + 1);
  expect_gone({0, 1, 4, 8, 9, 10});
  memset(memory, 1, PAGES * PAGE);
}

TEST_F(Batch, EndsBeforeTheFirstThatIsRefused) {
  if (!is_known()) GTEST_SKIP() << "not on this kernel";
  hak_os_piece pieces[] = {{memory, 2 * PAGE}, {memory + 4 * PAGE, PAGE}, {memory + 8 * PAGE, 3 * PAGE}};
  fake_os::fail_nth(fake_os::ADVISE, 2, 1, EINVAL);
  EXPECT_EQ(hak_os_decommit_pieces(pieces, 3), 1u);
  expect_gone({0, 1});
  fake_os::allow_all();
  EXPECT_EQ(hak_os_decommit_pieces(pieces, 3), 3u) << "asked again";
}

TEST_F(Batch, IsNotAskedForAgainWhereTheKernelDoesNotKnowIt) {
  hak_os_piece pieces[] = {{memory, PAGE}, {memory + 4 * PAGE, PAGE}};
  fake_os::fail_nth(fake_os::ADVISE, 1, 1, EBADF);
  EXPECT_EQ(hak_os_decommit_pieces(pieces, 2), 0u);
  unsigned asked = fake_os::count(fake_os::ADVISE);
  EXPECT_EQ(hak_os_decommit_pieces(pieces, 2), 0u);
  EXPECT_EQ(fake_os::count(fake_os::ADVISE), asked);
  expect_gone({});
  EXPECT_FALSE(hak_release_in_batches(true));
  hak_pages gone[2];
  hak_release_batch(pieces, 2, false, gone);
  EXPECT_THAT(gone, Each(HAK_PAGES_GONE)) << "one by one";
  expect_gone({0, 4});
}

// Locked memory, or the system has no memory for the call itself.
TEST_F(Batch, GoesOnAfterAPieceThatIsRefused) {
  if (!is_known()) GTEST_SKIP() << "not on this kernel";
  hak_os_piece pieces[] = {{memory, PAGE}, {memory + 2 * PAGE, PAGE}, {memory + 4 * PAGE, PAGE}, {memory + 6 * PAGE, PAGE}};
  for (int error : {EINVAL, EAGAIN}) {
    fake_os::fail_if([&](const fake_os::Event &e) { return e.addr == reinterpret_cast<uintptr_t>(memory) ? error : 0; });
    memset(memory, 1, PAGES * PAGE);
    uint64_t calls = hak_os_stats.madvise;
    hak_pages gone[4];
    std::thread([&] { hak_release_batch(pieces, 4, false, gone); }).join();
    EXPECT_THAT(gone, ElementsAre(HAK_PAGES_KEPT, HAK_PAGES_GONE, HAK_PAGES_GONE, HAK_PAGES_GONE));
    expect_gone({2, 4, 6});
    EXPECT_EQ(hak_os_stats.madvise - calls, 3u) << "together, the first one alone, the rest together";
    EXPECT_TRUE(hak_os_knows_pieces());
  }
}

// To a cgroup a huge page counts whole until it is split.
TEST_F(Batch, IsSplitBehindAPieceThatIsRefusedToo) {
  if (!is_known()) GTEST_SKIP() << "not on this kernel";
  hak_os_piece pieces[] = {{memory, PAGE}, {memory + 2 * PAGE, PAGE}, {memory + 4 * PAGE, PAGE}, {memory + 6 * PAGE, PAGE}};
  hak_config.rss_target = -80;
  hak_store_relaxed(&hak_budget_ceiling, HAK_GIB);
  fake_os::fail_if([&](const fake_os::Event &e) { return e.addr == reinterpret_cast<uintptr_t>(memory + 2 * PAGE) ? EINVAL : 0; });
  hak_pages gone[4];
  std::thread([&] { hak_release_batch(pieces, 4, false, gone); }).join();
  EXPECT_THAT(gone, ElementsAre(HAK_PAGES_GONE, HAK_PAGES_KEPT, HAK_PAGES_GONE, HAK_PAGES_GONE));
  std::vector<uintptr_t> split;
  for (const fake_os::Event &e : fake_os::log()) {
    size_t page = (e.addr - reinterpret_cast<uintptr_t>(memory)) / PAGE;
    if (e.call == fake_os::ADVISE && e.detail == MADV_FREE && e.error == 0) split.push_back(page);
    if (e.call == fake_os::ADVISE && e.detail == MADV_DONTNEED && e.error == 0) EXPECT_THAT(split, Contains(page));
  }
  hak_store_relaxed(&hak_budget_ceiling, SIZE_MAX);
  hak_config.rss_target = 0;
}

TEST_F(Batch, OfWhichOneIsNotOursIsRefusedWhole) {
  char *library = reinterpret_cast<char *>(reinterpret_cast<uintptr_t>(&strlen) & ~(PAGE - 1));
  hak_os_piece pieces[] = {{memory, PAGE}, {library, PAGE}, {memory + 4 * PAGE, PAGE}};
  uint64_t refused = hak_os_stats.madvise_other;
  EXPECT_EQ(hak_os_decommit_pieces(pieces, 3), 0u);
  EXPECT_EQ(hak_os_stats.madvise_other, refused + 1);
  EXPECT_EQ(fake_os::count(fake_os::ADVISE), 0u);
}

TEST_F(Batch, SaysWhatBecameOfEach) {
  hak_os_piece pieces[] = {{memory, PAGE}, {memory + 4 * PAGE, PAGE}, {memory + 8 * PAGE, PAGE}};
  fake_os::fail_if([&](const fake_os::Event &e) {
    return e.call == fake_os::ADVISE && e.addr == reinterpret_cast<uintptr_t>(memory + 4 * PAGE) ? EINVAL : 0;
  });
  hak_pages gone[3];
  hak_release_batch(pieces, 3, false, gone);
  EXPECT_THAT(gone, ElementsAre(HAK_PAGES_GONE, HAK_PAGES_KEPT, HAK_PAGES_GONE));
  expect_gone({0, 8});
}

TEST_F(Batch, IsLeftToThreadsWithoutAFilter) {
  if (!is_known()) GTEST_SKIP() << "not on this kernel";
  hak_os_piece pieces[] = {{memory, PAGE}, {memory + 4 * PAGE, PAGE}, {memory + 8 * PAGE, PAGE}};
  hak_pages gone[3];
  bool filtered = false;
  uint64_t before = hak_os_stats.madvise, calls = 0;
  std::thread([&] {
    EXPECT_TRUE(hak_os_is_unfiltered());
    hak_release_batch(pieces, 3, false, gone);
    calls = hak_os_stats.madvise - before;
    if (!(filtered = filter_this_thread())) return;
    EXPECT_FALSE(hak_os_found_filter()) << "not asked yet";
    EXPECT_FALSE(hak_os_is_unfiltered());
    EXPECT_TRUE(hak_os_found_filter());
    EXPECT_FALSE(hak_release_in_batches(true)) << "nothing is claimed for it any more";
    memset(memory, 1, PAGES * PAGE);
    hak_release_batch(pieces, 3, false, gone);
    hak_config.batch_advice = HAK_BATCH_ADVICE_ALWAYS;
    EXPECT_TRUE(hak_release_in_batches(true));
  }).join();
  EXPECT_EQ(calls, 1u) << "two threads";
  if (!filtered) GTEST_SKIP() << "no filters here";
  EXPECT_EQ(hak_os_stats.madvise - before, 4u);
  EXPECT_THAT(gone, Each(HAK_PAGES_GONE));
  expect_gone({0, 4, 8});
  EXPECT_TRUE(hak_os_is_unfiltered()) << "this thread has none";
}

// Every second span of 4 MiB is free and dirty.
class BatchOfRuns : public testing::Test {
 protected:
  static constexpr size_t RUNS = 32;
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(start_pool(1 * HAK_GIB));
    bool zeroed, due;
    hak_span *spans[2 * RUNS];
    for (hak_span *&s : spans) {
      s = hak_pool_take(1, 1, {}, true, &zeroed);
      memset(hak_span_address(hak_pool_region_of(s), s), 0xaa, HAK_SPAN_SIZE);
    }
    for (size_t i = 0; i < 2 * RUNS; i += 2) hak_pool_give(spans[i], 0, 0, &due);
    ASSERT_EQ(hak_span_pool.dirty_spans, RUNS);
    calls = hak_os_stats.madvise;
    hak_config.batch_advice = HAK_BATCH_ADVICE_ON;
  }
  void TearDown() override {
    hak_config.limit = 0;
    EXPECT_EQ(hak_span_pool.claimed_spans, 0u);
    EXPECT_THAT(fake_os::violations(), IsEmpty());
  }
  uint64_t calls;
};

TEST_F(BatchOfRuns, GoesAtOneCall) {
  if (!hak_os_is_unfiltered()) GTEST_SKIP() << "filtered";
  EXPECT_EQ(hak_release_all(0), RUNS * HAK_SPAN_SIZE);
  EXPECT_EQ(hak_span_pool.dirty_spans, 0u);
  if (hak_os_stats.madvise - calls == RUNS + 1) GTEST_SKIP() << "not on this kernel";
  EXPECT_EQ(hak_os_stats.madvise - calls, 1u);
}

TEST_F(BatchOfRuns, ThatTheSystemRefusesStaysAndIsNotTriedForEver) {
  fake_os::fail_all(fake_os::ADVISE, EINVAL);
  EXPECT_EQ(hak_release_all(0), 0u);
  EXPECT_EQ(hak_span_pool.dirty_spans, RUNS);
}

TEST_F(BatchOfRuns, OfWhichTheSystemRefusesOneIsTheRest) {
  unsigned n = 0;
  fake_os::fail_if([&](const fake_os::Event &e) { return e.call == fake_os::ADVISE && n++ >= 5 && n < 8 ? EINVAL : 0; });
  size_t given = hak_release_all(0);
  EXPECT_GE(given, (RUNS - 3) * HAK_SPAN_SIZE);
  EXPECT_EQ(hak_span_pool.dirty_spans, RUNS - given / HAK_SPAN_SIZE);
}

// What is claimed counts as used.
TEST_F(BatchOfRuns, IsOneRunAtALimit) {
  hak_config.limit = HAK_GIB;
  size_t claimed_most = 0;
  fake_os::on_call([&](const fake_os::Event &) { claimed_most = std::max<size_t>(claimed_most, hak_span_pool.claimed_spans); });
  EXPECT_EQ(hak_release_all(0), RUNS * HAK_SPAN_SIZE);
  EXPECT_EQ(claimed_most, 1u);
  EXPECT_EQ(hak_os_stats.madvise - calls, RUNS);
}

// Each would be missing until the kernel has been asked for all of them.
TEST_F(BatchOfRuns, IsNoneWhereTheKernelMayTakeItsTime) {
  hak_config.mem_lean = 1;
  hak_config.mem_lean_decommit = HAK_LEAN_FREE;
  hak_release_start();
  EXPECT_FALSE(hak_release_in_batches(true));
  EXPECT_TRUE(hak_release_in_batches(false));
}

TEST_F(BatchOfRuns, IsNoneWithoutATargetUnlessAskedFor) {
  for (int64_t advice : {HAK_BATCH_ADVICE_AUTO, HAK_BATCH_ADVICE_OFF}) {
    hak_config.batch_advice = advice;
    EXPECT_FALSE(hak_release_in_batches(true));
  }
  hak_store_relaxed(&hak_budget_ceiling, 1000);
  EXPECT_FALSE(hak_release_in_batches(true)) << "off";
  hak_config.batch_advice = HAK_BATCH_ADVICE_AUTO;
  EXPECT_TRUE(hak_release_in_batches(true));
  hak_store_relaxed(&hak_budget_ceiling, SIZE_MAX);
}

}  // namespace
