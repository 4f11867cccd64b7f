// The hardened build: what it says of each class of misuse, for a small block, a page and a run, and that it says
// nothing of programs that do none.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <map>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

extern "C" {
#include "harden/sweep.h"
#include "tcache/counted.h"
}
#include "hak.h"
#include "run_program.h"

using testing::HasSubstr;

namespace {

const char kDouble[] = "double free: the block is already free";
const char kInterior[] = "invalid free: the address is not the start of a block";
const char kFreeMemory[] = "invalid or double free: the address lies in free memory";
const char kSize[] = "sized free: the size given is not that of the block";
const char kKind[] = "mismatched free: malloc, new and new[] each have a free of their own";
const char kForeign[] = "invalid free: no block of hakmem's is there";
const char kOverflow[] = "overflow: bytes behind the block were written";
const char kUnderflow[] = "underflow: bytes before the block were written";
const char kAfterFree[] = "use after free: the block was written after it was freed";

// These are about blocks in slabs, which come after the first blocks (first_test.cc).
class AfterTheFirstBlocks : public testing::Environment {
  void SetUp() override { hak_counting_guard_first(0); } /* the heap begins in the test */
};
const testing::Environment *const after_the_first_blocks = testing::AddGlobalTestEnvironment(new AfterTheFirstBlocks);

// What the dying program does; set before each fork.
std::function<void()> body;
size_t block_size;

char *allocate(size_t size) {
  char *p = static_cast<char *>(hakmem_malloc(size));
  if (p == nullptr) _exit(3);
  memset(p, 1, size);
  return p;
}

// The address the report must name.
void victim(const void *p) { fprintf(stderr, "victim %p\n", p); }

void expect_end(const std::string &found, const std::string &seen = "at the call") {
  /* The walk, whose turn is by the clock, may come first. */
  static bool walks;
  walks = seen != "when the process ended" && seen != "when the block was to be used again";
  ProgramResult result = run_forked([] {
    alarm(50);
    if (walks) hak_store_relaxed(&hak_forked, false); /* the body is a program of its own */
    body();
    hak_store_relaxed(&hak_forked, false);
    return 0;
  });
  EXPECT_EQ(result.signal, SIGABRT) << "exit code " << result.exit_code << "\n" << result.err;
  size_t at = result.err.find("victim ");
  ASSERT_NE(at, std::string::npos) << result.err;
  std::string address = result.err.substr(at + 7, result.err.find('\n', at) - at - 7);
  EXPECT_THAT(result.err, HasSubstr("hakmem: " + found + ": " + address)) << result.err;
  EXPECT_THAT(result.err, HasSubstr("seen " + seen)) << result.err;
}

class Hardened : public testing::TestWithParam<size_t> {
 protected:
  void SetUp() override { block_size = GetParam(); }
  bool is_run() const { return GetParam() > HAK_SMALL_MAX; }
  const char *freed_twice() const { return is_run() ? kFreeMemory : kDouble; }
};

TEST_P(Hardened, FreedTwice) {
  body = [] {
    char *p = allocate(block_size);
    victim(p);
    hakmem_free(p);
    hakmem_free(p);
  };
  expect_end(freed_twice());
}

TEST_P(Hardened, FreedTwiceAroundAnother) {
  body = [] {
    char *p = allocate(block_size), *q = allocate(block_size);
    victim(p);
    hakmem_free(p);
    hakmem_free(q);
    hakmem_free(p);
  };
  expect_end(freed_twice());
}

// Nothing of its slab is in use any more but one block, and many others were freed meanwhile.
TEST_P(Hardened, FreedTwiceLongAfter) {
  body = [] {
    char *p = allocate(block_size), *stays = allocate(block_size);
    victim(p);
    hakmem_free(p);
    for (int i = 0; i < 20; i++) hakmem_free(allocate(i * 100 + 8));
    hakmem_free(p);
    hakmem_free(stays);
  };
  expect_end(freed_twice());
}

TEST_P(Hardened, FreedTwiceAfterItsNeighboursWereUsedAgain) {
  body = [] {
    std::vector<char *> blocks;
    for (int i = 0; i < 5; i++) blocks.push_back(allocate(block_size));
    char *p = blocks[2];
    victim(p);
    for (int i : {1, 2, 3}) hakmem_free(blocks[i]);
    for (int i = 0; i < 2; i++) allocate(block_size);  // the quarantine keeps p from being one of these
    hakmem_free(p);
  };
  expect_end(freed_twice());
}

TEST_P(Hardened, FreedHereAndByAnotherThread) {
  body = [] {
    char *p = allocate(block_size);
    victim(p);
    hakmem_free(p);
    std::thread([p] { hakmem_free(p); }).join();
  };
  expect_end(freed_twice());
}

TEST_P(Hardened, FreedByTwoOtherThreads) {
  body = [] {
    char *p = allocate(block_size);
    victim(p);
    for (int i = 0; i < 2; i++) std::thread([p] { hakmem_free(p); }).join();
  };
  expect_end(freed_twice()); /* what an ended thread freed is in its slab */
}

TEST_P(Hardened, FreedTwiceInARowByAnotherThread) {
  body = [] {
    char *p = allocate(block_size);
    victim(p);
    std::thread([p] {
      hakmem_free(p);
      hakmem_free(p);
    }).join();
  };
  expect_end(freed_twice());
}

// The byte that says who has the block is not exchanged in one step, so both may pass it. Then one finds that the other has
// cleared the trailer, or the slab finds the second when the quarantines are emptied; it must be one of these.
TEST_P(Hardened, FreedByTwoOtherThreadsAtOnce) {
  std::map<std::string, int> seen;
  for (int repeat = 0; repeat < 100; repeat++) {
    ProgramResult result = run_forked([] {
      alarm(50);
      char *p = allocate(block_size), *stays = allocate(block_size);
      std::atomic<int> there{0};
      auto free_with_the_other = [&] {
        char *own = allocate(block_size);
        there++;
        while (there < 2) {
        }
        hakmem_free(p);
        hakmem_malloc_trim(0);
        *own = 0;
      };
      std::thread a(free_with_the_other), b(free_with_the_other);
      a.join();
      b.join();
      hakmem_malloc_trim(0);  // takes back what they have sent
      *stays = 0;
      return 0;
    });
    ASSERT_EQ(result.signal, SIGABRT) << "repeat " << repeat << ", exit code " << result.exit_code << "\n" << result.err;
    std::string report = result.err.substr(0, result.err.find(": 0x"));
    seen[report + result.err.substr(result.err.find(", seen"), result.err.find(" [") - result.err.find(", seen"))]++;
    EXPECT_THAT(report, testing::AnyOf(HasSubstr(kDouble), HasSubstr(kFreeMemory), HasSubstr(kOverflow), HasSubstr(kKind), HasSubstr(kForeign)));
  }
  for (const auto &[report, times] : seen) printf("%3d times %s\n", times, report.c_str());
}

TEST_P(Hardened, FreedInside) {
  for (size_t offset : {size_t(1), size_t(8), size_t(16), GetParam() / 2 & ~size_t(15), GetParam() - 1}) {
    if (offset == 0 || offset >= GetParam()) continue;
    SCOPED_TRACE(offset);
    body = [offset] {
      char *p = allocate(block_size) + offset;
      victim(p);
      hakmem_free(p);
    };
    expect_end(kInterior);
  }
}

TEST_P(Hardened, FreedIntoFreeMemory) {
  body = [] {
    std::vector<char *> blocks;
    for (size_t bytes = 0; bytes < size_t(8) << 20; bytes += block_size) blocks.push_back(allocate(block_size));
    for (char *p : blocks) hakmem_free(p);
    hakmem_malloc_trim(0);
    victim(blocks[0]);
    hakmem_free(blocks[0]);
  };
  expect_end(kFreeMemory);
}

TEST_P(Hardened, ReallocOfAFreedBlock) {
  body = [] {
    char *p = allocate(block_size);
    victim(p);
    hakmem_free(p);
    p = static_cast<char *>(hakmem_realloc(p, block_size * 2));
  };
  expect_end(kFreeMemory, "by realloc");
}

TEST_P(Hardened, ReallocInsideABlock) {
  for (size_t offset : {size_t(1), size_t(8), GetParam() / 2}) {
    if (offset >= GetParam()) continue;
    SCOPED_TRACE(offset);
    body = [offset] {
      char *p = allocate(block_size) + offset;
      victim(p);
      p = static_cast<char *>(hakmem_realloc(p, block_size * 2));
    };
    expect_end(is_run() ? kInterior : kFreeMemory, "by realloc");
  }
}

TEST_P(Hardened, UsableSizeOfNoBlockIsReported) {
  for (bool freed : {false, true}) {
    body = [freed] {
      char *p = allocate(block_size);
      if (hakmem_malloc_usable_size(p) != block_size) _exit(1);
      if (freed) hakmem_free(p);
      p += freed ? 0 : block_size / 2;
      victim(p);
      hakmem_malloc_usable_size(p);
    };
    expect_end(is_run() && !freed ? kInterior : kFreeMemory, "by malloc_usable_size");
  }
}

TEST_P(Hardened, SizedFreeKnowsTheExactSize) {
  for (long difference : {-1L, 1L}) {
    body = [difference] {
      char *p = allocate(block_size);
      victim(p);
      hakmem_free_sized(p, block_size + size_t(difference));
    };
    expect_end(kSize);
  }
  body = [] {
    hakmem_free_sized(allocate(block_size), block_size);
    _exit(0);
  };
  EXPECT_EQ(run_forked([] { return body(), 0; }).exit_code, 0);
}

TEST_P(Hardened, EachFamilyHasItsFree) {
  const hak_family kinds[] = {HAK_FAMILY_MALLOC, HAK_FAMILY_NEW, HAK_FAMILY_NEW_ARRAY};
  for (hak_family made : kinds) {
    for (hak_family freed : kinds) {
      body = [made, freed] {
        void *p = hak_malloc_as(block_size, made);
        victim(p);
        hak_free_as(p, HAK_SIZE_UNKNOWN, freed);
        _exit(0);
      };
      if (made != freed)
        expect_end(kKind);
      else
        EXPECT_EQ(run_forked([] { return body(), 0; }).exit_code, 0);
    }
  }
}

TEST_P(Hardened, OverflowsAreSeenAtFree) {
  for (size_t beyond : {size_t(1), size_t(8), size_t(32), size_t(100)}) {
    for (size_t less : {size_t(0), size_t(3)}) {  // with and without room between request and trailer
      SCOPED_TRACE(std::to_string(beyond) + " bytes, request " + std::to_string(GetParam() - less));
      body = [beyond, less] {
        char *p = allocate(block_size - less);
        victim(p);
        memset(p + block_size - less, beyond == 1 ? 'x' : 0, beyond);  // one zero behind a full block changes nothing
        hakmem_free(p);
      };
      expect_end(kOverflow);
    }
  }
}

TEST_P(Hardened, OverflowsAreSeenByRealloc) {
  body = [] {
    char *p = allocate(block_size);
    victim(p);
    p[block_size] ^= 1;
    p = static_cast<char *>(hakmem_realloc(p, block_size + 1));
  };
  expect_end(kOverflow, "by realloc");
}

// The last bytes of the nearest two blocks' first: nothing else lies between them.
void write_before_a_block(bool the_one_before_is_free) {
  std::vector<char *> blocks(500);
  for (char *&p : blocks) p = allocate(block_size);
  std::sort(blocks.begin(), blocks.end());
  for (size_t i = 1; i < blocks.size(); i++) {
    if (size_t(blocks[i] - blocks[i - 1]) > hak_block_size(blocks[i - 1])) continue;
    victim(blocks[i - 1]);
    if (the_one_before_is_free) hakmem_free(blocks[i - 1]);
    blocks[i][-1] ^= 1;
    hakmem_free(blocks[i]);
    _exit(1);
  }
}

TEST_P(Hardened, BytesBeforeABlockAreSeenWhenItIsFreed) {
  if (is_run()) GTEST_SKIP() << "an inaccessible page lies before it";
  body = [] { write_before_a_block(false); };
  expect_end(kOverflow, "when the block behind it was freed");
}

TEST_P(Hardened, BytesBeforeABlockAreSeenThoughTheOneBeforeIsFree) {
  if (is_run()) GTEST_SKIP() << "an inaccessible page lies before it";
  body = [] { write_before_a_block(true); };
  expect_end(kAfterFree, "when the block behind it was freed");
}

TEST_P(Hardened, BytesBeforeASlabsFirstBlockAreSeen) {
  if (GetParam() > HAK_SHARED_MAX) GTEST_SKIP() << "its slab begins with a span";
  for (bool freed : {true, false}) {
    body = [freed] {
      for (int i = 0; i < 20000; i++) {
        char *p = allocate(block_size);
        const hak_region *r = hak_region_find(p);
        if (uintptr_t(p) != hak_region_span(r, p)->start || uintptr_t(p) % HAK_SPAN_SIZE == 0) continue;
        victim(p);
        p[freed ? -1 : -32] = 1;
        if (freed) hakmem_free(p);
        exit(0);
      }
    };
    expect_end(kUnderflow, freed ? "at the call" : "when the process ended");
  }
}

TEST_P(Hardened, BytesBehindABlockThatIsNeverFreedAreSeenAtExit) {
  for (size_t beyond : {size_t(1), size_t(32)}) {
    body = [beyond] {
      char *p = allocate(block_size);
      victim(p);
      memset(p + block_size, beyond == 1 ? 'x' : 0, beyond);
      exit(0);
    };
    expect_end(kOverflow, "when the process ended");
  }
}

// With another thread at work, which comes by no slow path any more: else its walk may be the first to see it.
TEST_P(Hardened, WritesAfterFreeAreSeenAtExit) {
  if (is_run()) GTEST_SKIP() << "it is inaccessible";
  body = [] {
    char *p = allocate(block_size);
    victim(p);
    std::atomic<bool> is_warm{false};
    std::thread([&is_warm] {
      for (unsigned n = 0;; n++) {
        hakmem_free(hakmem_malloc(100));
        if (n == 10000) is_warm = true;
      }
    }).detach();
    while (!is_warm) usleep(100);
    hakmem_free(p);
    p[std::min<size_t>(block_size, HAK_ZEROED_BYTES) - 1] = 1;
    exit(0);
  };
  expect_end(kAfterFree, "when the process ended");
}

// By a child, which has another thread's blocks as they were at the fork.
TEST_P(Hardened, WritesAfterFreeAreSeenAtTheExitOfAForksChild) {
  if (is_run()) GTEST_SKIP() << "it is inaccessible";
  body = [] {
    char *p = allocate(block_size);
    victim(p);
    hakmem_free(p);
    std::thread([] {
      for (;;) hakmem_free(hakmem_malloc(random() % 5000));
    }).detach();
    usleep(1000);
    pid_t child = fork();
    if (child == 0) {
      p[std::min<size_t>(block_size, HAK_ZEROED_BYTES) - 1] = 1;
      exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    if (WIFSIGNALED(status)) raise(WTERMSIG(status));
  };
  expect_end(kAfterFree, "when the process ended");
}

TEST_P(Hardened, DamageIsSeenWhileTheProgramRuns) {
  body = [] {
    char *p = allocate(block_size);
    victim(p);
    p[block_size] ^= 1;
    void *others[1000]; /* of other sizes: none is its neighbour */
    for (;;) { /* alarm */
      for (void *&other : others) other = hakmem_malloc(200 + size_t(random()) % 2000);
      for (void *other : others) hakmem_free(other);
    }
  };
  expect_end(kOverflow, "by the walk over all blocks");
}

// One that goes from block to block ends at an inaccessible span, which is told; so does what is read or written of a large block
// after it was freed.
void expect_fault(const std::string &what) {
  ProgramResult result = run_forked([] {
    alarm(50);
    body();
    return 0;
  });
  EXPECT_EQ(result.signal, SIGSEGV) << "exit code " << result.exit_code << "\n" << result.err;
  EXPECT_THAT(result.err, HasSubstr("hakmem: " + what));
}

TEST_P(Hardened, ARunOfAMebibyteEndsAtAGuard) {
  const size_t run = size_t(1) << 20;
  body = [] { memset(allocate(block_size), 1, run); };
  expect_fault("access outside of a block: ");
  body = [] {
    volatile char *p = allocate(block_size), sum = 0;
    for (size_t i = 0; i < run; i++) sum = sum + p[i];
  };
  expect_fault("access outside of a block: ");
  body = [] {
    volatile char *p = allocate(block_size);
    for (size_t i = 0; i < run; i++) p[-ptrdiff_t(i)] = 1;
  };
  expect_fault("access outside of a block: ");
}

// A child may allow itself no system call but a few: it makes no walk meanwhile. All the memory it takes was there before,
// and none of it is due to go back.
TEST(HardenedWalk, AsksTheSystemNothingInAChild) {
  ProgramResult result = run_forked([] {
    allocate(400000);
    hak_config.decay_ms = 60000;
    hak_decay_start();
    std::vector<void *> blocks;
    for (int i = 0; i < 20000; i++) blocks.push_back(allocate(size_t(i) % 3000));
    for (void *block : blocks) hakmem_free(block);
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT) != 0) _exit(0);
    for (int i = 0; i < 700000; i++) hakmem_free(hakmem_malloc(size_t(i) % 3000));
    syscall(SYS_exit, 0);
    return 1;
  });
  EXPECT_EQ(result.exit_code, 0) << "signal " << result.signal << "\n" << result.err;
}

