// Blocks of heaps: allocated from any thread, of all sizes and alignments, resized, asked about, freed like any others.
#include "heaps.h"

#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <random>
#include <thread>

#include "rotation.h"

namespace {

TEST(Blocks, OfAllSizesAreInTheHeap) {
  Heap heap;
  std::vector<Block> blocks;
  size_t live = 0;
  for (size_t size : sizes()) {
    SCOPED_TRACE(size);
    Block b = block_in(heap, size, static_cast<unsigned char>(blocks.size() + 1));
    ASSERT_NE(b.p, nullptr);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(b.p) % 16, 0u);
    EXPECT_GE(b.usable(), size);
    EXPECT_TRUE(hakmem_is_ours(b.p));
    EXPECT_EQ(hakmem_heap_of(b.p), heap);
    if (size > 0) {
      EXPECT_EQ(hakmem_heap_of(b.p + size / 2), heap);
      EXPECT_EQ(hakmem_heap_of(b.p + b.usable() - 1), heap);
    }
    blocks.push_back(b);
    live += b.usable();
    EXPECT_EQ(heap.live(), live);
    EXPECT_EQ(heap.stats().blocks, blocks.size());
  }
  for (const Block &b : blocks) {
    EXPECT_TRUE(b.holds()) << b.size;
    live -= b.usable();
    hakmem_free(b.p);
    EXPECT_EQ(heap.live(), live);
  }
  EXPECT_EQ(heap.stats().blocks, 0u);
  EXPECT_EQ(hakmem_heap_check(), 0u);
}

// Of each size some at a time, so that pieces are used up and slabs follow.
TEST(Blocks, OfOneSizeOneAfterTheOther) {
  for (size_t size : {1, 16, 48, 100, 320, 1000, 4096, 10000, 32768}) {
    SCOPED_TRACE(size);
    Heap heap;
    std::vector<Block> blocks;
    for (size_t i = 0; i < 400; i++) {
      blocks.push_back(block_in(heap, size, static_cast<unsigned char>(i)));
      ASSERT_NE(blocks.back().p, nullptr);
      ASSERT_EQ(hakmem_heap_of(blocks.back().p), heap);
    }
    for (size_t round = 0; round < 3; round++) {
      for (size_t i = round; i < blocks.size(); i += 3) {
        ASSERT_TRUE(blocks[i].holds());
        hakmem_free(blocks[i].p);
      }
      for (size_t i = round; i < blocks.size(); i += 3) blocks[i] = block_in(heap, size, static_cast<unsigned char>(i + round));
    }
    EXPECT_EQ(heap.live(), blocks.size() * blocks[0].usable());
    for (const Block &b : blocks) {
      ASSERT_TRUE(b.holds());
      hakmem_free(b.p);
    }
    EXPECT_EQ(heap.live(), 0u);
    EXPECT_EQ(hakmem_heap_check(), 0u);
  }
}

TEST(Blocks, BeyondAllSizesAreRefused) {
  Heap heap;
  for (size_t size : {SIZE_MAX, SIZE_MAX - 4096, size_t{PTRDIFF_MAX} + 1, size_t{1} << 62}) {
    errno = 0;
    EXPECT_EQ(hakmem_heap_malloc(heap, size), nullptr);
    EXPECT_EQ(errno, ENOMEM);
    errno = 0;
    EXPECT_EQ(hakmem_heap_calloc(heap, 1, size), nullptr);
    EXPECT_EQ(errno, ENOMEM);
    errno = 0;
    EXPECT_EQ(hakmem_heap_aligned_alloc(heap, 64, size), nullptr);
    EXPECT_EQ(errno, ENOMEM);
    Block b = block_in(heap, 100);
    errno = 0;
    EXPECT_EQ(hakmem_heap_realloc(heap, b.p, size), nullptr);
    EXPECT_EQ(errno, ENOMEM);
    EXPECT_TRUE(b.holds());
    hakmem_free(b.p);
  }
  for (size_t count : {SIZE_MAX / 2, (SIZE_MAX >> 4) + 2}) {
    errno = 0;
    EXPECT_EQ(hakmem_heap_calloc(heap, count, 16), nullptr) << "the product is small after its overflow";
    EXPECT_EQ(errno, ENOMEM);
  }
  EXPECT_EQ(heap.live(), 0u);
  EXPECT_EQ(heap.stats().refused, 0u) << "no limit refused any";
}

