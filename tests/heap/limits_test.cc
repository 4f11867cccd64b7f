// Limits: exact, nested, the same at each run, blind to what is cached; and the callback at a share of one.
#include "heaps.h"

#include <algorithm>
#include <atomic>
#include <optional>
#include <random>
#include <thread>

#include "hak.h"

extern "C" {
#include "heap/cache.h"
}

namespace {

// Sizes here are those of classes where they are counted: in pieces a block has what was asked for, in slabs its class.

// Takes blocks of a size until one is refused.
std::vector<void *> fill(hakmem_heap *heap, size_t size) {
  std::vector<void *> blocks;
  for (;;) {
    errno = 0;
    void *p = hakmem_heap_malloc(heap, size);
    if (p == nullptr) break;
    blocks.push_back(p);
  }
  EXPECT_EQ(errno, ENOMEM);
  return blocks;
}

size_t usable_in_heaps(size_t size) {
  Heap heap;
  return hakmem_malloc_usable_size(hakmem_heap_malloc(heap, size));
}

class Kinds : public testing::TestWithParam<unsigned> {};
INSTANTIATE_TEST_SUITE_P(, Kinds, testing::Values(0u, HAKMEM_HEAP_UNCACHED));

TEST_P(Kinds, RefuseWhatWouldPassTheLimitAndNothingElse) {
  for (size_t size : {1, 16, 112, 1024, 4096, 10240, 32768, 40000, 70000, 300000}) {
    SCOPED_TRACE(size);
    size_t usable = usable_in_heaps(size), limit = 3 * MIB;
    Heap heap(limit, nullptr, GetParam());
    std::vector<void *> blocks = fill(heap, size);
    EXPECT_EQ(blocks.size(), limit / usable);
    EXPECT_EQ(heap.live(), blocks.size() * usable);
    EXPECT_EQ(heap.stats().refused, 1u);
    /* The rest, to its last byte. */
    size_t rest = limit - heap.live(), small = usable_in_heaps(1);
    EXPECT_EQ(fill(heap, 1).size(), rest / small);
    EXPECT_LT(limit - heap.live(), small);
    EXPECT_EQ(heap.stats().refused, 2u);
    for (void *p : blocks) hakmem_free(p);
    EXPECT_EQ(fill(heap, size).size(), (limit - rest / small * small) / usable);
    EXPECT_EQ(hakmem_heap_check(), 0u);
  }
}

// Sizes at random: each that is served has room for its usable bytes, and one that is refused has not.
TEST_P(Kinds, RefuseByUsableBytes) {
  for (unsigned seed = 0; seed < 50; seed++) {
    Heap heap(MIB + seed * 1000, nullptr, GetParam());
    std::mt19937 random(seed);
    size_t live = 0, limit = heap.stats().limit, refused = 0;
    while (refused < 50) {
      size_t size = 1 + (random() % 10 == 0 ? random() % 30000 : random() % 1000);
      void *p = hakmem_heap_malloc(heap, size);
      if (p != nullptr) {
        live += hakmem_malloc_usable_size(p);
        ASSERT_LE(live, limit);
      } else {
        refused++;
        ASSERT_GT(live + hak_class_size(hak_class_for(size)), limit);
      }
      ASSERT_EQ(heap.live(), live);
    }
    ASSERT_EQ(heap.stats().refused, refused);
  }
}

TEST_P(Kinds, RefuseEachFunction) {
  Heap heap(size_t{10000}, nullptr, GetParam());
  void *p = hakmem_heap_malloc(heap, 6000);
  ASSERT_NE(p, nullptr);
  auto expect_refused = [&, refused = uint64_t{0}](void *q) mutable {
    EXPECT_EQ(q, nullptr);
    EXPECT_EQ(errno, ENOMEM);
    EXPECT_EQ(heap.stats().refused, ++refused);
    errno = 0;
  };
  errno = 0;
  expect_refused(hakmem_heap_malloc(heap, 6000));
  expect_refused(hakmem_heap_calloc(heap, 6, 1000));
  expect_refused(hakmem_heap_aligned_alloc(heap, 1024, 6000));
  expect_refused(hakmem_heap_realloc(heap, nullptr, 6000));
  expect_refused(hakmem_heap_realloc(heap, p, 11000));
  expect_refused(hakmem_realloc(p, 11000));
  expect_refused(hakmem_heap_malloc(heap, 100000));
  expect_refused(hakmem_heap_malloc(heap, 100 * MIB));
  hakmem_heap *before = hakmem_heap_set_default(heap);
  void *q = hakmem_malloc(6000);
  hakmem_heap_set_default(before);
  expect_refused(q);
  EXPECT_EQ(heap.stats().blocks, 1u);
  hakmem_free(p);
  EXPECT_NE(hakmem_heap_malloc(heap, 6000), nullptr);
}

TEST(Limits, OfLargeBlocks) {
  Heap heap(100 * MIB);
  Block a = block_in(heap, 60 * MIB), b = block_in(heap, 30 * MIB);
  ASSERT_NE(a.p, nullptr);
  ASSERT_NE(b.p, nullptr);
  EXPECT_EQ(hakmem_heap_malloc(heap, 12 * MIB), nullptr);
  size_t rest = 100 * MIB - heap.live();
  EXPECT_NE(hakmem_heap_malloc(heap, rest / 2), nullptr);
  EXPECT_LE(heap.live(), 100 * MIB);
  hakmem_free(a.p);
  EXPECT_NE(hakmem_heap_malloc(heap, 60 * MIB), nullptr);
}

// A mapping that the kernel resizes counts once; a block that grows otherwise counts twice. Refused, it stays as it was.
TEST(Limits, OfResizedBlocks) {
  for (size_t unit : {size_t{10}, size_t{1000}, size_t{3000}, size_t{30000}, MIB, 20 * MIB}) {
    SCOPED_TRACE(unit);
    Heap heap;
    Block b = block_in(heap, 6 * unit, 3);
    size_t before = heap.live();
    hakmem_heap_set_limit(heap, before + 3 * unit);
    errno = 0;
    EXPECT_EQ(hakmem_realloc(b.p, 14 * unit), nullptr);
    EXPECT_EQ(errno, ENOMEM);
    EXPECT_TRUE(b.holds());
    EXPECT_EQ(heap.live(), before);
    EXPECT_EQ(heap.stats().refused, 1u);
    if (unit == 20 * MIB && !HAK_HARDENED) { /* a mapping, which the kernel moves */
      b.p = static_cast<unsigned char *>(hakmem_realloc(b.p, 8 * unit));
      ASSERT_NE(b.p, nullptr);
      EXPECT_EQ(heap.live(), 8 * unit);
    } else {
      hakmem_heap_set_limit(heap, before + 16 * unit + 64 * KIB);
      b.p = static_cast<unsigned char *>(hakmem_realloc(b.p, 8 * unit));
      ASSERT_NE(b.p, nullptr);
    }
    EXPECT_TRUE(b.holds());
    EXPECT_EQ(heap.live(), b.usable());
    EXPECT_LE(heap.live(), heap.stats().limit);
    EXPECT_EQ(heap.stats().refused, 1u);
    hakmem_free(b.p);
  }
}

// Whether a block can grow where it is depends on what lies behind it: not so what is refused.
TEST(Limits, OfABlockThatGrowsDoNotDependOnWhatLiesBehindIt) {
  int stayed = 0, moved = 0;
  for (int i = 0; i < 40; i++) {
    Heap heap;
    Block b = block_in(heap, 128 * KIB, 5);
    void *behind = hakmem_heap_malloc(heap, 128 * KIB);
    if (i % 2 == 0) hakmem_free(std::exchange(behind, nullptr));
    size_t before = heap.live(), peak = heap.stats().peak;
    hakmem_heap_set_limit(heap, before + 192 * KIB - 1);
    EXPECT_EQ(hakmem_realloc(b.p, 192 * KIB), nullptr);
    EXPECT_EQ(heap.stats().refused, 1u);
    EXPECT_EQ(heap.stats().peak, peak);
    hakmem_heap_set_limit(heap, before + 192 * KIB);
    unsigned char *was = b.p;
    b.p = static_cast<unsigned char *>(hakmem_realloc(b.p, 192 * KIB));
    ASSERT_NE(b.p, nullptr);
    (b.p == was ? stayed : moved)++;
    EXPECT_TRUE(b.holds());
    EXPECT_EQ(heap.stats().peak, before + 192 * KIB);
    EXPECT_EQ(heap.stats().requests, 3u);
    EXPECT_EQ(heap.live(), before + 64 * KIB);
    hakmem_free(b.p);
    hakmem_free(behind);
  }
  EXPECT_GT(stayed, 0);
  EXPECT_GT(moved, 0);
}

// So large an alignment makes it a mapping, as a full region would: in another run it would be spans, and count twice.
TEST(Limits, OfAMappingUpTo32MiBThatGrowsAreThoseOfSpans) {
  Heap heap;
  void *p = hakmem_heap_aligned_alloc(heap, 64 * MIB, 2 * MIB);
  ASSERT_NE(p, nullptr);
  ASSERT_EQ(heap.live(), 2 * MIB);
  hakmem_heap_set_limit(heap, 5 * MIB - 1);
  EXPECT_EQ(hakmem_realloc(p, 3 * MIB), nullptr);
  hakmem_heap_set_limit(heap, 5 * MIB);
  EXPECT_NE(p = hakmem_realloc(p, 3 * MIB), nullptr);
  EXPECT_EQ(heap.stats().peak, 5 * MIB);
  EXPECT_EQ(heap.live(), 3 * MIB);
  hakmem_free(p);
}

TEST(Limits, NeverRefuseWhatShrinks) {
  for (size_t size : {size_t{1000}, size_t{30000}, size_t{200000}, 3 * MIB, 40 * MIB}) {
    Heap heap;
    void *p = hakmem_heap_malloc(heap, size);
    hakmem_heap_set_limit(heap, 16);
    for (size_t to = size; to > 100; to = to * 2 / 3) {
      p = hakmem_realloc(p, to);
      ASSERT_NE(p, nullptr) << size << " to " << to;
    }
    EXPECT_EQ(heap.stats().refused, 0u);
  }
}

TEST(Limits, SetBelowWhatIsLiveRefuseUntilEnoughIsFreed) {
  Heap heap;
  size_t usable = usable_in_heaps(1024);
  std::vector<void *> blocks;
  for (int i = 0; i < 100; i++) blocks.push_back(hakmem_heap_malloc(heap, 1024));
  EXPECT_EQ(heap.stats().limit, 0u);
  hakmem_heap_set_limit(heap, 50 * usable);
  EXPECT_EQ(heap.stats().limit, 50 * usable);
  for (int live = 100; live >= 50; live--) {
    EXPECT_EQ(hakmem_heap_malloc(heap, 1024), nullptr) << live << " are live";
    EXPECT_EQ(hakmem_heap_malloc(heap, 1), nullptr) << live << " are live";
    hakmem_free(blocks.back());
    blocks.pop_back();
  }
  void *p = hakmem_heap_malloc(heap, 1024);
  EXPECT_NE(p, nullptr);
  EXPECT_EQ(hakmem_heap_malloc(heap, 1024), nullptr);
  hakmem_heap_set_limit(heap, 51 * usable);
  EXPECT_NE(hakmem_heap_malloc(heap, 1024), nullptr);
  EXPECT_EQ(hakmem_heap_malloc(heap, 1024), nullptr);
  hakmem_heap_set_limit(heap, 0);
  for (int i = 0; i < 1000; i++) EXPECT_NE(hakmem_heap_malloc(heap, 1024), nullptr);
}

// --- the same byte each time ---

struct Refusal {
  size_t step, size, live;
  bool operator==(const Refusal &other) const { return step == other.step && size == other.size && live == other.live; }
};

// A program that allocates, frees and resizes at random, until it is refused.
Refusal run_until_refused(hakmem_heap *heap, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<void *> blocks;
  for (size_t step = 0;; step++) {
    size_t size = random() % 50 == 0 ? random() % 100000 : random() % 2000;
    if (blocks.size() > 10 && random() % 5 < 2) {
      std::swap(blocks[random() % blocks.size()], blocks.back());
      hakmem_free(blocks.back());
      blocks.pop_back();
      continue;
    }
    bool resizes = !blocks.empty() && random() % 8 == 0;
    void *p = resizes ? hakmem_realloc(blocks.back(), size + 1) : hakmem_heap_malloc(heap, size + 1);
    if (p == nullptr) return {step, size, stats_of(heap).live};
    if (resizes)
      blocks.back() = p;
    else
      blocks.push_back(p);
  }
}

TEST(Limits, RefuseTheSameRequestEachTime) {
  for (unsigned flags : {0u, HAKMEM_HEAP_UNCACHED}) {
    for (unsigned seed = 0; seed < 4; seed++) {
      Refusal first = {};
      for (int run = 0; run < 100; run++) {
        Heap heap(2 * MIB, nullptr, flags);
        Refusal refusal = run_until_refused(heap, seed);
        if (run == 0) first = refusal;
        ASSERT_EQ(refusal, first) << "run " << run << ": step " << refusal.step << ", not " << first.step << "; " << refusal.live << " bytes, not "
                                  << first.live;
      }
    }
  }
}

// Whatever this heap, other heaps and the threads have done before.
TEST(Limits, RefuseTheSameRequestWhateverIsCached) {
  Refusal first = {};
  for (int run = 0; run < 30; run++) {
    Heap heap(2 * MIB), other;
    std::vector<std::thread> threads;
    for (int t = 0; t < run % 4; t++) {
      threads.emplace_back([&] {
        std::vector<void *> blocks;
        for (int i = 0; i < 300 * (1 + run % 3); i++) blocks.push_back(hakmem_heap_malloc(i % 9 == 0 ? other : heap, static_cast<size_t>(run) * 7 + 16));
        for (void *p : blocks) hakmem_free(p);
      });
    }
    for (std::thread &t : threads) t.join();
    std::vector<void *> blocks = run % 2 == 0 ? fill(heap, 100 + static_cast<size_t>(run)) : std::vector<void *>();
    for (void *p : blocks) hakmem_free(p);
    Refusal refusal = run_until_refused(heap, 5);
    if (run == 0) first = refusal;
    ASSERT_EQ(refusal, first) << "run " << run;
  }
}

// A thread that is alive has freed all; nobody allocates any more in it.
TEST(Limits, CachedBytesOfSleepingThreadsDoNotCount) {
  for (size_t size : {16, 112, 1024, 8192, 32768}) {
    SCOPED_TRACE(size);
    Heap heap(MIB);
    std::atomic<int> asleep{0};
    std::atomic<bool> end{false};
    std::vector<std::thread> threads;
    for (int t = 0; t < 3; t++) {
      threads.emplace_back([&] {
        for (int round = 0; round < 50; round++) {
          std::vector<void *> blocks;
          for (size_t taken = 0; taken < 200 * KIB; taken += size) blocks.push_back(hakmem_heap_malloc(heap, size));
          for (void *p : blocks) hakmem_free(p);
        }
        asleep++;
        while (!end) std::this_thread::yield();
      });
    }
    while (asleep < 3) std::this_thread::yield();
    EXPECT_EQ(heap.live(), 0u);
    EXPECT_EQ(fill(heap, size).size(), MIB / usable_in_heaps(size));
    EXPECT_EQ(heap.stats().refused, 1u);
    end = true;
    for (std::thread &t : threads) t.join();
  }
}

// Nor do they save anything: threads that all take what is left come to the limit's last byte.
TEST(Limits, AreReachedByManyThreadsToTheLastByte) {
  size_t usable = usable_in_heaps(64), limit = 20000 * usable;
  for (int round = 0; round < 5; round++) {
    Heap heap(limit);
    std::atomic<size_t> taken{0};
    std::atomic<bool> above{false};
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; t++) {
      threads.emplace_back([&, t] {
        std::mt19937 random(static_cast<unsigned>(t));
        std::vector<void *> blocks;
        for (;;) {
          void *p = hakmem_heap_malloc(heap, 64);
          if (p == nullptr) break;
          taken++;
          blocks.push_back(p);
          if (random() % 3 == 0) {
            taken--;
            hakmem_free(blocks.back());
            blocks.pop_back();
          }
          if (taken > limit / usable) above = true;
        }
      });
    }
    for (std::thread &t : threads) t.join();
    EXPECT_FALSE(above);
    fill(heap, 64);
    EXPECT_EQ(heap.live(), limit);
  }
}

