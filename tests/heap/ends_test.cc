// How heaps and threads end: destroy, delete, children, thread ends, forks, misuse.
#include "heaps.h"

#include <gmock/gmock.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <functional>
#include <future>
#include <memory>
#include <random>
#include <string>
#include <thread>

#include "fake_os.h"
#include "hak.h"
#include "large/huge.h"
#include "long_decay.h"
#include "proc_status.h"
#include "rotation.h"
#include "run_program.h"

extern "C" void hak_heap_decay_others(hak_deferred *deferred); // heap/heap.h
extern "C" void hak_heap_trim_some(hak_deferred *deferred);

namespace {

// Blocks of all kinds, some 2 MiB. Returns those that are live at the end.
std::vector<Block> mixed(hakmem_heap *heap, unsigned seed = 1, size_t bytes = 2 * MIB) {
  std::mt19937 random(seed);
  std::vector<Block> blocks;
  for (size_t taken = 0; taken < bytes;) {
    size_t size = random() % 200 == 0 ? random() % 300000 : random() % 20 == 0 ? random() % 20000 : random() % 600;
    Block b = block_in(heap, size, static_cast<unsigned char>(random()));
    if (b.p == nullptr) abort();
    taken += size;
    blocks.push_back(b);
    std::swap(blocks[random() % blocks.size()], blocks.back());
    if (random() % 4 == 0) {
      hakmem_free(blocks.back().p);
      blocks.pop_back();
    }
  }
  return blocks;
}

size_t heaps() { return hakmem_heap_list(nullptr, nullptr); }

TEST(Destroy, OfNullDoesNothing) { hakmem_heap_destroy(nullptr); }

TEST(Destroy, OfAnEmptyHeap) {
  size_t before = heaps();
  for (int i = 0; i < 1000; i++) hakmem_heap_destroy(new_heap());
  EXPECT_EQ(heaps(), before);
}

TEST(Destroy, FreesTheHeapsBlocksAlone) {
  Heap other;
  std::vector<Block> others = mixed(other, 2), main;
  for (size_t i = 0; i < 500; i++) main.push_back(filled(hakmem_malloc(i * 20), i * 20, static_cast<unsigned char>(i)));
  hakmem_heap *heap = new_heap();
  mixed(heap);
  block_in(heap, 40 * MIB);
  hakmem_heap_destroy(heap);
  Heap next;
  std::vector<Block> nexts = mixed(next, 3);
  for (const std::vector<Block> *blocks : {&others, &main, &nexts}) {
    for (const Block &b : *blocks) {
      ASSERT_TRUE(b.holds()) << b.size;
      hakmem_free(b.p);
    }
  }
  EXPECT_EQ(other.live(), 0u);
  EXPECT_EQ(hakmem_heap_check(), 0u);
}

// What is held does not grow, nor what is resident.
TEST(Destroy, LeavesNothingBehind) {
  size_t held = 0, resident = 0;
  for (unsigned round = 0; round < 1000; round++) {
    hakmem_heap *heap = new_heap(0, nullptr, round % 3 == 0 ? HAKMEM_HEAP_UNCACHED : 0);
    mixed(heap, round % 10, round % 10 == 0 ? 4 * MIB : MIB);
    if (round % 100 == 7) block_in(heap, 33 * MIB);
    hakmem_heap_destroy(heap);
    if (round != 200) continue;
    hakmem_purge(); /* as at the end: what the decay has given back, or not yet, is the clock's */
    held = process_stats().accessible, resident = proc_status_kib("VmRSS:") * KIB;
  }
  hakmem_purge();
  EXPECT_LE(process_stats().accessible, held + MIB);
  if (!HAKMEM_TEST_SANITIZED) {
    EXPECT_LE(proc_status_kib("VmRSS:") * KIB, resident + 4 * MIB);
  }
  EXPECT_EQ(hakmem_heap_check(), 0u);
}

// What is accessible without what is merely free, of which there is more or less.
size_t purged() {
  hakmem_purge();
  return process_stats().accessible;
}

// Nor does it when other threads have used the heap, and still sleep with caches for it.
TEST(Destroy, LeavesNothingInOtherThreadsCaches) {
  constexpr unsigned THREADS = 3;
  std::atomic<hakmem_heap *> shared{nullptr};
  std::atomic<unsigned> round{0}, done{0};
  std::atomic<bool> end{false};
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < THREADS; t++) {
    threads.emplace_back([&, t] {
      for (unsigned seen = 0; !end; seen++) {
        while (round == seen && !end) std::this_thread::yield();
        if (end) return;
        std::vector<Block> blocks = mixed(shared, t, MIB / 2);
        for (size_t i = 0; i < blocks.size() / 2; i++) hakmem_free(blocks[i].p);
        done++;
      }
    });
  }
  size_t held = 0;
  for (unsigned i = 0; i < 200; i++) {
    done = 0;
    shared = new_heap();
    round++;
    while (done < THREADS) std::this_thread::yield();
    hakmem_heap_destroy(shared);
    if (i == 50) held = purged();
  }
  EXPECT_LE(purged(), held + 4 * MIB); /* what threads keep of the main heap differs by 2; caches of 150 heaps would be 37 */
  end = true;
  for (std::thread &t : threads) t.join();
  EXPECT_EQ(hakmem_heap_check(), 0u);
}

// The main heap gets what the heap had, and grows by nothing for as much.
class Reuse : public testing::TestWithParam<size_t> {};
INSTANTIATE_TEST_SUITE_P(Sizes, Reuse, testing::Values(100, 3000, 20000, 100000, 3 * MIB));

TEST_P(Reuse, OfADestroyedHeapsMemoryAtOnce) {
  if (HAK_HARDENED && GetParam() > HAK_SMALL_MAX) GTEST_SKIP() << "hardened, the main heap has mappings for these";
  hakmem_heap *heap = new_heap();
  for (size_t taken = 0; taken < 64 * MIB; taken += GetParam()) ASSERT_NE(block_in(heap, GetParam()).p, nullptr);
  hakmem_heap_destroy(heap);
  size_t held = process_stats().accessible;
  std::vector<void *> blocks;
  for (size_t taken = 0; taken < 48 * MIB; taken += GetParam()) blocks.push_back(hakmem_malloc(GetParam()));
  EXPECT_LE(process_stats().accessible, held + MIB);
  for (void *p : blocks) hakmem_free(p);
}

std::vector<void *> mapped_meanwhile;

void map_others() {
  for (int i = 0; i < 40 && mapped_meanwhile.size() < 1200; i++) mapped_meanwhile.push_back(hakmem_malloc(33 * MIB));
}

size_t mappings_of_heaps() {
  hak_huge_figures huge;
  hak_huge_read(&huge);
  return huge.owned_count;
}

