/* Misuse ends the program with SIGABRT and one line that says what, where, which class, process, thread and version.
 * Each case runs for a small block, a page and a run, where it applies. */
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "hakmem/hakmem.h"
#include "run_program.h"

namespace {

/* What the dying program is to do; set before each fork, because run_forked takes a plain function. */
size_t block_size;

unsigned char *allocate(size_t size) {
  auto *p = static_cast<unsigned char *>(hakmem_malloc(size));
  if (p == nullptr) _exit(3);
  std::memset(p, 1, size);
  return p;
}

/* Returns every cached block and sends every packet of this thread: what was wrong is seen here at the latest. */
void flush() { hakmem_malloc_trim(0); }

void print_victim(const void *p) { std::fprintf(stderr, "victim %p\n", p); }

/* The report's one line, and that nothing but "victim …" stands beside it. */
std::string report_line(const ProgramResult &result, std::string *victim) {
  std::string line, rest = result.err;
  int reports = 0;
  while (!rest.empty()) {
    size_t end = rest.find('\n');
    EXPECT_NE(end, std::string::npos) << "unfinished line: " << rest;
    if (end == std::string::npos) break;
    std::string one = rest.substr(0, end);
    rest.erase(0, end + 1);
    if (one.compare(0, 30, "qemu: uncaught target signal 6") == 0) continue; /* the emulator's word on the abort */
    if (one.compare(0, 7, "victim ") == 0) {
      *victim = one.substr(7);
    } else {
      line = one;
      reports++;
    }
  }
  EXPECT_EQ(reports, 1) << result.err;
  return line;
}

void expect_report(const ProgramResult &result, const std::string &found, const std::string &seen) {
  EXPECT_EQ(result.signal, SIGABRT) << "exit code " << result.exit_code << "\n" << result.err;
  std::string victim, line = report_line(result, &victim);
  std::string name = "[^\"]*";
  std::string pattern = "^hakmem: " + found + ": " + victim + "( \\(class [0-9]+ bytes\\))?, seen " + seen +
                        " \\[process [0-9]+, thread [0-9]+ \"" + name + "\", hakmem [0-9]+\\.[0-9]+\\.[0-9]+\\]$";
  EXPECT_THAT(line, testing::ContainsRegex(pattern));
}

void expect_class(const ProgramResult &result, size_t bytes) {
  EXPECT_NE(result.err.find("(class " + std::to_string(bytes) + " bytes)"), std::string::npos) << result.err;
}

const char kDouble[] = "double free: the block is already free";
const char kInterior[] = "invalid free: the address is not the start of a block";
const char kFreeMemory[] = "invalid or double free: the address lies in free memory";
const char kSize[] = "sized free: the size given is not that of the block";
const char kAtTheCall[] = "at the call";
const char kAtTheFlush[] = "(when its class was flushed|in a batch freed by another thread|at the call)";

int double_free() {
  unsigned char *p = allocate(block_size);
  print_victim(p);
  hakmem_free(p);
  hakmem_free(p);
  return 0;
}

class Block : public testing::TestWithParam<size_t> {
 protected:
  void SetUp() override { block_size = GetParam(); }
  bool is_run() const { return GetParam() > 262144; }
  bool is_whole_spans() const { return !is_run() && GetParam() > 32768; }
  /* What a second free of it finds; a slab of whole spans ends with its one block, and they may be others' since. */
  std::string freed_twice() const {
    if (is_whole_spans()) return "(" + std::string(kDouble) + "|" + kInterior + "|" + kFreeMemory + ")";
    return is_run() ? kFreeMemory : kDouble;
  }
  size_t usable() const {
    void *p = hakmem_malloc(GetParam());
    size_t n = hakmem_malloc_usable_size(p);
    hakmem_free(p);
    return n;
  }
};

TEST_P(Block, FreedTwiceInARow) {
  ProgramResult result = run_forked(double_free);
  expect_report(result, freed_twice(), kAtTheCall);
  if (!is_run()) expect_class(result, usable());
}

int double_free_around_another() {
  unsigned char *p = allocate(block_size), *q = allocate(block_size);
  unsigned char *holds_the_slab = allocate(block_size);
  print_victim(p);
  hakmem_free(p);
  hakmem_free(q);
  hakmem_free(p);
  flush();
  holds_the_slab[0] = 0;
  return 0;
}

TEST_P(Block, FreedTwiceAroundAnother) {
  ProgramResult result = run_forked(double_free_around_another);
  expect_report(result, freed_twice(), is_run() ? kAtTheCall : kAtTheFlush);
}

/* Nothing has flushed its cache when a process ends, or a thread that has handed it to a depot. A fork's child looks at nothing then, so
 * the test runs itself in a process of its own, which is told here how to die; NULL: this is not it. */
const char kDiesBy[] = "DEATH_TEST_DIES_BY";

const char *dies_by() { return std::getenv(kDiesBy); }

ProgramResult run_itself(const std::string &how) {
  const testing::TestInfo *test = testing::UnitTest::GetInstance()->current_test_info();
  std::string filter = std::string("--gtest_filter=") + test->test_suite_name() + "." + test->name();
  return run_program({"/proc/self/exe", filter}, {std::string(kDiesBy) + "=" + how});
}

TEST_P(Block, FreedTwiceAroundAnotherBeforeTheProcessEnds) {
  if (const char *how = dies_by()) {
    unsigned char *p = allocate(block_size), *q = allocate(block_size), *holds_the_slab = allocate(block_size);
    print_victim(p);
    auto free_all = [p, q] {
      for (int i = 0; i < 400; i++) hakmem_free(hakmem_malloc(block_size)); /* no longer young */
      hakmem_free(p);
      hakmem_free(q);
      hakmem_free(p);
    };
    if (std::string(how) == "thread") std::thread(free_all).join();
    else free_all();
    *holds_the_slab = 1;
    exit(0);
  }
  for (const char *how : {"itself", "thread"}) {
    SCOPED_TRACE(how);
    expect_report(run_itself(how), freed_twice(), is_run() ? kAtTheCall : kAtTheFlush);
  }
}

TEST_P(Block, FreedInsideBeforeTheProcessEnds) {
  if (dies_by() != nullptr) {
    unsigned char *p = allocate(block_size) + (block_size > 16 ? 16 : 1);
    print_victim(p);
    hakmem_free(p);
    exit(0);
  }
  expect_report(run_itself("itself"), kInterior, is_run() ? kAtTheCall : kAtTheFlush);
}

/* As above, and the slab has nothing else: putting back the first two may empty it before the third is looked at. */
int double_free_of_the_last() {
  unsigned char *p = allocate(block_size), *q = allocate(block_size);
  print_victim(p);
  hakmem_free(p);
  hakmem_free(q);
  hakmem_free(p);
  flush();
  return 0;
}

TEST_P(Block, FreedTwiceAsTheLastOfItsSlab) {
  ProgramResult result = run_forked(double_free_of_the_last);
  expect_report(result, "(" + std::string(kDouble) + "|" + kInterior + "|" + kFreeMemory + ")", kAtTheFlush);
}

int double_free_by_another_thread() {
  unsigned char *p = allocate(block_size), *holds_the_slab = allocate(block_size);
  print_victim(p);
  hakmem_free(p);
  std::thread([p] {
    hakmem_free(p);
    flush();
  }).join();
  flush();
  holds_the_slab[0] = 0;
  return 0;
}

TEST_P(Block, FreedHereAndByAnotherThread) {
  ProgramResult result = run_forked(double_free_by_another_thread);
  expect_report(result, freed_twice(), is_run() ? kAtTheCall : kAtTheFlush);
}

int double_free_in_a_row_by_another_thread() {
  unsigned char *p = allocate(block_size);
  unsigned char *others[3];
  for (unsigned char *&other : others) other = allocate(block_size);
  print_victim(p);
  std::thread([&] {
    for (unsigned char *other : others) hakmem_free(other); /* on their way in one packet, p behind them */
    hakmem_free(p);
    hakmem_free(p);
  }).join();
  return 0;
}

TEST_P(Block, FreedTwiceInARowByAnotherThread) {
  ProgramResult result = run_forked(double_free_in_a_row_by_another_thread);
  expect_report(result, freed_twice(), kAtTheCall);
}

/* The other thread allocates as well, so that it keeps blocks of whole cache lines for itself. */
int double_free_in_a_row_by_a_thread_that_allocates() {
  unsigned char *p = allocate(block_size);
  print_victim(p);
  std::thread([&] {
    unsigned char *own = allocate(block_size);
    hakmem_free(p);
    hakmem_free(p);
    own[0] = 0;
  }).join();
  return 0;
}

TEST_P(Block, FreedTwiceInARowByAThreadThatAllocates) {
  ProgramResult result = run_forked(double_free_in_a_row_by_a_thread_that_allocates);
  expect_report(result, freed_twice(), kAtTheCall);
}

/* Both threads are there before the first free, so that nothing is allocated between the two. */
int double_free_by_two_other_threads() {
  unsigned char *p = allocate(block_size), *holds_the_slab = allocate(block_size);
  print_victim(p);
  std::atomic<int> turn{-1};
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; i++) {
    threads.emplace_back([&, i] {
      while (turn != i) std::this_thread::yield();
      hakmem_free(p);
      turn++;
    });
  }
  turn = 0;
  for (std::thread &t : threads) t.join();
  flush();
  holds_the_slab[0] = 0;
  return 0;
}

