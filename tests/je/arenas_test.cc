// Arenas are heaps: made, chosen by a flag or for a thread, reset and destroyed.
#include "je.h"

#include <hakmem/heap.h>

#include <sys/wait.h>
#include <thread>
#include <unistd.h>

namespace {

unsigned lookup(void *p) {
  unsigned index = 12345;
  size_t bytes = sizeof index;
  EXPECT_EQ(mallctl("arenas.lookup", &index, &bytes, &p, sizeof p), 0);
  return index;
}

TEST(Arenas, AreMadeAndFoundByTheirBlocks) {
  unsigned before = get<unsigned>("arenas.narenas");
  Arena a, b;
  EXPECT_NE(a.index, b.index);
  EXPECT_EQ(get<unsigned>("arenas.narenas"), before + 2);
  for (size_t size : {1, 100, 5000, 40000, 400000, 50000000}) {
    void *p = mallocx(size, a.flag()), *q = mallocx(size, b.flag() | lg_align(8)), *r = malloc(size);
    EXPECT_EQ(lookup(p), a.index);
    EXPECT_EQ(lookup(q), b.index);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(q) % 256, 0u);
    EXPECT_EQ(lookup(r), 0u);
    dallocx(p, 0);
    free(q);
    dallocx(r, a.flag());
  }
  int local = 0;
  void *p = &local;
  EXPECT_EQ(mallctl("arenas.lookup", nullptr, nullptr, &p, sizeof p), EINVAL);
}

TEST(Arenas, WithHooksAreRefused) {
  void *hooks = &hooks;
  unsigned index = 0, before = get<unsigned>("arenas.narenas");
  size_t bytes = sizeof index;
  EXPECT_EQ(mallctl("arenas.create", &index, &bytes, &hooks, sizeof hooks), EPERM);
  bytes = 8;
  EXPECT_EQ(mallctl("arenas.create", &index, &bytes, nullptr, 0), EINVAL);
  EXPECT_EQ(bytes, 0u);
  EXPECT_EQ(get<unsigned>("arenas.narenas"), before);
}

TEST(Arenas, ZeroMemoryTheProgramHasUsed) {
  Arena a;
  for (size_t size : {40, 3000, 100000, 2000000}) {
    void *p = mallocx(size, a.flag());
    memset(p, 0x55, size);
    dallocx(p, a.flag());
    p = mallocx(size, a.flag() | kZero);
    EXPECT_TRUE(is_filled(p, 0, 0, size)) << size;
    dallocx(p, 0);
  }
}

// Programs use what nallocx says, and give it to sdallocx.
TEST(Arenas, BlocksAreAsLargeAsNallocxSays) {
  Arena a;
  std::thread([&] {
    ASSERT_EQ(set("thread.arena", a.index), 0);
    for (size_t size = 1; size < 10000000; size = size * 5 / 4 + 1) {
      for (int flags : {0, a.flag(), a.flag() | lg_align(7), a.flag() | kZero}) {
        void *p = mallocx(size, flags);
        ASSERT_GE(sallocx(p, 0), nallocx(size, flags)) << size << " " << flags;
        memset(p, 1, nallocx(size, flags));
        p = rallocx(p, size * 2, flags);
        ASSERT_GE(sallocx(p, 0), nallocx(size * 2, flags)) << size << " " << flags;
        sdallocx(p, nallocx(size * 2, flags), flags);
      }
    }
    ASSERT_EQ(set<unsigned>("thread.arena", 0), 0);
  }).join();
}

// Where a plain realloc moves a block it is the thread's: a reset of the arena does not end it.
TEST(Arenas, ResizedBlocksAreTheThreads) {
  Arena a, b;
  const size_t sizes[] = {100, 1000, 40000, 300000, 5000000, 50000000};
  for (size_t from : sizes) {
    for (size_t to : sizes) {
      void *p = realloc(mallocx(from, a.flag()), to), *q = rallocx(mallocx(from, a.flag()), to, kNoCache);
      void *r = rallocx(mallocx(from, a.flag()), to, b.flag()), *s = rallocx(mallocx(from, a.flag()), to, a.flag());
      if (to > from && from <= 1000) EXPECT_EQ(lookup(p) + lookup(q), 0u) << from << " to " << to;
      EXPECT_EQ(lookup(r), b.index) << from << " to " << to;
      EXPECT_EQ(lookup(s), a.index) << from << " to " << to;
      for (void *block : {p, q, r, s}) dallocx(block, 0);
    }
  }
  auto *text = static_cast<char *>(realloc(mallocx(100, a.flag()), 100000));
  strcpy(text, "hello");
  EXPECT_EQ(act(a.name("arena", "reset")), 0);
  for (int i = 0; i < 100; i++) memset(mallocx(100000, a.flag()), 0x11, 100000);
  EXPECT_STREQ(text, "hello");
  free(text);
  ASSERT_EQ(set("thread.arena", a.index), 0);
  for (size_t size : {20, 2000, 60000, 3000000}) {
    void *p = realloc(mallocx(size, arena_flag(0)), size * 3), *q = realloc(mallocx(size, b.flag()), size * 3);
    if (size < 30000) EXPECT_EQ(lookup(p), a.index) << size; /* larger ones may grow where they are */
    if (size < 30000) EXPECT_EQ(lookup(q), a.index) << size;
    free(p), free(q);
  }
  ASSERT_EQ(set<unsigned>("thread.arena", 0), 0);
}