// What a heap knows of its spans grows where the system has no mapping left, too.
TEST(Spans, OfOneHeapNeedNoMapping) {
  static hak_os_ops full;
  full = *hak_os;
  full.map = [](void *hint, size_t bytes, hak_os_access access, bool fixed) -> void * {
    return fixed ? hak_os_linux.map(hint, bytes, access, fixed) : nullptr;
  };
  constexpr size_t COUNT = 20000; /* of a span each: the table has three levels */
  Heap heap;
  std::vector<void *> blocks;
  ASSERT_NE(hakmem_heap_malloc(heap, 40 * KIB), nullptr);
  hak_os = &full;
  for (int round = 0; round < 3; round++) {
    while (blocks.size() < COUNT) {
      blocks.push_back(hakmem_heap_malloc(heap, 40 * KIB));
      if (blocks.back() == nullptr) break;
    }
    ASSERT_EQ(blocks.size(), COUNT);
    ASSERT_NE(blocks.back(), nullptr) << round;
    EXPECT_EQ(hakmem_heap_visit(heap, [](void *, size_t, void *) { return true; }, nullptr), COUNT + 1);
    for (size_t i = 0; i < COUNT / 2; i++) { /* each second one */
      hakmem_free(blocks[i]);
      blocks.erase(blocks.begin() + static_cast<ptrdiff_t>(i));
    }
  }
  hak_os = &hak_os_linux;
  EXPECT_EQ(hakmem_heap_visit(heap, [](void *, size_t, void *) { return true; }, nullptr), COUNT / 2 + 1);
  hakmem_heap_reset(heap);
  EXPECT_EQ(hakmem_heap_check(), 0u);
}

// A function of the program, in libc's place, that allocates huge blocks while a mapping is given back.
TEST(Destroy, GivesAllMappingsBackWhileOthersAreMade) {
  static hak_os_ops busy;
  hakmem_option_set("HAKMEM_DECAY_MS", 0); /* no mapping is kept */
  for (bool resets : {false, true}) {
    hakmem_heap *heap = new_heap();
    for (int i = 0; i < 100; i++) ASSERT_NE(hakmem_heap_malloc(heap, 33 * MIB), nullptr);
    size_t before = process_stats().huge_live;
    busy = *hak_os;
    busy.unmap = [](void *p, size_t bytes) { return map_others(), hak_os_linux.unmap(p, bytes); };
    busy.map = [](void *hint, size_t bytes, hak_os_access access, bool fixed) {
      if (fixed && access != HAK_OS_ACCESSIBLE) map_others();
      return hak_os_linux.map(hint, bytes, access, fixed);
    };
    hak_os = &busy;
    resets ? hakmem_heap_reset(heap) : hakmem_heap_destroy(heap);
    hak_os = &hak_os_linux;
    EXPECT_EQ(mapped_meanwhile.size(), 1200u);
    EXPECT_EQ(mappings_of_heaps(), 0u);
    for (void *p : mapped_meanwhile) hakmem_free(p);
    mapped_meanwhile.clear();
    EXPECT_LE(process_stats().huge_live, before);
    if (resets) hakmem_heap_destroy(heap);
  }
}

TEST(Destroy, FreesTheHeapsBelow) {
  size_t before = heaps();
  Heap above;
  hakmem_heap *heap = new_heap(0, above), *child = new_heap(0, heap), *grandchild = new_heap(0, child), *sibling = new_heap(0, above);
  for (hakmem_heap *h : {static_cast<hakmem_heap *>(above), heap, child, grandchild, sibling}) mixed(h);
  EXPECT_EQ(heaps(), before + 5);
  size_t total = above.stats().total;
  EXPECT_EQ(total, above.live() + stats_of(heap).total + stats_of(sibling).total);
  hakmem_heap_destroy(heap);
  EXPECT_EQ(heaps(), before + 2);
  EXPECT_EQ(above.stats().total, above.live() + stats_of(sibling).live);
  hakmem_heap_destroy(above.let_go());
  EXPECT_EQ(heaps(), before);
  EXPECT_EQ(hakmem_heap_check(), 0u);
}

TEST(Reset, OfNullDoesNothing) { hakmem_heap_reset(nullptr); }

void expect_empty(const hakmem_heap_stats &s, size_t limit) {
  EXPECT_EQ(s.live + s.peak + s.blocks + s.held + s.total + s.refused + s.requests, 0u);
  EXPECT_EQ(s.limit, limit);
}

TEST(Reset, FreesTheHeapsBlocksAloneAndTheHeapStays) {
  for (unsigned flags : {0u, HAKMEM_HEAP_UNCACHED}) {
    size_t before = heaps();
    Heap above(128 * MIB), other(size_t{0}, static_cast<hakmem_heap *>(above));
    hakmem_heap *heap = new_heap(64 * MIB, above, flags, "stays");
    uint64_t id = stats_of(heap).id;
    std::vector<Block> others = mixed(other, 2);
    for (unsigned round = 0; round < 20; round++) {
      if (!rotation_has(round)) continue;
      std::vector<Block> blocks = mixed(heap, round);
      block_in(heap, 40 * MIB);
      EXPECT_EQ(hakmem_heap_malloc(heap, 30 * MIB), nullptr);
      EXPECT_EQ(stats_of(heap).refused, 1u);
      void *one = blocks[0].p;
      hakmem_heap_reset(heap);
      expect_empty(stats_of(heap), 64 * MIB);
      EXPECT_EQ(hakmem_heap_of(one), nullptr);
      EXPECT_EQ(hakmem_heap_visit(heap, [](void *, size_t, void *) { return true; }, nullptr), 0u);
      EXPECT_EQ(above.stats().total, other.live());
      EXPECT_EQ(stats_of(heap).id, id);
      EXPECT_STREQ(hakmem_heap_name(heap), "stays");
      EXPECT_EQ(hakmem_heap_parent(heap), above);
      EXPECT_EQ(heaps(), before + 3);
      Block large = block_in(heap, 60 * MIB);
      EXPECT_TRUE(large.p != nullptr && large.holds());
      hakmem_free(large.p);
      EXPECT_EQ(stats_of(heap).live, 0u);
      EXPECT_EQ(hakmem_heap_check(), 0u);
    }
    for (const Block &b : others) {
      ASSERT_TRUE(b.holds()) << b.size;
      hakmem_free(b.p);
    }
    EXPECT_EQ(other.live(), 0u);
    hakmem_heap_destroy(heap);
    EXPECT_EQ(heaps(), before + 2);
  }
}

unsigned interruptions;

void fork_once() {
  if (interruptions++ > 0) return;
  alarm(30);
  pid_t child = fork();
  if (child == 0) _exit(0);
  int status = 1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  alarm(0);
}

// A handler that forks interrupts a reset, where it has no lock: as it gives a mapping back, or puts it into quarantine. The program has one
// thread, and the library has its own.
TEST(Reset, IsInterruptedByAFork) {
  static hak_os_ops interrupted;
  hakmem_option_set("HAKMEM_DECAY_MS", 0); /* no mapping is kept */
  hakmem_option_set("HAKMEM_BACKGROUND", 1);
  Heap heap;
  ASSERT_NE(block_in(heap, 40 * MIB).p, nullptr);
  interrupted = *hak_os;
  interrupted.unmap = [](void *p, size_t bytes) { return fork_once(), hak_os_linux.unmap(p, bytes); };
  interrupted.map = [](void *hint, size_t bytes, hak_os_access access, bool fixed) {
    if (fixed) fork_once();
    return hak_os_linux.map(hint, bytes, access, fixed);
  };
  hak_os = &interrupted;
  hakmem_heap_reset(heap);
  hak_os = &hak_os_linux;
  EXPECT_GE(interruptions, 1u);
  EXPECT_EQ(heap.live(), 0u);
  EXPECT_EQ(hakmem_heap_check(), 0u);
}