TEST_P(Block, FreedByTwoOtherThreads) {
  ProgramResult result = run_forked(double_free_by_two_other_threads);
  expect_report(result, freed_twice(), is_run() ? kAtTheCall : kAtTheFlush);
}

/* The first free has long reached the slab when the second comes. */
int double_free_long_after() {
  unsigned char *p = allocate(block_size), *holds_the_slab = allocate(block_size);
  print_victim(p);
  hakmem_free(p);
  flush();
  for (size_t size = 16; size < 3000; size += 16) {
    if (hakmem_good_size(size) != hakmem_good_size(block_size)) hakmem_free(allocate(size));
  }
  hakmem_free(p);
  flush();
  holds_the_slab[0] = 0;
  return 0;
}

TEST_P(Block, FreedTwiceLongAfter) {
  if (is_run() || is_whole_spans()) GTEST_SKIP() << "the spans may hold blocks of another size by then";
  expect_report(run_forked(double_free_long_after), kDouble, kAtTheFlush);
}

/* Blocks to the left and right were freed after it, and are in use again. */
int double_free_after_reuse_of_neighbours() {
  std::vector<unsigned char *> blocks;
  allocate(1); /* so that the thread has a cache, which hands out first what it got back last */
  for (int i = 0; i < 5; i++) blocks.push_back(allocate(block_size));
  unsigned char *p = blocks[2];
  print_victim(p);
  for (int i : {2, 1, 3}) hakmem_free(blocks[i]);
  for (int i = 0; i < 2; i++) {
    unsigned char *again = allocate(block_size);
    if (again == p) _exit(4); /* the second free would be its new owner's */
  }
  hakmem_free(p);
  flush();
  return 0;
}