// The walk reads a slab's class and how many blocks it has one after the other, while another thread may make another slab of its spans:
// many small blocks, taken for large ones, would end far behind.
TEST(HardenedWalk, StaysWithinASlabThatIsMadeAnewMeanwhile) {
  ProgramResult result = run_forked([] {
    void *p = allocate(30000);
    hak_region_span(hak_region_find(p), p)->bumped = 4000;
    hak_sweep_at_exit();
    return 0;
  });
  EXPECT_EQ(result.exit_code, 0) << "signal " << result.signal << "\n" << result.err;
}

TEST(HardenedBlocks, FreedLargeBlocksAreInaccessible) {
  for (size_t size : {size_t(300000), size_t(600000), size_t(90000000)}) {
    for (bool write : {false, true}) {
      body = [size, write] {
        volatile char *p = allocate(size);
        hakmem_free(const_cast<char *>(p));
        for (int i = 0; i < 255; i++) hakmem_free(hakmem_malloc(size)); /* its addresses wait for 256 frees */
        if (write) p[size / 2] = 1;
        char seen = p[size - 1];
        _exit(seen);
      };
      expect_fault("use after free: ");
    }
  }
}

TEST(HardenedBlocks, WhatIsNoBlockOfOursIsReported) {
  static char in_data[64];
  char on_stack[64];
  for (char *p : {in_data, on_stack + 16, reinterpret_cast<char *>(8), reinterpret_cast<char *>(-16L), reinterpret_cast<char *>(0xdeadbeefdead0000)}) {
    body = [p] { victim(p), hakmem_free(p); };
    expect_end(kForeign);
    body = [p] { victim(p), hakmem_free_sized(p, 10); };
    expect_end(kForeign);
    body = [p] { victim(p), (void)!hakmem_realloc(p, 10); };
    expect_end(kForeign, "by realloc");
    body = [p] { victim(p), hakmem_malloc_usable_size(p); };
    expect_end(kForeign, "by malloc_usable_size");
    EXPECT_FALSE(hakmem_is_ours(p));
  }
}