TEST(Blocks, OfCallocAreZero) {
  for (unsigned flags : {0u, HAKMEM_HEAP_UNCACHED}) {
    Heap heap(size_t{0}, nullptr, flags);
    for (int round = 0; round < 3; round++) {
      for (size_t size : sizes()) {
        if (size == 0 || size > 40 * MIB) continue;
        std::vector<void *> some;
        for (size_t i = 0; i < (size > 32 * KIB ? 2 : 40); i++) {
          void *p = hakmem_heap_calloc(heap, i % 2 == 0 ? 1 : size, i % 2 == 0 ? size : 1);
          ASSERT_NE(p, nullptr);
          Block b = {static_cast<unsigned char *>(p), size, 0};
          ASSERT_TRUE(b.holds()) << size << ", round " << round;
          memset(p, 0xff, size);
          some.push_back(p);
        }
        for (void *p : some) hakmem_free(p);
      }
    }
  }
}

// Where a freed mapping serves the next one, too.
TEST(Blocks, OfCallocHoldWhatIsTouched) {
  constexpr size_t SIZE = 100 * MIB, PAGES = 20;
  Heap heap;
  void *(*by_default)(hakmem_heap *, size_t) = [](hakmem_heap *h, size_t size) {
    hakmem_heap *was = hakmem_heap_set_default(h);
    void *p = hakmem_calloc(size / 8, 8);
    hakmem_heap_set_default(was);
    return p;
  };
  void *(*by_heap)(hakmem_heap *, size_t) = [](hakmem_heap *h, size_t size) { return hakmem_heap_calloc(h, 1, size); };
  for (int round = 0; round < 4; round++) {
    for (auto *way : {by_heap, by_default}) {
      struct rusage before, after;
      getrusage(RUSAGE_SELF, &before);
      Block b = {static_cast<unsigned char *>(way(heap, SIZE)), SIZE, 0};
      ASSERT_NE(b.p, nullptr);
      for (size_t at = 0; at < SIZE; at += SIZE / PAGES) b.p[at]++;
      getrusage(RUSAGE_SELF, &after);
      EXPECT_LE(after.ru_minflt - before.ru_minflt, 200) << "round " << round;
      for (size_t at = 0; at < SIZE; at += SIZE / PAGES) ASSERT_EQ(b.p[at]--, 1) << "round " << round;
      hakmem_free(b.p);
    }
  }
}

TEST(Blocks, OfCallocAreZeroInADestroyedHeapsMemory) {
  for (int round = 0; round < 20; round++) {
    Heap heap;
    for (size_t size : {size_t{24}, size_t{1000}, size_t{5000}, size_t{32768}, size_t{100000}, 2 * MIB}) {
      for (int i = 0; i < 50; i++) {
        void *p = hakmem_heap_calloc(heap, 1, size);
        Block b = {static_cast<unsigned char *>(p), size, 0};
        ASSERT_TRUE(b.holds()) << size << ", round " << round;
        memset(p, 0xff, size);
        if (size > MIB && i == 4) break;
      }
    }
  }
}

TEST(Blocks, AreAligned) {
  Heap heap;
  std::vector<Block> blocks;
  for (size_t alignment = 1; alignment <= 2 * MIB; alignment *= 2) {
    for (size_t size : {size_t{0}, size_t{1}, size_t{24}, size_t{100}, size_t{1000}, size_t{4096}, size_t{5000}, size_t{33000}, size_t{300000}, 3 * MIB}) {
      SCOPED_TRACE(testing::Message() << size << " aligned to " << alignment);
      Block b = filled(hakmem_heap_aligned_alloc(heap, alignment, size), size, static_cast<unsigned char>(blocks.size()));
      ASSERT_NE(b.p, nullptr);
      EXPECT_EQ(reinterpret_cast<uintptr_t>(b.p) % std::max(alignment, size_t{16}), 0u);
      EXPECT_GE(b.usable(), size);
      EXPECT_EQ(hakmem_heap_of(b.p), heap);
      blocks.push_back(b);
    }
  }
  size_t live = 0;
  for (const Block &b : blocks) live += b.usable();
  EXPECT_EQ(heap.live(), live);
  for (const Block &b : blocks) {
    EXPECT_TRUE(b.holds());
    hakmem_free(b.p);
  }
  EXPECT_EQ(heap.live(), 0u);
  for (size_t alignment : {size_t{0}, size_t{3}, size_t{48}, SIZE_MAX}) {
    errno = 0;
    EXPECT_EQ(hakmem_heap_aligned_alloc(heap, alignment, 100), nullptr) << alignment;
    EXPECT_EQ(errno, EINVAL);
  }
  EXPECT_EQ(heap.stats().blocks, 0u);
  EXPECT_EQ(hakmem_heap_check(), 0u);
}

