// What heaps say of themselves: options, names, figures, visits, lists; and what thousands of small ones cost.
#include "heaps.h"

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <string>
#include <thread>

#include "actor.h"
#include "proc_status.h"

namespace {

TEST(Options, OfNone) {
  hakmem_heap *heap = hakmem_heap_new(nullptr);
  ASSERT_NE(heap, nullptr);
  EXPECT_STREQ(hakmem_heap_name(heap), "");
  EXPECT_EQ(hakmem_heap_parent(heap), nullptr);
  EXPECT_EQ(stats_of(heap).limit, 0u);
  hakmem_heap_destroy(heap);
}

TEST(Options, AreTheHeaps) {
  char name[] = "query 7";
  Heap parent(size_t{0}, nullptr, 0u, "parent"), heap(size_t{12345}, static_cast<hakmem_heap *>(parent), HAKMEM_HEAP_UNCACHED, name);
  memset(name, 'x', sizeof name - 1);
  EXPECT_STREQ(hakmem_heap_name(heap), "query 7") << "copied";
  EXPECT_STREQ(hakmem_heap_name(parent), "parent");
  EXPECT_EQ(hakmem_heap_parent(heap), parent);
  EXPECT_EQ(heap.stats().limit, 12345u);
  hakmem_heap_destroy(heap.let_go());
  EXPECT_EQ(parent.stats().total, 0u);
}

TEST(Options, ThatAreWrongAreRefused) {
  size_t before = hakmem_heap_list(nullptr, nullptr);
  auto refused = [](size_t size, const char *name, unsigned flags) {
    hakmem_heap_options options = {size, name, 0, nullptr, flags};
    errno = 0;
    return hakmem_heap_new(&options) == nullptr && errno == EINVAL;
  };
  constexpr size_t SIZE = sizeof(hakmem_heap_options);
  EXPECT_TRUE(refused(0, nullptr, 0));
  EXPECT_TRUE(refused(1, nullptr, 0));
  EXPECT_TRUE(refused(SIZE - 1, nullptr, 0));
  EXPECT_TRUE(refused(SIZE, nullptr, 2));
  EXPECT_TRUE(refused(SIZE, nullptr, ~0u));
  EXPECT_TRUE(refused(SIZE, std::string(64, 'n').c_str(), 0));
  EXPECT_EQ(hakmem_heap_list(nullptr, nullptr), before);
  Heap heap(size_t{0}, nullptr, 0u, std::string(63, 'n').c_str());
  EXPECT_EQ(hakmem_heap_name(heap), std::string(63, 'n'));
}

TEST(Stats, CountBlocksBytesAndRequests) {
  for (unsigned flags : {0u, HAKMEM_HEAP_UNCACHED}) {
    Heap heap(size_t{0}, nullptr, flags);
    std::mt19937 random(1);
    std::vector<void *> blocks;
    size_t live = 0, peak = 0, requests = 0;
    for (int step = 0; step < 20000; step++) {
      if (blocks.size() > 20 && random() % 2 == 0) {
        std::swap(blocks[random() % blocks.size()], blocks.back());
        live -= hakmem_malloc_usable_size(blocks.back());
        hakmem_free(blocks.back());
        blocks.pop_back();
      } else {
        blocks.push_back(hakmem_heap_malloc(heap, random() % 100 == 0 ? random() % 100000 : random() % 1000));
        live += hakmem_malloc_usable_size(blocks.back());
        requests++;
      }
      peak = std::max(peak, live);
      if (step % 97 != 0) continue;
      hakmem_heap_stats s = heap.stats();
      ASSERT_EQ(s.live, live) << step;
      ASSERT_EQ(s.total, live);
      ASSERT_EQ(s.blocks, blocks.size());
      ASSERT_EQ(s.requests, requests);
      ASSERT_GE(s.held, live);
      ASSERT_GE(s.peak, flags != 0 ? peak : live);
      ASSERT_LE(s.peak, flags != 0 ? peak : peak + 64 * KIB);
    }
    EXPECT_EQ(heap.stats().refused, 0u);
    for (void *p : blocks) hakmem_free(p);
    hakmem_heap_stats s = heap.stats();
    EXPECT_EQ(s.live, 0u);
    EXPECT_EQ(s.blocks, 0u);
    EXPECT_LE(s.held, 4 * MIB) << "a slab a class";
  }
}

// The peak is the most that was live; where blocks are cached, give or take what the cache takes at a time.
TEST(Stats, PeakOfOneThread) {
  for (unsigned flags : {0u, HAKMEM_HEAP_UNCACHED}) {
    Heap heap(size_t{0}, nullptr, flags);
    std::vector<void *> blocks;
    for (int round = 0; round < 5; round++) {
      for (int i = 0; i < 3000; i++) blocks.push_back(hakmem_heap_malloc(heap, 200));
      for (void *p : blocks) hakmem_free(p);
      blocks.clear();
    }
    size_t usable = hakmem_malloc_usable_size(hakmem_heap_malloc(heap, 200));
    size_t batch = flags != 0 ? 0 : 32 * KIB;
    EXPECT_LE(heap.stats().peak, 3001 * usable + batch);
    EXPECT_GE(heap.stats().peak, 3000 * usable - batch);
  }
}

// Of several threads what was live at once, as it was shown, stays the least that the peak is; also where others free.
TEST(Stats, APeakThatWasShownStays) {
  Heap heap;
  constexpr size_t COUNT = 1000, SIZE = 1000;
  std::vector<void *> blocks[5];
  Actor actors[4] = {Actor(0), Actor(1), Actor(2), Actor(3)};
  for (int i = 0; i < 4; i++)
    actors[i].run([&, i] {
      for (int round = 0; round < 3; round++) {
        for (void *p : std::exchange(blocks[i], {})) hakmem_free(p);
        for (size_t n = 0; n < COUNT; n++) blocks[i].push_back(hakmem_heap_malloc(heap, SIZE));
      }
    });
  for (size_t n = 0; n < 8; n++) blocks[4].push_back(hakmem_heap_malloc(heap, 20000 + n)); /* counted at once */
  size_t shown = heap.stats().live;
  EXPECT_GE(shown, 4 * COUNT * SIZE + 8 * 20000);
  actors[0].run([&] {
    for (auto &all : blocks)
      for (void *p : all) hakmem_free(p);
  });
  EXPECT_GE(heap.stats().peak, shown);
  EXPECT_LE(heap.stats().peak, 2 * shown);
}

// Whatever the limit is by the time that a block goes.
TEST(Stats, ThePeakOfBeforeALimitStays) {
  for (size_t size : {size_t{1000}, size_t{20000}, size_t{200000}, 20 * MIB, 100 * MIB}) {
    Heap heap;
    std::vector<void *> blocks;
    for (int i = 0; i < 8; i++) blocks.push_back(hakmem_heap_malloc(heap, size));
    size_t live = heap.live();
    hakmem_heap_set_limit(heap, 16);
    for (void *p : blocks) hakmem_free(p);
    EXPECT_GE(heap.stats().peak, live) << size;
    EXPECT_LE(heap.stats().peak, live + 64 * KIB) << size;
  }
}

// One thread allocates, another one frees: what passes is no peak.
TEST(Stats, ThePeakIsNotWhatPasses) {
  for (size_t size : {1000, 70000}) {
    Heap heap;
    Actor freer(1);
    for (int round = 0; round < 300; round++) {
      std::vector<void *> blocks;
      for (int i = 0; i < 100; i++) blocks.push_back(hakmem_heap_malloc(heap, size));
      freer.run([&] {
        for (void *p : blocks) hakmem_free(p);
      });
    }
    EXPECT_GE(heap.stats().peak, 100 * size);
    EXPECT_LE(heap.stats().peak, 100 * size * 2 + 2 * MIB);
  }
}

// A limit that is hit often, so that threads take what others have cached of the heap while these count in it.
TEST(Stats, AddUpBesideThreadsThatTakeFromEachOther) {
  Heap heap(2 * MIB);
  std::vector<std::thread> threads;
  for (unsigned seed = 1; seed <= 4; seed++) {
    threads.emplace_back([&heap, seed] {
      std::mt19937 random(seed);
      void *blocks[16] = {};
      for (int i = 0; i < 1000000; i++) {
        void *&p = blocks[random() % 16];
        hakmem_free(p);
        p = hakmem_heap_malloc(heap, random() % 8 != 0 ? 16 + random() % 2000 : random() % 200000);
      }
      for (void *p : blocks) hakmem_free(p);
    });
  }
  for (std::thread &thread : threads) thread.join();
  hakmem_heap_stats stats = heap.stats();
  EXPECT_EQ(stats.live, 0u);
  EXPECT_EQ(stats.blocks, 0u);
  EXPECT_EQ(stats.total, 0u);
  EXPECT_LE(stats.peak, 2 * MIB);
}

TEST(Stats, NumbersAreNeverUsedAgain) {
  std::set<uint64_t> ids;
  for (int i = 0; i < 1000; i++) {
    Heap heap;
    EXPECT_TRUE(ids.insert(heap.stats().id).second);
  }
}

TEST(Stats, FillInWhatThereIsRoomFor) {
  Heap heap(MIB);
  void *p = hakmem_heap_malloc(heap, 100);
  hakmem_heap_stats whole = heap.stats();
  for (size_t size = 0; size <= sizeof whole; size += 4) {
    hakmem_heap_stats part;
    memset(&part, 0xa5, sizeof part);
    hakmem_heap_get_stats(heap, &part, size);
    auto *bytes = reinterpret_cast<const unsigned char *>(&part);
    EXPECT_EQ(memcmp(bytes, &whole, size), 0) << size;
    for (size_t i = size; i < sizeof part; i++) EXPECT_EQ(bytes[i], 0xa5) << size;
  }
  struct {
    hakmem_heap_stats known;
    uint64_t later[4];
  } more;
  memset(&more, 0xa5, sizeof more);
  hakmem_heap_get_stats(heap, &more.known, sizeof more);
  EXPECT_EQ(more.known.live, whole.live);
  hakmem_free(p);
}

TEST(Visit, CallsForEachBlock) {
  Heap heap, other;
  std::map<void *, size_t> blocks, seen;
  std::mt19937 random(2);
  for (int i = 0; i < 5000; i++) {
    void *p = hakmem_heap_malloc(heap, random() % 300 == 0 ? random() % (2 * MIB) : random() % 40 == 0 ? random() % 30000 : random() % 500);
    blocks[p] = hakmem_malloc_usable_size(p);
    (void)!hakmem_heap_malloc(other, 100);
    if (random() % 3 == 0) {
      auto victim = std::next(blocks.begin(), static_cast<long>(random() % std::min<size_t>(blocks.size(), 50)));
      hakmem_free(victim->first);
      blocks.erase(victim);
    }
  }
  for (size_t size : {33 * MIB, size_t{100000}}) {
    void *p = hakmem_heap_aligned_alloc(heap, 4096, size);
    blocks[p] = hakmem_malloc_usable_size(p);
  }
  auto note = [](void *p, size_t size, void *context) { return static_cast<std::map<void *, size_t> *>(context)->emplace(p, size).second; };
  EXPECT_EQ(hakmem_heap_visit(heap, note, &seen), blocks.size());
  EXPECT_EQ(seen, blocks);
  EXPECT_EQ(heap.stats().blocks, blocks.size());
  size_t left = 17;
  EXPECT_EQ(hakmem_heap_visit(heap, [](void *, size_t, void *context) { return --*static_cast<size_t *>(context) > 0; }, &left), 17u);
}

TEST(Visit, ShowsEachMappingOnceWhileOthersAreMade) {
  Heap heap;
  for (int i = 0; i < 100; i++) ASSERT_NE(hakmem_heap_malloc(heap, 33 * MIB), nullptr);
  struct Seen {
    std::set<void *> blocks, others;
  } seen;
  auto note = [](void *p, size_t, void *context) {
    Seen *s = static_cast<Seen *>(context);
    for (int i = 0; i < 12; i++) s->others.insert(hakmem_malloc(33 * MIB));
    return s->blocks.insert(p).second;
  };
  EXPECT_EQ(hakmem_heap_visit(heap, note, &seen), 100u);
  EXPECT_EQ(seen.blocks.size(), 100u);
  for (void *p : seen.others) hakmem_free(p);
}

// Blocks that other threads have freed, and have in their caches, are not the program's.
TEST(Visit, LeavesOutWhatThreadsHaveCached) {
  Heap heap;
  std::set<void *> blocks;
  std::thread([&] {
    std::vector<void *> all;
    for (int i = 0; i < 3000; i++) all.push_back(hakmem_heap_malloc(heap, 64));
    for (size_t i = 0; i < all.size(); i++) i % 10 == 0 ? (void)blocks.insert(all[i]) : hakmem_free(all[i]);
    std::set<void *> seen;
    auto note = [](void *p, size_t, void *context) { return static_cast<std::set<void *> *>(context)->insert(p).second; };
    std::thread([&] { hakmem_heap_visit(heap, note, &seen); }).join();
    EXPECT_EQ(seen, blocks);
  }).join();
}

TEST(Lists, HaveEachHeapOldestFirst) {
  std::vector<hakmem_heap *> heaps, seen;
  size_t before = hakmem_heap_list(nullptr, nullptr);
  EXPECT_EQ(before, 0u);
  for (int i = 0; i < 100; i++) heaps.push_back(new_heap(0, i % 10 == 5 ? heaps.back() : nullptr));
  for (size_t i : {50, 30, 10}) {
    hakmem_heap_destroy(heaps[i]);
    heaps.erase(heaps.begin() + static_cast<long>(i));
  }
  heaps.push_back(new_heap());
  auto note = [](hakmem_heap *heap, void *context) {
    static_cast<std::vector<hakmem_heap *> *>(context)->push_back(heap);
    return true;
  };
  EXPECT_EQ(hakmem_heap_list(note, &seen), heaps.size());
  EXPECT_EQ(hakmem_heap_list(nullptr, nullptr), heaps.size());
  EXPECT_EQ(seen, heaps);
  size_t left = 5;
  EXPECT_EQ(hakmem_heap_list([](hakmem_heap *, void *context) { return --*static_cast<size_t *>(context) > 0; }, &left), 5u);
  /* visit destroys each one. */
  EXPECT_GT(hakmem_heap_list([](hakmem_heap *heap, void *) {
              hakmem_heap_destroy(heap);
              return true;
            }, nullptr), 80u);
  EXPECT_EQ(hakmem_heap_list(nullptr, nullptr), 0u);
}

// --- many ---

struct Load {
  const char *name;
  size_t least, most;
};

void PrintTo(const Load &load, std::ostream *out) { *out << load.name; }

class TenThousand : public testing::TestWithParam<Load> {};
INSTANTIATE_TEST_SUITE_P(Heaps, TenThousand, testing::Values(Load{"small", 16, 128}, Load{"mixed", 16, 512}, Load{"equal", 48, 48}),
                         [](const auto &info) { return info.param.name; });

// Each with 5 KB: held, with what is the allocator's own, and resident is at most twice what was asked for.
TEST_P(TenThousand, HoldLittleBesideWhatWasAskedFor) {
  constexpr size_t HEAPS = 10000, BYTES = 5000;
  std::mt19937 random(3);
  hakmem_free(hakmem_malloc(1));
  std::vector<hakmem_heap *> heaps(HEAPS);
  size_t accessible = process_stats().accessible, resident = proc_status_kib("VmRSS:") * KIB, asked = 0, held = 0;
  for (hakmem_heap *&heap : heaps) {
    heap = new_heap();
    for (size_t taken = 0; taken < BYTES;) {
      size_t size = GetParam().least + random() % (GetParam().most - GetParam().least + 1);
      if (block_in(heap, size).p == nullptr) abort();
      taken += size;
      asked += size;
    }
  }
  for (hakmem_heap *heap : heaps) held += stats_of(heap).held;
  RecordProperty("held_percent", static_cast<int>(held * 100 / asked));
  size_t accessible_now = process_stats().accessible - accessible, resident_now = proc_status_kib("VmRSS:") * KIB - resident;
  RecordProperty("accessible_percent", static_cast<int>(accessible_now * 100 / asked));
  RecordProperty("resident_percent", static_cast<int>(resident_now * 100 / asked));
  printf("held %.2f, accessible %.2f, resident %.2f of what was asked for\n", double(held) / double(asked), double(accessible_now) / double(asked),
         double(resident_now) / double(asked));
  EXPECT_LE(held, 2 * asked);
  if (!HAKMEM_TEST_SANITIZED) {
    EXPECT_LE(resident_now, 2 * asked);
  }
  for (hakmem_heap *heap : heaps) hakmem_heap_destroy(heap);
  EXPECT_EQ(hakmem_heap_check(), 0u);
}

// Before it is used a heap costs at most 4 KiB.
TEST(Unused, HeapsCostLittle) {
  constexpr size_t HEAPS = 10000;
  std::vector<hakmem_heap *> heaps(HEAPS);
  hakmem_heap_destroy(new_heap());
  size_t accessible = process_stats().accessible;
  for (hakmem_heap *&heap : heaps) heap = new_heap();
  EXPECT_LE(process_stats().accessible - accessible, HEAPS * 4 * KIB);
  for (hakmem_heap *heap : heaps) {
    EXPECT_EQ(stats_of(heap).held, 0u);
    hakmem_heap_destroy(heap);
  }
}

}  // namespace