TEST_P(Hardened, FreedBytesReadAsZero) {
  if (is_run()) GTEST_SKIP() << "they cannot be read";
  char *p = allocate(block_size), *stays = allocate(block_size);
  hakmem_free(p);
  for (size_t at = 0; at < std::min<size_t>(block_size, HAK_ZEROED_BYTES); at++) ASSERT_EQ(p[at], 0) << at;
  hakmem_free(stays);
}

TEST_P(Hardened, WritesAfterFreeAreSeenWhenTheBlockIsUsedAgain) {
  if (is_run()) GTEST_SKIP() << "it is inaccessible";
  for (size_t at : {size_t(0), std::min<size_t>(GetParam(), HAK_ZEROED_BYTES) - 1}) {
    body = [at] {
      char *p = allocate(block_size);
      victim(p);
      hakmem_free(p);
      p[at] = 1;
      for (int i = 0; i < 200000; i++) hakmem_free(hakmem_malloc(block_size));
    };
    expect_end(kAfterFree, "when the block was to be used again");
  }
}

// Freed memory is read and copied over live blocks, and whole live blocks over others: no decision rests on what a program
// may read.
TEST_P(Hardened, CopiedBytesAreNoFault) {
  std::mt19937 random(1);
  std::vector<char *> blocks;
  std::vector<char> image(block_size);
  size_t most = std::min(size_t(1000), (size_t(8) << 20) / block_size);
  for (size_t round = 0; round < most * 100; round++) {
    if (blocks.size() < most && random() % 3 != 0) {
      blocks.push_back(allocate(block_size));
      memcpy(blocks.back(), image.data(), block_size);
    } else if (!blocks.empty()) {
      std::swap(blocks[random() % blocks.size()], blocks.back());
      char *p = blocks.back();
      blocks.pop_back();
      bool freed = random() % 2 != 0 && block_size <= HAK_SMALL_MAX; /* larger ones are inaccessible then */
      if (freed) hakmem_free(p);
      memcpy(image.data(), p, block_size);
      if (!freed) hakmem_free(p);
    }
  }
  for (char *p : blocks) hakmem_free(p);
  hakmem_malloc_trim(0);
  EXPECT_EQ(hak_heap_check(), 0u);
}