TEST_P(Block, FreedTwiceAfterItsNeighboursWereUsedAgain) {
  if (is_run()) GTEST_SKIP() << "the spans that came back last are not handed out first";
  ProgramResult result = run_forked(double_free_after_reuse_of_neighbours);
  expect_report(result, kDouble, kAtTheFlush);
}

size_t offset_inside;

int free_inside() {
  unsigned char *p = allocate(block_size), *holds_the_slab = allocate(block_size);
  print_victim(p + offset_inside);
  hakmem_free(p + offset_inside);
  flush();
  holds_the_slab[0] = 0;
  return 0;
}

TEST_P(Block, FreedInside) {
  for (size_t offset : {size_t{16}, GetParam() / 2 & ~size_t{15}, usable() - 16}) {
    if (offset == 0 || offset >= usable()) continue;
    offset_inside = offset;
    SCOPED_TRACE(offset);
    ProgramResult result = run_forked(free_inside);
    expect_report(result, kInterior, is_run() ? kAtTheCall : kAtTheFlush);
    expect_class(result, usable());
  }
}

TEST_P(Block, FreedUnaligned) {
  for (size_t offset : {size_t{1}, size_t{3}, size_t{7}}) {
    offset_inside = offset;
    SCOPED_TRACE(offset);
    expect_report(run_forked(free_inside), kInterior, is_run() ? kAtTheCall : kAtTheFlush);
  }
}

int free_inside_from_another_thread() {
  unsigned char *p = allocate(block_size), *holds_the_slab = allocate(block_size);
  print_victim(p + offset_inside);
  std::thread([p] {
    hakmem_free(p + offset_inside);
    flush();
  }).join();
  flush();
  holds_the_slab[0] = 0;
  return 0;
}

TEST_P(Block, FreedInsideByAnotherThread) {
  offset_inside = 8;
  expect_report(run_forked(free_inside_from_another_thread), kInterior, is_run() ? kAtTheCall : kAtTheFlush);
}

