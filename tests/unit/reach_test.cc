// What sleeping threads keep, and the drainer that takes it: each way in which owner and drainer can meet, step by step.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <map>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "actor.h"
#include "fake_cpu.h"
#include "fake_os.h"
#include "hak.h"

using testing::IsEmpty;

namespace {

// The barriers of a drain: after the owner was told, after sentinels were placed, after tops were read.
enum { TOLD = 1, PLACED, READ };

size_t live_bytes() { return hak_load_relaxed(&hak_span_pool.live_spans) * HAK_SPAN_SIZE; }

class Reach : public testing::Test {
 protected:
  void SetUp() override {
#ifdef __SANITIZE_THREAD__
    GTEST_SKIP() << "there is no barrier";
#endif
    fake_os::reset();
    ASSERT_TRUE(hak_start());
    fake_cpu::install();
    hak_os_l2_bytes = 1 * HAK_MIB;
    hakmem_free(hakmem_malloc(1));
  }
  void TearDown() override {
    EXPECT_EQ(hak_heap_check(), 0u);
    EXPECT_THAT(fake_os::violations(), IsEmpty());
  }

  static size_t reach(uint64_t idle_since_ms = UINT64_MAX) {
    hak_deferred d = {};
    size_t blocks = hak_tcache_reach(idle_since_ms, idle_since_ms == UINT64_MAX, &d);
    EXPECT_EQ(d.verdict, HAK_VERDICT_OK);
    return blocks;
  }
  // The same; at its barriers something happens first.
  static size_t reach_with(std::map<unsigned, std::function<void()>> steps) {
    unsigned n = 0;
    fake_os::on_call([&](const fake_os::Event &e) {
      if (e.call != fake_os::BARRIER) return;
      auto step = steps.find(++n);
      if (step != steps.end()) step->second();
    });
    size_t blocks = reach();
    fake_os::on_call(nullptr);
    return blocks;
  }
  static hak_tcache *cache_of(Actor &actor) {
    hak_tcache *t = nullptr;
    actor.run([&] { t = hak_tls.cache; });
    return t;
  }
  static hak_tcache_bin &bin_of(Actor &actor, size_t size) { return cache_of(actor)->bins[hak_class_for(size)]; }
  static size_t loaded(Actor &actor, size_t size) {
    size_t n = 0;
    unsigned c = hak_class_for(size);
    actor.run([&] {
      const hak_tcache_bin &b = hak_tls.cache->bins[c];
      n = b.loaded == nullptr ? 0 : size_t(*hak_tcache_top_of(hak_tls.cache, c) - (b.sentinel != 0 ? b.loaded + b.sentinel : hak_tcache_empty_top(&b)));
    });
    return n;
  }
  // Everything has come back, once: no slab is held for a block that nobody has.
  static void expect_nothing_lost(std::vector<Actor *> actors) {
    for (Actor *actor : actors) actor->end();
    hak_deferred d = {};
    if (hak_tls.cache != nullptr) hak_tcache_flush(hak_tls.cache, &d);
    hak_arena_shrink_all(&d);
    hak_slow_exit(&d);
    EXPECT_EQ(live_bytes(), 0u);
  }
  // All different from each other, and from those that are held; then freed by the actor.
  static void expect_unique(Actor &actor, size_t size, size_t n, const std::vector<void *> &held = {}) {
    std::vector<void *> blocks = actor.alloc(size, n);
    std::set<void *> all(blocks.begin(), blocks.end());
    all.insert(held.begin(), held.end());
    EXPECT_EQ(all.size(), n + held.size()) << "a block is in two hands";
    actor.free(blocks);
  }
};

TEST_F(Reach, WhatASleeperKeepsGoesToItsSlabsButForOneBlockAClass) {
  Actor actor(0);
  for (size_t size : {700, 3000, 20000}) actor.run([size] { grow_capacity(size); });
  std::vector<std::vector<void *>> blocks;
  for (size_t size : {16, 100, 700, 3000, 20000}) blocks.push_back(actor.alloc(size, 300));
  for (auto &of_a_size : blocks) actor.free(of_a_size);
  size_t live = live_bytes();
  unsigned many = hak_class_for(100);
  EXPECT_GT(cache_of(actor)->bins[many].full_count, 0);
  EXPECT_GT(reach(), 500u);
  EXPECT_LT(live_bytes(), live / 2);
  for (size_t size : {16, 100, 700, 3000, 20000}) {
    EXPECT_EQ(bin_of(actor, size).full, nullptr) << size;
    EXPECT_EQ(loaded(actor, size), 1u) << size;
  }
  EXPECT_EQ(cache_of(actor)->stacked_bytes, 0u);
  EXPECT_EQ(cache_of(actor)->spares, nullptr);
  EXPECT_EQ(hak_tcache_sum_class(many).published, 1u);
  EXPECT_EQ(cache_of(actor)->claimed, 0u);
  EXPECT_EQ(reach(), 0u);
  for (size_t size : {16, 100, 700, 3000, 20000}) expect_unique(actor, size, 500);
  EXPECT_EQ(cache_of(actor)->has_sentinel, 0u) << "settled by the first slow path";
  expect_nothing_lost({&actor});
}

TEST_F(Reach, OfAThreadWhoseCallsAllTakeTheSlowPathItTakesAll) {
  std::vector<void *> blocks;
  hak_tcache *t = nullptr;
  Actor actor(0);
  actor.run([&] {
    hak_deferred d = {};
    hak_tcache_detach(&d);
    hak_tls.phase = HAK_THREAD_FRESH;
    t = hak_tcache_attach(true);
  });
  for (size_t size : {16, 100, 700, 3000}) actor.free(actor.alloc(size, 300));
  EXPECT_GT(reach(), 300u);
  for (size_t size : {16, 100, 700, 3000}) EXPECT_EQ(loaded(actor, size), 0u) << size;
  EXPECT_EQ(t->has_sentinel, 0u);
  for (size_t size : {16, 100, 700, 3000}) expect_unique(actor, size, 300);
  expect_nothing_lost({&actor});
}

// Between the choice of caches and the drain they come to have more than was counted.
TEST_F(Reach, WhatFillsMeanwhileLeavesNoSentinelWithoutAPlaceForItsBlocks) {
  Actor first(0), second(0), maker(0);
  maker.free(maker.alloc(32768, 1000)); // no request finds the pool full, which would empty caches
  std::vector<void *> others;
  for (size_t size : {400, 500, 600, 700, 800, 900, 1000, 1200, 1500, 1700}) others.push_back(maker.alloc(size, 1)[0]);
  maker.end();
  for (Actor *actor : {&first, &second})
    for (size_t size : {100, 200, 300}) actor->free(actor->alloc(size, 30));
  for (size_t size : {100, 200, 300}) ASSERT_GT(loaded(second, size), 20u);
  size_t taken = reach_with({{TOLD, [&] {
    for (Actor *actor : {&first, &second}) cache_of(*actor)->claimed = 0; // as if they had been quicker
    for (void *p : others) first.free({p});
    for (Actor *actor : {&first, &second}) cache_of(*actor)->claimed = 1;
  }}});
  EXPECT_GT(taken, 0u);
  for (size_t size : {100, 200, 300, 20000}) expect_unique(first, size, 100);
  for (size_t size : {100, 200, 300, 20000}) expect_unique(second, size, 100);
  expect_nothing_lost({&first, &second});
}

TEST_F(Reach, TheOwnerGoesOnInWhatIsLeftOfItsMagazine) {
  Actor actor(0);
  std::vector<void *> blocks = actor.alloc(200, 40);
  actor.free(blocks, 0, 20);
  reach();
  EXPECT_EQ(loaded(actor, 200), 1u);
  actor.free(blocks, 20, 30); // no slow path
  EXPECT_EQ(loaded(actor, 200), 11u);
  EXPECT_EQ(reach(), 0u) << "the bin is left alone until its owner has settled it";
  actor.free(actor.alloc(200, 11));
  EXPECT_NE(bin_of(actor, 200).sentinel, 0) << "nor was this one";
  expect_unique(actor, 200, 100, {blocks.begin() + 30, blocks.end()});
  EXPECT_EQ(bin_of(actor, 200).sentinel, 0);
  actor.free(blocks, 30);
  expect_nothing_lost({&actor});
}

TEST_F(Reach, AThreadInASlowPathKeepsAll) {
  Actor actor(0);
  actor.free(actor.alloc(100, 300));
  size_t stacked = bin_of(actor, 100).full_count, kept = loaded(actor, 100);
  hak_tcache *t = cache_of(actor);
  EXPECT_EQ(reach_with({{TOLD, [&] { actor.run([] { hak_tls.cache->busy++; }); }}}), 0u);
  EXPECT_EQ(t->claimed, 0u);
  actor.run([] { hak_tcache_leave(hak_tls.cache); });
  EXPECT_EQ(bin_of(actor, 100).full_count, stacked);
  EXPECT_EQ(loaded(actor, 100), kept);
  EXPECT_EQ(t->has_sentinel, 0u);
  expect_nothing_lost({&actor});
}

TEST_F(Reach, AnOwnerThatComesByWaitsForTheDrainer) {
  Actor actor(0);
  actor.free(actor.alloc(100, 40));
  std::vector<void *> blocks;
  std::atomic<bool> done{false};
  reach_with({{PLACED, [&] {
    actor.begin([&] {
      for (int i = 0; i < 100; i++) blocks.push_back(hakmem_malloc(100));
      done = true;
    });
    usleep(20000);
    EXPECT_FALSE(done);
  }}});
  actor.await();
  EXPECT_EQ(std::set<void *>(blocks.begin(), blocks.end()).size(), 100u);
  actor.free(blocks);
  expect_nothing_lost({&actor});
}

// The owner pops down to the sentinel's slot: whether it holds what was in there cannot be told.
TEST_F(Reach, AtTheSentinelTheBlockIsInDoubtAndComesBack) {
  for (unsigned when : {TOLD, PLACED, READ}) {
    Actor actor(0);
    actor.free(actor.alloc(100, 40));
    size_t kept = loaded(actor, 100);
    void *popped = nullptr;
    size_t taken = reach_with({{when, [&] { popped = actor.alloc(100, 1)[0]; }}});
    EXPECT_EQ(taken == 0, when == PLACED) << when;
    void *displaced = bin_of(actor, 100).displaced;
    EXPECT_EQ(displaced != nullptr, when == PLACED) << when;
    EXPECT_EQ(reach(), 0u);
    std::vector<void *> next = actor.alloc(100, kept - 1);
    EXPECT_EQ(bin_of(actor, 100).sentinel, 0);
    if (when == PLACED) EXPECT_EQ(next[0], displaced);
    next.push_back(popped);
    expect_unique(actor, 100, 100, next);
    actor.free(next);
    expect_nothing_lost({&actor});
  }
}

// It had passed the slot before: a pop read the block, and the NULL came behind it.
TEST_F(Reach, ABlockThatWasPoppedIsTheProgramsWhateverCameIntoItsSlot) {
  unsigned c = hak_class_for(100);
  for (unsigned pushed : {0, 1, 2, 3}) {
    for (unsigned when : {PLACED, READ}) {
      if (when == READ && pushed < 2) continue;  // a top above the slot was seen before: only what was pushed into it may come late
      Actor actor(0);
      std::vector<void *> others = actor.alloc(100, 43), held;
      actor.free(others, 3);
      auto pass = [&] {
        void **slot = hak_tls.cache->bins[c].loaded + hak_tls.cache->bins[c].sentinel, **top = hak_tls.top[c + 1];
        ASSERT_EQ(top, slot + 1);
        held = {*top, hak_tls.cache->bins[c].displaced};
        hak_tls.top[c + 1] = slot - 1;
        for (unsigned i = 0; i < pushed; i++) hakmem_free(others[i]);
      };
      EXPECT_EQ(reach_with({{when, [&] { actor.run(pass); }}}), 0u) << pushed;
      EXPECT_EQ(bin_of(actor, 100).displaced, held[1]);
      held.insert(held.end(), others.begin() + pushed, others.begin() + 3);
      expect_unique(actor, 100, 100, held);
      EXPECT_EQ(bin_of(actor, 100).sentinel, 0);
      actor.free(held);
      expect_nothing_lost({&actor});
    }
  }
}

TEST_F(Reach, FreesMeanwhileDoNoHarm) {
  for (unsigned when : {TOLD, PLACED, READ}) {
    Actor actor(0);
    std::vector<void *> blocks = actor.alloc(100, 40);
    actor.free(blocks, 0, 20);
    EXPECT_GT(reach_with({{when, [&] { actor.free(blocks, 20, 30); }}}), 15u);
    EXPECT_EQ(loaded(actor, 100), when == TOLD ? 1u : 11u);
    expect_unique(actor, 100, 100, {blocks.begin() + 30, blocks.end()});
    actor.free(blocks, 30);
    expect_nothing_lost({&actor});
  }
}

// Each refusal leaves notes at most.
TEST_F(Reach, WithoutTheSystemsBarrierNothingIsTaken) {
  for (unsigned n : {TOLD, PLACED, READ}) {
    Actor actor(0);
    actor.free(actor.alloc(100, 40));
    size_t kept = loaded(actor, 100);
    fake_os::fail_nth(fake_os::BARRIER, n, 1, ENOSYS);
    EXPECT_EQ(reach(), 0u);
    EXPECT_EQ(cache_of(actor)->claimed, 0u);
    EXPECT_EQ(bin_of(actor, 100).displaced != nullptr, n != TOLD);
    actor.free(actor.alloc(101, 1));
    actor.run([] { hak_tcache_publish(); });
    EXPECT_EQ(loaded(actor, 100), kept);
    expect_unique(actor, 100, 100);
    expect_nothing_lost({&actor});
  }
}

// It ended without its destructors: its cache is in use for ever, and its memory is gone.
TEST_F(Reach, MemoryOfAThreadThatIsGoneIsNotTouched) {
  Actor actor(0);
  actor.free(actor.alloc(100, 300));
  hak_tcache *t = cache_of(actor);
  void ***top = t->top;
  for (unsigned when : {0u, unsigned(TOLD)}) {
    void *gone = mmap(nullptr, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (when == 0) t->top = static_cast<void ***>(gone);
    EXPECT_EQ(reach_with({{when, [&] { t->top = static_cast<void ***>(gone); }}}), 0u);
    t->top = top;
    munmap(gone, 4096);
  }
  EXPECT_GT(reach(), 0u);
  expect_nothing_lost({&actor});
}

// The owner forks in a signal handler, and no lock is taken: of the drainer the child has only what it was at, and its lock.
class ReachAlone : public Reach {
 protected:
  void SetUp() override {
    Reach::SetUp();
    fake_os::set_clock(hak_os_now_ms()); // else a late free finds that nothing was taken for long, and caches keep less
  }
  // At a barrier of a drain from it the actor forks; what the child does may not hang. Returns whether that was well.
  static bool fork_at(unsigned barrier, Actor &actor, const std::function<bool()> &child) {
    int status = -1;
    auto fork_alone = [&] {
      pid_t pid = pid_t(syscall(SYS_fork));
      if (pid == 0) {
        alarm(20);
        fake_os::on_call(nullptr);
        hak_tcache_fork_child_alone();
        _exit(child() ? 0 : 1);
      }
      waitpid(pid, &status, 0);
    };
    reach_with({{barrier, [&] { actor.run(fork_alone); }}});
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }
  // All blocks differ from each other, and from those that are held.
  static bool hands_out_each_once(const std::vector<void *> &held) {
    std::set<void *> all(held.begin(), held.end());
    size_t n = all.size();
    for (size_t size : {100, 40000, 100000}) {
      for (int i = 0; i < 300; i++, n++) all.insert(hakmem_malloc(size));
    }
    return all.size() == n && all.count(nullptr) == 0;
  }
  static void give_all(Actor &actor) {
    for (size_t size : {100000, 40000, 100}) actor.free(actor.alloc(size, 300));
  }
};

TEST_F(ReachAlone, TheChildGoesOnWhereverTheDrainerWas) {
  for (unsigned when : {TOLD, PLACED, READ}) {
    Actor actor(0), other(0);
    give_all(actor);
    give_all(other);
    std::vector<void *> held = actor.alloc(100, 5);
    EXPECT_TRUE(fork_at(when, actor, [&] {
      const hak_tcache *t = hak_tls.cache;
      if (t->claimed != 0 || t->stacked_bytes != 0 || t->spares != nullptr) return false;
      for (const hak_tcache_bin &b : t->bins)
        if (b.full != nullptr || b.full_count != 0) return false;
      if (t->bins[hak_class_for(40000)].loaded != nullptr) return false;
      reach();
      return hands_out_each_once(held);
    })) << when;
    actor.free(held);
    expect_nothing_lost({&actor, &other});
  }
}

// Its stack is linked to what was taken from another thread.
TEST_F(ReachAlone, TheChildLeavesStacksThatMayBeOthers) {
  Actor actor(0), other(0);
  give_all(actor);
  give_all(other);
  hak_tcache_bin &theirs = bin_of(other, 100);
  void **full = theirs.full;
  ASSERT_NE(full, nullptr);
  EXPECT_TRUE(fork_at(TOLD, actor, [&] {
    return hak_tls.cache->bins[hak_class_for(100)].full == nullptr && hands_out_each_once({full[127]});
  }));
  expect_nothing_lost({&actor, &other});
}

// It was in a slow path before the drainer came, which leaves it alone; or it came behind it, and waits.
TEST_F(ReachAlone, TheChildKeepsItsStacksWhereItWasInASlowPathBeforeTheDrainer) {
  for (bool waits : {false, true}) {
    Actor actor(0);
    give_all(actor);
    void **full = bin_of(actor, 100).full;
    ASSERT_NE(full, nullptr);
    actor.run([&] { hak_tls.cache->busy++; hak_tls.cache->waiting = waits; });
    EXPECT_TRUE(fork_at(TOLD, actor, [&] {
      hak_tcache *t = hak_tls.cache;
      if (t->bins[hak_class_for(100)].full != (waits ? nullptr : full)) return false;
      t->waiting = false;
      hak_tcache_leave(t);
      return hands_out_each_once({});
    })) << waits;
    actor.run([] { hak_tls.cache->waiting = false; hak_tcache_leave(hak_tls.cache); });
    expect_nothing_lost({&actor});
  }
}

// A drainer of its own, that it interrupted itself, it goes on with.
TEST_F(ReachAlone, TheChildKeepsTheLockThatItHas) {
  Actor actor(0);
  give_all(actor);
  int status = -1;
  reach_with({{PLACED, [&] {
    pid_t pid = pid_t(syscall(SYS_fork));
    if (pid == 0) {
      hak_tcache_fork_child_alone();
      _exit(hak_lock_try(&hak_tcache_reach_lock) ? 1 : 0);
    }
    waitpid(pid, &status, 0);
  }}});
  EXPECT_EQ(status, 0);
  expect_nothing_lost({&actor});
}

// A fork's child puts its tops aside while it starts threads.
TEST_F(Reach, TopsThatAreElsewhereAreLeftAlone) {
  Actor actor(0);
  actor.free(actor.alloc(100, 40));
  unsigned c = hak_class_for(100);
  void **top = nullptr;
  auto aside = [&] { actor.run([&] { std::swap(top, hak_tls.top[c + 1]); }); };
  for (unsigned when : {TOLD, PLACED}) {
    top = HAK_NULL_TOP;
    EXPECT_EQ(reach_with({{when, aside}}), 0u);
    aside();
  }
  expect_unique(actor, 100, 100);
  expect_nothing_lost({&actor});
}

TEST_F(Reach, ByTheClockOnlyThoseThatStoodStillAndOnce) {
  uint64_t now = hak_os_now_ms();
  fake_os::set_clock(now);  // no look is due meanwhile
  Actor sleeper(0), worker(0);
  for (Actor *actor : {&sleeper, &worker}) actor->free(actor->alloc(100, 300));
  auto came_by = [](Actor &actor, uint64_t ms) { cache_of(actor)->exit_ms = ms; };
  came_by(sleeper, now - 2000);
  came_by(worker, now - 900);
  EXPECT_GT(reach(now - 1000), 200u);
  EXPECT_EQ(loaded(sleeper, 100), 1u);
  EXPECT_GT(bin_of(worker, 100).full_count, 0);
  unsigned calls = fake_os::count(fake_os::BARRIER);
  EXPECT_EQ(reach(now - 1000), 0u);
  EXPECT_EQ(fake_os::count(fake_os::BARRIER), calls) << "no call for a thread that still sleeps";
  EXPECT_GT(reach(now - 800), 200u);
  EXPECT_EQ(loaded(worker, 100), 1u);
  came_by(sleeper, now - 700);
  sleeper.free(sleeper.alloc(100, 300));
  EXPECT_GT(reach(now), 200u) << "it was awake";
  expect_nothing_lost({&sleeper, &worker});
}

// With bounded work a call, and all of it after a few.
TEST_F(Reach, ByTurns) {
  fake_os::set_clock(hak_os_now_ms());
  std::vector<std::unique_ptr<Actor>> actors;
  std::vector<Actor *> all;
  for (int i = 0; i < 60; i++) {
    actors.push_back(std::make_unique<Actor>(0));
    all.push_back(actors.back().get());
    all.back()->free(all.back()->alloc(16, 900));
  }
  size_t sum = 0, blocks = reach(hak_os_now_ms());
  size_t shared = HAK_CLASS_COUNT + 1, enough = shared * HAK_MAGAZINE_SLOTS;  // magazines that share barriers, and blocks
  EXPECT_GE(blocks, enough);
  EXPECT_LT(blocks, enough + shared / 2 * 900) << "of each thread a stack and a loaded magazine";
  for (; blocks > 0; blocks = reach(hak_os_now_ms())) sum += blocks;
  EXPECT_GT(sum, 60u * 800);
  for (Actor *actor : all) EXPECT_EQ(loaded(*actor, 16), 1u);
  expect_nothing_lost(all);
}

// More caches, and more magazines, than share barriers.
TEST_F(Reach, ManyThreads) {
  std::vector<std::unique_ptr<Actor>> actors;
  std::vector<Actor *> all;
  for (int i = 0; i < 80; i++) {
    actors.push_back(std::make_unique<Actor>(0));
    all.push_back(actors.back().get());
    for (size_t size : {16, 100, 300, 700, 3000}) all.back()->free(all.back()->alloc(size, 30));
  }
  EXPECT_GT(reach(), 80u * 5 * 28);
  for (Actor *actor : all) EXPECT_EQ(loaded(*actor, 700), 1u);
  for (Actor *actor : all) EXPECT_EQ(loaded(*actor, 16), 1u);
  expect_nothing_lost(all);
}

// Four threads an arena may have all of it.
TEST_F(Reach, WhatAThreadMayKeepFallsWithTheirNumber) {
  auto burst = [](Actor &actor) {
    for (size_t size : {16, 100, 700, 3000}) actor.free(actor.alloc(size, 900));
  };
  Actor alone(0);
  alone.free(alone.alloc(32768, 3000)); // no request finds the pool full, which would empty the cache
  hak_store_relaxed(&hak_span_pool.frees_much, false); // some looks later
  for (size_t size : {700, 3000}) alone.run([size] { grow_capacity(size); });
  burst(alone);
  size_t stacked = cache_of(alone)->stacked_bytes;
  EXPECT_GT(stacked, 1 * HAK_MIB * 7 / 8);
  std::vector<std::unique_ptr<Actor>> others;
  std::vector<Actor *> all = {&alone};
  for (size_t i = 0; i < 60 * hak_arena_count(); i++) {
    others.push_back(std::make_unique<Actor>(0));
    all.push_back(others.back().get());
    all.back()->free(all.back()->alloc(16, 1));
  }
  burst(alone);
  burst(*all.back());
  for (Actor *actor : {&alone, all.back()}) {
    EXPECT_LE(cache_of(*actor)->stacked_bytes, actor == &alone ? stacked : 1 * HAK_MIB * 4 / 60);
    expect_unique(*actor, 3000, 300);
  }
  for (auto &actor : others) actor->end();
  hak_store_relaxed(&hak_span_pool.frees_much, false);
  burst(alone);
  EXPECT_GT(cache_of(alone)->stacked_bytes, 1 * HAK_MIB * 7 / 8) << "again";
  expect_nothing_lost({&alone});
}

TEST_F(Reach, NearATargetAThreadStacksNothing) {
  Actor actor(0);
  fake_os::set_clock(hak_os_now_ms()); /* behind the first burst no look finds that there is no target */
  actor.free(actor.alloc(32768, 3000)); // no request finds the pool full, which would empty the cache
  hak_store_relaxed(&hak_span_pool.frees_much, false); // some looks later
  auto burst = [&] {
    for (size_t size : {50, 900, 5000}) actor.free(actor.alloc(size, 900));
  };
  for (size_t size : {900, 5000}) actor.run([size] { grow_capacity(size); });
  burst();
  EXPECT_GT(cache_of(actor)->stacked_bytes, 1 * HAK_MIB * 3 / 4);
  size_t before = cache_of(actor)->stacked_bytes;
  hak_store_relaxed(&hak_budget_ceiling, SIZE_MAX - 1); /* there is a target */
  hak_store_relaxed(&hak_budget_level_now, HAK_BUDGET_NEAR);
  burst();
  EXPECT_LE(cache_of(actor)->stacked_bytes, before) << "what there is the next decay takes";
  hak_deferred d = {};
  actor.run([&] { hak_tcache_flush(hak_tls.cache, &d); });
  burst();
  EXPECT_EQ(cache_of(actor)->stacked_bytes, 0u);
  EXPECT_LE(loaded(actor, 70000), 1u);
  hak_store_relaxed(&hak_budget_level_now, HAK_BUDGET_FAR);
  hak_store_relaxed(&hak_budget_ceiling, SIZE_MAX);
  burst();
  EXPECT_GT(cache_of(actor)->stacked_bytes, 1 * HAK_MIB * 3 / 4) << "again";
  expect_nothing_lost({&actor});
}

TEST_F(Reach, CachesOfThreadsThatEndAndBegin) {
  Actor first(0);
  first.free(first.alloc(100, 300));
  reach();
  first.end();
  EXPECT_EQ(reach(), 0u);
  Actor second(0);
  EXPECT_EQ(cache_of(second)->has_sentinel, 0u);
  second.free(second.alloc(100, 300));
  EXPECT_GT(reach(), 200u);
  expect_nothing_lost({&first, &second});
}

}  // namespace