// --- whom calls for a heap ask ---

// A barrier is what it takes to look into another thread's cache.
uint64_t barriers() { return hak_load_relaxed(&hak_os_stats.membarrier); }

// A thread that has used the heap as often as caches need, and rests in a scope where it may not allocate.
class Resting {
 public:
  explicit Resting(hakmem_heap *heap) {
    thread_ = std::thread([this, heap] {
      for (int round = 0; round < 50; round++) {
        std::vector<void *> blocks;
        for (size_t size = 16; size <= 32 * KIB; size *= 2) {
          for (int i = 0; i < 10; i++) blocks.push_back(hakmem_heap_malloc(heap, size));
        }
        for (void *p : blocks) hakmem_free(p);
      }
      hakmem_forbid(true);
      rests_ = true;
      while (!end_) std::this_thread::yield();
      hakmem_forbid(false);
    });
    while (!rests_) std::this_thread::yield();
  }
  ~Resting() {
    end_ = true;
    thread_.join();
  }

 private:
  std::atomic<bool> rests_{false}, end_{false};
  std::thread thread_;
};

TEST(Asks, NoThreadThatHasNothingOfTheHeap) {
  Heap others, limited(64 * KIB);
  Resting thread(others);
  std::vector<void *> all = fill(limited, 100);
  hakmem_heap *heap = new_heap();
  void *p = hakmem_heap_malloc(heap, 100);
  uint64_t before = barriers();
  hakmem_heap_set_limit(heap, MIB);
  EXPECT_EQ(hakmem_heap_set_callback(heap, 0, nullptr, nullptr), 0);
  EXPECT_EQ(hakmem_heap_visit(heap, [](void *, size_t, void *) { return true; }, nullptr), 1u);
  hakmem_heap_delete(heap);
  for (int i = 0; i < 100; i++) EXPECT_EQ(hakmem_heap_malloc(limited, 1000), nullptr);
  EXPECT_EQ(barriers(), before);
  hakmem_free(p);
}