pthread_key_t end_key;

// Of a program's key, which is younger than the library's.
TEST(Arenas, WhatDestructorsOfEndingThreadsAllocateIsInArenaZero) {
  static void *kept;
  Arena a;
  ASSERT_EQ(pthread_key_create(&end_key, [](void *) {
    EXPECT_EQ(get<unsigned>("thread.arena"), 0u);
    kept = malloc(200);
  }), 0);
  std::thread([&] {
    ASSERT_EQ(set("thread.arena", a.index), 0);
    pthread_setspecific(end_key, &a);
    free(malloc(10));
  }).join();
  EXPECT_EQ(lookup(kept), 0u);
  EXPECT_EQ(act(a.name("arena", "destroy")), 0);
  a.alive = false;
  free(kept);
  pthread_key_delete(end_key);
}

// A flag has 12 bits for an arena's number and one.
TEST(Arenas, EachThatIsMadeHasAFlag) {
  std::vector<unsigned> made;
  unsigned index = 0;
  size_t bytes = sizeof index;
  while (mallctl("arenas.create", &index, &bytes, nullptr, 0) == 0) made.push_back(index);
  ASSERT_FALSE(made.empty());
  EXPECT_EQ(made.back(), 4094u);
  void *p = mallocx(100, arena_flag(made.back()));
  EXPECT_EQ(lookup(p), 4094u);
  dallocx(p, 0);
  for (unsigned i : made) EXPECT_EQ(act("arena." + std::to_string(i) + ".destroy"), 0);
}

TEST(DISABLED_Narenas, AllAreThere) {
  EXPECT_EQ(get<unsigned>("opt.narenas"), 8u);
  EXPECT_EQ(get<unsigned>("arenas.narenas"), 8u);
  for (unsigned i = 0; i < 8; i++) {
    std::string name = "arena." + std::to_string(i);
    EXPECT_TRUE(get<bool>(name + ".initialized"));
    for (size_t size : {100, 100000, 50000000}) {
      void *p = mallocx(size, arena_flag(i) | kZero);
      ASSERT_NE(p, nullptr) << i;
      EXPECT_EQ(rallocx(p, size, arena_flag(7 - i)), p) << "all are one heap";
      dallocx(p, arena_flag(i));
    }
    EXPECT_EQ(set("thread.arena", i), 0);
    EXPECT_EQ(get<unsigned>("thread.arena"), i);
    EXPECT_EQ(get<unsigned>("stats.arenas." + std::to_string(i) + ".nthreads"), 1u);
    free(malloc(100));
    EXPECT_EQ(act(name + ".reset"), EFAULT);
    EXPECT_EQ(act(name + ".destroy"), EFAULT);
    EXPECT_EQ(act(name + ".purge"), 0);
  }
  ASSERT_EQ(set<unsigned>("thread.arena", 0), 0);
  EXPECT_EQ(mallocx(100, arena_flag(8)), nullptr);
  Arena a;
  EXPECT_EQ(a.index, 8u);
}