// Each alignment so often that pieces, slabs and caches serve it by turns, while small blocks come and go.
TEST(Blocks, OfNoBytesAreAligned) {
  Heap heap;
  for (size_t alignment = 16; alignment <= 2 * MIB; alignment *= 2) {
    std::vector<void *> blocks;
    for (int i = 0; i < 100; i++) {
      hakmem_free(hakmem_heap_malloc(heap, 16));
      void *p = hakmem_heap_aligned_alloc(heap, alignment, 0);
      ASSERT_NE(p, nullptr);
      ASSERT_EQ(reinterpret_cast<uintptr_t>(p) % alignment, 0u) << alignment << ", call " << i;
      void *q = hakmem_aligned_realloc(p, alignment, 1);
      ASSERT_EQ(reinterpret_cast<uintptr_t>(q) % alignment, 0u) << alignment << ", call " << i;
      blocks.push_back(q);
      if (i % 3 == 0) hakmem_free(std::exchange(blocks[blocks.size() / 2], nullptr));
    }
    for (void *p : blocks) hakmem_free(p);
  }
  EXPECT_EQ(heap.live(), 0u);
  EXPECT_EQ(hakmem_heap_check(), 0u);
}

TEST(Blocks, LeaveErrnoAloneWhenTheyAreServed) {
  Heap heap;
  for (size_t size : sizes()) {
    errno = 9999;
    void *p = hakmem_heap_malloc(heap, size);
    EXPECT_EQ(errno, 9999);
    p = hakmem_heap_realloc(heap, p, size + 100);
    EXPECT_EQ(errno, 9999);
    hakmem_free(p);
    EXPECT_EQ(errno, 9999);
  }
}

// --- realloc ---

struct Resize {
  const char *name;
  void *(*call)(hakmem_heap *other, void *p, size_t size);
};

void PrintTo(const Resize &resize, std::ostream *out) { *out << resize.name; }

class Resizing : public testing::TestWithParam<Resize> {};

// Over each boundary, up and down. Plain realloc and the heap's own, which is told of another heap.
TEST_P(Resizing, StaysInItsHeap) {
  Heap heap, other;
  unsigned step = 0;
  for (size_t from : edges()) {
    for (size_t to : edges()) {
      if (!rotation_has(++step)) continue;
      SCOPED_TRACE(testing::Message() << from << " to " << to);
      Block b = block_in(heap, from, 0x5a);
      ASSERT_NE(b.p, nullptr);
      auto *p = static_cast<unsigned char *>(GetParam().call(other, b.p, to));
      ASSERT_NE(p, nullptr);
      EXPECT_TRUE((Block{p, to, 0x5a}.holds(std::min(from, to))));
      EXPECT_EQ(hakmem_heap_of(p), heap);
      size_t usable = hakmem_malloc_usable_size(p);
      EXPECT_GE(usable, to);
      EXPECT_EQ(heap.live(), usable);
      EXPECT_EQ(heap.stats().blocks, 1u);
      memset(p, 1, to);
      hakmem_free(p);
      EXPECT_EQ(heap.live(), 0u);
    }
  }
  EXPECT_EQ(other.stats().requests, 0u);
  EXPECT_EQ(hakmem_heap_check(), 0u);
}

TEST_P(Resizing, InSmallSteps) {
  Heap heap, other;
  void *p = hakmem_heap_malloc(heap, 1);
  *static_cast<unsigned char *>(p) = 0x77;
  for (size_t size = 2; size < 3 * MIB; size += 1 + size / 9) {
    p = GetParam().call(other, p, size);
    ASSERT_NE(p, nullptr);
    ASSERT_EQ(*static_cast<unsigned char *>(p), 0x77);
    ASSERT_EQ(hakmem_heap_of(p), heap);
    ASSERT_EQ(heap.live(), hakmem_malloc_usable_size(p));
  }
  for (size_t size = 3 * MIB; size > 1; size -= 1 + size / 9) {
    p = GetParam().call(other, p, size);
    ASSERT_NE(p, nullptr);
    ASSERT_EQ(*static_cast<unsigned char *>(p), 0x77);
    ASSERT_EQ(heap.live(), hakmem_malloc_usable_size(p));
  }
  hakmem_free(p);
  EXPECT_EQ(heap.stats().blocks, 0u);
}