// Its cache is looked into while it may not allocate: at once, and not again and again.
TEST(Asks, AThreadThatMayNotAllocate) {
  Heap heap;
  Resting thread(heap);
  uint64_t before = barriers();
  hakmem_heap_set_limit(heap, 2 * MIB);
  EXPECT_EQ(fill(heap, 1024).size(), 2 * MIB / 1024);
  EXPECT_LE(barriers() - before, 4u);
}

TEST(Asks, NobodyNearTheLimit) {
  Heap heap(MIB);
  Resting thread(heap);
  std::vector<void *> blocks = fill(heap, 1024);
  uint64_t before = barriers();
  for (int i = 0; i < 10000; i++) {
    EXPECT_EQ(hakmem_heap_malloc(heap, 2048), nullptr);
    hakmem_free(blocks.back());
    blocks.back() = hakmem_heap_malloc(heap, 1024);
    if (blocks.back() == nullptr) break;
  }
  EXPECT_EQ(barriers(), before);
  EXPECT_EQ(heap.live(), MIB);
}

// --- credit: what a thread's cache has charged near a limit, for its next blocks ---

size_t charged(hakmem_heap *heap) { return hak_load_relaxed(&heap->out); }

// A thread's blocks, of which one at a time is replaced by one of another size.
class Churn {
 public:
  Churn(hakmem_heap *heap, unsigned seed, size_t most = 1000) : heap_(heap), most_(most), random_(seed) {}
  ~Churn() {
    for (void *p : blocks_) hakmem_free(p);
  }
  bool step() {
    void *&p = blocks_[random_() % 8];
    hakmem_free(p);
    return (p = hakmem_heap_malloc(heap_, 16 + random_() % most_)) != nullptr;
  }
  size_t steps(size_t count) {
    size_t refused = 0;
    while (count-- > 0) refused += !step();
    return refused;
  }