TEST(Arenas, CountWhatTheyHave) {
  Arena a;
  size_t small = 0, large = 0;
  std::vector<void *> blocks;
  for (int i = 0; i < 3000; i++) {
    void *p = mallocx(static_cast<size_t>(i % 10 == 0 ? 20000 + i * 50 : 16 + i), a.flag());
    (malloc_usable_size(p) > 14336 ? large : small) += malloc_usable_size(p);
    blocks.push_back(p);
  }
  refresh();
  size_t small_said = get<size_t>(a.stats("small.allocated")), large_said = get<size_t>(a.stats("large.allocated"));
  EXPECT_EQ(small_said + large_said, small + large);
  EXPECT_NEAR(static_cast<double>(large_said), static_cast<double>(large), 200000); /* blocks of 16 to 32 KiB in caches are in it */
  EXPECT_GE(get<size_t>(a.stats("pactive")) * 4096, small + large);
  uint64_t regions = 0, extents = 0;
  for (unsigned j = 0; j < get<unsigned>("arenas.nbins"); j++) regions += get<size_t>(a.stats("bins." + std::to_string(j) + ".curregs"));
  for (unsigned j = 0; j < get<unsigned>("arenas.nlextents"); j++) extents += get<size_t>(a.stats("lextents." + std::to_string(j) + ".curlextents"));
  EXPECT_NEAR(static_cast<double>(extents), 300, 10);
  EXPECT_GE(regions, 2700u); /* those in caches too */
  EXPECT_EQ(get<uint64_t>(a.stats("small.nmalloc")), regions);
  for (void *p : blocks) dallocx(p, 0);
  refresh();
  EXPECT_EQ(get<size_t>(a.stats("small.allocated")) + get<size_t>(a.stats("large.allocated")), 0u);
  EXPECT_GE(get<uint64_t>(a.stats("large.ndalloc")), 250u);
}

TEST(Arenas, ResetDropsAllBlocksAndKeepsTheArena) {
  Arena a;
  for (int i = 0; i < 1000; i++) ASSERT_NE(mallocx(1000, a.flag()), nullptr);
  refresh();
  EXPECT_GE(get<size_t>(a.stats("small.allocated")), 1000000u);
  EXPECT_EQ(act(a.name("arena", "reset")), 0);
  refresh();
  EXPECT_EQ(get<size_t>(a.stats("small.allocated")), 0u);
  void *p = mallocx(1000, a.flag());
  EXPECT_EQ(lookup(p), a.index);
  dallocx(p, 0);
  EXPECT_EQ(act("arena.0.reset"), EFAULT);
  EXPECT_EQ(act("arena.4096.reset"), EFAULT);
}

TEST(Arenas, DestroyedAreCountedApart) {
  EXPECT_EQ(act("stats.arenas.4097.pactive"), get<bool>("arena.4097.initialized") ? 0 : ENOENT);
  Arena a;
  for (int i = 0; i < 100; i++) ASSERT_NE(mallocx(3000, a.flag()), nullptr);
  EXPECT_EQ(act(a.name("arena", "destroy")), 0);
  a.alive = false;
  EXPECT_EQ(act(a.name("arena", "destroy")), EFAULT);
  EXPECT_EQ(mallocx(1, a.flag()), nullptr);
  EXPECT_FALSE(get<bool>(a.name("arena", "initialized")));
  EXPECT_TRUE(get<bool>("arena.4097.initialized"));
  refresh();
  EXPECT_EQ(get<uint64_t>("stats.arenas.4097.small.ndalloc"), get<uint64_t>("stats.arenas.4097.small.nmalloc"));
  EXPECT_GE(get<uint64_t>("stats.arenas.4097.small.nmalloc"), 100u);
  EXPECT_EQ(get<size_t>("stats.arenas.4097.small.allocated"), 0u);
  Arena again;
  EXPECT_EQ(again.index, a.index);
  EXPECT_EQ(act("arena.0.destroy"), EFAULT);
}

TEST(Arenas, OfAThreadServeIts) {
  Arena a;
  std::thread([&] {
    unsigned was = 77;
    size_t bytes = sizeof was;
    ASSERT_EQ(mallctl("thread.arena", &was, &bytes, &a.index, sizeof a.index), 0);
    EXPECT_EQ(was, 0u);
    EXPECT_EQ(get<unsigned>("thread.arena"), a.index);
    void *p = malloc(500), *q = mallocx(500, arena_flag(0));
    EXPECT_EQ(lookup(p), a.index);
    EXPECT_EQ(lookup(q), 0u);
    EXPECT_EQ(get<unsigned>(a.stats("nthreads")), 1u);
    EXPECT_EQ(act(a.name("arena", "destroy")), EFAULT);
    free(p);
    free(q);
  }).join();
  EXPECT_EQ(get<unsigned>(a.stats("nthreads")), 0u);
  EXPECT_EQ(get<unsigned>("thread.arena"), 0u);
  EXPECT_EQ(set<unsigned>("thread.arena", 4000), EFAULT);
}

