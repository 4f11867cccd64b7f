/* Misuse ends the program with SIGABRT and one line that says what, where, which class, process, thread and version.
 * Each case runs for a small block, a page and a run, where it applies. */
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <thread>
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
  bool is_run() const { return GetParam() > 32768; }
  size_t usable() const {
    void *p = hakmem_malloc(GetParam());
    size_t n = hakmem_malloc_usable_size(p);
    hakmem_free(p);
    return n;
  }
};

TEST_P(Block, FreedTwiceInARow) {
  ProgramResult result = run_forked(double_free);
  expect_report(result, is_run() ? kFreeMemory : kDouble, kAtTheCall);
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
  expect_report(result, is_run() ? kFreeMemory : kDouble, kAtTheFlush);
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
  expect_report(result, is_run() ? kFreeMemory : kDouble, kAtTheFlush);
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
  expect_report(result, is_run() ? kFreeMemory : kDouble, kAtTheCall);
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
  expect_report(result, is_run() ? kFreeMemory : kDouble, kAtTheCall);
}

int double_free_by_two_other_threads() {
  unsigned char *p = allocate(block_size), *holds_the_slab = allocate(block_size);
  print_victim(p);
  for (int i = 0; i < 2; i++) {
    std::thread([p] { hakmem_free(p); }).join();
  }
  flush();
  holds_the_slab[0] = 0;
  return 0;
}

TEST_P(Block, FreedByTwoOtherThreads) {
  if (is_run()) GTEST_SKIP() << "a run's second free may meet its next user";
  expect_report(run_forked(double_free_by_two_other_threads), kDouble, kAtTheFlush);
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
    expect_report(run_forked(free_inside), kInterior, kAtTheFlush);
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
  expect_report(run_forked(free_inside_from_another_thread), kInterior, kAtTheFlush);
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

INSTANTIATE_TEST_SUITE_P(Sizes, Block, testing::Values(8, 4096, 262144));

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
  for (size_t size : {size_t{8}, size_t{4096}, size_t{262144}}) {
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
  unsigned char image[256];
  for (int round = 0; round < 200000; round++) {
    if (blocks.size() < 1000 && random() % 3 != 0) {
      unsigned char *p = static_cast<unsigned char *>(hakmem_malloc(256));
      std::memcpy(p, image, sizeof image);
      blocks.push_back(p);
    } else if (!blocks.empty()) {
      std::swap(blocks[random() % blocks.size()], blocks.back());
      unsigned char *p = blocks.back();
      blocks.pop_back();
      hakmem_free(p);
      std::memcpy(image, p, sizeof image);
    }
  }
  for (unsigned char *p : blocks) hakmem_free(p);
  flush();
  return hakmem_heap_check() == 0 ? 0 : 1;
}

TEST(NoFalseAlarm, WhenFreedBytesAreCopied) {
  ProgramResult result = run_forked(copy_freed_bytes);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");
}

int free_in_any_order() {
  std::mt19937 random(2);
  for (size_t size : {1, 16, 100, 1000, 5000, 32768, 100000}) {
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