TEST_P(Resizing, ToZeroFrees) {
  Heap heap, other;
  for (size_t size : edges()) {
    void *p = hakmem_heap_malloc(heap, size);
    EXPECT_EQ(GetParam().call(other, p, 0), nullptr);
    EXPECT_EQ(heap.stats().blocks, 0u) << size;
    EXPECT_EQ(heap.live(), 0u) << size;
  }
}

// A block of the main heap stays there, whatever heap is named.
TEST_P(Resizing, MainBlocksStayInTheMainHeap) {
  Heap other;
  for (size_t from : edges()) {
    for (size_t to : {size_t{10}, size_t{40000}, 33 * MIB}) {
      void *p = GetParam().call(other, hakmem_malloc(from), to);
      ASSERT_NE(p, nullptr);
      EXPECT_EQ(hakmem_heap_of(p), nullptr);
      hakmem_free(p);
    }
  }
  EXPECT_EQ(other.stats().requests, 0u);
}

INSTANTIATE_TEST_SUITE_P(, Resizing,
                         testing::Values(Resize{"realloc", [](hakmem_heap *, void *p, size_t size) { return hakmem_realloc(p, size); }},
                                         Resize{"reallocarray", [](hakmem_heap *, void *p, size_t size) { return hakmem_reallocarray(p, size, 1); }},
                                         Resize{"heap_realloc", [](hakmem_heap *other, void *p, size_t size) { return hakmem_heap_realloc(other, p, size); }}));

TEST(Blocks, ReallocOfNullIsMallocInTheHeap) {
  Heap heap;
  for (size_t size : sizes()) {
    void *p = hakmem_heap_realloc(heap, nullptr, size);
    ASSERT_NE(p, nullptr) << size;
    EXPECT_EQ(hakmem_heap_of(p), heap);
    hakmem_free(p);
  }
}

// --- who frees ---

TEST(Blocks, AreFreedByEachFunctionThatFrees) {
  Heap heap;
  for (size_t size : sizes()) {
    hakmem_free(hakmem_heap_malloc(heap, size));
    hakmem_free_sized(hakmem_heap_malloc(heap, size), size);
    hakmem_free_aligned_sized(hakmem_heap_aligned_alloc(heap, 64, size), 64, size);
    EXPECT_EQ(heap.stats().blocks, 0u) << size;
  }
}

TEST(Blocks, OfNoHeap) {
  int local = 0;
  static int fixed;
  EXPECT_EQ(hakmem_heap_of(nullptr), nullptr);
  EXPECT_EQ(hakmem_heap_of(&local), nullptr);
  EXPECT_EQ(hakmem_heap_of(&fixed), nullptr);
  EXPECT_EQ(hakmem_heap_of(reinterpret_cast<void *>(UINTPTR_MAX - 5)), nullptr);
  Heap heap;
  for (size_t size : sizes()) {
    void *p = hakmem_malloc(size), *q = hakmem_heap_malloc(heap, size);
    EXPECT_EQ(hakmem_heap_of(p), nullptr) << size;
    hakmem_free(p);
    hakmem_free(q);
  }
}

TEST(Blocks, AreFreedByOtherThreads) {
  Heap heap;
  constexpr unsigned THREADS = 4;
  for (int round = 0; round < 4; round++) {
    std::vector<Block> blocks;
    for (int i = 0; i < 4000; i++) {
      size_t size = i % 400 == 0 ? 50000 : static_cast<size_t>(i % 97) * 13;
      blocks.push_back(block_in(heap, size, static_cast<unsigned char>(i)));
      ASSERT_NE(blocks.back().p, nullptr);
    }
    std::atomic<int> wrong{0};
    std::vector<std::thread> threads;
    for (unsigned t = 0; t < THREADS; t++) {
      threads.emplace_back([&, t] {
        for (size_t i = t; i < blocks.size(); i += THREADS) {
          wrong += !blocks[i].holds();
          hakmem_free(blocks[i].p);
        }
      });
    }
    for (std::thread &t : threads) t.join();
    EXPECT_EQ(wrong, 0);
    EXPECT_EQ(heap.stats().blocks, 0u);
    EXPECT_EQ(heap.live(), 0u);
  }
  EXPECT_EQ(hakmem_heap_check(), 0u);
}