/* The block's slab or run has gone back to the pool. */
int free_into_a_free_span() {
  std::vector<unsigned char *> blocks;
  for (size_t bytes = 0; bytes < size_t{2} << 20; bytes += block_size) blocks.push_back(allocate(block_size));
  for (unsigned char *p : blocks) hakmem_free(p);
  flush();
  unsigned char *victim = blocks[0];
  print_victim(victim);
  hakmem_free(victim);
  flush();
  return 0;
}

TEST_P(Block, FreedIntoAFreeSpan) { expect_report(run_forked(free_into_a_free_span), kFreeMemory, kAtTheCall); }

int realloc_freed() {
  std::vector<unsigned char *> blocks;
  for (size_t bytes = 0; bytes < size_t{2} << 20; bytes += block_size) blocks.push_back(allocate(block_size));
  for (unsigned char *p : blocks) hakmem_free(p);
  flush();
  print_victim(blocks[0]);
  return hakmem_realloc(blocks[0], block_size * 2) == nullptr;
}

TEST_P(Block, ReallocatedInAFreeSpan) { expect_report(run_forked(realloc_freed), kFreeMemory, "by realloc"); }

int realloc_inside() {
  unsigned char *p = allocate(block_size), *inside = p + offset_inside;
  print_victim(inside);
  return hakmem_realloc(inside, block_size / 2 + 16) == nullptr;
}

TEST_P(Block, ReallocatedInside) {
  if (!is_run()) GTEST_SKIP() << "where it moves, the old address is reported as in FreedInside";
  for (size_t offset : {size_t{16}, size_t{4096}, GetParam() / 2}) {
    SCOPED_TRACE(offset);
    offset_inside = offset;
    expect_report(run_forked(realloc_inside), kInterior, "by realloc");
  }
}

int free_sized_too_large() {
  unsigned char *p = allocate(block_size);
  print_victim(p);
  hakmem_free_sized(p, hakmem_malloc_usable_size(p) + 1);
  return 0;
}

TEST_P(Block, SizedFreeWithTooLargeASize) {
  ProgramResult result = run_forked(free_sized_too_large);
  expect_report(result, kSize, kAtTheCall);
  expect_class(result, usable());
}

int free_sized_right() {
  for (size_t size : {block_size, hakmem_good_size(block_size)}) hakmem_free_sized(allocate(block_size), size);
  void *p = hakmem_aligned_alloc(64, block_size);
  hakmem_free_aligned_sized(p, 64, block_size);
  flush();
  return 0;
}

TEST_P(Block, SizedFreeWithTheRightSize) {
  ProgramResult result = run_forked(free_sized_right);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");
}

INSTANTIATE_TEST_SUITE_P(Sizes, Block, testing::Values(8, 4096, 100000, 600000));

/* --- blocks with a mapping of their own --- */

constexpr size_t kHuge = size_t{40} << 20;

int free_inside_huge() {
  unsigned char *p = allocate(kHuge);
  print_victim(p + offset_inside);
  hakmem_free(p + offset_inside);
  return 0;
}

TEST(Huge, FreedInside) {
  for (size_t offset : {size_t{1}, size_t{16}, size_t{4096}, kHuge / 2}) {
    SCOPED_TRACE(offset);
    offset_inside = offset;
    expect_report(run_forked(free_inside_huge), kInterior, kAtTheCall);
  }
}

int realloc_inside_huge() {
  unsigned char *p = allocate(kHuge) + offset_inside;
  print_victim(p);
  return hakmem_realloc(p, 100) == nullptr;
}

int realloc_freed_huge() {
  unsigned char *p = allocate(kHuge);
  print_victim(p);
  hakmem_free(p);
  return hakmem_realloc(p, 100) == nullptr;
}

TEST(Huge, ReallocatedInsideOrFreed) {
  for (size_t offset : {size_t{1}, size_t{16}, size_t{4096}, kHuge / 2}) {
    SCOPED_TRACE(offset);
    offset_inside = offset;
    expect_report(run_forked(realloc_inside_huge), kInterior, "by realloc");
  }
  expect_report(run_forked(realloc_freed_huge), kFreeMemory, "by realloc");
}

int free_huge_twice() {
  unsigned char *p = allocate(kHuge), *other = allocate(kHuge * 2);
  print_victim(p);
  hakmem_free(p);
  hakmem_free(other);
  std::thread([p] { hakmem_free(p); }).join();
  return 0;
}

/* Its mapping is kept for the next request. */
TEST(Huge, FreedTwice) { expect_report(run_forked(free_huge_twice), kFreeMemory, kAtTheCall); }