INSTANTIATE_TEST_SUITE_P(Sizes, Hardened, testing::Values(8, 4096, 100000, 600000));

TEST(HardenedBlocks, ZeroBytesAreZeroBytes) {
  for (bool write : {false, true}) {
    for (int at : {0, 1, 300, 5000, -1}) {
      body = [write, at] {
        static volatile char *all[1000];
        for (volatile char *&one : all) one = static_cast<char *>(hakmem_malloc(0));
        volatile char *p = all[500];
        if (write) p[at] = 0;
        _exit(p[at]);
      };
      expect_fault("access outside of a block: ");
    }
  }
  body = [] {
    volatile char *p = static_cast<char *>(hakmem_calloc(0, 7));
    hakmem_free(const_cast<char *>(p));
    _exit(p[0]);
  };
  expect_fault("use after free: ");
  for (bool other : {false, true}) {
    body = [other] {
      char *p = static_cast<char *>(hakmem_malloc(0));
      victim(p);
      hakmem_free(p);
      if (other) hakmem_free(hakmem_malloc(0));
      hakmem_free(p);
    };
    expect_end(kDouble);
    body = [] {
      char *p = static_cast<char *>(hakmem_malloc(0));
      victim(p + 3);
      hakmem_free(p + 3);
    };
    expect_end(kInterior);
  }
  body = [] {
    char *p = static_cast<char *>(hakmem_malloc(0));
    victim(p);
    hakmem_free(p);
    hakmem_malloc_usable_size(p);
  };
  expect_end(kFreeMemory, "by malloc_usable_size");
}

