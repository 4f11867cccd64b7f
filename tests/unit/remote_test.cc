// Frees from other threads: packets, their ways, and that nothing is pinned or lost.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <semaphore.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <thread>

#include "fake_os.h"
#include "hak.h"

using testing::IsEmpty;

namespace {

// A thread that does what it is told, one step after the other, and keeps its heap in between.
class Actor {
 public:
  Actor() {
    sem_init(&go_, 0, 0);
    sem_init(&done_, 0, 0);
    thread_ = std::thread([this] {
      for (;;) {
        while (sem_wait(&go_) != 0) {
        }
        if (!step_) break;
        step_();
        sem_post(&done_);
      }
    });
    run([] {  // as in a thread that has worked for a while
      for (hak_bin &bin : hak_heap_current()->bins) bin.young = 0;
    });
  }
  ~Actor() { end(); }
  void run(std::function<void()> step) {
    step_ = std::move(step);
    sem_post(&go_);
    while (sem_wait(&done_) != 0) {
    }
  }
  void end() {
    if (!thread_.joinable()) return;
    step_ = nullptr;
    sem_post(&go_);
    thread_.join();
  }
  hak_heap *heap() {
    hak_heap *h = nullptr;
    run([&] { h = hak_heap_current(); });
    return h;
  }
  std::vector<void *> alloc(size_t size, size_t n) {
    std::vector<void *> blocks(n);
    run([&] {
      for (void *&p : blocks) p = hakmem_malloc(size);
    });
    return blocks;
  }
  void free(const std::vector<void *> &blocks, size_t from = 0, size_t to = SIZE_MAX) {
    run([&] {
      for (size_t i = from; i < std::min(to, blocks.size()); i++) hakmem_free(blocks[i]);
    });
  }