 private:
  hakmem_heap *heap_;
  size_t most_;
  std::mt19937 random_;
  void *blocks_[8] = {};
};

// A heap that has refused a request some time ago, and has so much room since, less than a part of its limit.
constexpr size_t NEAR_LIMIT = 4 * MIB;
std::vector<void *> bring_near(hakmem_heap *heap, size_t room) {
  std::vector<void *> blocks = fill(heap, 1024);
  for (size_t freed = 0; freed < room; freed += 1024) {
    hakmem_free(blocks.back());
    blocks.pop_back();
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(20)); /* from 10 on after the refusal */
  return blocks;
}

// A thread that has a credit in the heap, and rests until the end.
class Creditor {
 public:
  explicit Creditor(hakmem_heap *heap) {
    thread_ = std::thread([this, heap] {
      {
        Churn churn(heap, 5);
        churn.steps(2000);
      }
      rests_ = true;
      while (!end_) std::this_thread::yield();
      done_ = true;
    });
    while (!rests_) std::this_thread::yield();
  }
  ~Creditor() {
    end_ = true;
    thread_.join();
  }

 private:
  std::atomic<bool> rests_{false}, end_{false}, done_{false};
  std::thread thread_;
};

// What the thread's caches, or others', have of the limit does not count when a block is resized where it is.
TEST(Limits, OfBlocksResizedWhereTheyAreLeaveCachesOut) {
  for (size_t base : {20 * MIB, 80 * MIB}) {
    for (int refusals : {0, 1, 3000}) {
      SCOPED_TRACE(base + static_cast<size_t>(refusals));
      Heap heap;
      Resting other(heap);
      { Churn(heap, 1).steps(20000); }
      void *p = hakmem_heap_malloc(heap, base); /* last: there is room behind it */
      hakmem_heap_set_limit(heap, heap.live() + 64 * KIB);
      for (int i = 0; i < refusals; i++) ASSERT_EQ(hakmem_heap_malloc(heap, 128 * KIB), nullptr);
      { Churn(heap, 1).steps(2000); }
      ASSERT_EQ(heap.live() + 64 * KIB, heap.stats().limit);
      size_t size = hakmem_malloc_usable_size(p) + 60 * KIB;
      bool moves = base == 80 * MIB && !HAK_HARDENED; /* a mapping, which counts once wherever the kernel puts it */
      EXPECT_NE(moves ? hakmem_realloc(p, size) : hakmem_expand(p, size), nullptr);
    }
  }
}

// Nor does a callback's share refuse what fits.
TEST(Limits, ACallbackDoesNotRefuseWhatIsResizedWhereItIs) {
  Heap heap(100 * MIB);
  static int called;
  called = 0;
  ASSERT_EQ(hakmem_heap_set_callback(heap, 50, [](hakmem_heap *, size_t, void *) { called++; }, nullptr), 0);
  void *p = hakmem_heap_malloc(heap, 40 * MIB);
  p = hakmem_realloc(p, 55 * MIB);
  EXPECT_NE(p, nullptr);
  EXPECT_EQ(called, 1);
  EXPECT_EQ(heap.stats().refused, 0u);
}

// Threads that churn until it ends; the heap has served many requests by then.
class Churners {
 public:
  explicit Churners(const Heap &heap) {
    for (unsigned seed = 0; seed < 3; seed++) {
      threads_.emplace_back([this, h = static_cast<hakmem_heap *>(heap), seed] {
        for (Churn churn(h, seed); !end_;) churn.steps(100);
      });
    }
    while (heap.stats().requests < 100000) std::this_thread::yield();
  }
  ~Churners() {
    end_ = true;
    for (std::thread &thread : threads_) thread.join();
  }

 private:
  std::atomic<bool> end_{false};
  std::vector<std::thread> threads_;
};

// The clock stands still, but where the test moves it.
class StoppedClock {
 public:
  StoppedClock() : os_(*hak_os) {
    now_ms = hak_os_linux.now_ms() + 100;
    os_.now_ms = [] { return now_ms; };
    hak_os = &os_;
  }
  ~StoppedClock() { hak_os = &hak_os_linux; }
  static uint64_t now_ms;

 private:
  hak_os_ops os_;
};
uint64_t StoppedClock::now_ms;

// Each thread charges for many blocks at once: the words that all threads write are seldom written.
TEST(Credit, ChargesOnceForManyBlocks) {
  for (size_t room : {16 * KIB, 128 * KIB}) {
    SCOPED_TRACE(room);
    Heap heap(NEAR_LIMIT);
    bring_near(heap, room);
    Churn churn(heap, 1);
    churn.steps(20000); /* until blocks of each size come from slabs */
    size_t changes = 0, before = charged(heap);
    for (int i = 0; i < 10000; i++) {
      ASSERT_TRUE(churn.step());
      changes += charged(heap) != before;
      before = charged(heap);
      ASSERT_LE(before, NEAR_LIMIT);
    }
    EXPECT_LE(changes, 10000u / 100); /* 14; 9,556 where each block is charged */
  }
}

// Where very many requests are refused before the next drain is due, too: what others have of a credit is left alone
// until then, and then counts again.
TEST(Credit, IsGivenInAStormOfRefusals) {
  Heap heap(NEAR_LIMIT);
  std::vector<void *> blocks = bring_near(heap, 8 * KIB);
  Churn churn(heap, 1);
  churn.steps(20000);
  Creditor other(heap);
  StoppedClock clock;
  EXPECT_EQ(hakmem_heap_malloc(heap, 32 * KIB), nullptr); /* drains */
  EXPECT_EQ(charged(heap), heap.live());
  uint64_t before = barriers();
  auto changes_of_a_round = [&] {
    size_t changes = 0, last = charged(heap);
    for (int i = 0; i < 1000; i++) {
      if (i % 10 == 0) EXPECT_EQ(hakmem_heap_malloc(heap, 32 * KIB), nullptr);
      churn.step();
      changes += charged(heap) != last;
      last = charged(heap);
      EXPECT_LE(last, NEAR_LIMIT);
    }
    return changes;
  };
  EXPECT_GT(changes_of_a_round(), 900u); /* 100 refusals are few, and each block is charged */
  for (int i = 0; i < 1000; i++) EXPECT_EQ(hakmem_heap_malloc(heap, 32 * KIB), nullptr);
  changes_of_a_round();
  EXPECT_LE(changes_of_a_round(), 100u); /* 22; 952 without a storm */
  EXPECT_EQ(barriers(), before);
  EXPECT_GT(charged(heap), heap.live());
  clock.now_ms += 10;
  std::vector<void *> rest = fill(heap, 16);
  EXPECT_EQ(charged(heap), heap.live());
  EXPECT_GT(heap.live() + 32, NEAR_LIMIT);
  EXPECT_EQ(hakmem_heap_check(), 0u);
}