// In steps, and by few page faults: what is there is not copied for each.
TEST(HardenedBlocks, LargeBlocksGrowAndShrinkWhereTheyAre) {
  constexpr size_t kFrom = 300000, kTo = 9000000, kStep = 12000;
  rusage before, after;
  char *p = allocate(kFrom);
  getrusage(RUSAGE_THREAD, &before);
  for (size_t size = kFrom; size < kTo; size += kStep) {
    ASSERT_NE(p = static_cast<char *>(hakmem_realloc(p, size + kStep)), nullptr);
    ASSERT_EQ(hakmem_malloc_usable_size(p), size + kStep);
    memset(p + size, 1, kStep);
  }
  getrusage(RUSAGE_THREAD, &after);
  EXPECT_LT(after.ru_minflt - before.ru_minflt, long(4 * kTo / hak_os_page_size()));
  EXPECT_EQ(size_t(std::count(p, p + kTo, 1)), kTo);
  hak_sweep_at_exit();
  size_t size = kTo;
  for (; size > kFrom; size = size * 2 / 5) {
    ASSERT_NE(p = static_cast<char *>(hakmem_realloc(p, size)), nullptr);
    ASSERT_EQ(hakmem_malloc_usable_size(p), size);
    ASSERT_EQ(size_t(std::count(p, p + size, 1)), size);
    hak_sweep_at_exit();
  }
  hakmem_free(p);
}

