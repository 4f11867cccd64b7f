// Memory that the program has freed comes back, with nobody asking for it and when asked.
#include <gtest/gtest.h>
#include <malloc.h>
#include <pthread.h>

#include <cstdlib>
#include <memory>
#include <thread>

#include "loads.h"

namespace {

TEST(Spike, GoesBackWhileTheProgramDoesLittle) {
  size_t before = resident();
  {
    Blocks blocks(256 * MIB, 64, 200000);
    ASSERT_GT(resident(), before + 256 * MIB);
    blocks.free_to(0);
  }
  EXPECT_TRUE(comes_to([=] { return resident() <= before + 256 * MIB / 20; }, light_work)) << (resident() - before) / MIB << " MiB";
  EXPECT_EQ(heap_faults(), 0u);
}

// Nobody allocates or frees any more after the last free.
TEST(Spike, FreedBlocksGoBackAtOnce) {
  size_t before = resident();
  Blocks blocks(256 * MIB, 64, 200000);
  blocks.free_to(0);
  /* What may stay dirty, what depots and caches of extents may hold, and the slabs that it pins. */
  EXPECT_LE(resident(), before + 64 * MIB + 16 * MIB + 8 * MIB);
}

// Each of the last blocks lies in another slab: those that a cache keeps would pin them all.
class Nodes : public testing::TestWithParam<size_t> {};
TEST_P(Nodes, FreedInAnyOrderGoBackAtOnce) {
  size_t before = resident();
  {
    Blocks blocks(256 * MIB, GetParam() - 16, GetParam());
    blocks.free_to(blocks.count() - 1000);
    rest(24); /* so long no span is taken */
    blocks.free_to(0);
  }
  EXPECT_LE(resident(), before + 16 * MIB + 20 * MIB) << (resident() - before) / MIB << " MiB";
}
INSTANTIATE_TEST_SUITE_P(Bytes, Nodes, testing::Values(32, 700, 3000));

// The first thread waits for them all the time, and comes by no more.
TEST(Spike, WhatThreadsLeaveGoesBackWhenTheyEnd) {
  std::thread([] { free(malloc(1)); }).join();
  size_t before = resident();
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; i++) {
    threads.emplace_back([i] {
      Blocks blocks(5 * MIB, 16, 9000);
      rest(1100 + 20 * i); /* longer than a decay time */
      blocks.free_to(0);
    });
  }
  for (std::thread &t : threads) t.join();
  EXPECT_LE(resident(), before + 3 * MIB) << (resident() - before) / MIB << " MiB";
}

TEST(Spike, SmallBlocksFreedByOthersWhileTheirOwnerSleeps) {
  size_t before = resident();
  Blocks *blocks = nullptr;
  bool made = false, end = false;
  pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
  auto set = [&](bool &what) {
    pthread_mutex_lock(&lock);
    what = true;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
  };
  auto wait = [&](bool &what) {
    pthread_mutex_lock(&lock);
    while (!what) pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
  };
  std::thread owner([&] {
    blocks = new Blocks(200 * MIB, 64, 4096);
    set(made);
    wait(end);
  });
  wait(made);
  blocks->free_to(0);
  EXPECT_TRUE(comes_to([=] { return resident() <= before + 16 * MIB; }, light_work)) << (resident() - before) / MIB << " MiB";
  set(end);
  owner.join();
  delete blocks;
}

// Work that stays in the thread's cache: 35 KB each time.
void cached_work() {
  void *some[40];
  for (size_t i = 0; i < 40; i++) some[i] = malloc(100 + 40 * i);
  for (void *p : some) free(p);
}

// A few of nearly every slab's blocks are in caches when all are free: they may not keep the slabs.
TEST(Spike, NodesFreedInAnyOrderGoBackWhileCachesServeAllWork) {
  size_t before = resident();
  Blocks(230 * MIB, 20, 260).free_to(0);
  EXPECT_TRUE(comes_to([=] { return resident() <= before + 20 * MIB; }, cached_work)) << (resident() - before) / MIB << " MiB";
}