// What the thread itself has freed, in whichever heap below the limit, it always has.
TEST(Credit, OfTheThreadItselfIsNotLeftOutInAStorm) {
  for (bool below : {false, true}) {
    Heap heap(NEAR_LIMIT);
    hakmem_heap *users[2] = {below ? new_heap(0, heap) : static_cast<hakmem_heap *>(heap), below ? new_heap(0, heap) : static_cast<hakmem_heap *>(heap)};
    std::vector<void *> blocks[2];
    for (hakmem_heap *user : users) { Churn(user, 1).steps(20000); } /* each has a cache, and slabs of each class */
    for (size_t i = 0;; i++) {
      void *p = hakmem_heap_malloc(users[i % 2], 1024);
      if (p == nullptr) break;
      blocks[i % 2].push_back(p);
    }
    StoppedClock clock;
    for (int i = 0; i < 3000; i++) ASSERT_EQ(hakmem_heap_malloc(users[i % 2], 1024), nullptr);
    for (size_t i = 0; i < 20000; i++) {
      std::vector<void *> &from = blocks[i % 2], &to = blocks[i / 2 % 2];
      hakmem_heap *user = users[i / 2 % 2];
      if (from.empty()) continue;
      hakmem_free(from.back());
      from.pop_back();
      void *p = i % 7 == 0 ? hakmem_heap_calloc(user, 1, 1024) : i % 11 == 0 ? hakmem_heap_aligned_alloc(user, 256, 1024) : hakmem_heap_malloc(user, 1024);
      ASSERT_NE(p, nullptr) << i << below;
      to.push_back(p);
      ASSERT_EQ(hakmem_heap_malloc(user, 1024), nullptr) << i << below;
    }
    for (std::vector<void *> &all : blocks)
      for (void *p : all) hakmem_free(p);
  }
  EXPECT_EQ(hakmem_heap_check(), 0u);
}

// What it keeps is a part of the room, and is charged: all of it together is less than the room.
TEST(Credit, OfAllThreadsIsLessThanTheRoom) {
  Heap heap(NEAR_LIMIT);
  bring_near(heap, 64 * KIB);
  size_t live = heap.live();
  Creditor threads[6] = {Creditor(heap), Creditor(heap), Creditor(heap), Creditor(heap), Creditor(heap), Creditor(heap)};
  EXPECT_EQ(heap.live(), live);
  EXPECT_GT(charged(heap), live + 6 * KIB);
  EXPECT_LT(charged(heap), NEAR_LIMIT - 2 * KIB);
  EXPECT_EQ(heap.stats().refused, 1u);
  EXPECT_EQ(hakmem_heap_check(), 0u);
}

// Other threads' too: all of it, and each of their caches is looked into once.
TEST(Credit, IsTakenBackBeforeARequestIsRefused) {
  size_t small = usable_in_heaps(16);
  for (hakmem_heap *below : {static_cast<hakmem_heap *>(nullptr), new_heap()}) {
    Heap heap(NEAR_LIMIT);
    if (below != nullptr) hakmem_heap_destroy(below);
    hakmem_heap *user = below == nullptr ? static_cast<hakmem_heap *>(heap) : new_heap(0, heap);
    bring_near(heap, 64 * KIB);
    size_t live = stats_of(heap).total;
    Creditor threads[3] = {Creditor(user), Creditor(user), Creditor(user)};
    ASSERT_GT(charged(heap), live);
    uint64_t refused = heap.stats().refused, before = barriers();
    EXPECT_EQ(fill(user, 16).size(), (NEAR_LIMIT - live) / small);
    EXPECT_EQ(heap.stats().refused, refused + 1);
    EXPECT_EQ(charged(heap), stats_of(heap).total);
    EXPECT_LE(barriers() - before, 4u);
  }
}

// A limit below what is live holds for those that have a credit, too: until enough is freed.
TEST(Credit, GoesWithALowerLimit) {
  Heap heap(NEAR_LIMIT);
  bring_near(heap, 64 * KIB);
  Creditor other(heap);
  std::vector<void *> blocks;
  for (int i = 0; i < 40; i++) blocks.push_back(hakmem_heap_malloc(heap, 1000));
  { Churn(heap, 1, 200).steps(2000); }
  ASSERT_GT(charged(heap), heap.live());
  size_t usable = hakmem_malloc_usable_size(blocks[0]), live = heap.live(), limit = live - 20 * usable;
  hakmem_heap_set_limit(heap, limit);
  for (int i = 0; i < 20; i++) {
    EXPECT_EQ(hakmem_heap_malloc(heap, 1000), nullptr) << i;
    EXPECT_EQ(hakmem_heap_malloc(heap, 1), nullptr) << i;
    hakmem_free(blocks.back());
    blocks.pop_back();
  }
  EXPECT_EQ(hakmem_heap_malloc(heap, 1000), nullptr);
  hakmem_free(blocks.back());
  EXPECT_NE(hakmem_heap_malloc(heap, 1000), nullptr);
  EXPECT_EQ(heap.live(), limit);
}