TEST(Arenas, ResetOfAThreadsOwn) {
  Arena a;
  std::thread([&] {
    ASSERT_EQ(set("thread.arena", a.index), 0);
    for (int i = 0; i < 1000; i++) ASSERT_NE(mallocx(64, a.flag()), nullptr);
    ASSERT_EQ(act(a.name("arena", "reset")), 0);
    void *p = mallocx(64, 0);
    EXPECT_EQ(lookup(p), a.index);
    dallocx(p, 0);
    ASSERT_EQ(set<unsigned>("thread.arena", 0), 0);
  }).join();
}

// With MALLOC_CONF=oversize_threshold:2097152.
TEST(DISABLED_Oversize, HasAnArenaOfItsOwn) {
  ASSERT_EQ(get<size_t>("opt.oversize_threshold"), size_t{2} << 20);
  void *large = malloc(2 << 20), *small = malloc((2 << 20) - 1), *chosen = mallocx(2 << 20, arena_flag(0));
  unsigned own = lookup(large);
  EXPECT_NE(own, 0u);
  EXPECT_EQ(lookup(small), 0u);
  EXPECT_EQ(lookup(chosen), 0u);
  EXPECT_EQ(act("arena." + std::to_string(own) + ".reset"), EFAULT);
  EXPECT_EQ(act("arena." + std::to_string(own) + ".destroy"), EFAULT);
  large = realloc(large, 9 << 20);
  EXPECT_EQ(lookup(large), own);
  Arena a;
  EXPECT_NE(a.index, own);
  std::thread([&] {
    ASSERT_EQ(set("thread.arena", a.index), 0);
    void *p = malloc(2 << 20);
    EXPECT_EQ(lookup(p), a.index);
    free(p);
    ASSERT_EQ(set<unsigned>("thread.arena", 0), 0);
  }).join();
  free(large);
  free(small);
  free(chosen);
}

TEST(Arenas, HaveNames) {
  Arena a;
  char text[32], *out = text;
  size_t bytes = sizeof out;
  ASSERT_EQ(mallctl(a.name("arena", "name").c_str(), &out, &bytes, nullptr, 0), 0);
  EXPECT_EQ(std::string(text), "manual_" + std::to_string(a.index));
  const char *name = "a name that is longer than thirty-one bytes";
  EXPECT_EQ(set(a.name("arena", "name"), name), 0);
  ASSERT_EQ(mallctl(a.name("arena", "name").c_str(), &out, &bytes, nullptr, 0), 0);
  EXPECT_EQ(std::string(text), std::string(name).substr(0, 31));
}

TEST(Arenas, LiveOnInAChild) {
  Arena a;
  void *p = mallocx(100, a.flag());
  refresh();
  pid_t child = fork();
  if (child == 0) {
    bool good = lookup(p) == a.index && mallocx(100, a.flag()) != nullptr && get<unsigned>("arenas.narenas") > a.index;
    uint64_t epoch = 1;
    good = good && mallctl("epoch", nullptr, nullptr, &epoch, sizeof epoch) == 0 && act(a.name("arena", "destroy")) == 0;
    _exit(good ? 0 : 1);
  }
  int status = 1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  dallocx(p, 0);
}

// Others make, use and destroy arenas while statistics are taken, and a child is forked.
TEST(Arenas, ComeAndGoInThreads) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; t++)
    threads.emplace_back([] {
      for (int i = 0; i < 100; i++) {
        unsigned index = get<unsigned>("arenas.create");
        std::string name = "arena." + std::to_string(index);
        for (int k = 0; k < 100; k++) ASSERT_NE(mallocx(static_cast<size_t>(k) * 100 + 1, arena_flag(index)), nullptr);
        ASSERT_EQ(act(name + ".reset"), 0);
        ASSERT_NE(mallocx(100, arena_flag(index)), nullptr);
        ASSERT_EQ(act(name + ".destroy"), 0);
      }
    });
  for (int i = 0; i < 50; i++) {
    refresh();
    EXPECT_GE(get<size_t>("stats.active"), get<size_t>("stats.allocated"));
    pid_t child = i % 10 == 0 ? fork() : -1;
    if (child == 0) _exit(set<uint64_t>("epoch", 1));
    int status = 0;
    if (child > 0) waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
  }
  for (auto &t : threads) t.join();
  EXPECT_EQ(hakmem_heap_check(), 0u);
  EXPECT_EQ(hakmem_heap_list(nullptr, nullptr), 0u);
}

}  // namespace