TEST(Reset, DestroysTheHeapsBelow) {
  size_t before = heaps();
  Heap above;
  hakmem_heap *heap = new_heap(0, above), *child = new_heap(0, heap), *grandchild = new_heap(0, child), *sibling = new_heap(0, above);
  for (hakmem_heap *h : {static_cast<hakmem_heap *>(above), heap, child, grandchild, sibling}) mixed(h);
  hakmem_heap_reset(heap);
  EXPECT_EQ(heaps(), before + 3);
  expect_empty(stats_of(heap), 0);
  EXPECT_EQ(above.stats().total, above.live() + stats_of(sibling).live);
  hakmem_heap_reset(above);
  EXPECT_EQ(heaps(), before + 1);
  expect_empty(above.stats(), 0);
  EXPECT_EQ(hakmem_heap_check(), 0u);
}

// Also while heaps are listed, each once.
TEST(Reset, OfEachHeapThatAListShows) {
  Heap a, b, c;
  for (hakmem_heap *h : {static_cast<hakmem_heap *>(a), static_cast<hakmem_heap *>(b), static_cast<hakmem_heap *>(c)}) mixed(h);
  std::vector<hakmem_heap *> shown;
  hakmem_heap_list([](hakmem_heap *heap, void *context) {
    auto *all = static_cast<std::vector<hakmem_heap *> *>(context);
    all->push_back(heap);
    hakmem_heap_reset(heap);
    return all->size() < 10;
  }, &shown);
  EXPECT_EQ(shown, (std::vector<hakmem_heap *>{a, b, c}));
  expect_empty(b.stats(), 0);
}

TEST(Reset, MakesTheCallbackDueAgain) {
  Heap heap(MIB);
  int calls = 0;
  hakmem_heap_set_callback(heap, 3, [](hakmem_heap *, size_t, void *context) { ++*static_cast<int *>(context); }, &calls);
  for (int round = 1; round <= 3; round++) {
    block_in(heap, 100 * KIB);
    block_in(heap, 100 * KIB);
    EXPECT_EQ(calls, round);
    hakmem_heap_reset(heap);
  }
}

TEST(Reset, LeavesNothingBehind) {
  size_t held = 0;
  Heap heap;
  for (unsigned round = 0; round < 1000; round++) {
    mixed(heap, round % 10, MIB);
    if (round % 100 == 7) block_in(heap, 33 * MIB);
    hakmem_heap_reset(heap);
    if (round == 200) held = process_stats().accessible;
  }
  EXPECT_LE(process_stats().accessible, held + MIB);
  EXPECT_EQ(hakmem_heap_check(), 0u);
}

// Threads that sleep with blocks of the heap in their caches, and with it as their default, have neither old blocks afterwards nor another default.
TEST(Reset, BesideOtherThreadsCaches) {
  constexpr unsigned THREADS = 3, ROUNDS = 100;
  Heap heap;
  std::atomic<unsigned> round{0}, done{0};
  std::vector<std::thread> threads;
  std::vector<Block> theirs[THREADS];
  for (unsigned t = 0; t < THREADS; t++) {
    threads.emplace_back([&, t] {
      hakmem_heap_set_default(heap);
      for (unsigned seen = 0; seen < ROUNDS; seen++) {
        while (round == seen) std::this_thread::yield();
        std::vector<Block> blocks;
        for (size_t i = 0; i < 1500; i++) {
          void *p = i % 2 == 0 ? hakmem_malloc(100 + i % 3 * 200) : hakmem_heap_malloc(heap, 100 + i % 3 * 200);
          if (hakmem_heap_of(p) != heap) abort();
          blocks.push_back(filled(p, 100 + i % 3 * 200, static_cast<unsigned char>(seen + t)));
        }
        for (size_t i = 0; i < blocks.size() / 2; i++) hakmem_free(blocks[i].p);
        theirs[t].assign(blocks.begin() + static_cast<long>(blocks.size() / 2), blocks.end());
        done++;
      }
    });
  }
  size_t held = 0;
  for (unsigned i = 0; i < ROUNDS; i++) {
    done = 0;
    round++;
    while (done < THREADS) std::this_thread::yield();
    for (const std::vector<Block> &blocks : theirs) {
      for (const Block &b : blocks) ASSERT_TRUE(b.holds()) << "round " << i;
    }
    ASSERT_EQ(stats_of(heap).blocks, THREADS * size_t{750});
    ASSERT_EQ(hakmem_heap_check(), 0u);
    hakmem_heap_reset(heap);
    expect_empty(stats_of(heap), 0);
    for (size_t n = 0; n < 1000; n++) hakmem_free(filled(hakmem_malloc(100 + n % 3 * 200), 100, 77).p); /* the memory is anybody's */
    if (i == 20) held = process_stats().accessible;
  }
  for (std::thread &t : threads) t.join();
  EXPECT_LE(process_stats().accessible, held + MIB);
  EXPECT_EQ(hakmem_heap_check(), 0u);
}

TEST(Delete, LeavesTheBlocksInTheMainHeap) {
  for (unsigned flags : {0u, HAKMEM_HEAP_UNCACHED}) {
    size_t before = heaps();
    Heap above(size_t{0}, nullptr, flags);
    hakmem_heap *heap = new_heap(0, above, flags), *child = new_heap(0, heap, flags);
    std::vector<Block> blocks = mixed(heap), more = mixed(child, 2);
    blocks.push_back(block_in(heap, 33 * MIB, 9));
    for (size_t alignment = 64; alignment <= MIB; alignment *= 4)
      blocks.push_back(filled(hakmem_heap_aligned_alloc(heap, alignment, 500), 500, 8));
    blocks.insert(blocks.end(), more.begin(), more.end());
    std::vector<size_t> usable;
    for (const Block &b : blocks) usable.push_back(b.usable());
    hakmem_heap_delete(heap);
    EXPECT_EQ(heaps(), before + 1);
    EXPECT_EQ(above.stats().total, 0u) << "they count no more";
    EXPECT_EQ(hakmem_heap_check(), 0u);
    Heap next;
    std::vector<Block> nexts = mixed(next, 4);
    for (size_t i = 0; i < blocks.size(); i++) {
      Block &b = blocks[i];
      ASSERT_TRUE(b.holds()) << b.size;
      ASSERT_EQ(b.usable(), usable[i]);
      ASSERT_EQ(hakmem_heap_of(b.p), nullptr);
      ASSERT_TRUE(hakmem_is_ours(b.p));
      if (i % 3 == 0) {
        size_t size = b.size * 2 + 1;
        auto *p = static_cast<unsigned char *>(hakmem_realloc(b.p, size));
        ASSERT_NE(p, nullptr);
        ASSERT_TRUE((Block{p, b.size, b.value}.holds()));
        ASSERT_EQ(hakmem_heap_of(p), nullptr);
        b.p = p;
      }
    }
    std::thread([&] {
      for (size_t i = 0; i < blocks.size(); i += 2) hakmem_free(blocks[i].p);
    }).join();
    for (size_t i = 1; i < blocks.size(); i += 2) hakmem_free(blocks[i].p);
    for (const Block &b : nexts) ASSERT_TRUE(b.holds());
    EXPECT_EQ(hakmem_heap_check(), 0u);
  }
}