// Its share is a limit, too: the callback comes at the same byte, and again once the sum has fallen.
TEST(Credit, CallsTheCallbackAtTheShare) {
  Heap heap(NEAR_LIMIT);
  std::vector<void *> most = bring_near(heap, 64 * KIB);
  Creditor other(heap);
  size_t calls = 0, share = NEAR_LIMIT / 100 * 99, usable = usable_in_heaps(112);
  auto call = [](hakmem_heap *, size_t, void *context) { ++*static_cast<size_t *>(context); };
  ASSERT_EQ(hakmem_heap_set_callback(heap, 99, call, &calls), 0);
  for (size_t round = 1; round <= 3; round++) {
    { Churn(heap, 1).steps(20000); }
    EXPECT_GT(charged(heap), heap.live());
    std::vector<void *> blocks;
    while (heap.live() + usable < share) blocks.push_back(hakmem_heap_malloc(heap, 112));
    EXPECT_EQ(calls, round - 1);
    blocks.push_back(hakmem_heap_malloc(heap, 112));
    EXPECT_EQ(calls, round);
    for (void *p : blocks) hakmem_free(p);
    { Churn(heap, 1).steps(2000); }
    EXPECT_EQ(charged(heap), heap.live()) << "each free may be the one from which on it is due again";
    size_t fallen = share - NEAR_LIMIT / 16 - heap.live(); /* modulo 2^64 */
    for (; static_cast<ptrdiff_t>(fallen) < 1024; fallen += 1024) {
      hakmem_free(most.back());
      most.pop_back();
    }
    while (heap.live() < share - 20 * KIB) most.push_back(hakmem_heap_malloc(heap, 1024));
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

// Heaps that end, are reset or deleted, and threads that end, leave nothing of it with the heap above.
TEST(Credit, GoesWithItsHeapAndItsThread) {
  for (int way = 0; way < 4; way++) {
    SCOPED_TRACE(way);
    Heap top(NEAR_LIMIT);
    hakmem_heap *below = new_heap(0, top);
    bring_near(top, 64 * KIB);
    size_t live = top.live();
    {
      Creditor other(below);
      { Churn(below, 1).steps(2000); }
      ASSERT_GT(charged(top), live);
      if (way == 0) hakmem_heap_destroy(below);
      if (way == 1) hakmem_heap_reset(below);
      if (way == 2) hakmem_heap_delete(below);
      if (way < 3) EXPECT_EQ(charged(top), live);
    }
    if (way == 3) hakmem_heap_set_limit(top, NEAR_LIMIT); /* of this thread and those that have ended */
    EXPECT_EQ(charged(top), live);
    EXPECT_EQ(fill(top, 1024).size(), 64u);
    EXPECT_EQ(hakmem_heap_check(), 0u);
  }
}

// The child, where the threads are not that have it, has all of the limit.
TEST(Credit, IsBackInAForksChild) {
  Heap heap(NEAR_LIMIT);
  bring_near(heap, 64 * KIB);
  Creditor other(heap), another(heap);
  { Churn(heap, 1).steps(2000); }
  size_t live = heap.live();
  ASSERT_GT(charged(heap), live);
  pid_t child = fork();
  if (child == 0) {
    alarm(30);
    if (heap.live() != live) _exit(1);
    size_t count = 0;
    while (hakmem_heap_malloc(heap, 1024) != nullptr) count++;
    _exit(count == (NEAR_LIMIT - live) / 1024 ? 0 : 2);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(fill(heap, 1024).size(), (NEAR_LIMIT - live) / 1024);
}

// Wherever they were: what is charged there is what is live, but for a block that a thread was at.
TEST(Credit, FitsTheCountsInAForksChild) {
  Heap heap(NEAR_LIMIT);
  bring_near(heap, 64 * KIB);
  std::optional<Churners> churners(std::in_place, heap);
  for (int i = 0; i < 60; i++) {
    pid_t child = fork();
    if (child == 0) {
      alarm(30);
      hakmem_heap_set_limit(heap, NEAR_LIMIT); /* this thread's cache and credit are back */
      auto more = static_cast<ptrdiff_t>(charged(heap) - heap.live());
      _exit(more < -3072 ? 1 : more > 3072 ? 2 : 0);
    }
    int status = -1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_EQ(status, 0) << "fork " << i;
  }
  churners.reset();
  EXPECT_EQ(heap.stats().refused, 1u);
  hakmem_heap_set_limit(heap, NEAR_LIMIT);
  EXPECT_EQ(charged(heap), heap.live());
}

// Without credit, and without caches, it is that to the byte.
TEST_P(Kinds, ChargeWhatIsLiveInAForksChild) {
  StoppedClock clock; /* no credit again after the refusal */
  Heap heap(NEAR_LIMIT, nullptr, GetParam());
  bring_near(heap, 64 * KIB);
  Churners churners(heap);
  unsigned off = 0;
  for (int i = 0; i < 60; i++) {
    pid_t child = fork();
    if (child == 0) {
      alarm(30);
      hakmem_heap_set_limit(heap, NEAR_LIMIT);
      _exit(charged(heap) == heap.live() ? 0 : 1);
    }
    int status = -1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    off += status != 0;
  }
  EXPECT_EQ(off, 0u) << "of 60";
}

// Threads that fill their caches, and keep credit, while another one looks into them.
TEST(Limits, NoRequestIsRefusedWithHalfOfItLive) {
  for (unsigned count : {1u, 2u, 4u}) {
    SCOPED_TRACE(count);
    Heap heap(256 * KIB);
    while (heap.live() < 64 * KIB) (void)!hakmem_heap_malloc(heap, 100);
    std::atomic<size_t> refused{0};
    std::atomic<bool> above{false};
    std::vector<std::thread> threads;
    for (unsigned seed = 0; seed < count; seed++) {
      threads.emplace_back([&, seed] {
        Churn churn(heap, seed, 16 * KIB / count);
        for (int i = 0; i < 600; i++) {
          refused += churn.steps(2000000 / 600 / count);
          if (charged(heap) > 256 * KIB) above = true;
        }
      });
    }
    for (std::thread &thread : threads) thread.join();
    EXPECT_EQ(refused, 0u);
    EXPECT_FALSE(above);
  }
}

// The thread has found the limit no more near, and waits for the lock: a drain that begins meanwhile passes by its cache, which is aside, and says that nothing that is cached counts.
TEST(Limits, NoCacheCountsAgainBehindADrain) {
  Heap heap(NEAR_LIMIT);
  std::atomic<int> step{0};
  std::thread thread([&] {
    { Churn(heap, 1).steps(20000); }
    step = 1;
    while (step != 2) std::this_thread::yield();
    for (Churn churn(heap, 1); step != 3;) churn.step();
    step = 4;
    while (step != 5) std::this_thread::yield();
  });
  while (step != 1) std::this_thread::yield();
  std::vector<void *> blocks = bring_near(heap, NEAR_LIMIT / 2);
  for (; hak_heap_is_near(heap); blocks.pop_back()) hakmem_free(blocks.back());
  size_t others = charged(heap) - heap.live();
  hak_lock_take(&hak_heaps_lock);
  const hak_heap_cache *cache = static_cast<hakmem_heap *>(heap)->caches;
  while (cache->holder == hak_tls.cache) cache = cache->next;
  step = 2;
  for (int looks = 0; looks < 1000; looks++) { /* until it waits */
    if (hak_load_relaxed(&cache->busy) == 0) looks = 0;
    std::this_thread::yield();
  }
  EXPECT_TRUE(hak_heap_is_aside(cache));
  hak_store_relaxed(&static_cast<hakmem_heap *>(heap)->near_limit, HAK_HEAP_NEAR_STEP + HAK_HEAP_DRAINED);
  step = 3;
  hak_lock_drop(&hak_heaps_lock);
  while (step != 4) std::this_thread::yield();
  EXPECT_TRUE(hak_heap_is_aside(cache));
  EXPECT_LE(charged(heap) - heap.live(), others);
  step = 5;
  thread.join();
}

// Behind a drain, and before the request's next attempt, others' caches may charge what they have: that attempt is not the last.
hak_os_ops disturbing;
hakmem_heap *disturbed; // until all is as it was
size_t disturbed_by;

void charge_more() {
  if (disturbed == nullptr || disturbed_by != 0) return;
  disturbed->near_limit = (disturbed->near_limit & ~HAK_HEAP_NEAR_STATE) + HAK_HEAP_NEAR_STEP + HAK_HEAP_NOT_NEAR;
  hak_add_relaxed(&disturbed->out, disturbed_by = disturbed->limit);
}

void charge_no_more() {
  if (disturbed == nullptr || disturbed_by == 0) return;
  hak_sub_relaxed(&disturbed->out, disturbed_by);
  disturbed = nullptr;
}

TEST(Limits, ARefusalIsFinalBehindADrainAlone) {
  Heap heap(2 * MIB);
  Resting thread(heap);
  while (charged(heap) + 2048 <= 2 * MIB) ASSERT_NE(hakmem_heap_malloc(heap, 1024), nullptr);
  ASSERT_LE(heap.live() + 2048, 2 * MIB);
  disturbing = *hak_os;
  disturbing.barrier = [] { return charge_more(), hak_os_linux.barrier(); };
  disturbing.now_ms = [] { return charge_no_more(), hak_os_linux.now_ms(); };
  disturbed = heap;
  hak_os = &disturbing;
  void *p = hakmem_heap_malloc(heap, 2048);
  hak_os = &hak_os_linux;
  EXPECT_EQ(disturbed_by, 2 * MIB);
  EXPECT_EQ(disturbed, nullptr);
  EXPECT_NE(p, nullptr);
  EXPECT_EQ(heap.stats().refused, 0u);
}

// --- nested ---

// Heaps between the two, which have room, are not charged for a moment: requests of others would be refused by them.
TEST(Nested, WhatIsRefusedAboveTakesNoRoomBelow) {
  Heap top, between(40000, static_cast<hakmem_heap *>(top)), one(0, static_cast<hakmem_heap *>(between)), another(0, static_cast<hakmem_heap *>(between));
  ASSERT_NE(hakmem_heap_malloc(top, MIB), nullptr);
  hakmem_heap_set_limit(top, top.live() + 20000);
  std::atomic<bool> end{false};
  size_t served = 0, refused = 0;
  std::thread thread([&] {
    while (!end) served += hakmem_heap_malloc(one, 30000) != nullptr;
  });
  for (int i = 0; i < 400000; i++) {
    void *p = hakmem_heap_malloc(another, 16000);
    refused += p == nullptr;
    hakmem_free(p);
  }
  end = true;
  thread.join();
  EXPECT_EQ(served, 0u);
  EXPECT_EQ(refused, 0u); /* of 400,000; 12,000 otherwise */
}

TEST(Nested, TheSumHolds) {
  size_t usable = usable_in_heaps(1024);
  Heap top(100 * usable);
  hakmem_heap *left = new_heap(70 * usable, top), *right = new_heap(0, top), *below = new_heap(0, left);
  EXPECT_EQ(hakmem_heap_parent(top), nullptr);
  EXPECT_EQ(hakmem_heap_parent(below), left);
  EXPECT_EQ(fill(below, 1024).size(), 70u);
  EXPECT_EQ(stats_of(left).refused, 1u) << "its limit refused";
  EXPECT_EQ(stats_of(below).refused, 0u) << "it has none";
  EXPECT_EQ(top.stats().refused, 0u);
  std::vector<void *> blocks = fill(right, 1024);
  EXPECT_EQ(blocks.size(), 30u);
  EXPECT_EQ(top.stats().refused, 1u);
  EXPECT_EQ(stats_of(right).refused, 0u);
  EXPECT_EQ(hakmem_heap_malloc(top, 1024), nullptr);
  EXPECT_EQ(top.stats().refused, 2u);
  EXPECT_EQ(stats_of(below).live, 70 * usable);
  EXPECT_EQ(stats_of(left).live, 0u);
  EXPECT_EQ(stats_of(left).total, 70 * usable);
  EXPECT_EQ(top.stats().total, 100 * usable);
  for (int i = 0; i < 10; i++) {
    hakmem_free(blocks.back());
    blocks.pop_back();
  }
  EXPECT_EQ(fill(top, 1024).size(), 10u);
  EXPECT_EQ(top.live(), 10 * usable);
  hakmem_heap_destroy(left);
  EXPECT_EQ(top.stats().total, 30 * usable);
  EXPECT_EQ(fill(right, 1024).size(), 70u);
}

// What threads have cached in other heaps below the limit is theirs no more when it is needed.
TEST(Nested, CachedBytesDoNotCount) {
  size_t usable = usable_in_heaps(512);
  Heap top(1000 * usable);
  std::vector<hakmem_heap *> heaps;
  for (int i = 0; i < 12; i++) heaps.push_back(new_heap(0, top));
  auto work = [&] {
    for (int round = 0; round < 20; round++) {
      for (hakmem_heap *heap : heaps) {
        std::vector<void *> blocks;
        for (int i = 0; i < 60; i++) blocks.push_back(hakmem_heap_malloc(heap, 512));
        for (void *p : blocks) hakmem_free(p);
      }
    }
  };
  std::atomic<bool> end{false}, done{false};
  std::thread sleeper([&] {
    work();
    done = true;
    while (!end) std::this_thread::yield();
  });
  work();
  while (!done) std::this_thread::yield();
  uint64_t refused = top.stats().refused;
  EXPECT_EQ(top.stats().total, 0u);
  EXPECT_EQ(fill(heaps[0], 512).size(), 1000u);
  EXPECT_EQ(top.stats().refused, refused + 1);
  end = true;
  sleeper.join();
}

TEST(Nested, DeepOnes) {
  std::vector<hakmem_heap *> heaps = {new_heap(MIB)};
  for (int i = 0; i < 40; i++) heaps.push_back(new_heap(0, heaps.back()));
  size_t count = fill(heaps.back(), 5120).size();
  EXPECT_EQ(count, MIB / usable_in_heaps(5120));
  for (hakmem_heap *heap : heaps) EXPECT_EQ(stats_of(heap).total, stats_of(heaps.back()).live);
  hakmem_heap_destroy(heaps[0]);
}

// --- the callback ---

struct Calls {
  int count = 0;
  hakmem_heap *heap = nullptr;
  size_t live = 0;
  std::vector<void *> *frees = nullptr;
};

void count_call(hakmem_heap *heap, size_t live, void *context) {
  auto *calls = static_cast<Calls *>(context);
  calls->count++;
  calls->heap = heap;
  calls->live = live;
}

TEST(Callback, IsRefusedAtAShareThatIsNone) {
  Heap heap(MIB);
  EXPECT_EQ(hakmem_heap_set_callback(heap, 0, count_call, nullptr), EINVAL);
  EXPECT_EQ(hakmem_heap_set_callback(heap, 101, count_call, nullptr), EINVAL);
  EXPECT_EQ(hakmem_heap_set_callback(heap, 1, count_call, nullptr), 0);
  EXPECT_EQ(hakmem_heap_set_callback(heap, 100, count_call, nullptr), 0);
  EXPECT_EQ(hakmem_heap_set_callback(heap, 50, nullptr, nullptr), 0);
}

TEST_P(Kinds, CallOnceAtTheShare) {
  size_t usable = usable_in_heaps(100);
  Heap heap(1600 * usable, nullptr, GetParam());
  Calls calls;
  ASSERT_EQ(hakmem_heap_set_callback(heap, 75, count_call, &calls), 0);
  std::vector<void *> blocks;
  auto take = [&](size_t count) {
    for (; count > 0; count--) blocks.push_back(hakmem_heap_malloc(heap, 100));
  };
  auto give = [&](size_t count) {
    for (; count > 0; count--) {
      hakmem_free(blocks.back());
      blocks.pop_back();
    }
  };
  take(1199);
  EXPECT_EQ(calls.count, 0);
  take(1);
  EXPECT_EQ(calls.count, 1) << "75 %";
  EXPECT_EQ(calls.heap, heap);
  EXPECT_GE(calls.live + usable, 1200 * usable);
  EXPECT_LE(calls.live, 1200 * usable);
  take(300);
  EXPECT_EQ(calls.count, 1);
  give(390);
  take(200);
  EXPECT_EQ(calls.count, 1) << "it had fallen to 1,110, less than a sixteenth of 1,600 below 1,200";
  give(300);
  EXPECT_EQ(heap.stats().blocks, 1010u);
  take(189);
  EXPECT_EQ(calls.count, 1);
  take(1);
  EXPECT_EQ(calls.count, 2) << "it had fallen to 1,010";
  ASSERT_EQ(hakmem_heap_set_callback(heap, 75, nullptr, nullptr), 0);
  give(1200);
  take(1600);
  EXPECT_EQ(calls.count, 2);
}

// At its limit a program drops what it can do without, and the request is served.
TEST(Callback, MayFreeSoThatTheRequestIsServed) {
  for (size_t size : {size_t{1000}, size_t{20000}, size_t{100000}, MIB}) {
    SCOPED_TRACE(size);
    Heap heap(10 * MIB);
    std::vector<void *> cache;
    Calls calls;
    calls.frees = &cache;
    ASSERT_EQ(hakmem_heap_set_callback(heap, 100, [](hakmem_heap *, size_t, void *context) {
      auto *c = static_cast<Calls *>(context);
      c->count++;
      for (void *p : *c->frees) hakmem_free(p);
      c->frees->clear();
    }, &calls), 0);
    std::vector<void *> blocks;
    for (int i = 0; i < 60; i++) cache.push_back(hakmem_heap_malloc(heap, 100000));
    for (size_t taken = 0; taken < 8 * MIB; taken += hakmem_malloc_usable_size(blocks.back())) {
      blocks.push_back(hakmem_heap_malloc(heap, size));
      ASSERT_NE(blocks.back(), nullptr);
    }
    EXPECT_EQ(calls.count, 1);
    EXPECT_EQ(heap.stats().refused, 0u);
  }
}

// It asks, allocates in this heap and in the main one, sets a limit: no lock is held.
TEST(Callback, MayUseTheHeap) {
  Heap heap(MIB);
  Calls calls;
  ASSERT_EQ(hakmem_heap_set_callback(heap, 50, [](hakmem_heap *h, size_t live, void *context) {
    count_call(h, live, context);
    hakmem_free(hakmem_malloc(50000));
    for (int i = 0; i < 100; i++) hakmem_free(hakmem_heap_malloc(h, 2000));
    hakmem_heap_visit(h, [](void *, size_t, void *) { return true; }, nullptr);
    hakmem_heap_list([](hakmem_heap *, void *) { return true; }, nullptr);
    std::thread([h] { hakmem_free(hakmem_heap_malloc(h, 3000)); }).join();
    EXPECT_LE(stats_of(h).live, MIB);
    hakmem_heap_set_limit(h, 2 * MIB);
  }, &calls), 0);
  std::vector<void *> blocks = fill(heap, 1024);
  EXPECT_EQ(blocks.size(), 2 * MIB / usable_in_heaps(1024));
  EXPECT_LE(calls.count, 2) << "once at a half of each limit";
  EXPECT_GE(calls.count, 1);
}

#if HAKMEM_CHECKS_TESTED
hakmem_heap *ended_by_callback;
void (*callbacks_end)(hakmem_heap *heap);

void request_whose_callback_ends(bool parents, void (*end)(hakmem_heap *heap)) {
  hakmem_heap *parent = new_heap(MIB), *heap = new_heap(0, parent);
  ended_by_callback = parents ? parent : heap;
  callbacks_end = end;
  hakmem_heap_set_callback(parent, 50, [](hakmem_heap *, size_t, void *) { callbacks_end(ended_by_callback); }, nullptr);
  (void)!hakmem_heap_malloc(heap, 700 * KIB);
}

TEST(CallbackMisused, EndsTheHeapOfTheRequest) {
  const char *report = "invalid heap: .*, seen by a request whose callback ended or reset it";
  for (auto end : {hakmem_heap_destroy, hakmem_heap_reset, hakmem_heap_delete}) {
    EXPECT_EXIT(request_whose_callback_ends(false, end), testing::KilledBySignal(SIGABRT), report);
    if (end != hakmem_heap_delete) EXPECT_EXIT(request_whose_callback_ends(true, end), testing::KilledBySignal(SIGABRT), report);
  }
}
#endif

TEST(Callback, OfAParentIsCalledForItsChildren) {
  size_t usable = usable_in_heaps(1024);
  Heap top(100 * usable);
  hakmem_heap *below = new_heap(0, top);
  Calls calls;
  ASSERT_EQ(hakmem_heap_set_callback(top, 60, count_call, &calls), 0);
  std::vector<void *> blocks;
  for (int i = 0; i < 59; i++) blocks.push_back(hakmem_heap_malloc(below, 1024));
  EXPECT_EQ(calls.count, 0);
  blocks.push_back(hakmem_heap_malloc(below, 1024));
  EXPECT_EQ(calls.count, 1);
  EXPECT_EQ(calls.heap, top);
}

// What a callback frees makes the other one due again: the request that is above both shares calls each once.
TEST(Callback, OfAParentAndItsChildAreCalledOnceARequest) {
  Heap top(4 * MIB, nullptr, HAKMEM_HEAP_UNCACHED);
  hakmem_heap *below = new_heap(3 * MIB, top, HAKMEM_HEAP_UNCACHED);
  static hakmem_heap *used;
  used = below;
  Calls calls[2];
  for (Calls &c : calls) {
    ASSERT_EQ(hakmem_heap_set_callback(&c == calls ? below : static_cast<hakmem_heap *>(top), 10, [](hakmem_heap *h, size_t live, void *context) {
      count_call(h, live, context);
      if (static_cast<Calls *>(context)->count > 20) abort();
      hakmem_free(hakmem_heap_malloc(used, 100));
    }, &c), 0);
  }
  void *p = hakmem_heap_malloc(below, MIB);
  EXPECT_NE(p, nullptr);
  EXPECT_EQ(calls[0].count, 1);
  EXPECT_EQ(calls[1].count, 1);
  hakmem_free(p);
}

}  // namespace