/* Nothing is known of the address any more: it is a pointer that is not ours. */
int free_huge_after_it_was_unmapped() {
  unsigned char *p = allocate(kHuge), *stays = allocate(kHuge);
  hakmem_free(p);
  hakmem_malloc_trim(0);
  hakmem_free(p);
  for (size_t at = 0; at < kHuge; at += 4096) {
    if (stays[at] != 1) return 1;
  }
  if (hakmem_malloc_usable_size(stays) < kHuge) return 3;
  hakmem_free(stays);
  return hakmem_heap_check() == 0 ? 0 : 2;
}

TEST(Huge, FreedAfterItWasUnmappedIsLeftAlone) {
  ASSERT_EQ(hakmem_option_set("HAKMEM_EXTERNAL_GUARD_LOG", 1), 0);
  ProgramResult result = run_forked(free_huge_after_it_was_unmapped);
  EXPECT_EQ(result.exit_code, 0) << "signal " << result.signal << "\n" << result.err;
  EXPECT_THAT(result.err, testing::MatchesRegex("hakmem: external pointer: free\\(0x[^\n]*; left alone\n"));
}

/* --- what a fault in the program cannot reach --- */

/* Blocks of every class and runs; half are freed, and then all their bytes are written and some behind them. The walk
 * finds nothing changed, and no block is handed out twice. */
int garbage_everywhere() {
  std::vector<std::pair<unsigned char *, size_t>> blocks;
  for (size_t size = 1; size < 2000000; size += size / 4 + 1) {
    for (int i = 0; i < (size > 32768 ? 4 : 60); i++) blocks.push_back({allocate(size), size});
  }
  std::set<unsigned char *> live;
  for (size_t i = 0; i < blocks.size(); i++) {
    if (i % 2 == 0)
      hakmem_free(blocks[i].first);
    else
      live.insert(blocks[i].first);
  }
  for (auto [p, size] : blocks) std::memset(p, 0xff, hakmem_is_ours(p + size + 31) ? size + 32 : size);
  if (hakmem_heap_check() != 0) return 1;
  for (size_t i = 0; i < blocks.size(); i += 2) {
    unsigned char *p = allocate(blocks[i].second);
    if (!hakmem_is_ours(p) || !live.insert(p).second) return 2;
  }
  for (unsigned char *p : live) hakmem_free(p);
  flush();
  return hakmem_heap_check() == 0 ? 0 : 3;
}

TEST(Layout, GarbageInAndBehindBlocksDoesTheAllocatorNoHarm) {
  ProgramResult result = run_forked(garbage_everywhere);
  EXPECT_EQ(result.exit_code, 0) << "signal " << result.signal << "\n" << result.err;
}

TEST(Layout, NothingIsWritableAndExecutable) {
  std::vector<const void *> blocks;
  for (size_t size : {size_t{8}, size_t{4096}, size_t{100000}, size_t{600000}, size_t{50} << 20}) blocks.push_back(allocate(size));
  std::ifstream maps("/proc/self/maps");
  size_t seen = 0;
  for (std::string line; std::getline(maps, line);) {
    uintptr_t from = 0, to = 0;
    char permissions[5] = "";
    ASSERT_EQ(std::sscanf(line.c_str(), "%lx-%lx %4s", &from, &to, permissions), 3) << line;
    EXPECT_FALSE(permissions[1] == 'w' && permissions[2] == 'x') << line;
    for (const void *p : blocks) {
      if (reinterpret_cast<uintptr_t>(p) - from >= to - from) continue;
      EXPECT_EQ(permissions[2], '-') << line;
      seen++;
    }
  }
  EXPECT_EQ(seen, blocks.size());
  for (const void *p : blocks) hakmem_free(const_cast<void *>(p));
}

/* --- what is around the abort --- */

void use_allocator_and_leave(int) {
  /* The handler of a program that saves its state: it allocates in every class, and frees. */
  std::vector<void *> blocks;
  for (int round = 0; round < 50; round++) {
    for (size_t size = 1; size < 100000; size += size / 2 + 1) blocks.push_back(hakmem_malloc(size));
  }
  for (void *p : blocks) hakmem_free(p);
  if (hakmem_heap_check() != 0) _exit(8);
  _exit(7);
}

void handle_abort() {
  alarm(20); /* a deadlock ends as SIGALRM */
  signal(SIGABRT, use_allocator_and_leave);
}