// Its memory comes back when the blocks do.
TEST(Delete, LeavesNothingBehind) {
  size_t held = 0;
  for (unsigned round = 0; round < 500; round++) {
    hakmem_heap *heap = new_heap();
    std::vector<Block> blocks = mixed(heap, round % 10, MIB);
    hakmem_heap_delete(heap);
    for (const Block &b : blocks) hakmem_free(b.p);
    if (round == 100) held = process_stats().accessible;
  }
  EXPECT_LE(process_stats().accessible, held + MIB);
  EXPECT_EQ(hakmem_heap_check(), 0u);
}

// The last blocks of all were in the cache of a thread that nobody could reach.
TEST(Delete, EndsWithWhatACacheHad) {
  Heap other;
  Block in_pieces = block_in(other, 100, 1);
  size_t held = process_stats().heaps_held;
  hakmem_heap *heap = new_heap();
  std::promise<void> used, deleted;
  std::thread user([&] {
    std::vector<void *> blocks;
    for (int i = 0; i < 1000; i++) blocks.push_back(hakmem_heap_malloc(heap, 64));
    for (void *p : blocks) hakmem_free(p);
    used.set_value();
    deleted.get_future().wait();
  });
  used.get_future().wait();
  fake_os::fail_all(fake_os::BARRIER, ENOSYS);
  hakmem_heap_delete(heap);
  fake_os::allow_all();
  EXPECT_GT(process_stats().heaps_held, held);
  deleted.set_value();
  user.join();
  EXPECT_LE(process_stats().heaps_held, held);
  hakmem_free(in_pieces.p);
}

// --- threads ---

// Caches that a thread had for heaps go with it: no byte of them counts, and the next threads find the memory.
TEST(Threads, ThatEndLeaveNothing) {
  LongDecay none_in_between; // what it takes is bounded by `held` alone
  Heap heap(8 * MIB);
  std::vector<hakmem_heap *> more;
  for (int i = 0; i < 10; i++) more.push_back(new_heap(0, heap));
  size_t held = 0;
  for (unsigned i = 0; i < 300; i++) {
    std::thread([&] {
      for (hakmem_heap *h : more) {
        for (int round = 0; round < 3; round++) {
          std::vector<Block> blocks = mixed(h, i % 10, 100 * KIB);
          for (const Block &b : blocks) hakmem_free(b.p);
        }
      }
    }).join();
    if (i == 100) held = process_stats().accessible; // what is live grows up to the 70th
  }
  EXPECT_EQ(heap.stats().total, 0u);
  for (hakmem_heap *h : more) EXPECT_EQ(stats_of(h).blocks, 0u);
  EXPECT_LE(process_stats().accessible, held + MIB);
  EXPECT_EQ(hakmem_heap_check(), 0u);
}

// Destructors of thread-specific data use heaps, before the allocator's own and after it.
TEST(Threads, UseHeapsInTheirDestructors) {
  static Heap *heap;
  static pthread_key_t key;
  Heap own;
  heap = &own;
  pthread_key_create(&key, [](void *round) {
    hakmem_heap *before = hakmem_heap_set_default(*heap);
    void *p = hakmem_malloc(100), *q = hakmem_heap_malloc(*heap, 5000);
    if (hakmem_heap_get_default() == *heap ? hakmem_heap_of(p) != *heap : errno != ENOMEM) abort();
    if (hakmem_heap_of(q) != *heap) abort();
    hakmem_free(p);
    hakmem_free(q);
    hakmem_heap_set_default(before);
    if (reinterpret_cast<uintptr_t>(round) < 4) pthread_setspecific(key, static_cast<char *>(round) + 1);
  });
  for (int i = 0; i < 50; i++) {
    std::thread([] {
      pthread_setspecific(key, reinterpret_cast<void *>(uintptr_t{1}));
      for (int n = 0; n < 500; n++) hakmem_free(hakmem_heap_malloc(*heap, 64));
    }).join();
  }
  EXPECT_EQ(own.stats().blocks, 0u);
  EXPECT_EQ(hakmem_heap_check(), 0u);
}

// A heap is destroyed while a thread that has it as its default, and a cache for it, sleeps.
TEST(Threads, WhoseDefaultIsDestroyedAllocateInTheMainHeap) {
  for (bool deleted : {false, true}) {
    for (bool of_parent : {false, true}) {
      hakmem_heap *parent = new_heap(), *heap = of_parent ? new_heap(0, parent) : parent;
      std::atomic<int> step{0};
      void *kept = nullptr;
      std::thread sleeper([&] {
        hakmem_heap_set_default(heap);
        for (int i = 0; i < 2000; i++) hakmem_free(hakmem_malloc(static_cast<size_t>(i)));
        kept = hakmem_malloc(100);
        step = 1;
        while (step == 1) std::this_thread::yield();
        for (int i = 0; i < 2000; i++) {
          Block b = filled(hakmem_malloc(static_cast<size_t>(i)), static_cast<size_t>(i), 3);
          if (hakmem_heap_of(b.p) != nullptr) abort();
          hakmem_free(b.p);
        }
        if (hakmem_heap_get_default() != nullptr) abort();
        Heap next;
        if (hakmem_heap_set_default(next) != nullptr) abort();
        void *p = hakmem_malloc(100);
        if (hakmem_heap_of(p) != next) abort();
        hakmem_free(p);
        hakmem_heap_set_default(nullptr);
      });
      while (step == 0) std::this_thread::yield();
      EXPECT_EQ(hakmem_heap_of(kept), heap);
      deleted ? hakmem_heap_delete(parent) : hakmem_heap_destroy(parent);
      Heap other; /* may have the place of the one before */
      std::vector<Block> blocks = mixed(other);
      step = 2;
      sleeper.join();
      for (const Block &b : blocks) ASSERT_TRUE(b.holds());
      if (deleted) hakmem_free(kept);
    }
  }
  EXPECT_EQ(hakmem_heap_check(), 0u);
}

// --- forks ---