 private:
  sem_t go_, done_;
  std::function<void()> step_;
  std::thread thread_;
};

hak_packet *inbox(hak_heap *h) {
  return reinterpret_cast<hak_packet *>(hak_load_acquire(&h->inbox) & ~uintptr_t(HAK_CELL_SIZE - 1));
}
// Packets, and bytes in them, that wait for the owner. Nobody else may be at work.
unsigned waiting(hak_heap *h) {
  unsigned n = 0;
  for (hak_packet *p = inbox(h); p != nullptr; p = p->next) n++;
  return n;
}
size_t waiting_bytes(hak_heap *h) {
  size_t n = 0;
  for (hak_packet *p = inbox(h); p != nullptr; p = p->next) n += p->bytes;
  return n;
}
hak_packet *open_packet(hak_heap *h, uint32_t owner) { return h->open[owner % HAK_OPEN_PACKETS]; }
// Blocks in an open packet: its header says so once the cursor is not in it.
unsigned open_count(hak_heap *h, uint32_t owner) {
  hak_packet *p = open_packet(h, owner);
  if (p == nullptr) return 0;
  bool hot = h->hot_tag != HAK_TAG_NONE && HAK_TAG_OWNER(h->hot_tag) == owner;
  return hot ? static_cast<unsigned>(h->hot_cursor - p->blocks) : p->count;
}
bool free_in_slab(void *p) { return hak_slab_examine(hak_region_span(hak_region_find(p), p), p) == HAK_VERDICT_DOUBLE_FREE; }

class Remote : public testing::Test {
 protected:
  void SetUp() override { fake_os::reset(); }
  void TearDown() override {
    EXPECT_EQ(hak_heap_check(), 0u);
    EXPECT_THAT(fake_os::violations(), IsEmpty());
  }
  Actor owner, sender;
};

TEST_F(Remote, BlocksWaitInAnOpenPacketUntilItIsFull) {
  auto blocks = owner.alloc(64, HAK_PACKET_BLOCKS);
  hak_heap *o = owner.heap(), *s = sender.heap();
  ASSERT_NE(o, s);
  sender.free(blocks, 0, HAK_PACKET_BLOCKS - 1);
  ASSERT_NE(open_packet(s, o->id), nullptr);
  EXPECT_EQ(open_count(s, o->id), HAK_PACKET_BLOCKS - 1u);
  EXPECT_EQ(open_packet(s, o->id)->owner, o->id);
  EXPECT_EQ(open_packet(s, o->id)->home, s->id);
  EXPECT_EQ(waiting(o), 0u);
  sender.free(blocks, HAK_PACKET_BLOCKS - 1);
  EXPECT_EQ(open_packet(s, o->id), nullptr);
  EXPECT_EQ(waiting(o), 1u);
}

TEST_F(Remote, TheCursorServesARowOfOneClassAndItsHeaderIsRightAfterwards) {
  auto blocks = owner.alloc(64, 10), others = owner.alloc(48, 2);
  hak_heap *o = owner.heap(), *s = sender.heap();
  sender.free(blocks, 0, 1);
  EXPECT_EQ(s->hot_tag, HAK_TAG_NONE) << "one block is no row";
  sender.free(blocks, 1, 8);
  EXPECT_NE(s->hot_tag, HAK_TAG_NONE);
  EXPECT_EQ(open_count(s, o->id), 8u);
  sender.free(others, 0, 1);
  EXPECT_EQ(s->hot_tag, HAK_TAG_NONE) << "another class ends it";
  hak_packet *packet = open_packet(s, o->id);
  EXPECT_EQ(packet->count, 9u);
  EXPECT_EQ(packet->bytes, 8u * 64 + 48);
  EXPECT_EQ(packet->class_code, HAK_PACKET_MIXED);
  sender.free(blocks, 8);
  EXPECT_EQ(s->hot_tag, HAK_TAG_NONE) << "a mixed packet takes no cursor";
  EXPECT_EQ(packet->count, 11u);
  sender.run([] { hak_remote_send_open(hak_heap_current()); });
  EXPECT_EQ(waiting_bytes(o), 10u * 64 + 48);
}

TEST_F(Remote, SendingOpenPacketsTakesWhatWentThroughTheCursor) {
  auto blocks = owner.alloc(64, 20);
  hak_heap *o = owner.heap(), *s = sender.heap();
  sender.free(blocks);
  sender.run([] { hak_remote_send_open(hak_heap_current()); });
  EXPECT_EQ(s->hot_tag, HAK_TAG_NONE);
  ASSERT_EQ(waiting(o), 1u);
  EXPECT_EQ(inbox(o)->count, 20u);
  EXPECT_EQ(waiting_bytes(o), 20u * 64);
}

TEST_F(Remote, TheCursorFollowsTheOwner) {
  Actor other;
  auto mine = owner.alloc(64, 6), theirs = other.alloc(64, 6);
  hak_heap *o = owner.heap(), *t = other.heap(), *s = sender.heap();
  ASSERT_NE(o->id % HAK_OPEN_PACKETS, t->id % HAK_OPEN_PACKETS);
  sender.free(mine, 0, 4);
  sender.free(theirs, 0, 4);
  EXPECT_EQ(s->hot_tag >> 8, t->id);
  EXPECT_EQ(open_packet(s, o->id)->count, 4u);
  sender.free(mine, 4);
  EXPECT_EQ(s->hot_tag >> 8, o->id);
  EXPECT_EQ(open_count(s, o->id), 6u);
  EXPECT_EQ(open_packet(s, t->id)->count, 4u);
}

TEST_F(Remote, LargeBlocksLeaveByTheByteBudget) {
  auto blocks = owner.alloc(32768, 8);
  hak_heap *o = owner.heap();
  sender.free(blocks, 0, 3);
  EXPECT_EQ(waiting(o), 0u);
  sender.free(blocks, 3, 4);  // 4 * 32 KiB
  EXPECT_EQ(waiting(o), 1u);
}

TEST_F(Remote, OwnerTakesBackOnItsNextSlowPath) {
  auto blocks = owner.alloc(64, HAK_PACKET_BLOCKS);
  hak_heap *o = owner.heap();
  owner.run([] { hak_heap_flush_all(hak_heap_current()); });
  sender.free(blocks);
  EXPECT_EQ(waiting(o), 1u);
  void *p = owner.alloc(64, 1)[0];
  EXPECT_EQ(waiting(o), 0u);
  EXPECT_NE(std::find(blocks.begin(), blocks.end(), p), blocks.end()) << "freed blocks come before new ones";
}

TEST_F(Remote, TwoOwnersOfOneSlotTakeTurns) {
  std::vector<std::unique_ptr<Actor>> owners;
  for (int i = 0; i < HAK_OPEN_PACKETS + 1; i++) {
    owners.push_back(std::make_unique<Actor>());
    owners.back()->heap();
  }
  Actor &a = *owners.front(), &b = *owners.back();
  ASSERT_EQ(a.heap()->id % HAK_OPEN_PACKETS, b.heap()->id % HAK_OPEN_PACKETS);
  auto from_a = a.alloc(64, 3), from_b = b.alloc(64, 3);
  sender.free(from_a);
  sender.free(from_b, 0, 1);
  EXPECT_EQ(waiting(a.heap()), 1u) << "evicted: sent";
  EXPECT_EQ(open_packet(sender.heap(), b.heap()->id)->owner, b.heap()->id);
}

TEST_F(Remote, SendOpenSendsEverything) {
  auto blocks = owner.alloc(64, 2);
  hak_heap *o = owner.heap();
  sender.free(blocks);
  sender.run([] { hak_remote_send_open(hak_heap_current()); });
  EXPECT_EQ(waiting(o), 1u);
  for (hak_packet *p : sender.heap()->open) EXPECT_EQ(p, nullptr);
}

TEST_F(Remote, EmptyPacketsGoHome) {
  hak_heap *s = sender.heap();
  for (int round = 0; round < 50; round++) {
    auto blocks = owner.alloc(64, HAK_PACKET_BLOCKS * 2);
    sender.free(blocks);
    owner.run([] { hak_remote_drain(hak_heap_current()); });
  }
  EXPECT_NE(hak_load_relaxed(&s->homecoming), nullptr);
  unsigned long bytes = hak_cell_bytes();
  for (int round = 0; round < 5000; round++) {
    auto blocks = owner.alloc(64, HAK_PACKET_BLOCKS);
    sender.free(blocks);
    owner.run([] { hak_remote_drain(hak_heap_current()); });
  }
  EXPECT_EQ(hak_cell_bytes(), bytes) << "packets leak";
}

TEST_F(Remote, SleepingOwnerPinsABoundedAmount) {
  constexpr size_t N = 40000;  // 40 MB
  auto blocks = owner.alloc(1024, N);
  hak_heap *o = owner.heap();
  size_t live = hak_load_relaxed(&hak_span_pool.live_spans);
  size_t most = 0;
  for (size_t i = 0; i < N; i += 1000) {
    sender.free(blocks, i, i + 1000);
    most = std::max(most, waiting_bytes(o));
  }
  EXPECT_LE(most, 4 * HAK_MIB);
  size_t left = hak_load_relaxed(&hak_span_pool.live_spans);
  EXPECT_LT(left, live / 4) << "the owner never woke up, yet its memory must come back";
}

TEST_F(Remote, ParkedHeapIsDrainedByTheSender) {
  auto blocks = owner.alloc(64, HAK_PACKET_BLOCKS);
  hak_heap *o = owner.heap(), *s = sender.heap();  // before the end: else the sender adopts the heap
  ASSERT_NE(o, s);
  owner.end();
  EXPECT_EQ(o->state, unsigned(HAK_HEAP_WARM));
  hak_heap_trim_warm(false, 0);
  EXPECT_EQ(o->state, unsigned(HAK_HEAP_PARKED));
  sender.free(blocks);
  EXPECT_EQ(waiting(o), 0u);
  for (const hak_bin &bin : o->bins) EXPECT_EQ(bin.slabs.slabs, 0u) << "a parked heap keeps no empty slab";
}

// Classes of whole lines stay with the thread that frees them, while its magazine has room.
TEST_F(Remote, BlocksOfWholeLinesServeTheThreadThatFreesThem) {
  constexpr size_t SIZE = 64;
  auto blocks = owner.alloc(SIZE, 3);
  hak_heap *o = owner.heap(), *s = sender.heap();
  auto own = sender.alloc(SIZE, 1);  // the sender has a magazine of the class now
  sender.free(blocks);
  EXPECT_EQ(open_count(s, o->id), 0u) << "no packet";
  EXPECT_EQ(sender.alloc(SIZE, 3), std::vector<void *>(blocks.rbegin(), blocks.rend())) << "the last freed first";
  sender.free(blocks);
  sender.run([s] { hak_heap_flush_all(s); });
  EXPECT_EQ(waiting(o), 1u) << "a flush sends them home";
  EXPECT_EQ(waiting_bytes(o), 3 * SIZE);
  owner.run([&] { hakmem_malloc_trim(0); });
  for (void *p : blocks) EXPECT_EQ(hak_region_tag_of(p), 0u) << "their slab is empty and gone";
  sender.free(own);
}

TEST_F(Remote, OtherBlocksGoHome) {
  for (size_t size : {size_t(16), size_t(48), size_t(80), size_t(288)}) {
    auto blocks = owner.alloc(size, 3);
    hak_heap *o = owner.heap(), *s = sender.heap();
    auto own = sender.alloc(size, 1);
    sender.free(blocks);
    EXPECT_EQ(open_count(s, o->id), 3u) << size << ": two threads would share its lines";
    sender.run([&] { hakmem_malloc_trim(0); });
    sender.free(own);
  }
}

// What does not fit takes the packet: the sender's own capacity is all it keeps.
TEST_F(Remote, KeptBlocksAreBounded) {
  constexpr size_t SIZE = 1024, N = 200;
  auto blocks = owner.alloc(SIZE, N);
  hak_heap *s = sender.heap();
  auto own = sender.alloc(SIZE, 1);
  sender.free(blocks);
  unsigned c = hak_class_for(SIZE);
  size_t kept = 0;
  sender.run([&] { kept = size_t(s->front->top[c] - (s->bins[c].magazine + 63 - s->bins[c].usable)); });
  EXPECT_LE(kept, s->bins[c].capacity);
  EXPECT_GT(kept, 0u);
  sender.free(own);
}

// What another heap has to spare comes before a new slab.
TEST_F(Remote, FreeBlocksOfAnotherHeapAreBorrowed) {
  constexpr size_t SIZE = 1536;
  unsigned c = hak_class_for(SIZE);
  auto blocks = owner.alloc(SIZE, 300);
  hak_heap *o = owner.heap(), *s = sender.heap();
  owner.free(blocks);
  owner.run([o] { hak_heap_flush_all(o); });
  void *kept = owner.alloc(SIZE, 1)[0];  // its slab stays
  owner.run([o] { hak_heap_flush_all(o); });
  ASSERT_NE(o->bins[c].slabs.slabs, 0u);
  void *borrowed = sender.alloc(SIZE, 1)[0];
  EXPECT_EQ(HAK_TAG_OWNER(hak_region_tag_of(borrowed)), o->id);
  EXPECT_EQ(s->bins[c].slabs.slabs, 0u) << "no slab was made";
  EXPECT_EQ(hak_heap_check(), 0u);
  sender.free({borrowed});
  sender.run([s] { hak_heap_flush_all(s); });
  EXPECT_GT(waiting_bytes(o), 0u) << "a flush sends them home";
  sender.run([] { hakmem_malloc_trim(0); });
  EXPECT_EQ(waiting_bytes(o), 0u) << "trimming takes in what waits for others";
  owner.free({kept});
}

// Slabs with few blocks, 8 MiB of them: looked at every 50 ms, and at once where the program takes new memory meanwhile.
TEST_F(Remote, HolesAreLookedForWhenTheProgramGrows) {
  fake_os::set_clock(1000000);  // nobody else looks meanwhile
  constexpr size_t SIZE = 3072;
  hak_heap *o = owner.heap();
  auto blocks = owner.alloc(SIZE, 16 * HAK_MIB / SIZE);
  std::vector<void *> most, rest;
  for (size_t i = 0; i < blocks.size(); i++) (i % 40 == 7 ? rest : most).push_back(blocks[i]);
  owner.free(most);
  owner.run([o] { hak_heap_flush_all(o); });
  uint64_t now = o->last_holes_ms + 100000;
  size_t grown = HAK_MIB / HAK_SPAN_SIZE;
  hak_heap_give_holes(o, now);
  EXPECT_EQ(hak_heap_give_holes(o, now + 1), 0u) << "too early";
  hak_span_pool.fresh_spans += grown - 1;
  EXPECT_EQ(hak_heap_give_holes(o, now + 1), 0u);
  hak_span_pool.fresh_spans++;
  EXPECT_GT(hak_heap_give_holes(o, now + 1), 0u);
  hak_span_pool.fresh_spans += grown;
  EXPECT_EQ(o->last_holes_ms, now + 1);
  owner.free(rest);
}

TEST_F(Remote, BorrowedBlocksComeBeforeUnusedOnes) {
  constexpr size_t SIZE = 1536;
  unsigned c = hak_class_for(SIZE);
  auto own = sender.alloc(SIZE, 1);  // the rest of its slab is unused
  sender.run([&] { hak_heap_flush_all(hak_heap_current()); });
  hak_heap *o = owner.heap(), *s = sender.heap();
  auto blocks = owner.alloc(SIZE, 100);
  owner.free(blocks, 0, 50);
  owner.run([o] { hak_heap_flush_all(o); });
  ASSERT_NE(s->bins[c].slabs.carving, nullptr);
  sender.run([s] { hak_heap_flush_all(s); });
  unsigned carved = s->bins[c].slabs.carving->carved;
  auto more = sender.alloc(SIZE, 40);
  size_t borrowed = size_t(std::count_if(more.begin(), more.end(), [o](void *p) { return HAK_TAG_OWNER(hak_region_tag_of(p)) == o->id; }));
  EXPECT_GE(borrowed, 30u);
  EXPECT_EQ(s->bins[c].slabs.carving->carved, carved);
  sender.free(more);
  sender.free(own);
  owner.free(blocks, 50);
  EXPECT_EQ(hak_heap_check(), 0u);
}

TEST_F(Remote, NobodyWaitsToBorrow) {
  constexpr size_t SIZE = 1536;
  unsigned c = hak_class_for(SIZE);
  auto blocks = owner.alloc(SIZE, 300);
  hak_heap *o = owner.heap(), *s = sender.heap();
  owner.free(blocks, 0, 200);
  owner.run([o] { hak_heap_flush_all(o); });
  ASSERT_NE(o->spare_classes >> c & 1, 0u);
  hak_lock_take(&o->lock);
  auto own = sender.alloc(SIZE, 1);
  hak_lock_drop(&o->lock);
  EXPECT_EQ(HAK_TAG_OWNER(hak_region_tag_of(own[0])), s->id);
  sender.free(own);
  owner.free(blocks, 200);
}

TEST_F(Remote, BlocksThatShareLinesAreNotBorrowed) {
  constexpr size_t SIZE = 48;
  auto blocks = owner.alloc(SIZE, 300);
  hak_heap *o = owner.heap(), *s = sender.heap();
  owner.free(blocks, 0, 200);
  owner.run([o] { hak_heap_flush_all(o); });
  auto own = sender.alloc(SIZE, 1);
  EXPECT_EQ(HAK_TAG_OWNER(hak_region_tag_of(own[0])), s->id);
  sender.free(own);
  owner.free(blocks, 200);
}

// A heap whose thread has ended keeps its front for the next thread, but no more than some.
TEST_F(Remote, WarmHeapServesTheNextThread) {
  auto blocks = owner.alloc(48, 10);
  hak_heap *o = owner.heap();
  owner.free(blocks);
  owner.end();
  EXPECT_EQ(o->state, unsigned(HAK_HEAP_WARM));
  std::vector<void *> again;
  hak_heap *adopted = nullptr;
  std::thread([&] {
    for (int i = 0; i < 10; i++) again.push_back(hakmem_malloc(48));
    adopted = hak_heap_current();
    for (void *p : again) hakmem_free(p);
  }).join();
  EXPECT_EQ(adopted, o);
  EXPECT_EQ(again, std::vector<void *>(blocks.rbegin(), blocks.rend()));
}

TEST_F(Remote, WarmHeapsAreFewAndSmall) {
  constexpr int THREADS = 20;
  std::vector<std::unique_ptr<Actor>> actors;
  for (int i = 0; i < THREADS; i++) {
    actors.push_back(std::make_unique<Actor>());
    for (size_t size : {100, 5000, 20000}) {
      auto blocks = actors.back()->alloc(size, 100);
      actors.back()->free(blocks);
    }
  }
  std::vector<hak_heap *> heaps;
  for (auto &a : actors) heaps.push_back(a->heap());
  for (auto &a : actors) a->end();
  int warm = 0;
  for (hak_heap *h : heaps) {
    ASSERT_NE(h->state, unsigned(HAK_HEAP_ACTIVE));
    if (h->state != HAK_HEAP_WARM) continue;
    warm++;
    size_t bytes = 0;
    for (unsigned c = 0; c < HAK_FRONT_CLASSES; c++) {
      const hak_bin &bin = h->bins[c];
      EXPECT_EQ(bin.full, nullptr);
      if (bin.magazine != nullptr) bytes += size_t(h->front->top[c] - (bin.magazine + 63 - bin.usable)) * hak_class_size(c);
    }
    EXPECT_LE(bytes, 512 * HAK_KIB);
  }
  EXPECT_EQ(warm, 8);
  hak_heap_trim_warm(true, hak_os_now_ms());
  hak_heap_trim_warm(true, hak_os_now_ms() + 1000);
  int left = 0;
  for (hak_heap *h : heaps) left += h->state == HAK_HEAP_WARM;
  EXPECT_EQ(left, 0) << "all that have been warm for a second go";
  hakmem_malloc_trim(0);
  for (hak_heap *h : heaps) {
    EXPECT_EQ(h->state, unsigned(HAK_HEAP_PARKED));
    for (const hak_bin &bin : h->bins) EXPECT_EQ(bin.slabs.slabs, 0u);
  }
}

TEST_F(Remote, SenderThatEndsSendsItsPackets) {
  auto blocks = owner.alloc(64, 5);
  hak_heap *o = owner.heap();
  sender.free(blocks);
  EXPECT_EQ(waiting(o), 0u);
  sender.end();
  EXPECT_EQ(waiting(o), 1u);
}

TEST_F(Remote, WithoutMemoryForAPacketTheBlockIsFreedDirectly) {
  auto blocks = owner.alloc(64, 20);
  owner.run([] { hak_heap_flush_all(hak_heap_current()); });
  hak_heap *s = sender.heap();
  fake_os::fail_all(fake_os::MAP);
  unsigned long bytes = hak_cell_bytes();
  while (hak_cell_take() != nullptr) ASSERT_EQ(hak_cell_bytes(), bytes);
  sender.free(blocks, 0, 1);
  EXPECT_TRUE(free_in_slab(blocks[0]));
  for (hak_packet *p : s->open) EXPECT_EQ(p, nullptr);
  fake_os::allow_all();
}

TEST_F(Remote, TwinsAndAlignedBlocksTravelToo) {
  std::vector<void *> blocks;
  owner.run([&] {
    for (int i = 0; i < 500; i++) blocks.push_back(hakmem_aligned_alloc(4096, 5000));
  });
  size_t live = hak_load_relaxed(&hak_span_pool.live_spans);
  sender.free(blocks);
  sender.run([] { hak_remote_send_open(hak_heap_current()); });
  owner.run([] { hak_remote_drain(hak_heap_current()); });
  EXPECT_LT(hak_load_relaxed(&hak_span_pool.live_spans), live / 4);
}

TEST_F(Remote, RunsAreFreedByWhoeverFreesThem) {
  auto blocks = owner.alloc(100000, 10);
  size_t live = hak_load_relaxed(&hak_span_pool.live_spans);
  sender.free(blocks);
  sender.run([] { hak_heap_flush_all(hak_heap_current()); });  // a few are kept for its next requests
  EXPECT_EQ(hak_load_relaxed(&hak_span_pool.live_spans), live - 20);
}

TEST_F(Remote, DoubleFreeAcrossThreadsIsSeen) {
  auto twice = [] {
    Actor a, b;
    auto blocks = a.alloc(64, 200);
    b.free(blocks);
    b.free(blocks);
    for (Actor *x : {&b, &a}) {
      x->run([] {
        hak_heap_flush_all(hak_heap_current());
        hak_remote_drain(hak_heap_current());
        hak_heap_flush_all(hak_heap_current());
      });
    }
    _exit(0);
  };
  EXPECT_EXIT(twice(), testing::KilledBySignal(SIGABRT), "double free");
}

TEST_F(Remote, ManyThreadsEverythingComesBack) {
  constexpr int THREADS = 4, ROUNDS = 200, BATCH = 200;
  std::atomic<void *> mailboxes[THREADS][BATCH] = {};
  std::vector<std::thread> threads;
  for (int t = 0; t < THREADS; t++) {
    threads.emplace_back([&, t] {
      for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < BATCH; i++) {
          size_t size = size_t(16 + (i * 37 + round) % 2000);
          auto *p = static_cast<unsigned char *>(hakmem_malloc(size));
          p[0] = static_cast<unsigned char>(t);
          p[size - 1] = static_cast<unsigned char>(t);
          // Into the neighbour's box; what was in there is ours to free.
          void *old = mailboxes[(t + 1) % THREADS][i].exchange(p);
          hakmem_free(old);
        }
      }
    });
  }
  for (auto &t : threads) t.join();
  for (auto &box : mailboxes)
    for (auto &p : box) hakmem_free(p);
  hak_heap_trim(hak_heap_current());
  // Left at most: one slab kept for carving for each class and heap.
  EXPECT_LT(hak_load_relaxed(&hak_span_pool.live_spans), size_t(5 * 40 * 4));
  EXPECT_EQ(hak_heap_check(), 0u);
}

}  // namespace