// The countdowns of a thread, at whose ends it comes by, are as short as its work is, whatever it did before. The last one was drawn
// by requests for which 1,024 like them would be 200 MiB.
TEST(Countdowns, AreShortAfterAnyFree) {
  for (size_t size : {size_t{90000}, size_t{200000}}) {
    for (int i = 0; i < 4000; i++) free(malloc(size));
    size_t before = resident();
    Blocks(48 * MIB, 300000, 2000000).free_to(0);
    cached_work();
    size_t done = 0;
    for (; resident() > before + 8 * MIB && done < 1000; done++) {
      for (int i = 0; i < 10; i++) cached_work();
      rest(20);
    }
    EXPECT_LT(done, 150u) << size << ": three seconds, 52 MB of requests";
  }
}

// What a step leaves is not left to the next MiB of requests: a program that does little would be long at it.
TEST(Countdowns, AreShorterWhileStepsAreDue) {
  Blocks live(250 * MIB, 300000, 2000000);
  size_t before = resident(), calls = 0;
  for (int i = 0; i < 100; i++) cached_work();
  Blocks(240 * MIB, 300000, 2000000).free_to(0);
  for (; resident() > before + 16 * MIB && calls < 2000; calls++) {
    cached_work();
    rest(8);
  }
  EXPECT_LT(calls, 260u) << "150 calls are a decay time; 15 steps with 1 MiB between them would be 30 calls each";
}

// An index is built anew beside the old one, of arrays that grow and many nodes; then the old one goes but for one node in fifty, to which
// something still refers.
class Index {
 public:
  Index(size_t node_min, size_t node_max) : nodes_(NODE_BYTES / ((node_min + node_max) / 2)) {
    std::vector<size_t> lengths(ARRAYS);
    for (size_t &length : lengths) bytes_ += length = MIB + random_() % (5 * MIB);
    arrays_.resize(ARRAYS, {nullptr, 0});
    for (size_t left = ARRAYS, made = 0; left > 0 || made < nodes_.size();) {
      size_t i = random_() % ARRAYS;
      Block &a = arrays_[i];
      if (a.size < lengths[i]) {
        size_t size = std::min(lengths[i], std::max(4 * KIB, a.size + a.size / 2));
        a.p = static_cast<unsigned char *>(realloc(a.p, size));
        memset(a.p + a.size, 1, size - a.size);
        a.size = size;
        left -= size == lengths[i];
      }
      for (size_t end = std::min(made + nodes_.size() / 600 + 1, nodes_.size()); made < end; made++) {
        size_t size = node_min + random_() % (node_max - node_min);
        nodes_[made] = malloc(size);
        memset(nodes_[made], 2, size);
        bytes_ += size;
      }
    }
  }
  ~Index() {
    for (size_t i = 0; i < nodes_.size(); i++)
      if (i % 50 != 0) free(nodes_[i]); /* the others are leaked */
    for (Block &a : arrays_) free(a.p);
  }
  size_t bytes() const { return bytes_ + nodes_.size() * sizeof(void *); }

 private:
  static constexpr size_t ARRAYS = 40, NODE_BYTES = 60 * MIB;
  static std::mt19937 random_;
  std::vector<Block> arrays_;
  std::vector<void *> nodes_;
  size_t bytes_ = 0;
};
std::mt19937 Index::random_{5};

class Swaps : public testing::TestWithParam<std::pair<size_t, size_t>> {};

TEST_P(Swaps, LeaveLittleBesideWhatIsLive) {
  auto [node_min, node_max] = GetParam();
  size_t before = resident(), leaked = 0;
  auto index = std::make_unique<Index>(node_min, node_max);
  for (int swap = 0; swap < 6; swap++) {
    auto next = std::make_unique<Index>(node_min, node_max);
    leaked += index->bytes() / 3 / 50; /* nodes are less than a third */
    index = std::move(next);
    for (int i = 0; i < 150; i++) {
      cached_work();
      rest(10);
    }
    double live = double(index->bytes() + leaked), part = double(resident() - before) / live;
    EXPECT_LE(part, 1.27) << swap << ": " << live / MIB << " MiB are live";
  }
}