class Forks : public testing::Test {
 protected:
  static constexpr unsigned THREADS = 3, HEAPS = 6;
  void SetUp() override {
    for (hakmem_heap *&heap : heaps_) heap = new_heap(64 * MIB);
    for (unsigned t = 0; t < THREADS; t++) {
      threads_.emplace_back([this, t] {
        std::mt19937 random(t);
        std::vector<void *> blocks;
        while (!end_) {
          hakmem_heap *heap = heaps_[random() % HEAPS];
          if (random() % 50 == 0) hakmem_heap_set_default(random() % 2 == 0 ? heap : nullptr);
          size_t size = random() % 200 == 0 ? random() % 300000 : random() % 1000;
          blocks.push_back(random() % 4 == 0 ? hakmem_malloc(size) : hakmem_heap_malloc(heap, size));
          std::swap(blocks[random() % blocks.size()], blocks.back());
          while (blocks.size() > 100 || (!blocks.empty() && random() % 2 == 0)) {
            hakmem_free(blocks.back());
            blocks.pop_back();
          }
          if (random() % 100 == 0) {
            hakmem_heap *brief = new_heap(0, random() % 2 == 0 ? heap : nullptr);
            bool deletes = random() % 2 == 0;
            if (random() % 2 == 0) {
              block_in(brief, 3000);
              hakmem_heap_reset(brief);
            }
            std::vector<Block> of_brief;
            for (int i = 0; i < 50; i++) of_brief.push_back(block_in(brief, random() % 3000));
            deletes ? hakmem_heap_delete(brief) : hakmem_heap_destroy(brief);
            for (const Block &b : of_brief) deletes ? hakmem_free(b.p) : (void)0;
          }
          if (random() % 100 == 0) stats_of(heap);
        }
        for (void *p : blocks) hakmem_free(p);
      });
    }
  }
  void TearDown() override {
    end_ = true;
    for (std::thread &t : threads_) t.join();
    for (hakmem_heap *heap : heaps_) hakmem_heap_destroy(heap);
    EXPECT_EQ(hakmem_heap_check(), 0u);
  }
  // What is wrong in the child, 0: nothing.
  int live_as_child(const std::vector<Block> &inherited) {
    alarm(60);
    if (hakmem_heap_check() != 0) return 10;
    for (const Block &b : inherited) {
      if (!b.holds()) return 11;
      hakmem_free(b.p);
    }
    for (hakmem_heap *heap : heaps_) {
      std::vector<Block> blocks = mixed(heap, 3, MIB / 2);
      std::thread([&] {
        std::vector<Block> more = mixed(heap, 4, MIB / 4);
        for (const Block &b : blocks) hakmem_free(b.p);
        blocks = more;
      }).join();
      for (const Block &b : blocks) {
        if (!b.holds()) return 12;
        hakmem_free(b.p);
      }
      /* What threads that are not here had cached is lost, as in the main heap. */
      size_t visited = hakmem_heap_visit(heap, [](void *, size_t, void *) { return true; }, nullptr);
      if (visited < stats_of(heap).blocks) return 13;
    }
    size_t before = hakmem_heap_list(nullptr, nullptr);
    Heap own(MIB);
    mixed(own, 5, MIB / 2);
    for (unsigned i = 0; i < HEAPS; i++) i % 2 == 0 ? hakmem_heap_destroy(heaps_[i]) : hakmem_heap_delete(heaps_[i]);
    if (hakmem_heap_list(nullptr, nullptr) > before + 1 - HEAPS) return 14;
    return hakmem_heap_check() != 0 ? 15 : 0;
  }
  hakmem_heap *heaps_[HEAPS];
  std::atomic<bool> end_{false};
  std::vector<std::thread> threads_;
};

TEST_F(Forks, WhileThreadsWorkInHeaps) {
  for (int i = 0; i < 60; i++) {
    std::vector<Block> blocks = mixed(heaps_[i % HEAPS], static_cast<unsigned>(i), 200 * KIB);
    pid_t child = fork();
    if (child == 0) _exit(live_as_child(blocks));
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status) << " at fork " << i;
    ASSERT_EQ(WEXITSTATUS(status), 0) << "fork " << i;
    for (const Block &b : blocks) {
      ASSERT_TRUE(b.holds());
      hakmem_free(b.p);
    }
  }
}

// --- walks that are left, and heaps that end meanwhile ---

std::atomic<int> seen_by_visitor;

