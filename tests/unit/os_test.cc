// The OS box: alignment, counting, the way out when madvise fails, errno.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <string>
#include <thread>

#include "fake_os.h"
#include "hak.h"
extern "C" {
#include "base/sequence.h"
#include "os/gnu_hash.h"
}

using testing::IsEmpty;

namespace {

const size_t PAGE = hak_os_page_size();

class Os : public testing::Test {
 protected:
  // Memory that may be given back.
  static char *map_owned(size_t bytes) {
    char *p = static_cast<char *>(hak_os_map(bytes, PAGE));
    hak_os_own(p, bytes);
    return p;
  }

  void SetUp() override { fake_os::reset(); }
  void TearDown() override { EXPECT_THAT(fake_os::violations(), IsEmpty()); }
};

TEST_F(Os, CountsEveryCall) {
  struct hak_os_stats before;
  memcpy(&before, &hak_os_stats, sizeof before);
  void *reserved = hak_os_reserve(16 * PAGE, PAGE);
  hak_os_own(reserved, 16 * PAGE);
  ASSERT_TRUE(hak_os_commit(reserved, 4 * PAGE));
  ASSERT_TRUE(hak_os_decommit(reserved, 4 * PAGE));
  void *mapped = hak_os_map(PAGE, PAGE);
  mapped = hak_os_remap(mapped, PAGE, 2 * PAGE, true);
  ASSERT_TRUE(hak_os_unmap(mapped, 2 * PAGE));
  hak_os_small_pages(reserved, 16 * PAGE);
  EXPECT_EQ(hak_os_stats.mmap_total - before.mmap_total, 2u);
  EXPECT_EQ(hak_os_stats.mprotect - before.mprotect, 1u);
  EXPECT_EQ(hak_os_stats.madvise - before.madvise, 2u);
  EXPECT_EQ(hak_os_stats.mremap - before.mremap, 1u);
  EXPECT_EQ(hak_os_stats.munmap - before.munmap, 1u);
  // Each count is a call that was made.
  EXPECT_EQ(fake_os::count(fake_os::MAP), 2u);
  EXPECT_EQ(fake_os::count(fake_os::ADVISE), 2u);
}

// The refusal holds for the rest of the process.
TEST_F(Os, NamesUntilOneIsRefused) {
  char *p = map_owned(4 * PAGE);
  uint64_t before = hak_os_stats.prctl;
  errno = 7;
  hak_os_name(p, 4 * PAGE, HAK_NAME_HUGE);
  ASSERT_EQ(fake_os::names().size(), 1u);
  fake_os::Event named = fake_os::names()[0];
  EXPECT_EQ(named.addr, reinterpret_cast<uintptr_t>(p));
  EXPECT_EQ(named.size_bytes, 4 * PAGE);
  EXPECT_STREQ(named.name, "hakmem: huge blocks");
  fake_os::fail_nth(fake_os::NAME, 1, 1, EPERM);
  for (int i = 0; i < 3; i++) hak_os_name(p, PAGE, HAK_NAME_HEAP);
  EXPECT_EQ(fake_os::count(fake_os::NAME), 2u) << "asked again";
  EXPECT_EQ(hak_os_stats.prctl - before, 2u);
  EXPECT_EQ(errno, 7);
}

TEST_F(Os, AlignsAndTrims) {
  for (size_t align = PAGE; align <= 1 * HAK_GIB; align *= 4) {
    for (size_t size : {PAGE, 3 * PAGE, 65 * PAGE}) {
      size_t before = fake_os::mapped_bytes();
      void *p = hak_os_map(size, align);
      ASSERT_NE(p, nullptr);
      EXPECT_EQ(reinterpret_cast<uintptr_t>(p) % align, 0u);
      EXPECT_EQ(fake_os::mapped_bytes() - before, size) << "slack left behind, alignment " << align;
      memset(p, 0xee, size);
      EXPECT_TRUE(hak_os_unmap(p, size));
      EXPECT_EQ(fake_os::mapped_bytes(), before);
    }
  }
}

TEST_F(Os, MapFailuresAreNull) {
  fake_os::fail_all(fake_os::MAP);
  EXPECT_EQ(hak_os_map(PAGE, PAGE), nullptr);
  EXPECT_EQ(hak_os_map(PAGE, HAK_GIB), nullptr);
  EXPECT_EQ(hak_os_reserve(PAGE, HAK_MIB), nullptr);
  // The first attempt lands unaligned, the padded one fails: nothing may be left.
  size_t before = fake_os::mapped_bytes();
  fake_os::allow_all();
  fake_os::fail_if([](const fake_os::Event &e) { return e.call == fake_os::MAP && e.size_bytes > HAK_GIB ? ENOMEM : 0; });
  void *p = hak_os_map(PAGE, HAK_GIB);
  if (p == nullptr) EXPECT_EQ(fake_os::mapped_bytes(), before);
}

TEST_F(Os, ImpossibleSizesMakeNoCall) {
  EXPECT_EQ(hak_os_map(PTRDIFF_MAX - PAGE, HAK_GIB), nullptr);
  EXPECT_EQ(fake_os::count(fake_os::MAP), 0u);
}

TEST_F(Os, DecommitZeroesAndKeepsAccess) {
  char *p = map_owned(4 * PAGE);
  memset(p, 0xaa, 4 * PAGE);
  EXPECT_TRUE(hak_os_decommit(p + PAGE, PAGE));
  EXPECT_EQ(p[0], char(0xaa));
  EXPECT_EQ(p[PAGE], 0);
  EXPECT_EQ(p[2 * PAGE], char(0xaa));
  p[PAGE] = 1;
}

constexpr size_t LARGE = 2 * HAK_MIB;

TEST_F(Os, MadviseEnomemTurnsAdviceOffAndMapsOver) {
  char *p = map_owned(3 * LARGE);
  memset(p, 0xaa, 3 * LARGE);
  fake_os::fail_nth(fake_os::ADVISE, 1, 1, ENOMEM);
  EXPECT_TRUE(hak_os_decommit(p, LARGE));
  EXPECT_EQ(p[0], 0);
  EXPECT_EQ(p[LARGE], char(0xaa));
  EXPECT_EQ(hak_os_stats.madvise_enomem, 1u);
  EXPECT_EQ(hak_os_stats.madvise_disabled, 1u);
  EXPECT_EQ(hak_os_stats.fallback_mmap, 1u);
  auto last = fake_os::log().back();
  EXPECT_TRUE(last.call == fake_os::MAP && last.fixed);
  // From now on no advice is asked for.
  unsigned advised = fake_os::count(fake_os::ADVISE);
  EXPECT_TRUE(hak_os_decommit(p + 2 * LARGE, LARGE));
  EXPECT_EQ(fake_os::count(fake_os::ADVISE), advised);
  EXPECT_EQ(p[2 * LARGE], 0);
  EXPECT_EQ(hak_os_stats.fallback_mmap, 2u);
}

TEST_F(Os, OtherMadviseErrorsAreCountedAndAdviceGoesOn) {
  char *p = map_owned(LARGE + PAGE);
  memset(p, 0xaa, LARGE + PAGE);
  fake_os::fail_nth(fake_os::ADVISE, 1, 1, EPERM);
  EXPECT_TRUE(hak_os_decommit(p, LARGE));
  EXPECT_EQ(p[0], 0);
  EXPECT_EQ(hak_os_stats.madvise_other, 1u);
  EXPECT_EQ(hak_os_stats.madvise_disabled, 0u);
  EXPECT_TRUE(hak_os_decommit(p + LARGE, PAGE));
  EXPECT_EQ(fake_os::count(fake_os::ADVISE), 2u);
  EXPECT_EQ(hak_os_stats.fallback_mmap, 1u);
}

// As a filter of system calls may do: a mapping over each small piece would take all that the process may have.
TEST_F(Os, SmallPiecesAreNotMappedOver) {
  char *p = map_owned(64 * PAGE);
  memset(p, 0xaa, 64 * PAGE);
  fake_os::fail_all(fake_os::ADVISE, EPERM);
  unsigned maps = fake_os::count(fake_os::MAP);
  for (size_t i = 0; i < 64; i += 2) EXPECT_FALSE(hak_os_decommit(p + i * PAGE, PAGE));
  EXPECT_EQ(fake_os::count(fake_os::MAP), maps);
  EXPECT_EQ(p[0], char(0xaa));
}

TEST_F(Os, NorAreEndlesslyManyLargeOnes) {
  char *p = map_owned(LARGE);
  fake_os::fail_all(fake_os::ADVISE, EPERM);
  uint64_t before = hak_os_stats.fallback_mmap;
  for (int i = 0; i < 10000; i++) hak_os_decommit(p, LARGE);
  EXPECT_LE(hak_os_stats.fallback_mmap - before, 65530u / 8);
}

// Each mapping over a piece of locked memory would be one more, until the system allows none.
TEST_F(Os, LockedPagesStayInTheirMapping) {
  char *p = map_owned(PAGE);
  p[0] = 1;
  fake_os::fail_nth(fake_os::ADVISE, 1, 1, EINVAL);
  EXPECT_FALSE(hak_os_decommit(p, PAGE));
  EXPECT_EQ(p[0], 1);
  EXPECT_EQ(hak_os_stats.madvise_other, 1u);
  EXPECT_EQ(hak_os_stats.fallback_mmap, 0u);
}

TEST_F(Os, WhenNothingHelpsThePagesStay) {
  char *p = map_owned(PAGE);
  p[0] = 1;
  fake_os::fail_all(fake_os::ADVISE);
  fake_os::fail_all(fake_os::MAP);
  EXPECT_FALSE(hak_os_decommit(p, PAGE));
  EXPECT_EQ(p[0], 1);
}

// What a loaded library, the program or another allocator has mapped is never advised nor mapped over.
TEST_F(Os, MemoryOfOthersIsNeverGivenBack) {
  char *p = map_owned(4 * PAGE);
  char *library = reinterpret_cast<char *>(reinterpret_cast<uintptr_t>(&strlen) & ~(PAGE - 1));
  uint64_t refused = hak_os_stats.madvise_other;
  for (auto give_back : {hak_os_decommit, hak_os_decommit_lazily}) {
    EXPECT_FALSE(give_back(library, PAGE));
    EXPECT_FALSE(give_back(p + 3 * PAGE, 2 * PAGE)) << "it reaches beyond what is ours";
    EXPECT_FALSE(give_back(p - PAGE, 2 * PAGE));
  }
  EXPECT_EQ(hak_os_stats.madvise_other - refused, 6u);
  EXPECT_EQ(fake_os::count(fake_os::ADVISE), 0u);
  EXPECT_EQ(fake_os::count(fake_os::MAP), 1u);
}

TEST_F(Os, LazyDecommitKeepsAccess) {
  char *p = map_owned(4 * PAGE);
  memset(p, 0xaa, 4 * PAGE);
  ASSERT_TRUE(hak_os_decommit_lazily(p, 2 * PAGE));
  EXPECT_EQ(fake_os::log().back().detail, MADV_FREE);
  EXPECT_TRUE(p[0] == char(0xaa) || p[0] == 0) << "the kernel has not said when";
  p[0] = 1;
  EXPECT_EQ(p[0], 1);
  EXPECT_EQ(p[2 * PAGE], char(0xaa));
  fake_os::fail_nth(fake_os::ADVISE, 1, 1, EINVAL);
  EXPECT_FALSE(hak_os_decommit_lazily(p, PAGE)) << "a kernel without it";
}

TEST_F(Os, CommitFailureIsReported) {
  void *p = hak_os_reserve(4 * PAGE, PAGE);
  fake_os::fail_nth(fake_os::PROTECT, 1);
  EXPECT_FALSE(hak_os_commit(p, PAGE));
  EXPECT_TRUE(hak_os_commit(p, PAGE));
}

TEST_F(Os, UnmapFailureIsReported) {
  void *p = hak_os_map(PAGE, PAGE);
  fake_os::fail_nth(fake_os::UNMAP, 1);
  EXPECT_FALSE(hak_os_unmap(p, PAGE));
  EXPECT_TRUE(hak_os_unmap(p, PAGE));
}

TEST_F(Os, RemapKeepsContentsAndFailureChangesNothing) {
  char *p = static_cast<char *>(hak_os_map(2 * PAGE, PAGE));
  memset(p, 0x5a, 2 * PAGE);
  fake_os::fail_nth(fake_os::REMAP, 1);
  EXPECT_EQ(hak_os_remap(p, 2 * PAGE, 1000 * PAGE, true), nullptr);
  EXPECT_EQ(p[2 * PAGE - 1], 0x5a);
  p = static_cast<char *>(hak_os_remap(p, 2 * PAGE, 1000 * PAGE, true));
  ASSERT_NE(p, nullptr);
  EXPECT_EQ(p[2 * PAGE - 1], 0x5a);
  EXPECT_EQ(p[2 * PAGE], 0);
}

TEST_F(Os, SmallPagesToleratesKernelsWithoutThp) {
  void *p = hak_os_reserve(PAGE, PAGE);
  uint64_t before = hak_os_stats.madvise_other;
  fake_os::fail_nth(fake_os::ADVISE, 1, 1, EINVAL);
  hak_os_small_pages(p, PAGE);
  EXPECT_EQ(hak_os_stats.madvise_other, before);
  fake_os::fail_nth(fake_os::ADVISE, 1, 1, EFAULT);
  hak_os_small_pages(p, PAGE);
  EXPECT_EQ(hak_os_stats.madvise_other, before + 1);
  EXPECT_EQ(hak_os_stats.madvise_disabled, 0u);
}

// Real failures of the real system: none may reach the program's errno.
TEST_F(Os, KeepsErrno) {
  constexpr int MARK = 4711;
  errno = MARK;
  EXPECT_EQ(hak_os_map(size_t(1) << 60, PAGE), nullptr);
  EXPECT_EQ(errno, MARK);
  EXPECT_EQ(hak_os_linux.unmap(reinterpret_cast<void *>(1), PAGE), EINVAL);
  EXPECT_EQ(hak_os_linux.protect(reinterpret_cast<void *>(1), PAGE, true), EINVAL);
  EXPECT_NE(hak_os_linux.advise(reinterpret_cast<void *>(1), PAGE, MADV_DONTNEED), 0);
  EXPECT_EQ(hak_os_linux.remap(reinterpret_cast<void *>(1), PAGE, 2 * PAGE, true), nullptr);
  EXPECT_EQ(errno, MARK);
  EXPECT_TRUE(hak_os_is_locked(reinterpret_cast<void *>(1), PAGE)) << "refused";
  EXPECT_FALSE(hak_os_is_locked(reinterpret_cast<void *>(PAGE), PAGE)) << "nothing is there";
  EXPECT_EQ(errno, MARK);
  EXPECT_LT(hak_os_open("/nowhere/at/all"), 0);
  char buf[8];
  EXPECT_LT(hak_os_read(-1, buf, sizeof buf), 0);
  hak_os_close(-1);
  EXPECT_EQ(hak_os_read_file("/nowhere/at/all", buf, sizeof buf), 0u);
  uint32_t word = 1;
  hak_os_futex_wait(&word, 2);  // EAGAIN
  hak_os_futex_wake(&word);
  hak_os_now_ms();
  int saved_stderr = dup(STDERR_FILENO);
  errno = MARK;
  close(STDERR_FILENO);
  hak_print("to a closed stderr %d\n", 1);
  EXPECT_EQ(errno, MARK);
  dup2(saved_stderr, STDERR_FILENO);
  close(saved_stderr);
}

TEST_F(Os, AWriteThatIsDoneAgainIsNoError) {
  struct sigaction noted = {}, before;
  noted.sa_handler = [](int) {};  // and no SA_RESTART
  sigaction(SIGUSR1, &noted, &before);
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  fcntl(ends[1], F_SETPIPE_SZ, 4096);
  std::string text(3 * 4096, 'x'), got;
  pthread_t writer = pthread_self();
  std::thread reader([&] {
    for (int n = 0; n < 4096; usleep(1000)) ioctl(ends[0], FIONREAD, &n);  // until it is full, and the writer waits
    usleep(20000);
    pthread_kill(writer, SIGUSR1);
    usleep(20000);
    char part[4096];
    while (got.size() < text.size()) got.append(part, size_t(read(ends[0], part, sizeof part)));
  });
  EXPECT_EQ(hak_os_write(ends[1], text.data(), text.size()), 0);
  reader.join();
  EXPECT_EQ(got, text);
  close(ends[0]);
  close(ends[1]);
  sigaction(SIGUSR1, &before, nullptr);
}

TEST_F(Os, KnowsWhatIsLocked) {
#if HAKMEM_TEST_SANITIZED
  GTEST_SKIP() << "sanitizers lock nothing";
#endif
  char *p = static_cast<char *>(hak_os_map(2 * PAGE, PAGE));
  EXPECT_FALSE(hak_os_is_locked(p + PAGE, PAGE));
  if (mlock(p + PAGE, PAGE) != 0) GTEST_SKIP() << "may not lock memory";
  EXPECT_TRUE(hak_os_is_locked(p + PAGE, PAGE));
  EXPECT_FALSE(hak_os_is_locked(p, PAGE));
}

TEST_F(Os, PageSizeAndIds) {
  EXPECT_EQ(hak_os_page_size(), size_t(sysconf(_SC_PAGESIZE)));
  EXPECT_EQ(hak_os_pid(), getpid());
  EXPECT_EQ(hak_os_tid(), getpid());
  int other = 0;
  std::thread([&] { other = hak_os_tid(); }).join();
  EXPECT_NE(other, hak_os_tid());
}

TEST_F(Os, ReadsSmallFilesWhole) {
  char whole[4096], part[4];
  size_t n = hak_os_read_file("/proc/self/stat", whole, sizeof whole);
  EXPECT_GT(n, 20u);
  EXPECT_EQ(hak_os_read_file("/proc/self/stat", part, sizeof part), 4u);
  EXPECT_EQ(memcmp(whole, part, 4), 0);
}

TEST_F(Os, MessagesAreCutAtOneBuffer) {
  std::string longest(3000, 'x');
  testing::internal::CaptureStderr();
  hak_print("%s", longest.c_str());
  EXPECT_EQ(testing::internal::GetCapturedStderr(), std::string(1022, 'x') + "\n");
}

// Many programs close stderr before destructors run, and its number may then be a file of theirs.
TEST_F(Os, ReportsAtExitGoToTheStderrOfTheStart) {
  FILE *original = tmpfile(), *other = tmpfile();
  int saved = dup(STDERR_FILENO);
  dup2(fileno(original), STDERR_FILENO);
  hak_os_keep_stderr();
  hak_print("before\n");
  dup2(fileno(other), STDERR_FILENO);  // the program's own file by now
  hak_os_use_kept_stderr();
  hak_print("at exit\n");
  dup2(saved, STDERR_FILENO);
  char text[64] = "", stray[64] = "";
  rewind(original);
  EXPECT_EQ(fread(text, 1, sizeof text - 1, original), strlen("before\nat exit\n"));
  EXPECT_STREQ(text, "before\nat exit\n");
  rewind(other);
  EXPECT_EQ(fread(stray, 1, sizeof stray - 1, other), 0u) << stray;
}

TEST_F(Os, ClockMovesOn) {
  uint64_t before = hak_os_now_ms();
  usleep(50000);
  uint64_t after = hak_os_now_ms();
  EXPECT_GE(after, before + 20);
  EXPECT_LT(after, before + 30000);
}

// A walk over a heap asks thousands of times: each must not give the processor to whoever else wants it.
TEST_F(Os, AsksWhatAWordIsWithoutWaiting) {
  char *p = map_owned(3 * PAGE);
  ASSERT_EQ(mprotect(p + 2 * PAGE, PAGE, PROT_NONE), 0);
  auto word = [&](size_t offset) { return reinterpret_cast<uint32_t *>(p + offset); };
  *word(PAGE + 8) = 7;
  EXPECT_TRUE(hak_os_is_readable(word(0)));
  EXPECT_TRUE(hak_os_is_readable(word(PAGE + 8)));
  EXPECT_FALSE(hak_os_is_readable(word(2 * PAGE)));
  EXPECT_FALSE(hak_os_is_not_zero(word(16)));
  EXPECT_TRUE(hak_os_is_not_zero(word(PAGE + 8)));
  EXPECT_FALSE(hak_os_is_not_zero(word(2 * PAGE)));
  auto waits = [] {
    rusage usage = {};
    getrusage(RUSAGE_THREAD, &usage);
    return usage.ru_nvcsw;
  };
  long before = waits();
  for (int i = 0; i < 500; i++) EXPECT_TRUE(hak_os_is_readable(word(0)) && !hak_os_is_not_zero(word(64)));
  EXPECT_LE(waits(), before + 10);
  hak_os_unmap(p, 3 * PAGE);
}

TEST_F(Os, TakesNumbersApart) {
  size_t value;
  EXPECT_STREQ(hak_os_take_number("1024 kB", 10, &value), " kB");
  EXPECT_EQ(value, 1024u);
  EXPECT_STREQ(hak_os_take_number("7f00deadb000-x", 16, &value), "-x");
  EXPECT_EQ(value, 0x7f00deadb000u);
  EXPECT_STREQ(hak_os_take_number("max", 10, &value), "max");
  EXPECT_EQ(value, 0u);
  hak_os_take_number("18446744073709551614", 10, &value);
  EXPECT_EQ(value, SIZE_MAX - 1);
  EXPECT_STREQ(hak_os_take_number("99999999999999999999999", 10, &value), "");
  EXPECT_EQ(value, SIZE_MAX);
}

// Two words that are equal whenever the sequence says that they are whole.
TEST(Sequence, ReadersSeeWholeChanges) {
  uint32_t sequence = 0, changes = 20000, seen = 0;
  uint64_t words[2] = {};
  std::thread writer([&] {
    for (uint64_t i = 1; i <= changes; i++) {
      hak_sequence_begin(&sequence);
      for (uint64_t &word : words) hak_store_relaxed(&word, i);
      EXPECT_EQ(hak_sequence_end(&sequence), 2 * i);
    }
  });
  for (uint32_t before = 0; before != 2 * changes;) {
    before = hak_load_acquire(&sequence);
    uint64_t a = hak_load_relaxed(&words[0]), b = hak_load_relaxed(&words[1]);
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    if (before % 2 != 0 || hak_load_relaxed(&sequence) != before) continue;
    EXPECT_EQ(a, b);
    EXPECT_EQ(a, before / 2);
    seen++;
  }
  writer.join();
  EXPECT_GT(seen, 0u);
}

TEST(Sequence, Is0NeverAgain) {
  uint32_t sequence = UINT32_MAX - 1;
  hak_sequence_begin(&sequence);
  EXPECT_EQ(sequence, UINT32_MAX);
  EXPECT_EQ(hak_sequence_end(&sequence), 2u);
}

// In a fork's child of which the parent's writer was another thread.
TEST(Sequence, OfAWriterThatIsGoneEndsWithTheNextChange) {
  uint32_t sequence = 0;
  hak_sequence_begin(&sequence);
  hak_sequence_begin(&sequence);
  EXPECT_EQ(sequence, 1u);
  EXPECT_EQ(hak_sequence_end(&sequence), 2u);
}

TEST(GnuHash, CountsSymbols) {
  // Buckets, first symbol, words of the filter, shift; a filter of 2 words; buckets; hashes from the first symbol on.
  const uint32_t two_chains[] = {3, 5, 1, 6, 0, 0, 5, 0, 7, 2, 3, 8, 10, 11};
  EXPECT_EQ(hak_os_gnu_hash_symbols(two_chains), 10u);
  const uint32_t none_defined[] = {1, 9, 1, 6, 0, 0, 0};
  EXPECT_EQ(hak_os_gnu_hash_symbols(none_defined), 9u);
  const uint32_t wider_filter[] = {1, 1, 2, 6, 0, 0, 0, 0, 1, 13};
  EXPECT_EQ(hak_os_gnu_hash_symbols(wider_filter), 2u);
}

}  // namespace