// Each in all of some heaps, so that threads have caches for some of them and none for others.
void work_in(const std::vector<hakmem_heap *> &heaps, unsigned threads, size_t steps) {
  std::mutex mutex;
  std::vector<std::pair<Block, hakmem_heap *>> passed;
  std::atomic<int> wrong{0};
  std::vector<std::thread> all;
  for (unsigned t = 0; t < threads; t++) {
    all.emplace_back([&, t] {
      std::mt19937 random(t);
      std::vector<std::pair<Block, hakmem_heap *>> own;
      auto free_one = [&](std::pair<Block, hakmem_heap *> b) {
        wrong += !b.first.holds() || hakmem_heap_of(b.first.p) != b.second;
        hakmem_free(b.first.p);
      };
      for (size_t i = 0; i < steps; i++) {
        hakmem_heap *heap = heaps[random() % heaps.size()];
        size_t size = random() % 100 == 0 ? random() % 200000 : random() % 1500;
        own.emplace_back(block_in(heap, size, static_cast<unsigned char>(random())), heap);
        if (own.back().first.p == nullptr) abort();
        std::swap(own[random() % own.size()], own.back());
        if (random() % 3 == 0) {
          std::lock_guard<std::mutex> guard(mutex);
          passed.push_back(own.back());
          own.pop_back();
          std::swap(passed[random() % passed.size()], passed.back());
          own.push_back(passed.back());
          passed.pop_back();
        }
        while (own.size() > 200 || (!own.empty() && random() % 2 == 0)) {
          free_one(own.back());
          own.pop_back();
        }
      }
      for (auto &b : own) free_one(b);
    });
  }
  for (std::thread &t : all) t.join();
  EXPECT_EQ(wrong, 0);
  for (auto &b : passed) hakmem_free(b.first.p);
}

TEST(Blocks, OfOneHeapInManyThreads) {
  Heap heap;
  work_in({heap}, 6, 20000);
  EXPECT_EQ(heap.stats().blocks, 0u);
  EXPECT_EQ(heap.live(), 0u);
  EXPECT_EQ(heap.stats().requests, 6u * 20000u);
  EXPECT_EQ(hakmem_heap_check(), 0u);
}

// The list of a heap's spans grows while several threads make slabs and large blocks.
TEST(Blocks, OfManySpansInManyThreads) {
  for (int round = 0; round < 20; round++) {
    Heap heap;
    std::vector<std::thread> all;
    std::atomic<unsigned> refused{0};
    for (unsigned t = 0; t < 4; t++) {
      all.emplace_back([&, h = static_cast<hakmem_heap *>(heap)] {
        for (unsigned i = 0; i < 600; i++) {
          size_t size = i % 2 == 0 ? 30000 : 40000;
          char *p = static_cast<char *>(hakmem_heap_malloc(h, size));
          if (p == nullptr)
            refused++;
          else
            p[0] = p[size - 1] = 1;
        }
      });
    }
    for (std::thread &t : all) t.join();
    EXPECT_EQ(refused, 0u);
    EXPECT_EQ(hakmem_heap_visit(heap, [](void *, size_t, void *) { return true; }, nullptr), 4u * 600u);
  }
  EXPECT_EQ(hakmem_heap_check(), 0u);
}

// More than a thread has caches for.
TEST(Blocks, OfManyHeapsInManyThreads) {
  std::vector<hakmem_heap *> heaps;
  for (unsigned i = 0; i < 30; i++) heaps.push_back(new_heap(0, nullptr, i % 4 == 3 ? HAKMEM_HEAP_UNCACHED : 0));
  work_in(heaps, 4, 20000);
  for (hakmem_heap *heap : heaps) {
    EXPECT_EQ(stats_of(heap).blocks, 0u);
    EXPECT_EQ(stats_of(heap).live, 0u);
    hakmem_heap_destroy(heap);
  }
  EXPECT_EQ(hakmem_heap_check(), 0u);
}

}  // namespace