INSTANTIATE_TEST_SUITE_P(Nodes, Swaps, testing::Values(std::pair{64, 500}, std::pair{200, 3000}));

// One block in a hundred lives on, and so do as many slabs.
TEST(Holes, OfSlabsThatStayGoBack) {
  size_t before = resident();
  Blocks blocks(128 * MIB, 1500, 2000);
  blocks.free_to(blocks.count() / 100);
  EXPECT_TRUE(comes_to([=] { return resident() <= before + 32 * MIB; }, light_work)) << (resident() - before) / MIB << " MiB";
  EXPECT_TRUE(blocks.whole());
  EXPECT_EQ(heap_faults(), 0u);
}

// All but a tenth of blocks of one size are freed, and the program goes on with little work, of that size or of another. What
// is served by the thread's cache alone comes by no slow path, and gives nothing back: there has to be more.
class WorkOfOneSize : public testing::Test {
 protected:
  void SetUp() override {
    before_ = resident();
    blocks_ = std::make_unique<Blocks>(128 * MIB, SIZE, SIZE);
    blocks_->free_to(blocks_->count() / 10);
  }
  void expect_pages_back(size_t size) {
    auto work = [size] {
      void *some[128];
      for (void *&p : some) p = malloc(size);
      for (void *p : some) free(p);
    };
    /* Half of the pages have a live block. */
    EXPECT_TRUE(comes_to([this] { return resident() <= before_ + 88 * MIB; }, work)) << (resident() - before_) / MIB << " MiB";
    EXPECT_TRUE(blocks_->whole());
    EXPECT_EQ(heap_faults(), 0u);
  }
  static constexpr size_t SIZE = 800;

 private:
  size_t before_;
  std::unique_ptr<Blocks> blocks_;
};

TEST_F(WorkOfOneSize, TheSame) { expect_pages_back(SIZE); }
TEST_F(WorkOfOneSize, Another) { expect_pages_back(32); }

TEST(Purge, SaysHowMuchItGaveBack) {
  Blocks blocks(64 * MIB, 1500, 2000);
  size_t full = resident();
  blocks.free_to(blocks.count() / 100);
  size_t freed = resident(), given = purge(), after = resident();
  EXPECT_LE(after + 48 * MIB, full);
  /* Huge pages that go in parts, and pages that were never touched, are counted in full. */
  EXPECT_GE(given + 4 * MIB, freed - after);
  EXPECT_TRUE(blocks.whole());
  purge();
  size_t again = purge();
  int trimmed = malloc_trim(0);
  EXPECT_EQ(again, 0u) << "there is nothing left";
  EXPECT_EQ(trimmed, 0);
  EXPECT_EQ(heap_faults(), 0u);
}

TEST(Threads, ThatOnceAllocatedKeepLittle) {
  constexpr unsigned THREADS = 200;
  constexpr size_t STACK_BYTES = 64 * KIB;
  static pthread_barrier_t made, end;
  pthread_barrier_init(&made, nullptr, THREADS + 1);
  pthread_barrier_init(&end, nullptr, THREADS + 1);
  size_t before = resident();
  std::vector<pthread_t> threads(THREADS);
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, STACK_BYTES);
  for (pthread_t &t : threads) {
    auto body = [](void *) -> void * {
      void *blocks[100];
      for (size_t i = 0; i < 100; i++) memset(blocks[i] = malloc(16 << i % 9), 1, 16 << i % 9);
      for (void *p : blocks) free(p);
      pthread_barrier_wait(&made);
      pthread_barrier_wait(&end);
      return nullptr;
    };
    ASSERT_EQ(pthread_create(&t, &attributes, body, nullptr), 0);
  }
  pthread_barrier_wait(&made);
  size_t each = (resident() - before) / THREADS;
  EXPECT_LE(each, 32 * KIB) << "stack included: 12 KiB are touched, and the thread has no cache";
  pthread_barrier_wait(&end);
  for (pthread_t t : threads) pthread_join(t, nullptr);
}

}  // namespace