// Each way out of a visitor that is no return: afterwards any thread forks, destroys, deletes and lists.
void leave_visitor(void (*leave)(), bool lists) {
  hakmem_heap *above = new_heap(), *heap = new_heap(0, above, 0, "left");
  for (size_t size : {size_t{100}, size_t{20000}, 40 * MIB}) block_in(heap, size);
  static void (*way)();
  way = leave;
  seen_by_visitor = 0;
  auto visit_heap = [](hakmem_heap *h, void *) { return seen_by_visitor++, strcmp(hakmem_heap_name(h), "left") == 0 ? way() : void(), true; };
  auto visit_block = [](void *, size_t, void *) { return seen_by_visitor++, way(), true; };
  std::thread([&] { lists ? hakmem_heap_list(visit_heap, nullptr) : hakmem_heap_visit(heap, visit_block, nullptr); }).join();
  EXPECT_GE(seen_by_visitor, 1);
  alarm(30);
  pid_t child = fork();
  if (child == 0) {
    alarm(30);
    hakmem_heap_destroy(heap);
    _exit(hakmem_heap_list(nullptr, nullptr) == 1 && hakmem_heap_check() == 0 ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  hakmem_heap_destroy(above);
  EXPECT_EQ(heaps(), 0u);
  EXPECT_EQ(hakmem_heap_list([](hakmem_heap *, void *) { return true; }, nullptr), 0u);
  EXPECT_EQ(hakmem_heap_check(), 0u);
  alarm(0);
}

jmp_buf back;

TEST(Visitors, AreCancelled) {
  for (bool lists : {false, true}) {
    leave_visitor(
        [] {
          pthread_cancel(pthread_self());
          pthread_testcancel();
        },
        lists);
  }
}

TEST(Visitors, EndTheirThread) {
  for (bool lists : {false, true}) leave_visitor([] { pthread_exit(nullptr); }, lists);
}

TEST(Visitors, Jump) {
  auto jump = [](bool lists) {
    hakmem_heap *above = new_heap(), *heap = new_heap(0, above);
    block_in(heap, 100);
    if (setjmp(back) == 0) {
      auto visit_heap = [](hakmem_heap *, void *) { return longjmp(back, 1), true; };
      auto visit_block = [](void *, size_t, void *) { return longjmp(back, 1), true; };
      lists ? hakmem_heap_list(visit_heap, nullptr) : hakmem_heap_visit(heap, visit_block, nullptr);
      ADD_FAILURE();
    }
    std::thread(hakmem_heap_destroy, heap).join();
    hakmem_heap_delete(above);
    EXPECT_EQ(heaps(), 0u);
  };
  jump(false);
  jump(true);
}

TEST(Visitors, Throw) {
  hakmem_heap *heap = new_heap();
  block_in(heap, 100);
  for (bool lists : {false, true}) {
    auto visit_heap = [](hakmem_heap *, void *) -> bool { throw 1; };
    auto visit_block = [](void *, size_t, void *) -> bool { throw 1; };
    EXPECT_THROW(lists ? hakmem_heap_list(visit_heap, nullptr) : hakmem_heap_visit(heap, visit_block, nullptr), int);
  }
  std::thread(hakmem_heap_destroy, heap).join();
  EXPECT_EQ(heaps(), 0u);
}

// Nobody waits for a visitor: what it has stays readable, and the walk goes on.
TEST(Visitors, HaveHeapsThatOthersEnd) {
  static hakmem_heap *top;
  for (bool deletes : {false, true}) {
    top = new_heap(0, nullptr, 0, "top");
    hakmem_heap *middle = new_heap(0, top, 0, "middle"), *low = new_heap(0, middle, 0, "low");
    new_heap(0, nullptr, 0, "after");
    block_in(low, 100);
    std::vector<std::string> seen;
    struct Walk {
      std::vector<std::string> *seen;
      bool deletes;
    } walk = {&seen, deletes};
    auto visit = [](hakmem_heap *h, void *context) {
      const Walk *w = static_cast<Walk *>(context);
      w->seen->push_back(hakmem_heap_name(h));
      if (w->seen->back() != "low") return true;
      hakmem_heap *parent = hakmem_heap_parent(h), *above = hakmem_heap_parent(parent);
      std::thread(w->deletes ? hakmem_heap_delete : hakmem_heap_destroy, top).join();
      for (int i = 0; i < 100; i++) new_heap(0, nullptr, 0, "new");
      EXPECT_STREQ(hakmem_heap_name(h), "low");
      EXPECT_STREQ(hakmem_heap_name(parent), "middle");
      EXPECT_STREQ(hakmem_heap_name(above), "top");
      EXPECT_EQ(hakmem_heap_parent(h), nullptr);
      if (!w->deletes) EXPECT_EQ(stats_of(h).held, 0u);
      EXPECT_EQ(stats_of(parent).live, 0u);
      return true;
    };
    EXPECT_EQ(hakmem_heap_list(visit, &walk), 104u);
    ASSERT_GT(seen.size(), 3u);
    EXPECT_EQ(seen[3], "after");
    EXPECT_EQ(heaps(), 101u);
    hakmem_heap_list([](hakmem_heap *h, void *) { return hakmem_heap_destroy(h), true; }, nullptr);
    EXPECT_EQ(heaps(), 0u);
  }
  EXPECT_EQ(hakmem_heap_check(), 0u);
}

// The clock may trim the heap between two blocks, on any thread, the visitor's too.
TEST(Visitors, SeeEachBlockWhereAHeapIsTrimmedMeanwhile) {
  Heap heap;
  std::vector<void *> blocks;
  for (int i = 0; i < 6; i++) blocks.push_back(hakmem_heap_malloc(heap, 300 * KIB));
  for (int i = 0; i < 3; i++) hakmem_free(blocks[i]);
  std::vector<void *> seen;
  auto visit = [](void *p, size_t, void *context) {
    static_cast<std::vector<void *> *>(context)->push_back(p);
    hak_deferred d = {};
    hak_heap_trim_some(&d);
    return true;
  };
  EXPECT_EQ(hakmem_heap_visit(heap, visit, &seen), 3u);
  EXPECT_EQ(seen, std::vector<void *>(blocks.begin() + 3, blocks.end()));
  for (int i = 3; i < 6; i++) hakmem_free(blocks[i]);
}

// --- a fork beside a thread that the system, or the program in its place, keeps waiting ---

std::atomic<int> waits; /* 1: the next such call is to wait; 2: it does; 3: it goes on */

void wait_here() {
  int wanted = 1;
  if (!waits.compare_exchange_strong(wanted, 2)) return;
  while (waits != 3) std::this_thread::yield();
}

hak_os_ops waiting;

void have_calls_wait() {
  waiting = *hak_os;
  waiting.map = [](void *hint, size_t bytes, hak_os_access access, bool fixed) {
    if (bytes >= 40 * MIB) wait_here();
    return hak_os_linux.map(hint, bytes, access, fixed);
  };
  waiting.unmap = [](void *p, size_t bytes) { return wait_here(), hak_os_linux.unmap(p, bytes); };
  waiting.remap = [](void *p, size_t old_bytes, size_t bytes, bool may_move) { return wait_here(), hak_os_linux.remap(p, old_bytes, bytes, may_move); };
  hak_os = &waiting;
}

int child_beside(void (*work)(hakmem_heap *heap, void *p), int (*look)(hakmem_heap *heap)) {
  hakmem_option_set("HAKMEM_DECAY_MS", 0);
  Heap above(100 * MIB), heap(90 * MIB, static_cast<hakmem_heap *>(above));
  void *p = hakmem_heap_malloc(heap, 40 * MIB);
  EXPECT_NE(p, nullptr);
  have_calls_wait();
  waits = 1;
  std::thread thread(work, static_cast<hakmem_heap *>(heap), p);
  while (waits != 2) std::this_thread::yield();
  alarm(30); /* for a fork that waits for the thread */
  pid_t child = fork();
  if (child == 0) {
    hak_os = &hak_os_linux;
    alarm(30);
    int wrong = look(heap);
    _exit(wrong != 0 ? wrong : hakmem_heap_check() != 0 ? 9 : 0);
  }
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  alarm(0);
  waits = 3;
  thread.join();
  hak_os = &hak_os_linux;
  waits = 0;
  EXPECT_EQ(heap.live(), 0u);
  EXPECT_EQ(hakmem_heap_check(), 0u);
  EXPECT_TRUE(WIFEXITED(status));
  return WEXITSTATUS(status);
}

int look_for_nothing(hakmem_heap *heap) {
  hakmem_heap_stats stats = stats_of(heap);
  if (stats.live != 0 || stats.blocks != 0 || stats_of(hakmem_heap_parent(heap)).total != 0) return 1;
  if (hakmem_heap_visit(heap, [](void *, size_t, void *) { return true; }, nullptr) != 0) return 2;
  return hakmem_heap_malloc(heap, 80 * MIB) == nullptr ? 3 : 0;
}

int look_for_one(hakmem_heap *heap) {
  hakmem_heap_stats stats = stats_of(heap);
  if (stats.live != 40 * MIB || stats.blocks != 1 || stats_of(hakmem_heap_parent(heap)).total != stats.live) return 1;
  if (hakmem_heap_visit(heap, [](void *, size_t, void *) { return true; }, nullptr) != 1) return 2;
  return hakmem_heap_malloc(heap, 45 * MIB) == nullptr ? 3 : 0;
}

TEST(ForkBeside, ABlockThatIsMapped) {
  auto work = [](hakmem_heap *heap, void *p) {
    hakmem_free(hakmem_heap_malloc(heap, 44 * MIB));
    hakmem_free(p);
  };
  EXPECT_EQ(child_beside(work, look_for_one), 0);
}

TEST(ForkBeside, ABlockThatIsFreed) {
  if (HAK_HARDENED) GTEST_SKIP() << "it is put into quarantine";
  EXPECT_EQ(child_beside([](hakmem_heap *, void *p) { hakmem_free(p); }, look_for_nothing), 0);
}

// The program's munmap may take a lock that its fork handler has.
TEST(ForkBeside, AHeapThatIsResetOrDestroyed) {
  auto reset = [](hakmem_heap *heap, void *) { hakmem_heap_reset(heap); };
  EXPECT_EQ(child_beside(reset, look_for_nothing), 0);
  auto destroy = [](hakmem_heap *heap, void *) {
    hakmem_heap *child = new_heap(0, heap);
    block_in(child, 40 * MIB);
    hakmem_free(block_in(heap, 100).p);
    hakmem_heap_destroy(child);
    hakmem_heap_reset(heap);
  };
  EXPECT_EQ(child_beside(destroy, [](hakmem_heap *) { return 0; }), 0);
}

size_t owned() {
  hak_huge_figures figures;
  hak_huge_read(&figures);
  return figures.owned_count;
}

// The thread that was to give its mappings back is not in the child.
TEST(ForkBeside, AHeapWhoseMappingsGoAllTheSame) {
  auto destroy = [](hakmem_heap *heap, void *p) {
    waits = 0;
    hakmem_heap *child = new_heap(0, hakmem_heap_parent(heap));
    hakmem_heap_set_limit(hakmem_heap_parent(heap), 0);
    for (int i = 0; i < 100; i++) (void)!hakmem_heap_malloc(child, 40 * MIB);
    waits = 1; /* when the first of them goes */
    hakmem_heap_destroy(child);
    hakmem_free(p);
  };
  auto by_purge = [](hakmem_heap *) {
    if (owned() < 90) return 1;
    hakmem_purge();
    return owned() > 1 ? 2 : 0;
  };
  auto by_calls = [](hakmem_heap *) {
    while (owned() > 1) hakmem_free(hakmem_malloc(MIB)); /* else the alarm */
    return 0;
  };
  EXPECT_EQ(child_beside(destroy, by_purge), 0);
  EXPECT_EQ(child_beside(destroy, by_calls), 0);
}

TEST(ForkBeside, ABlockThatGrows) {
  if (HAK_HARDENED) GTEST_SKIP() << "it grows between its guard pages, or is copied";
  auto work = [](hakmem_heap *heap, void *p) {
    p = hakmem_heap_realloc(heap, p, 60 * MIB);
    hakmem_free(p);
  };
  EXPECT_EQ(child_beside(work, look_for_nothing), 0);
}

TEST(ForkBeside, ABlockThatShrinks) {
  if (HAK_HARDENED) GTEST_SKIP() << "it shrinks between its guard pages";
  auto work = [](hakmem_heap *heap, void *p) {
    p = hakmem_heap_realloc(heap, p, 36 * MIB);
    hakmem_free(p);
  };
  EXPECT_EQ(child_beside(work, look_for_nothing), 0);
}

TEST(Fork, TheDefaultStays) {
  Heap heap;
  hakmem_heap_set_default(heap);
  void *p = hakmem_malloc(100);
  pid_t child = fork();
  if (child == 0) {
    void *q = hakmem_malloc(100);
    bool right = hakmem_heap_get_default() == heap && hakmem_heap_of(q) == heap && hakmem_heap_of(p) == heap;
    hakmem_free(p);
    hakmem_free(q);
    _exit(right && heap.stats().blocks == 0 ? 0 : 1);
  }
  hakmem_heap_set_default(nullptr);
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  hakmem_free(p);
}

// In a child that has just begun: pages that the fork handlers have copied, and what the kernel itself has.
long faults_of_a_child() {
  int ends[2];
  if (pipe(ends) != 0) abort();
  pid_t child = fork();
  if (child == 0) {
    rusage use = {};
    getrusage(RUSAGE_SELF, &use);
    _exit(write(ends[1], &use.ru_minflt, sizeof use.ru_minflt) == sizeof use.ru_minflt ? 0 : 1);
  }
  long faults = -1;
  EXPECT_EQ(read(ends[0], &faults, sizeof faults), static_cast<ssize_t>(sizeof faults));
  waitpid(child, nullptr, 0);
  close(ends[0]);
  close(ends[1]);
  return faults;
}

TEST(Fork, TouchesNoHeap) {
  std::atomic<bool> end{false};
  std::thread sleeper([&] { /* a fork of one thread takes no lock */
    while (!end) usleep(1000);
  });
  hakmem_heap *parent = new_heap();
  block_in(parent, 1000);
  long few = faults_of_a_child();
  for (int i = 0; i < 3000; i++)
    for (int n = 0; n < 30; n++) block_in(i % 2 == 0 ? parent : new_heap(0, parent), 300);
  EXPECT_LE(faults_of_a_child(), few + 20);
  end = true;
  sleeper.join();
  hakmem_heap_destroy(parent);
}

// --- misuse: one line that names the address, and SIGABRT ---

#if HAKMEM_CHECKS_TESTED

void expect_report(const ProgramResult &result, const std::string &found) {
  EXPECT_EQ(result.signal, SIGABRT) << "exit code " << result.exit_code << "\n" << result.err;
  size_t at = result.err.find("victim ");
  ASSERT_NE(at, std::string::npos) << result.err;
  std::string victim = result.err.substr(at + 7, result.err.find('\n', at) - at - 7);
  EXPECT_THAT(result.err, testing::ContainsRegex("hakmem: [^\n]*" + found + "[^\n]*" + victim));
}

size_t block_size;

void print_victim(const void *p) { fprintf(stderr, "victim %p\n", p); }

class Misuse : public testing::TestWithParam<size_t> {
 protected:
  void SetUp() override { block_size = GetParam(); }
};
INSTANTIATE_TEST_SUITE_P(Sizes, Misuse, testing::Values(24, 1000, 5000, 20000, 100000, 3 * MIB));

TEST_P(Misuse, FreedTwiceInARow) {
  expect_report(run_forked([] {
    hakmem_heap *heap = new_heap();
    void *p = hakmem_heap_malloc(heap, block_size);
    print_victim(p);
    hakmem_free(p);
    hakmem_free(p);
    return 0;
  }), "free");
}

// calls: before it, so that the thread has a cache for the heap.
int free_twice_around_another(int calls) {
  hakmem_heap *heap = new_heap();
  for (int i = 0; i < calls; i++) hakmem_free(hakmem_heap_malloc(heap, block_size));
  void *p = hakmem_heap_malloc(heap, block_size), *q = hakmem_heap_malloc(heap, block_size);
  void *holds = hakmem_heap_malloc(heap, block_size);
  print_victim(p);
  hakmem_free(p);
  hakmem_free(q);
  hakmem_free(p);
  hakmem_malloc_trim(0);
  memset(holds, 1, 1);
  return 0;
}

TEST_P(Misuse, FreedTwiceAroundAnother) {
  expect_report(run_forked([] { return free_twice_around_another(0); }), "free");
}

TEST_P(Misuse, FreedTwiceAroundAnotherInAHotHeap) {
  expect_report(run_forked([] { return free_twice_around_another(5000); }), "free");
}

TEST_P(Misuse, FreedTwiceByTwoThreads) {
  expect_report(run_forked([] {
    hakmem_heap *heap = new_heap();
    void *p = hakmem_heap_malloc(heap, block_size), *holds = hakmem_heap_malloc(heap, block_size);
    print_victim(p);
    hakmem_free(p);
    std::thread([p] {
      hakmem_free(p);
      hakmem_malloc_trim(0);
    }).join();
    hakmem_malloc_trim(0);
    memset(holds, 1, 1);
    return 0;
  }), "free");
}

TEST_P(Misuse, FreedInside) {
  expect_report(run_forked([] {
    hakmem_heap *heap = new_heap();
    auto *p = static_cast<char *>(hakmem_heap_malloc(heap, block_size)) + 16;
    void *holds = hakmem_heap_malloc(heap, block_size);
    print_victim(p);
    hakmem_free(p);
    hakmem_malloc_trim(0);
    memset(holds, 1, 1);
    return 0;
  }), "free");
}

TEST(Misused, HeapDestroyedTwice) {
  for (bool used : {false, true}) {
    static bool in_use;
    in_use = used;
    expect_report(run_forked([] {
      hakmem_heap *heap = new_heap();
      if (in_use) mixed(heap);
      print_victim(heap);
      hakmem_heap_destroy(heap);
      hakmem_heap_destroy(heap);
      return 0;
    }), "heap");
  }
}

TEST(Misused, HeapDestroyedAfterItWasDeleted) {
  expect_report(run_forked([] {
    hakmem_heap *heap = new_heap();
    print_victim(heap);
    hakmem_heap_delete(heap);
    hakmem_heap_destroy(heap);
    return 0;
  }), "heap");
}

TEST(Misused, HeapDeletedTwice) {
  expect_report(run_forked([] {
    hakmem_heap *heap = new_heap();
    print_victim(heap);
    hakmem_heap_delete(heap);
    hakmem_heap_delete(heap);
    return 0;
  }), "heap");
}

TEST(Misused, HeapResetAfterItsEnd) {
  for (bool deletes : {false, true}) {
    static bool deleted;
    deleted = deletes;
    expect_report(run_forked([] {
      hakmem_heap *heap = new_heap();
      print_victim(heap);
      deleted ? hakmem_heap_delete(heap) : hakmem_heap_destroy(heap);
      hakmem_heap_reset(heap);
      return 0;
    }), "heap");
  }
}

TEST_P(Misuse, FreedAfterAReset) {
  expect_report(run_forked([] {
    hakmem_heap *heap = new_heap();
    void *p = hakmem_heap_malloc(heap, block_size);
    print_victim(p);
    hakmem_heap_reset(heap);
    hakmem_free(p);
    return 0;
  }), "free");
}

TEST(Misused, ChildDestroyedAfterItsParent) {
  expect_report(run_forked([] {
    hakmem_heap *parent = new_heap(), *child = new_heap(0, parent);
    print_victim(child);
    hakmem_heap_destroy(parent);
    hakmem_heap_destroy(child);
    return 0;
  }), "heap");
}

TEST(Misused, WhatIsNoHeapIsDestroyed) {
  for (int what = 0; what < 4; what++) {
    SCOPED_TRACE(what);
    static int kind;
    kind = what;
    expect_report(run_forked([] {
      static long fixed[256];
      long local[256] = {};
      hakmem_heap *heap = new_heap();
      void *const pointers[] = {fixed, local, hakmem_malloc(4000), reinterpret_cast<char *>(heap) + 16};
      print_victim(pointers[kind]);
      hakmem_heap_destroy(static_cast<hakmem_heap *>(pointers[kind]));
      return 0;
    }), "heap");
  }
}

#endif

// --- what stays with heaps that are empty ---

size_t work(hakmem_heap *heap) {
  std::vector<void *> blocks;
  for (size_t size : {64, 200, 1000, 3000, 12000, 24000, 100000}) {
    for (size_t taken = 0; taken < 200 * KIB; taken += size) blocks.push_back(hakmem_heap_malloc(heap, size));
  }
  size_t held = stats_of(heap).held;
  for (void *p : blocks) hakmem_free(p);
  return held;
}

TEST(Empty, HeapsKeepNothingAfterAPurge) {
  std::vector<std::unique_ptr<Heap>> heaps;
  for (int i = 0; i < 20; i++) {
    heaps.push_back(std::make_unique<Heap>());
    for (int round = 0; round < 3; round++) EXPECT_GT(work(*heaps.back()), MIB);
  }
  hakmem_purge();
  for (auto &heap : heaps) {
    EXPECT_EQ(heap->stats().held, 0u);
    work(*heap);
  }
  EXPECT_EQ(hakmem_heap_check(), 0u);
}

// By the clock: what was not used since its last turn.
TEST(Empty, CachesOfSleepingThreadsKeepNothing) {
  Heap heap;
  std::atomic<bool> asleep{false}, end{false};
  std::thread thread([&] {
    for (int round = 0; round < 50; round++) work(heap);
    asleep = true;
    while (!end) std::this_thread::yield();
    work(heap);
  });
  while (!asleep) std::this_thread::yield();
  size_t before = heap.stats().held;
  hak_deferred d = {};
  for (int turn = 0; turn < 2; turn++) hak_heap_decay_others(&d);
  hak_heap_trim_some(&d);
  hak_slow_exit(&d);
  EXPECT_GT(before, 256 * KIB);
  EXPECT_EQ(heap.stats().held, 0u);
  end = true;
  thread.join();
  EXPECT_EQ(heap.live(), 0u);
}

// Where there is no other heap, too. A slab that has a live block stays.
TEST(Empty, DeletedHeapsKeepNothing) {
  hakmem_heap *heap = new_heap();
  void *last = hakmem_heap_malloc(heap, 16);
  for (int round = 0; round < 3; round++) work(heap);
  hakmem_heap_delete(heap);
  ASSERT_EQ(hakmem_heap_list(nullptr, nullptr), 0u);
  size_t held = process_stats().heaps_held;
  static uint64_t ms;
  ms = hak_os->now_ms();
  hak_os_ops fast = *hak_os;
  fast.now_ms = [] { return ms; };
  hak_os = &fast;
  for (int turn = 0; turn < 20; turn++) {
    ms += 10000;
    hak_deferred d = {};
    hak_slow_exit(&d);
  }
  hak_os = &hak_os_linux;
  EXPECT_GT(held, 256 * KIB);
  EXPECT_LE(process_stats().heaps_held, 64 * KIB) << "a span of pieces, for the last block";
  hakmem_free(last);
}

// A kept mapping serves the next block, and counts as what was asked for.
TEST(Empty, MappingsServeLaterBlocks) {
  Heap heap(60 * MIB);
  void *p = hakmem_heap_malloc(heap, 44 * MIB);
  ASSERT_NE(p, nullptr);
  memset(p, 1, 44 * MIB);
  uint64_t before = process_stats().mmap;
  for (size_t i = 0; i < 10; i++) {
    hakmem_free(p);
    p = hakmem_heap_calloc(heap, 1, (44 - i / 2) * MIB);
    ASSERT_NE(p, nullptr);
    EXPECT_EQ(heap.live(), (44 - i / 2) * MIB);
    EXPECT_EQ(*static_cast<char *>(p), 0);
    EXPECT_EQ(static_cast<char *>(p)[40 * MIB - 1], 0);
    *static_cast<char *>(p) = 1;
  }
  if (HAK_HARD(GUARDS)) return;
  EXPECT_EQ(process_stats().mmap, before);
}

}  // namespace