// The addresses where such blocks may grow are drawn at random: where something lies there already, others are.
TEST(HardenedBlocks, ALargeBlockWhosePlaceIsTakenMayGrow) {
  static void *stone;
  static const hak_os_ops *system;
  stone = nullptr;
  system = hak_os;
  hak_os_ops taken = *system;
  taken.map = [](void *hint, size_t bytes, hak_os_access access, bool fixed) {
    if (stone == nullptr && access == HAK_OS_SEALED && !fixed)
      stone = mmap(hint, hak_os_page_size(), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    return system->map(hint, bytes, access, fixed);
  };
  hak_os = &taken;
  size_t size = 2 * HAK_MIB;
  char *p = allocate(size);
  hak_os = system;
  ASSERT_NE(stone, nullptr);
  ASSERT_NE(stone, MAP_FAILED);
  EXPECT_EQ(hakmem_expand(p, 2 * size), p);
  memset(p, 1, 2 * size);
  hakmem_free(p);
  munmap(stone, hak_os_page_size());
}

// What a resize in place leaves as it was is still looked at: where the block grows over it, and by free.
TEST(HardenedBlocks, WritesFarBehindARequestAreSeenHoweverOftenItWasResized) {
  for (size_t size : {size_t(3000), size_t(70000), size_t(200000)}) {
    for (bool grows_over_it : {false, true}) {
      body = [size, grows_over_it] {
        char *p = static_cast<char *>(hakmem_realloc(allocate(size), size * 3 / 5));
        for (size_t asked : {size * 7 / 10, size * 6 / 10, size * 13 / 20}) p = static_cast<char *>(hakmem_realloc(p, asked));
        victim(p);
        p[size * 3 / 4] ^= 1;
        if (grows_over_it) _exit(hakmem_realloc(p, size * 4 / 5) == nullptr);
        p = static_cast<char *>(hakmem_realloc(p, size * 7 / 10));
        hakmem_free(p);
      };
      expect_end(kOverflow, grows_over_it ? "by realloc" : "at the call");
    }
  }
}

TEST(HardenedBlocks, LargeBlocksThatWereResizedEndAtGuards) {
  for (size_t size : {size_t(900000), size_t(5000000), size_t(20000000)}) {
    for (bool grows : {false, true}) {
      body = [size, grows] {
        volatile char *p = allocate(grows ? size / 2 : size * 3);
        p = static_cast<char *>(hakmem_realloc(const_cast<char *>(p), size));
        _exit(p[size + 8192]);
      };
      expect_fault("access outside of a block: ");
      body = [size, grows] {
        char *p = allocate(grows ? size / 2 : size * 3);
        p = static_cast<char *>(hakmem_realloc(p, size));
        victim(p);
        p[size] ^= 1;
        hakmem_free(p);
      };
      expect_end(kOverflow);
    }
  }
}

// More than have addresses of their own; each is another block, grows, and is freed.
TEST(HardenedBlocks, ManyBlocksOfNoBytes) {
  std::set<void *> blocks;
  for (int i = 0; i < 70000; i++) {
    void *p = i % 2 == 0 ? hakmem_malloc(0) : hakmem_calloc(3, 0);
    EXPECT_TRUE(p != nullptr && blocks.insert(p).second && reinterpret_cast<uintptr_t>(p) % 16 == 0);
    ASSERT_EQ(hakmem_malloc_usable_size(p), 0u);
    ASSERT_TRUE(hakmem_is_ours(p));
  }
  int i = 0;
  for (void *p : blocks) {
    if (i++ % 2 == 0) {
      hakmem_free(p);
      continue;
    }
    char *q = static_cast<char *>(hakmem_realloc(p, 90));
    ASSERT_NE(q, nullptr);
    memset(q, 1, 90);
    hakmem_free(q);
  }
  void *p = hakmem_malloc(0);
  EXPECT_EQ(hakmem_realloc(p, 0), nullptr);
}

TEST(HardenedBlocks, HugeBlocksHaveTheirTrailerToo) {
  body = [] {
    char *p = static_cast<char *>(hakmem_malloc(HAK_EXTENT_MAX * 3 + 5));
    victim(p);
    p[HAK_EXTENT_MAX * 3 + 5] = 0;
    hakmem_free(p);
  };
  expect_end(kOverflow);
}

TEST(HardenedBlocks, UsableSizeIsWhatWasAskedFor) {
  for (size_t size : {size_t(0), size_t(1), size_t(7), size_t(100), size_t(5000), size_t(32760), size_t(32761), size_t(300000), size_t(90000000)}) {
    void *p = hakmem_malloc(size);
    EXPECT_EQ(hakmem_malloc_usable_size(p), size);
    p = hakmem_realloc(p, size + 1);
    EXPECT_EQ(hakmem_malloc_usable_size(p), size + 1);
    hakmem_free(p);
  }
}

TEST(HardenedBlocks, FreedBlocksAreZeroedAndWait) {
  char *p = allocate(100);
  hakmem_free(p);
  for (int i = 0; i < 100; i++) EXPECT_EQ(p[i], 0) << i;
  for (int i = 0; i < 255; i++) {  // one less than the quarantine holds
    char *q = allocate(100);
    EXPECT_NE(q, p) << i;
    hakmem_free(q);
  }
}

TEST(HardenedBlocks, OrderIsNoSecretOfTheProgram) {
  auto order = [] {
    std::vector<void *> blocks(60);
    for (void *&p : blocks) p = hakmem_malloc(64);
    return blocks;
  };
  order();
  auto blocks = order();
  size_t ascending = 0;
  for (size_t i = 1; i < blocks.size(); i++) ascending += blocks[i] > blocks[i - 1];
  EXPECT_LT(ascending, 55u) << "addresses in a row";
  EXPECT_GT(ascending, 5u);
}

TEST(HardenedBlocks, GuardSpansCannotBeRead) {
  body = [] {
    const char *p = allocate(100);
    const hak_region *r = &hak_main_region;
    size_t guard = hak_region_index(r, p);
    while (!hak_region_is_guard(guard)) guard++;
    signal(SIGSEGV, [](int) { _exit(42); });
    volatile char c = *static_cast<const char *>(hak_region_address(r, guard));
    _exit(c);
  };
  EXPECT_EQ(run_forked([] { return body(), 0; }).exit_code, 42);
}

TEST(HardenedBlocks, NothingIsWritableAndExecutable) {
  std::set<const void *> blocks;
  for (size_t size : {size_t(8), size_t(4096), size_t(100000), size_t(600000), size_t(50) << 20}) blocks.insert(allocate(size));
  FILE *maps = fopen("/proc/self/maps", "r");
  char line[512];
  size_t seen = 0;
  while (fgets(line, sizeof line, maps) != nullptr) {
    uintptr_t from = 0, to = 0;
    char permissions[5] = "";
    ASSERT_EQ(sscanf(line, "%lx-%lx %4s", &from, &to, permissions), 3) << line;
    EXPECT_FALSE(permissions[1] == 'w' && permissions[2] == 'x') << line;
    for (const void *p : blocks) {
      if (uintptr_t(p) - from >= to - from) continue;
      EXPECT_EQ(permissions[2], '-') << line;
      seen++;
    }
  }
  fclose(maps);
  EXPECT_EQ(seen, blocks.size());
}

TEST(HardenedBlocks, NoBlockReachesIntoAGuard) {
  std::vector<char *> blocks;
  for (int i = 0; i < 300; i++) {
    size_t size = size_t(40000) * size_t(1 + i % 45);
    char *p = static_cast<char *>(hakmem_malloc(size));
    memset(p, 1, size);
    blocks.push_back(p);
  }
  EXPECT_EQ(hak_heap_check(), 0u);
  for (char *p : blocks) hakmem_free(p);
  EXPECT_EQ(hak_heap_check(), 0u);
}

TEST(HardenedBlocks, HugeBlocksFreedWrongly) {
  const size_t size = size_t(3) << 20;  // above the largest run of this build
  for (size_t offset : {size_t(1), size_t(16), size / 2}) {
    body = [offset] {
      char *p = allocate(size) + offset;
      if (hak_region_find(p) != nullptr) _exit(1);
      victim(p);
      hakmem_free(p);
    };
    expect_end(kInterior);
  }
  body = [] {
    char *p = allocate(size);
    victim(p);
    hakmem_free(p);
    hakmem_free(p);
  };
  expect_end(kFreeMemory);
}

// A program without a fault: every size and call, all bytes written, blocks freed by other threads.
void work(unsigned seed) {
  std::mt19937 random(seed);
  std::vector<std::pair<unsigned char *, size_t>> blocks(300);
  for (int i = 0; i < 30000; i++) {
    auto &[p, size] = blocks[random() % blocks.size()];
    for (size_t at : {size_t(0), size / 2, size == 0 ? 0 : size - 1})
      if (p != nullptr && size != 0) ASSERT_EQ(p[at], (unsigned char)size);
    size_t next = random() % 64 == 0 ? random() % 200000 : random() % 2000;
    switch (random() % 5) {
      case 0:
        hakmem_free(p);
        p = static_cast<unsigned char *>(hakmem_malloc(next));
        break;
      case 1:
        hakmem_free_sized(p, size);
        p = static_cast<unsigned char *>(hakmem_calloc(1, next));
        for (size_t at = 0; at < next; at++) ASSERT_EQ(p[at], 0);
        break;
      case 2:
        if (next == 0) next = 1;
        p = static_cast<unsigned char *>(hakmem_realloc(p, next));
        if (p != nullptr && size != 0) ASSERT_EQ(p[0], (unsigned char)size);
        break;
      case 3: {
        size_t align = size_t(8) << random() % 10;
        unsigned char *q = nullptr;
        std::thread([&, old = p] {
          hakmem_free(old);
          q = static_cast<unsigned char *>(hakmem_aligned_alloc(align, next));
        }).join();
        p = q;
        ASSERT_EQ(reinterpret_cast<uintptr_t>(p) % align, 0u);
        break;
      }
      default:
        hakmem_free(p);
        p = nullptr;
        next = 0;
    }
    size = next;
    if (p != nullptr) memset(p, (unsigned char)size, hakmem_malloc_usable_size(p));
    if (i % 1000 == 0) hakmem_malloc_trim(0);
  }
  for (auto &[p, size] : blocks) hakmem_free(p);
}

TEST(HardenedBlocks, ProgramsWithoutAFaultRun) {
  std::thread a(work, 1), b(work, 2);
  a.join();
  b.join();
  hakmem_malloc_trim(0);
  EXPECT_EQ(hak_heap_check(), 0u);
}

// What a thread's quarantine holds goes back when the thread ends, whether or not another adopts its heap.
TEST(HardenedBlocks, QuarantinesOfEndedThreadsComeBack) {
  const int count = 50;
  hakmem_malloc_trim(0);
  size_t before = hak_span_pool.live_spans;
  std::atomic<int> busy{count};
  std::vector<std::thread> threads;
  for (int i = 0; i < count; i++) {
    threads.emplace_back([&busy] {
      for (int n = 0; n < 300; n++) hakmem_free(allocate(3500));
      busy--;
      while (busy > 0) std::this_thread::yield();  // all at once, each with a heap of its own
    });
  }
  for (std::thread &thread : threads) thread.join();
  hakmem_malloc_trim(0);
  EXPECT_LE(hak_span_pool.live_spans, before + count * 2u) << "a quarantine holds 16 spans";
}

}  // namespace
