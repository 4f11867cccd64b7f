// hakmem_expand, hakmem_aligned_realloc and hakmem_aligned_calloc, in the main heap, in heaps, and under limits.
#include "heaps.h"

#include <gmock/gmock.h>

#include <sys/sysinfo.h>

#include <algorithm>
#include <fstream>
#include <random>
#include <string>
#include <thread>

#include "hak.h"
#include "rotation.h"
#include "run_program.h"

namespace {

constexpr int MARK = 4711;  // an errno nobody sets

// Where blocks are from: the main heap, a heap, one that is the default, and one without caches.
enum Where { MAIN, HEAP, DEFAULT, UNCACHED };
class From : public testing::TestWithParam<Where> {
 protected:
  void SetUp() override {
    if (GetParam() == HEAP || GetParam() == DEFAULT) heap_ = new_heap();
    if (GetParam() == UNCACHED) heap_ = new_heap(0, nullptr, HAKMEM_HEAP_UNCACHED);
    if (GetParam() == DEFAULT) (void)hakmem_heap_set_default(heap_);
  }
  void TearDown() override {
    if (GetParam() == DEFAULT) (void)hakmem_heap_set_default(nullptr);
    if (heap_ != nullptr) EXPECT_EQ(stats_of(heap_).live, 0u);
    hakmem_heap_destroy(heap_);
    EXPECT_EQ(hakmem_heap_check(), 0u);
  }
  Block take(size_t size, unsigned char value = 1) {
    return filled(GetParam() == MAIN || GetParam() == DEFAULT ? hakmem_malloc(size) : hakmem_heap_malloc(heap_, size), size, value);
  }
  void *take_aligned(size_t alignment, size_t size) {
    return GetParam() == MAIN || GetParam() == DEFAULT ? hakmem_aligned_alloc(alignment, size) : hakmem_heap_aligned_alloc(heap_, alignment, size);
  }
  hakmem_heap *heap_ = nullptr;
};
INSTANTIATE_TEST_SUITE_P(Heaps, From, testing::Values(MAIN, HEAP, DEFAULT, UNCACHED));

// Fills what the block has beyond `size`, so that others would show it.
void fill_on(Block *b, size_t size) {
  memset(b->p + b->size, b->value, size - b->size);
  b->size = size;
}

bool is_aligned(const void *p, size_t alignment) { return reinterpret_cast<uintptr_t>(p) % alignment == 0; }

TEST_P(From, ExpandSaysThatItFits) {
  for (size_t size : sizes()) {
    Block b = take(size, 7);
    ASSERT_NE(b.p, nullptr) << size;
    size_t usable = b.usable();
    for (size_t wanted : {size_t{0}, std::min(size, size_t{1}), size / 2, size, usable}) {
      errno = MARK;
      ASSERT_EQ(hakmem_expand(b.p, wanted), b.p) << size << " to " << wanted;
      ASSERT_EQ(errno, MARK);
      ASSERT_EQ(b.usable(), usable) << size << " to " << wanted;
      ASSERT_EQ(hakmem_heap_of(b.p), heap_);
    }
    ASSERT_TRUE(b.holds()) << size;
    hakmem_free(b.p);
  }
}

// Either it has the bytes, which are nobody else's, or it is as before.
TEST_P(From, ExpandGrowsInPlaceOrFails) {
  std::mt19937 random(5);
  std::vector<Block> blocks;
  size_t grown[2] = {0, 0}, failed = 0;
  for (int i = 0; i < 3000; i++) {
    if (blocks.size() < 150 || random() % 3 == 0) {
      size_t most = random() % 4 == 0 ? 2 * MIB : random() % 2 == 0 ? 70 * KIB : 1000;
      blocks.push_back(take(random() % most, static_cast<unsigned char>(random())));
    }
    std::swap(blocks[random() % blocks.size()], blocks.back());
    Block &b = blocks.back();
    size_t before = b.usable(), size = before + random() % (before + 100);
    ASSERT_GE(before, b.size);
    errno = MARK;
    void *q = hakmem_expand(b.p, size);
    if (q != nullptr) {
      ASSERT_EQ(q, b.p);
      ASSERT_EQ(errno, MARK);
      ASSERT_GE(b.usable(), size);
      if (size > before) grown[size > 300000]++;
      fill_on(&b, size);
    } else {
      ASSERT_EQ(errno, ENOMEM);
      ASSERT_GE(b.usable(), before);
      failed++;
    }
    ASSERT_TRUE(b.holds()) << b.size;
    if (blocks.size() > 200) {
      ASSERT_TRUE(b.holds());
      hakmem_free(b.p);
      blocks.pop_back();
    }
  }
  for (const Block &b : blocks) {
    ASSERT_TRUE(b.holds()) << b.size;
    hakmem_free(b.p);
  }
  EXPECT_GT(failed, 100u);
  EXPECT_GT(grown[1], HAK_HARDENED && GetParam() == MAIN ? 0u : 10u) << "large blocks have room behind them now and then";
}

TEST_P(From, ExpandedBlocksAreResizedAsOthers) {
  for (size_t size : {size_t{100}, size_t{20000}, 300 * KIB, 3 * MIB, 40 * MIB}) {
    Block b = take(size, 9);
    for (size_t more = size / 8; more <= size; more *= 2) {
      if (hakmem_expand(b.p, size + more) == nullptr) continue;
      fill_on(&b, size + more);
    }
    b.p = static_cast<unsigned char *>(hakmem_realloc(b.p, 3 * size));
    ASSERT_NE(b.p, nullptr);
    ASSERT_TRUE(b.holds()) << size;
    b.size = size / 2;
    b.p = static_cast<unsigned char *>(hakmem_realloc(b.p, size / 2));
    ASSERT_TRUE(b.holds()) << size;
    hakmem_free(b.p);
  }
}

TEST(Expand, OfWhatIsNoBlock) {
  static char ours_not[64];
  errno = MARK;
  EXPECT_EQ(hakmem_expand(nullptr, 0), nullptr);
  EXPECT_EQ(errno, EINVAL);
  if (HAK_HARDENED) return; /* it ends the program */
  errno = MARK;
  EXPECT_EQ(hakmem_expand(ours_not, 10), nullptr);
  EXPECT_EQ(errno, EINVAL);
}

// More than the machine has is refused, as the kernel refuses to map it, in a hardened build too, which makes a block accessible between
// guards: wherever addresses are free, so 1 TiB was there each time.
TEST(Blocks, LargerThanAllMemoryAreRefused) {
  std::ifstream overcommit("/proc/sys/vm/overcommit_memory");
  if (overcommit.get() == '1') GTEST_SKIP() << "vm.overcommit_memory is 1: the kernel refuses nothing";
  struct sysinfo info;
  ASSERT_EQ(sysinfo(&info), 0);
  size_t all = (info.totalram + info.totalswap) * info.mem_unit;
  for (size_t wanted : {2 * all, 8 * all, size_t{1} << 42, size_t{1} << 46}) {
    errno = 0;
    EXPECT_EQ(hakmem_malloc(wanted), nullptr);
    EXPECT_EQ(errno, ENOMEM);
    EXPECT_EQ(hakmem_calloc(1, wanted), nullptr);
    EXPECT_EQ(hakmem_aligned_alloc(2 * MIB, wanted), nullptr);
    for (size_t size : {100 * KIB, 3 * MIB, 40 * MIB}) {
      Block b = filled(hakmem_malloc(size), size, 3);
      EXPECT_EQ(hakmem_realloc(b.p, wanted), nullptr);
      EXPECT_EQ(hakmem_expand(b.p, wanted), nullptr);
      EXPECT_TRUE(b.holds());
      hakmem_free(b.p);
    }
  }
}

TEST(Expand, BeyondAllMemoryFails) {
  for (size_t size : {size_t{10}, size_t{5000}, 100 * KIB, 3 * MIB, 40 * MIB}) {
    Block b = filled(hakmem_malloc(size), size, 3);
    for (size_t wanted : {size_t{PTRDIFF_MAX}, SIZE_MAX, SIZE_MAX - 16, size_t{1} << 46}) {
      errno = MARK;
      EXPECT_EQ(hakmem_expand(b.p, wanted), nullptr);
      EXPECT_EQ(errno, ENOMEM);
    }
    EXPECT_TRUE(b.holds());
    hakmem_free(b.p);
  }
}

// A guarded block ends where its pages do.
TEST(Expand, OfGuardedBlocks) {
  ProgramResult result = run_forked([] {
    if (hakmem_option_set("HAKMEM_GUARD_SAMPLE", 1) != 0) return 77;
    std::vector<Block> blocks;
    for (int i = 0; i < 200; i++) {
      blocks.push_back(filled(hakmem_malloc(1000), 1000, 5));
      Block &b = blocks.back();
      if (hakmem_expand(b.p, 900) != b.p) return 1;
      size_t before = b.usable();
      void *q = hakmem_expand(b.p, 1010);
      if (q != nullptr ? q != b.p || b.usable() < 1010 : b.usable() != before) return 2;
      if (q != nullptr) fill_on(&b, 1010);
    }
    for (const Block &b : blocks) {
      if (!b.holds()) return 3;
      hakmem_free(b.p);
    }
    return 0;
  });
  if (result.exit_code == 77) GTEST_SKIP() << "the option is for the start";
  EXPECT_EQ(result.exit_code, 0) << result.err;
}

// --- limits ---

TEST(ExpandUnderALimit, IsRefusedWhereAnAllocationWouldBe) {
  Heap above(16 * MIB);
  hakmem_heap *heap = new_heap(4 * MIB, above);
  Block b = block_in(heap, 3 * MIB, 4);
  ASSERT_EQ(hakmem_expand(b.p, 4 * MIB + 1), nullptr);
  EXPECT_EQ(errno, ENOMEM);
  EXPECT_EQ(stats_of(heap).refused, 1u);
  EXPECT_EQ(stats_of(heap).live, 3 * MIB);
  ASSERT_EQ(hakmem_expand(b.p, 4 * MIB), b.p);
  fill_on(&b, 4 * MIB);
  EXPECT_EQ(stats_of(heap).live, 4 * MIB);
  EXPECT_EQ(above.stats().total, 4 * MIB);
  EXPECT_EQ(hakmem_heap_malloc(heap, 1), nullptr);
  hakmem_heap_set_limit(heap, 0);
  hakmem_heap_set_limit(above, 5 * MIB);
  EXPECT_EQ(hakmem_expand(b.p, 6 * MIB), nullptr) << "the limit above holds too";
  EXPECT_EQ(above.stats().refused, 1u);
  EXPECT_EQ(hakmem_expand(b.p, 5 * MIB), b.p);
  EXPECT_TRUE(b.holds());
  hakmem_free(b.p);
  EXPECT_EQ(above.stats().total, 0u);
  hakmem_heap_destroy(heap);
}

// What threads have cached neither counts nor saves.
TEST(ExpandUnderALimit, IsExactWhateverIsCached) {
  Heap heap(4 * MIB);
  auto cache_some = [&] {
    std::vector<void *> blocks;
    for (int i = 0; i < 2000; i++) blocks.push_back(hakmem_heap_malloc(heap, 400));
    for (void *p : blocks) hakmem_free(p);
  };
  std::atomic<int> step{0};
  std::thread sleeper([&] {
    cache_some();
    step = 1;
    while (step == 1) std::this_thread::yield();
  });
  while (step == 0) std::this_thread::yield();
  cache_some();
  Block b = block_in(heap, 2 * MIB);
  cache_some();
  EXPECT_EQ(hakmem_expand(b.p, 4 * MIB), b.p);
  EXPECT_EQ(heap.live(), 4 * MIB);
  EXPECT_EQ(heap.stats().refused, 0u);
  step = 2;
  sleeper.join();
  hakmem_free(b.p);
}

TEST(ExpandUnderALimit, CallsTheCallback) {
  Heap heap(4 * MIB);
  static void *other;
  int calls = 0;
  hakmem_heap_set_callback(heap, 90, [](hakmem_heap *, size_t, void *context) {
    ++*static_cast<int *>(context);
    hakmem_free(std::exchange(other, nullptr));
  }, &calls);
  other = hakmem_heap_malloc(heap, 20000);
  Block b = block_in(heap, 2 * MIB, 4);
  EXPECT_EQ(hakmem_expand(b.p, 4 * MIB), b.p) << "what it frees, the request may have";
  EXPECT_EQ(calls, 1);
  EXPECT_TRUE(b.holds());
  hakmem_free(b.p);
}

TEST(ExpandUnderALimit, OfAMapping) {
  Heap heap(64 * MIB);
  Block b = block_in(heap, 40 * MIB, 6);
  EXPECT_EQ(hakmem_expand(b.p, 65 * MIB), nullptr);
  EXPECT_EQ(heap.live(), 40 * MIB);
  size_t size = 40 * MIB;
  if (hakmem_expand(b.p, 50 * MIB) != nullptr) fill_on(&b, size = 50 * MIB);
  EXPECT_EQ(heap.live(), size);
  EXPECT_EQ(heap.stats().held, size);
  EXPECT_TRUE(b.holds());
  hakmem_free(b.p);
  EXPECT_EQ(heap.live(), 0u);
}

TEST(ExpandUnderALimit, OfTheProcess) {
  ProgramResult result = run_forked([] {
    Block large = filled(hakmem_malloc(3 * MIB), 3 * MIB, 1), huge = filled(hakmem_malloc(40 * MIB), 40 * MIB, 2);
    if (hakmem_option_set("HAKMEM_LIMIT", 64 * static_cast<int64_t>(MIB)) != 0) return 1;
    if (hakmem_expand(large.p, 31 * MIB) != nullptr || hakmem_expand(huge.p, 70 * MIB) != nullptr) return 2;
    return large.holds() && huge.holds() && hakmem_heap_check() == 0 ? 0 : 3;
  });
  EXPECT_EQ(result.exit_code, 0) << result.err;
}

// --- misuse ---

#if HAKMEM_CHECKS_TESTED
size_t block_size;
bool in_heap;

TEST(ExpandMisused, FreedBlocks) {
  for (bool heaps : {false, true}) {
    for (size_t size : {size_t{300 * KIB}, size_t{5 * MIB}}) {
      block_size = size;
      in_heap = heaps;
      ProgramResult result = run_forked([] {
        void *p = in_heap ? hakmem_heap_malloc(new_heap(), block_size) : hakmem_malloc(block_size);
        hakmem_free(p);
        return hakmem_expand(p, 10) == nullptr ? 1 : 0;
      });
      EXPECT_EQ(result.signal, SIGABRT) << size << (heaps ? " in a heap" : "");
      EXPECT_THAT(result.err, testing::HasSubstr("hakmem: "));
    }
  }
}

TEST(ExpandMisused, InsideABlock) {
  for (size_t size : {size_t{300 * KIB}, size_t{5 * MIB}}) {
    block_size = size;
    ProgramResult result = run_forked([] {
      auto *p = static_cast<char *>(hakmem_malloc(block_size));
      return hakmem_expand(p + 64 * KIB, 10) == nullptr ? 1 : 0;
    });
    EXPECT_EQ(result.signal, SIGABRT) << size;
  }
}
#endif

// --- aligned realloc ---

const size_t ALIGNMENTS[] = {1, 8, 16, 32, 64, 256, 4096, 64 * KIB, MIB, 4 * MIB};

TEST_P(From, AlignedReallocMatrix) {
  unsigned step = 0;
  for (size_t alignment : ALIGNMENTS) {
    for (size_t from : edges()) {
      for (size_t to : {size_t{1}, from / 2, from + 1, 2 * from, 3 * from + 100, size_t{5000}, 300 * KIB}) {
        if (from + to > 70 * MIB || !rotation_has(++step)) continue;
        to = std::max(to, size_t{1});
        Block b = filled(take_aligned(alignment, from), from, static_cast<unsigned char>(from + to));
        ASSERT_NE(b.p, nullptr);
        errno = MARK;
        auto *q = static_cast<unsigned char *>(hakmem_aligned_realloc(b.p, alignment, to));
        ASSERT_NE(q, nullptr) << alignment << ": " << from << " to " << to;
        ASSERT_EQ(errno, MARK);
        ASSERT_TRUE(is_aligned(q, std::max(alignment, size_t{16}))) << alignment << ": " << from << " to " << to;
        b.p = q;
        b.size = std::min(from, to);
        ASSERT_TRUE(b.holds()) << alignment << ": " << from << " to " << to;
        ASSERT_EQ(hakmem_heap_of(q), heap_);
        ASSERT_GE(b.usable(), to);
        memset(q, 1, to);
        hakmem_free(q);
      }
    }
  }
}

// Whatever the block had.
TEST_P(From, AlignedReallocToAnotherAlignment) {
  for (size_t size : {size_t{40}, size_t{3000}, size_t{50000}, 300 * KIB, 3 * MIB, 33 * MIB}) {
    for (size_t alignment : {size_t{64}, size_t{8192}, 2 * MIB}) {
      Block b = take(size, 3);
      b.p = static_cast<unsigned char *>(hakmem_aligned_realloc(b.p, alignment, size));
      ASSERT_TRUE(is_aligned(b.p, alignment) && b.holds()) << size << " " << alignment;
      ASSERT_EQ(hakmem_heap_of(b.p), heap_);
      hakmem_free(b.p);
    }
  }
}

// Where the place serves nothing moves: a change within a class, spans behind that are free, pages that go.
TEST_P(From, AlignedReallocStaysWhereItCan) {
  for (size_t alignment : {size_t{64}, size_t{4096}, 64 * KIB}) {
    if (HAK_HARDENED && GetParam() == MAIN) continue; /* a guarded block has no room, and what mappings have is the system's to give */
    void *p = take_aligned(alignment, 2000);
    EXPECT_EQ(hakmem_aligned_realloc(p, alignment, 1900), p);
    hakmem_free(p);
    if (HAK_HARDENED) continue; /* so large a block is a mapping there, and what lies behind it may be another */
    p = take_aligned(alignment, 3 * MIB);
    ASSERT_EQ(hakmem_aligned_realloc(p, alignment, 6 * MIB), p) << alignment;
    EXPECT_EQ(hakmem_aligned_realloc(p, alignment, MIB), p) << alignment;
    EXPECT_LE(hakmem_malloc_usable_size(p), MIB + 64 * KIB);
    hakmem_free(p);
  }
}

TEST(AlignedRealloc, Errors) {
  Block b = filled(hakmem_aligned_alloc(64, 1000), 1000, 5);
  for (size_t alignment : {size_t{0}, size_t{3}, size_t{48}, SIZE_MAX}) {
    errno = MARK;
    EXPECT_EQ(hakmem_aligned_realloc(b.p, alignment, 2000), nullptr);
    EXPECT_EQ(errno, EINVAL);
  }
  for (size_t alignment : {size_t{64}, size_t{4096}, size_t{1} << 62}) {
    errno = MARK;
    EXPECT_EQ(hakmem_aligned_realloc(b.p, alignment, PTRDIFF_MAX), nullptr);
    EXPECT_EQ(errno, ENOMEM);
  }
  EXPECT_TRUE(b.holds());
  EXPECT_EQ(hakmem_aligned_realloc(b.p, 64, 0), nullptr);
  void *p = hakmem_aligned_realloc(nullptr, 256, 100);
  EXPECT_TRUE(p != nullptr && is_aligned(p, 256));
  hakmem_free(p);
}

TEST(AlignedRealloc, UnderALimitThatLeavesNoRoom) {
  Heap heap(MIB);
  Block b = filled(hakmem_heap_aligned_alloc(heap, 4096, 600 * KIB), 600 * KIB, 5);
  EXPECT_EQ(hakmem_aligned_realloc(b.p, 4096, 2 * MIB), nullptr);
  EXPECT_EQ(errno, ENOMEM);
  EXPECT_TRUE(b.holds());
  EXPECT_EQ(heap.stats().refused, 1u);
  hakmem_free(b.p);
}

// --- aligned calloc ---

TEST_P(From, AlignedCallocIsZero) {
  if (GetParam() == HEAP || GetParam() == UNCACHED) return; /* no call for them */
  for (int round = 0; round < 2; round++) {
    std::vector<void *> blocks;
    for (size_t alignment : ALIGNMENTS) {
      for (size_t size : edges()) {
        errno = MARK;
        void *p = hakmem_aligned_calloc(alignment, 1, size);
        ASSERT_NE(p, nullptr) << alignment << " " << size;
        ASSERT_EQ(errno, MARK);
        ASSERT_TRUE(is_aligned(p, std::max(alignment, size_t{16}))) << alignment << " " << size;
        ASSERT_EQ(hakmem_heap_of(p), heap_);
        ASSERT_TRUE((Block{static_cast<unsigned char *>(p), size, 0}.holds())) << alignment << " " << size;
        memset(p, 0xa5, size); /* the next round has it */
        if (size > MIB) hakmem_free(p); else blocks.push_back(p);
      }
    }
    for (void *p : blocks) hakmem_free(p);
  }
}

TEST(AlignedCalloc, Errors) {
  volatile size_t half = SIZE_MAX / 2;
  for (size_t alignment : {size_t{0}, size_t{3}, size_t{96}}) {
    errno = MARK;
    EXPECT_EQ(hakmem_aligned_calloc(alignment, 1, 10), nullptr);
    EXPECT_EQ(errno, EINVAL);
  }
  for (size_t alignment : {size_t{1}, size_t{64}, MIB}) {
    errno = MARK;
    EXPECT_EQ(hakmem_aligned_calloc(alignment, half, 3), nullptr);
    EXPECT_EQ(errno, ENOMEM);
    void *p = hakmem_aligned_calloc(alignment, 0, 3);
    EXPECT_TRUE(p != nullptr && is_aligned(p, alignment));
    hakmem_free(p);
  }
}

// Zeros that were not written cost no memory.
TEST(AlignedCalloc, LeavesFreshPagesAlone) {
  size_t before = process_stats().resident;
  void *p = hakmem_aligned_calloc(2 * MIB, 1, 256 * MIB);
  ASSERT_NE(p, nullptr);
  EXPECT_LE(process_stats().resident, before + 8 * MIB);
  hakmem_free(p);
}

}  // namespace
