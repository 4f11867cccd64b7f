// Large memory: what a program frees and asks for again costs no page faults, and neither stays nor goes in one piece.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <functional>
#include <thread>
#include <vector>

#include "loads.h"

namespace {

constexpr size_t PAGE = 4096;

size_t faults() {
  rusage now;
  getrusage(RUSAGE_SELF, &now);
  return size_t(now.ru_minflt);
}

char *touched(size_t bytes) {
  auto *p = static_cast<char *>(malloc(bytes));
  for (size_t at = 0; at < bytes; at += PAGE) p[at] = 1;
  return p;
}

// RssAnon follows at each call, for little: what a free gives back is seen.
size_t resident_pages() {
  static int file = open("/proc/self/statm", O_RDONLY);
  char text[128] = {};
  if (pread(file, text, sizeof text - 1, 0) <= 0) abort();
  return strtoul(strchr(text, ' '), nullptr, 10);
}

class Cycles : public testing::TestWithParam<size_t> {};

TEST_P(Cycles, OfOneBlockTakeNoFaults) {
  size_t bytes = GetParam() * MIB + 12345;
  free(touched(bytes));
  size_t least = SIZE_MAX;
  for (int round = 0; round < 4; round++) { /* a look of the decay, by the clock, may take a step of what is free just then */
    size_t before = faults();
    for (int i = 0; i < 4; i++) free(touched(bytes));
    least = std::min(least, faults() - before);
  }
  EXPECT_LE(least, 16u);
}

// As temporaries of array expressions: several, that come and go in turn, of sizes that differ.
TEST_P(Cycles, OfSeveralTakeNoFaults) {
  size_t bytes = GetParam() * MIB;
  auto round = [&] {
    char *a = touched(bytes), *b = touched(bytes - bytes / 8);
    free(a);
    char *c = touched(bytes - bytes / 16);
    free(b);
    free(c);
  };
  round();
  round();
  size_t before = faults();
  for (int i = 0; i < 3; i++) round();
  EXPECT_LE(faults() - before, 64u);
}

INSTANTIATE_TEST_SUITE_P(MiB, Cycles, testing::Values(2, 29, 47, 110, 350));

// What is kept for the next large block is not missing where blocks of other sizes come: the peak is what is in use.
TEST(Large, WhatWasFreedServesOtherSizes) {
  for (size_t size : {size_t{900}, size_t{21000}, size_t{150000}, size_t{1300000}}) {
    purge();
    size_t before = resident();
    Blocks(24 * MIB, 300000, 900000).free_to(0);
    Blocks then(21 * MIB, size, size + size / 8);
    EXPECT_LE(resident(), before + 24 * MIB + 6 * MIB) << size;
  }
}

TEST(Large, GoesBackWhenItIsNotNeeded) {
  free(touched(300 * MIB));
  EXPECT_GE(resident(), 250 * MIB) << "until then it serves the next";
  EXPECT_TRUE(comes_to([] { return resident() <= 16 * MIB; }, light_work)) << resident() / MIB << " MiB";
}

// Of a table that grows by copies none of the former ones is there at its peak.
TEST(Large, WhatDoesNotFitMakesRoomForWhatComes) {
  size_t before = resident();
  char *p = touched(10 * MIB);
  for (size_t mib = 15; mib < 400; mib += mib / 2) {
    char *q = touched(mib * MIB);
    size_t both = mib * MIB + mib * MIB * 2 / 3;
    EXPECT_LE(resident() - before, both + both / 4 + 70 * MIB) << mib;
    free(p);
    p = q;
  }
  free(p);
}

// Of blocks that are sparse only what is touched is resident: new ones, those that are used again, and those that calloc zeroes.
TEST(Large, SparseBlocksHoldWhatTheyTouch) {
  constexpr size_t COUNT = 120, SIZE = 5 * MIB, STRIDE = 400 * KIB;
  size_t before = resident();
  for (int round = 0; round < 3; round++) {
    std::vector<char *> blocks;
    for (size_t i = 0; i < COUNT; i++) {
      blocks.push_back(static_cast<char *>(round == 2 ? calloc(1, SIZE) : malloc(SIZE)));
      for (size_t at = 0; at < SIZE; at += STRIDE) blocks.back()[at] = 1;
    }
    EXPECT_LE(resident() - before, 2 * COUNT * (SIZE / STRIDE + 1) * PAGE + 2 * MIB) << round;
    for (char *p : blocks) free(p);
  }
}

bool no_huge_pages() {
  char text[64] = {};
  int file = open("/sys/kernel/mm/transparent_hugepage/enabled", O_RDONLY);
  return file < 0 || read(file, text, sizeof text - 1) <= 0 || strstr(text, "[never]") != nullptr;
}

char *filled(size_t bytes) {
  auto *p = static_cast<char *>(malloc(bytes));
  memset(p, 3, bytes);
  return p;
}

// Where the host has to find memory for them first touches of huge pages are dear, and no more are asked for. So it has
// some by now, and of three processes one will do.
void expect_of_a_process(const std::function<bool()> &well) {
  constexpr size_t ENOUGH = 512 * MIB;
  int status = 1;
  for (int i = 0; i < 3 && status != 0; i++) {
    void *p = mmap(nullptr, ENOUGH, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(p, MAP_FAILED);
    madvise(p, ENOUGH, MADV_HUGEPAGE);
    memset(p, 1, ENOUGH);
    munmap(p, ENOUGH);
    pid_t child = fork();
    if (child == 0) _exit(well() ? 0 : 1);
    waitpid(child, &status, 0);
  }
  EXPECT_EQ(status, 0);
}

// Huge pages take fewer faults: 64 MiB of the first block are trusted, and of another one where that is filled by then.
TEST(Large, OneBlockHasHugePagesOnTrust) {
  if (no_huge_pages()) GTEST_SKIP() << "SKIPPED: no huge pages here";
  expect_of_a_process([] {
    for (size_t bytes : {19 * MIB, 120 * MIB, 250 * MIB}) {
      size_t before = faults(), untrusted = bytes == 120 * MIB ? 56 * MIB : 0;
      filled(bytes);
      if (faults() - before > (untrusted + (bytes - untrusted) / 8) / PAGE) return false;
    }
    return true;
  });
}

// Writes to few pages, and what is resident for them.
size_t sparsely(char *p, size_t bytes) {
  size_t before = resident();
  for (size_t at = 0; at < bytes; at += 2 * MIB) p[at] = 1;
  return resident() - before;
}

// Until blocks have proved dense a program loses 64 MiB at most, whatever it asks for, and how.
TEST(Large, NoMoreThanAChunkIsTrusted) {
  constexpr size_t GIB = 1024 * MIB, ENOUGH = 64 * MIB + 12 * MIB;
  struct {
    const char *what;
    std::function<size_t()> held;
  } const ways[] = {
      {"one block", [] { return sparsely(static_cast<char *>(malloc(2 * GIB)), 2 * GIB); }},
      {"aligned", [] { return sparsely(static_cast<char *>(aligned_alloc(4 * MIB, 2 * GIB)), 2 * GIB); }},
      {"many",
       [] {
         size_t held = 0;
         for (size_t mib : {16, 33, 64, 65, 100}) {
           for (size_t i = 0; i < 12; i++) held += sparsely(static_cast<char *>(malloc(mib * MIB)), mib * MIB);
         }
         return held;
       }},
      {"grown", [] { return sparsely(static_cast<char *>(realloc(malloc(60 * MIB), 2 * GIB)), 2 * GIB); }},
      {"grown when it was trusted in part", [] { return sparsely(static_cast<char *>(realloc(malloc(130 * MIB), 2 * GIB)), 2 * GIB); }},
      {"grown when it was filled",
       [] {
         char *p = filled(60 * MIB);
         return sparsely(static_cast<char *>(realloc(p, 2 * GIB)), 2 * GIB);
       }},
      {"by threads at once",
       [] {
         size_t before = resident();
         std::vector<std::thread> threads;
         for (int i = 0; i < 8; i++) threads.emplace_back([] { sparsely(static_cast<char *>(malloc(200 * MIB)), 200 * MIB); });
         for (std::thread &t : threads) t.join();
         return resident() - before;
       }},
  };
  for (const auto &way : ways) {
    pid_t child = fork(); // each begins with no proof
    if (child == 0) _exit(way.held() <= ENOUGH ? 0 : 1);
    int status;
    waitpid(child, &status, 0);
    EXPECT_EQ(status, 0) << way.what;
  }
}

// A block that is trusted in part is moved by the kernel all the same, and what it holds goes with it.
TEST(Large, ABlockTrustedInPartGrowsWithoutACopy) {
  for (bool fills : {true, false}) {
    pid_t child = fork();
    if (child == 0) {
      char *p = static_cast<char *>(malloc(100 * MIB)), *q = static_cast<char *>(malloc(100 * MIB));
      for (size_t at = 0; at < 100 * MIB; at += fills ? PAGE : 8 * MIB) p[at] = q[at] = 5;
      size_t before = faults();
      for (size_t mib : {110, 150, 300, 330}) p = static_cast<char *>(realloc(p, mib * MIB));
      if (faults() - before > 200) _exit(1);
      for (size_t at = 0; at < 100 * MIB; at += fills ? PAGE : 8 * MIB)
        if (p[at] != 5) _exit(2);
      _exit(0);
    }
    int status;
    waitpid(child, &status, 0);
    EXPECT_EQ(status, 0) << fills;
  }
}

// Also where the one that is trusted has moved since, by less than a doubling.
TEST(Large, TrustFollowsABlockThatMoves) {
  if (no_huge_pages()) GTEST_SKIP() << "SKIPPED: no huge pages here";
  expect_of_a_process([] {
    char *p = filled(36 * MIB);
    auto was = reinterpret_cast<uintptr_t>(p);
    p = static_cast<char *>(realloc(p, 61 * MIB));
    if (reinterpret_cast<uintptr_t>(p) == was) abort();
    memset(p, 4, 61 * MIB);
    size_t before = faults();
    filled(90 * MIB);
    return faults() - before <= 90 * MIB / PAGE / 8;
  });
}

// What is not filled before the next one comes shows nothing.
TEST(Large, OneBlockAtATimeIsTrusted) {
  constexpr size_t COUNT = 25, SIZE = 18 * MIB, USED = 12 * KIB;
  size_t before = resident();
  for (size_t i = 0; i < COUNT; i++) memset(malloc(SIZE), 1, USED);
  EXPECT_LE(resident() - before, COUNT * (USED + 2 * PAGE) + 4 * MIB);
}

// Whoever asks for zeros may want to write to few of them.
TEST(Large, ZerosAreNotTrusted) {
  constexpr size_t SIZE = 150 * MIB, STRIDE = MIB;
  size_t before = resident();
  auto *p = static_cast<char *>(calloc(1, SIZE));
  for (size_t at = 0; at < SIZE; at += STRIDE) p[at] = 1;
  EXPECT_LE(resident() - before, SIZE / STRIDE * PAGE + 2 * MIB);
}

// Also where a freed mapping is kept that would serve but for what is in it.
TEST(Large, ZerosInPlaceOfAKeptMappingHoldWhatIsTouched) {
  constexpr size_t TOUCHED = 20;
  size_t before = resident();
  for (size_t bytes : {40 * MIB, 41 * MIB, 300 * MIB}) {
    free(touched(bytes)); // a byte in each page: no proof that huge pages would be filled
    for (int round = 0; round < 3; round++) {
      size_t faults_before = faults(), wrong = 0;
      auto *p = static_cast<char *>(calloc(bytes, 1));
      for (size_t at = 0; at < bytes; at += bytes / TOUCHED / PAGE * PAGE) {
        wrong += p[at] != 0;
        p[at] = 1;
      }
      EXPECT_EQ(wrong, 0u);
      EXPECT_LE(faults() - faults_before, 2 * TOUCHED + 16) << bytes / MIB << " MiB, round " << round;
      EXPECT_LE(resident() - before, 2 * TOUCHED * PAGE + 12 * MIB) << bytes / MIB;
      free(p);
    }
  }
}

TEST(Large, DenseBlocksGetHugePages) {
  if (no_huge_pages()) GTEST_SKIP() << "SKIPPED: no huge pages here";
  expect_of_a_process([] {
    free(filled(40 * MIB));
    free(filled(90 * MIB));
    size_t before = faults();
    filled(300 * MIB);
    return faults() - before <= 300 * MIB / PAGE / 8;
  });
}

// Buffers that grow in turn: at the peak little more than what they hold.
TEST(Large, BuffersThatGrowInTurnHoldLittleElse) {
  constexpr size_t COUNT = 12, STEP = 40 * KIB, END = 21 * MIB;
  static char *buffers[COUNT];
  size_t before = resident(), most = 0;
  for (size_t size = 0; size < END; size += STEP) {
    for (char *&p : buffers) {
      p = static_cast<char *>(realloc(p, size + STEP));
      ASSERT_NE(p, nullptr);
      ASSERT_TRUE(size == 0 || (p[0] == 7 && p[size - 1] == 7));
      memset(p + size, 7, STEP);
    }
    most = std::max(most, resident_pages() * PAGE);
  }
  EXPECT_LE(most - before, COUNT * END * 7 / 6);
  for (char *p : buffers) free(p);
}

// No free gives back more than a step or two, which is a millisecond or two.
TEST(Large, NoFreeTakesLong) {
  constexpr size_t SIZE = 28 * KIB, COUNT = 600 * MIB / SIZE;
  auto **blocks = static_cast<char **>(malloc(COUNT * sizeof(char *)));
  for (size_t i = 0; i < COUNT; i++) blocks[i] = touched(SIZE);
  size_t most = 0, last = resident_pages();
  for (size_t i = 0; i < COUNT; i++) {
    free(blocks[i]);
    size_t now = resident_pages();
    if (now < last) most = std::max(most, last - now);
    last = now;
  }
  EXPECT_LE(most * PAGE, 2 * 16 * MIB + 2 * MIB);
  free(blocks);
  EXPECT_LE(resident(), 600 * MIB / 2 + 64 * MIB) << "all the same it goes";
}

TEST(Large, ALargeMappingGoesInSteps) {
  char *blocks[2] = {touched(250 * MIB), touched(350 * MIB)};
  size_t most = 0, last = resident_pages();
  for (char *p : blocks) free(p);
  EXPECT_TRUE(comes_to(
      [&] {
        size_t now = resident_pages();
        if (now < last) most = std::max(most, last - now);
        last = now;
        return now * PAGE <= 24 * MIB;
      },
      [] { free(malloc(300000)); }));
  EXPECT_LE(most * PAGE, 4 * 16 * MIB) << "two calls, each with a look and a step";
}

// A child that only exits makes few pages its own, though blocks were freed in any order.
TEST(Large, ChildrenEndWithoutWalkingTheHeap) {
  constexpr size_t SIZE = 96, COUNT = 200 * MIB / SIZE;
  auto **blocks = static_cast<char **>(malloc(COUNT * sizeof(char *)));
  for (size_t i = 0; i < COUNT; i++) *(blocks[i] = static_cast<char *>(malloc(SIZE))) = 1;
  std::mt19937 random(3);
  for (size_t i = 0; i < COUNT / 7; i++) {
    std::swap(blocks[i], blocks[i + random() % (COUNT - i)]);
    free(blocks[i]);
  }
  auto child_faults = [](bool exits) {
    pid_t child = fork();
    if (child == 0 && exits) exit(0);
    if (child == 0) _exit(0);
    int status;
    rusage used;
    wait4(child, &status, 0, &used);
    EXPECT_EQ(status, 0);
    return used.ru_minflt;
  };
  child_faults(true);
  EXPECT_LE(child_faults(true), child_faults(false) + 75);
}

}  // namespace