int die_with_handler() {
  handle_abort();
  return double_free();
}

int die_in_flush_with_handler() {
  handle_abort();
  return double_free_around_another();
}

int die_in_drain_with_handler() {
  handle_abort();
  return double_free_by_another_thread();
}

TEST(AbortHandler, MayAllocate) {
  for (size_t size : {size_t{8}, size_t{4096}, size_t{100000}, size_t{600000}}) {
    block_size = size;
    for (auto *body : {die_with_handler, die_in_flush_with_handler, die_in_drain_with_handler}) {
      ProgramResult result = run_forked(body);
      EXPECT_EQ(result.exit_code, 7) << "signal " << result.signal << "\n" << result.err;
    }
  }
}

int die_in_named_thread() {
  std::thread([] {
    pthread_setname_np(pthread_self(), "worker \"7\"");
    double_free();
  }).join();
  return 0;
}

TEST(Report, NamesProcessThreadAndVersion) {
  block_size = 100;
  ProgramResult result = run_forked(die_in_named_thread);
  EXPECT_EQ(result.signal, SIGABRT);
  EXPECT_NE(result.err.find("\"worker \"7\"\", hakmem " HAKMEM_VERSION_STRING "]"), std::string::npos) << result.err;
}

/* --- nothing is reported that is right --- */

int copy_freed_bytes() {
  /* Freed memory is read and copied over live blocks, pointers in it included: no decision may rest on its contents. */
  std::mt19937 random(1);
  std::vector<unsigned char *> blocks;
  std::vector<unsigned char> image(block_size);
  size_t most = std::min(size_t{1000}, (size_t{8} << 20) / block_size);
  for (size_t round = 0; round < most * 200; round++) {
    if (blocks.size() < most && random() % 3 != 0) {
      unsigned char *p = allocate(block_size);
      std::memcpy(p, image.data(), block_size);
      blocks.push_back(p);
    } else if (!blocks.empty()) {
      std::swap(blocks[random() % blocks.size()], blocks.back());
      unsigned char *p = blocks.back();
      blocks.pop_back();
      hakmem_free(p);
      std::memcpy(image.data(), p, block_size);
    }
  }
  for (unsigned char *p : blocks) hakmem_free(p);
  flush();
  return hakmem_heap_check() == 0 ? 0 : 1;
}

TEST(NoFalseAlarm, WhenFreedBytesAreCopied) {
  for (size_t size : {size_t{8}, size_t{256}, size_t{4096}, size_t{100000}, size_t{600000}}) {
    block_size = size;
    ProgramResult result = run_forked(copy_freed_bytes);
    EXPECT_EQ(result.exit_code, 0) << size << " bytes: " << result.err;
    EXPECT_EQ(result.err, "");
  }
}

int free_in_any_order() {
  std::mt19937 random(2);
  for (size_t size : {1, 16, 100, 1000, 5000, 32768, 100000, 600000}) {
    for (int order = 0; order < 4; order++) {
      std::vector<void *> blocks;
      for (size_t i = 0; i < (size > 32768 ? 100u : 3000u); i++) blocks.push_back(hakmem_malloc(size));
      if (order == 1) std::reverse(blocks.begin(), blocks.end());
      if (order >= 2) std::shuffle(blocks.begin(), blocks.end(), random);
      if (order == 3) {
        std::thread([&] {
          for (size_t i = 0; i < blocks.size(); i += 2) hakmem_free(blocks[i]);
        }).join();
        for (size_t i = 1; i < blocks.size(); i += 2) hakmem_free(blocks[i]);
      } else {
        for (void *p : blocks) hakmem_free(p);
      }
    }
  }
  flush();
  return hakmem_heap_check() == 0 ? 0 : 1;
}

TEST(NoFalseAlarm, WhateverTheOrderOfFrees) {
  ProgramResult result = run_forked(free_in_any_order);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");
}

/* The block freed last is handed out and freed again, over and over: the comparison at the top of the front must tell
 * this from a double free. */
int free_and_reuse() {
  void *last = nullptr;
  int same = 0;
  for (int i = 0; i < 100000; i++) {
    void *p = hakmem_malloc(40);
    same += p == last;
    hakmem_free(last = p);
  }
  return same > 90000 ? 0 : 1;
}

TEST(NoFalseAlarm, WhenABlockIsReused) {
  ProgramResult result = run_forked(free_and_reuse);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");
}

}  // namespace
