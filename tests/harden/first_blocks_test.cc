// The hardened build guards a process's first blocks, each between pages that are not accessible; how later blocks are checked is in
// harden_test.cc. Also what realloc leaves behind a request, and aligned blocks of no bytes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

extern "C" {
#include "harden/sweep.h"
}
#include "hak.h"
#include "run_program.h"

using testing::HasSubstr;

namespace {

constexpr int kFirst = 64;

std::function<void()> body;
size_t size;

char *first_block() {
  char *p = static_cast<char *>(hakmem_malloc(size));
  if (!hak_sample_contains(p)) _exit(3);
  memset(p, 1, size);
  fprintf(stderr, "victim %p\n", static_cast<void *>(p));
  return p;
}

void expect_end(int signal, const std::string &says) {
  ProgramResult result = run_forked([] {
    body();
    return 0;
  });
  EXPECT_EQ(result.signal, signal) << "exit code " << result.exit_code << "\n" << result.err;
  EXPECT_THAT(result.err, HasSubstr("hakmem: " + says));
  size_t at = result.err.find("victim ");
  ASSERT_NE(at, std::string::npos) << result.err;
  std::string address = result.err.substr(at + 7, result.err.find('\n', at) - at - 7);
  EXPECT_THAT(result.err, HasSubstr(address)) << "the report names the block";
}

class First : public testing::TestWithParam<size_t> {
 protected:
  void SetUp() override { size = GetParam(); }
};

TEST_P(First, AccessesBesideThemFault) {
  for (bool write : {false, true}) {
    for (ptrdiff_t at : {ptrdiff_t(0), ptrdiff_t(700), ptrdiff_t(900000), ptrdiff_t(-900000)}) {
      body = [write, at] {
        volatile char *p = first_block() + (at < 0 ? at : ptrdiff_t(hak_align_up(size, 16)) + at);
        if (write) *p = 1;
        _exit(*p);
      };
      expect_end(SIGSEGV, "access outside of a block: ");
    }
  }
}

TEST_P(First, AccessesAfterFreeFaultForEver) {
  for (int others : {0, 3000}) {
    body = [others] {
      volatile char *p = first_block();
      hakmem_free(const_cast<char *>(p));
      for (int i = 0; i < others; i++) hakmem_free(hakmem_malloc(size));
      _exit(p[size / 2]);
    };
    expect_end(SIGSEGV, "use after free: ");
  }
  body = [] {
    volatile char *p = first_block();
    _exit(hakmem_realloc(const_cast<char *>(p), size + 1000) == nullptr ? 9 : p[0]);
  };
  expect_end(SIGSEGV, "use after free: ");
}

// Alignment leaves some bytes behind the block, its pages some before it.
TEST_P(First, WrittenBytesBesideThemAreSeen) {
  static const std::map<std::string, std::function<void(char *)>> seen = {
      {"at the call", [](char *p) { hakmem_free(p); }},
      {"by realloc", [](char *p) { _exit(hakmem_realloc(p, size * 2) == nullptr); }},
      {"by malloc_usable_size", [](char *p) { hakmem_malloc_usable_size(p); }},
      {"when the process ended", [](char *) { exit(0); }},
  };
  for (const auto &[where, look] : seen) {
    body = [&look = look] {
      char *p = first_block();
      p[-1] ^= 1;
      look(p);
    };
    bool page_begins = size % hak_os_page_size() == 0;
    if (!page_begins) expect_end(SIGABRT, "underflow, seen " + where + ": ");
    body = [&look = look] {
      char *p = first_block();
      p[size] ^= 1;
      look(p);
    };
    if (size % 16 != 0) expect_end(SIGABRT, "overflow, seen " + where + ": ");
  }
}

TEST_P(First, AreFreedOnceAndRightly) {
  body = [] {
    char *p = first_block();
    hakmem_free(p);
    hakmem_free(p);
  };
  expect_end(SIGABRT, "double free: ");
  body = [] {
    char *p = first_block();
    hakmem_free(p);
    _exit(hakmem_realloc(p, 10) == nullptr);
  };
  expect_end(SIGABRT, "double free: ");
  body = [] { hakmem_free(first_block() + size / 2); };
  expect_end(SIGABRT, "invalid free: ");
  body = [] { hakmem_free_sized(first_block(), size + 1); };
  expect_end(SIGABRT, "sized free: the size given is not that of the block: ");
  body = [] { hak_free_as(first_block(), HAK_SIZE_UNKNOWN, HAK_FAMILY_NEW); };
  expect_end(SIGABRT, "mismatched free: ");
}

TEST_P(First, AreBlocksLikeOthers) {
  ProgramResult result = run_forked([] {
    char *p = static_cast<char *>(hakmem_calloc(1, size));
    for (size_t i = 0; i < size; i++) {
      if (p[i] != 0) return 4;
    }
    memset(p, 7, size);
    if (hakmem_malloc_usable_size(p) != size || !hakmem_is_ours(p)) return 5;
    p = static_cast<char *>(hakmem_realloc(p, 3 * size));
    if (p[0] != 7 || p[size - 1] != 7) return 6;
    p = static_cast<char *>(hakmem_realloc(p, size / 2 + 1));
    if (p[size / 2] != 7 || hakmem_malloc_usable_size(p) != size / 2 + 1) return 7;
    hakmem_free_sized(p, size / 2 + 1);
    char *q = static_cast<char *>(hakmem_aligned_alloc(512, size));
    if (!hak_sample_contains(q) || reinterpret_cast<uintptr_t>(q) % 512 != 0) return 8;
    memset(q, 1, size);
    hakmem_free(q);
    return 0;
  });
  EXPECT_EQ(result.exit_code, 0) << "signal " << result.signal << "\n" << result.err;
  EXPECT_EQ(result.err, "");
}

INSTANTIATE_TEST_SUITE_P(Sizes, First, testing::Values(8, 1000, 4096, 30001));

// So many, of all threads and sizes, and none comes again.
TEST(FirstBlocks, AreFew) {
  std::set<void *> guarded;
  std::set<ptrdiff_t> distances;
  char *last = nullptr;
  for (int i = 0; i < 3000; i++) {
    char *p = static_cast<char *>(hakmem_malloc(i % 7 * 400 + 1));
    if (!hak_sample_contains(p)) continue;
    EXPECT_TRUE(guarded.insert(p).second);
    distances.insert(p - last);
    last = p;
    if (i % 2 == 0) hakmem_free(p);
  }
  EXPECT_EQ(guarded.size(), size_t{kFirst});
  EXPECT_GT(distances.size(), size_t{kFirst / 2}) << "where the next one lies is drawn";
}

void use_up() {
  void *volatile p;
  do p = hakmem_malloc(1);
  while (hak_sample_contains(p));
}

// A huge block gives back the pages that it does not need any more: behind them is the guard.
TEST(Resized, AHugeBlockIsAsOneOfItsNewSize) {
  for (size_t from : {size_t(700000), size_t(50000000)}) {
    for (int percent : {99, 90, 75, 55, 10}) {
      size_t to = from / 100 * percent;
      void *p = hakmem_malloc(from), *like = hakmem_malloc(to);
      p = hakmem_realloc(p, to);
      EXPECT_EQ(hak_block_size(p), hak_block_size(like)) << from << " to " << to;
      hakmem_free(p);
      hakmem_free(like);
    }
  }
}

// Wherever behind the new end: up to half of the block lies there.
TEST(Resized, NoByteBehindABlockIsOverlooked) {
  use_up();
  static size_t to, at;
  static bool freed;
  for (size_t from : {size_t(350), size_t(2900), size_t(21000), size_t(190000)}) {
    to = from / 10 * 6;
    for (bool is_freed : {true, false}) {
      for (size_t behind : {size_t(0), size_t(31), size_t(32), from / 5, from - to - 1}) {
        size = from;
        at = to + behind;
        freed = is_freed;
        body = [] {
          char *p = static_cast<char *>(hakmem_malloc(size));
          char *q = static_cast<char *>(hakmem_realloc(p, to));
          if (q != p) _exit(4);
          fprintf(stderr, "victim %p\n", static_cast<void *>(p));
          q[at] ^= 1;
          if (freed) hakmem_free(q);
          exit(0);
        };
        expect_end(SIGABRT, "overflow: bytes behind the block were written: ");
      }
    }
  }
}

// Grown again, and of any family.
TEST(Resized, BlocksAreBlocksLikeOthers) {
  use_up();
  for (size_t from : {24, 350, 2900, 190000}) {
    char *p = static_cast<char *>(hakmem_malloc(from));
    for (size_t to : {from * 6 / 10, from, from * 7 / 10, from * 9 / 10, from * 5 / 10 + 1}) {
      p = static_cast<char *>(hakmem_realloc(p, to));
      ASSERT_EQ(hakmem_malloc_usable_size(p), to);
      memset(p, 3, to);
      hak_sweep_some();
    }
    hakmem_free_sized(p, from * 5 / 10 + 1);
  }
}

TEST(EmptyBlocks, AreAlignedAndInaccessible) {
  std::set<void *> all;
  for (size_t align : {32, 128, 4096, 65536}) {
    for (int i = 0; i < 10; i++) {
      void *p = i % 2 == 0 ? hakmem_memalign(align, 0) : hakmem_aligned_alloc(align, 0);
      EXPECT_EQ(reinterpret_cast<uintptr_t>(p) % align, 0u);
      EXPECT_TRUE(p != nullptr && all.insert(p).second) << align;
      EXPECT_EQ(hakmem_malloc_usable_size(p), 0u);
      EXPECT_TRUE(hakmem_is_ours(p));
      EXPECT_NE(p, hakmem_malloc(0));
    }
    body = [align] {
      volatile char *p = static_cast<char *>(hakmem_memalign(align, 0));
      fprintf(stderr, "victim %p\n", static_cast<void *>(const_cast<char *>(p)));
      _exit(p[0]);
    };
    expect_end(SIGSEGV, "access outside of a block: ");
  }
  for (void *p : all) hakmem_free(p);
}

}  // namespace
