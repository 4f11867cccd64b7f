/* What runs without a lock, or between two, in every order: the start, the making of arenas, the claim of an extent, magazines
 * on their way between caches and depots, purging; and a fork at every moment of each. */
#include <gtest/gtest.h>
#include <pthread.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "accounting.h"
#include "controller.h"
#include "hakmem/hakmem.h"

extern "C" {
#include "life/thread.h"
#include "large/extent.h"
#include "os/cpu.h"
#include "os/os.h"
#include "pool/span_pool.h"
}

namespace {

constexpr size_t kMiB = size_t{1} << 20;

/* The clock stands still, so that no thread decays anything in passing. */
const bool kClockStopped = [] {
  static struct hak_os_ops stopped = hak_os_linux;
  stopped.now_ms = [] { return uint64_t{1000}; };
  hak_os = &stopped;
  return true;
}();

/* Before the start decides how CPUs are told apart: which arena a thread finds is part of the order, and must not depend on
 * where it happens to run. */
void run_on_one_cpu() {
  cpu_set_t allowed, one;
  ASSERT_EQ(sched_getaffinity(0, sizeof allowed, &allowed), 0);
  int cpu = 0;
  while (!CPU_ISSET(cpu, &allowed)) cpu++;
  CPU_ZERO(&one);
  CPU_SET(cpu, &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
}

/* --- what is always right --- */

std::string check_heap() {
  size_t n = hakmem_heap_check() + accounting_check_depots();
  return n == 0 ? "" : "the heap walk found " + std::to_string(n) + " faults";
}

std::string check_all_returned() {
  hakmem_malloc_trim(0);
  std::string wrong = check_heap();
  if (!wrong.empty()) return wrong;
  size_t n = accounting_check_nothing_live();
  return n == 0 ? "" : std::to_string(n) + " places still hold blocks";
}

template <class Make>
void expect_all_pass(Make make, size_t at_least, size_t samples = 0) {
  Exploration result = explore(make, samples);
  EXPECT_EQ(result.failure, "");
  EXPECT_GE(result.schedules, at_least) << "the points do not lead to different orders any more";
  std::printf("%zu schedules\n", result.schedules);
}

/* --- what threads do --- */

/* Blocks filled with a mark of their own, verified when they are freed: a block with two owners is seen by one of them. */
class Blocks {
 public:
  explicit Blocks(int mark) : mark_(mark) {}
  void allocate(size_t count, size_t size) {
    for (size_t i = 0; i < count; i++) {
      auto *p = static_cast<unsigned char *>(hakmem_malloc(size));
      if (p == nullptr) std::abort();
      std::memset(p, mark_, size);
      all_.push_back({p, size});
    }
  }
  void free_all() {
    for (const One &b : all_) {
      for (size_t i = 0; i < b.size; i++) {
        if (b.p[i] != mark_) std::abort();
      }
      hakmem_free(b.p);
    }
    all_.clear();
  }
  void *first() const { return all_.front().p; }

 private:
  struct One {
    unsigned char *p;
    size_t size;
  };
  std::vector<One> all_;
  int mark_;
};

using Shared = std::shared_ptr<Blocks>;

constexpr size_t kOverflow = 200, kSize = 48;

/* The calling thread's cache, and with it an arena of its own, so that there are two whatever CPUs the threads run on. */
void have_cache() {
  hak_start();
  hak_os_cpu_offset = 0; /* each thread has a number of its own */
  hak_thread_cache();
}

/* Frees more blocks of another arena than a magazine holds: one goes to that arena's depot. */
Actor overflower(const char *name, const Shared &blocks) {
  return {name,
          [=] {
            have_cache();
            std::thread([=] {
              have_cache();
              blocks->allocate(kOverflow, kSize);
            }).join();
          },
          [=] { blocks->free_all(); }};
}

/* Allocates until it had to refill: which looks into the depot of the arena whose blocks an overflower before it frees, of two; or
 * steals from there. */
Actor refiller(const char *name, int mark, bool steals = false) {
  return {name,
          [steals] {
            if (!steals) std::thread(have_cache).join();
            have_cache();
          },
          [mark] {
            Blocks own(mark);
            own.allocate(kOverflow, kSize);
            own.free_all();
          }};
}

/* Leaves one block in a hundred alive, so that there are pages to purge in slabs; and dirty spans. */
struct Hollow {
  Blocks kept{7};
  void make() {
    Blocks others(8);
    for (int i = 0; i < 6; i++) {
      others.allocate(99, 1000);
      kept.allocate(1, 1000);
    }
    others.free_all();
    others.allocate(1, kMiB);
    others.free_all();
    hak_deferred d = {};
    hak_tcache_flush(hak_thread_cache(), &d);
    for (uint32_t i = 0; i < hak_arena_count(); i++) hak_arena_shrink(hak_arena_at(i), true, &d);
  }
};

Actor purger(const std::shared_ptr<Hollow> &hollow) {
  return {"purger",
          [=] {
            have_cache();
            hollow->make();
          },
          [] { hakmem_malloc_trim(0); }};
}

/* --- the start --- */

TEST(Start, OfTwoThreadsAtOnce) {
  ASSERT_NO_FATAL_FAILURE(run_on_one_cpu());
  expect_all_pass(
      [] {
        auto first = [](int mark) {
          return [mark] {
            Blocks own(mark);
            own.allocate(3, kSize);
            own.free_all();
          };
        };
        return Scenario{{{"first", [] {}, first(1)}, {"second", [] {}, first(2)}}, check_heap, check_all_returned};
      },
      3);
}

TEST(Arenas, AreMadeOnce) {
  expect_all_pass(
      [] {
        hak_start();
        hak_os_cpu_offset = 0;
        auto use = [](int mark) {
          return [mark] {
            Blocks own(mark);
            own.allocate(3, kSize);
            own.free_all();
          };
        };
        return Scenario{{{"first", [] {}, use(1)}, {"second", [] {}, use(2)}, {"third", [] {}, use(3)}},
                        [] {
                          return hak_arena_count() <= 2 ? check_heap() : std::to_string(hak_arena_count()) + " arenas for two CPUs";
                        },
                        check_all_returned};
      },
      2);
}

/* --- extents --- */

TEST(Extents, OfTwoFreesOneIsAccepted) {
  expect_all_pass(
      [] {
        auto b = std::make_shared<Blocks>(1);
        auto accepted = std::make_shared<int>(0);
        auto free_it = [=] {
          void *p = b->first();
          if (hak_extent_claim(hak_region_find(p), p) != HAK_VERDICT_OK) return;
          ++*accepted;
        };
        Actor first{"first", [=] { b->allocate(1, 300000); }, free_it}, second{"second", have_cache, free_it};
        return Scenario{{first, second},
                        [=] {
                          if (*accepted != 1) return std::to_string(*accepted) + " frees were accepted";
                          bool purge_due = false;
                          hak_extent_give(hak_region_find(b->first()), b->first(), &purge_due);
                          return check_heap();
                        },
                        check_all_returned};
      },
      3);
}

/* --- depots --- */

TEST(Depots, PutAndTake) {
  expect_all_pass(
      [] {
        auto b = std::make_shared<Blocks>(1);
        return Scenario{{overflower("frees", b), refiller("allocates", 2)}, check_heap, check_all_returned};
      },
      6);
}

TEST(Depots, PutAndPut) {
  expect_all_pass(
      [] {
        auto b = std::make_shared<Blocks>(1), c = std::make_shared<Blocks>(2);
        return Scenario{{overflower("first", b), overflower("second", c)}, check_heap, check_all_returned};
      },
      2);
}

TEST(Depots, PutTakeAndTake) {
  expect_all_pass(
      [] {
        auto b = std::make_shared<Blocks>(1);
        return Scenario{{overflower("frees", b), refiller("first", 2), refiller("second", 3, true)}, check_heap, check_all_returned};
      },
      100, 400);
}

/* --- purging --- */

/* What is taken meanwhile is none of what is being purged: it is read after the purge. */
TEST(Purge, OfSpansAndTake) {
  expect_all_pass(
      [] {
        auto dirty = std::make_shared<Blocks>(1), kept = std::make_shared<Blocks>(2);
        Actor p{"purger",
                [=] {
                  have_cache();
                  dirty->allocate(2, kMiB);
                  dirty->free_all();
                },
                [] { hakmem_malloc_trim(0); }};
        Actor keeper{"keeps", have_cache, [kept] { kept->allocate(60, 300000); }};
        return Scenario{{p, keeper},
                        [=] {
                          kept->free_all();
                          return check_heap();
                        },
                        check_all_returned};
      },
      3);
}

TEST(Purge, AndTake) {
  expect_all_pass(
      [] {
        auto hollow = std::make_shared<Hollow>();
        Actor taker{"takes", have_cache, [] {
                      Blocks own(3);
                      own.allocate(8, 300000);
                      own.allocate(200, 1000);
                      own.free_all();
                    }};
        return Scenario{{purger(hollow), taker}, check_heap, [=] {
                          hollow->kept.free_all();
                          return check_all_returned();
                        }};
      },
      50, 100);
}

/* Slabs are purged by one thread at a time: who finds another at it goes on without. */
TEST(Purge, AndPurge) {
  expect_all_pass(
      [] {
        auto hollow = std::make_shared<Hollow>();
        return Scenario{{purger(hollow), {"purges too", have_cache, [] { hakmem_malloc_trim(0); }}},
                        check_heap,
                        [=] {
                          hollow->kept.free_all();
                          return check_all_returned();
                        }};
      },
      50, 100);
}

/* --- fork at every moment of each --- */

enum ChildFault { kNone, kFaultyHeap = 2, kForeignCaches, kClaimed, kPurgesNothing, kFaultyAtEnd, kGrandchild };

/* In the child: whatever the others were doing, nothing is half changed, their caches are nobody's, what was claimed is
 * free again, and pages can be purged. */
[[noreturn]] void live_as_child(Blocks *kept) {
  stop_scheduling_here();
  alarm(20);
  if (hakmem_heap_check() + accounting_check_depots() != 0) _exit(kFaultyHeap);
  hak_tcache_sums sums;
  hak_tcache_sum(&sums);
  if (sums.used != 1) _exit(kForeignCaches);
  if (hak_span_pool.claimed_spans != 0 || hak_span_pool.purging_slab_pages != 0) _exit(kClaimed);
  Hollow hollow;
  hollow.make();
  hakmem_malloc_trim(0);
  if (hak_load_relaxed(&hak_span_pool.purged_slab_pages) == 0) _exit(kPurgesNothing);
  hollow.kept.free_all();
  kept->free_all();
  std::thread([] {
    Blocks own(9);
    own.allocate(300, kSize);
    own.free_all();
  }).join();
  if (hakmem_heap_check() + accounting_check_depots() != 0) _exit(kFaultyAtEnd);
  pid_t grandchild = fork();
  if (grandchild == 0) _exit(hakmem_heap_check() == 0 ? 0 : 1);
  int status = 0;
  waitpid(grandchild, &status, 0);
  _exit(status == 0 ? kNone : kGrandchild);
}

/* Has blocks that no other thread touches, of the sizes that the others use. */
Actor forker(const std::shared_ptr<std::string> &wrong) {
  auto kept = std::make_shared<Blocks>(50);
  return {"forker",
          [kept] {
            have_cache();
            kept->allocate(9, kSize);
            kept->allocate(9, 1000);
            kept->allocate(2, 300000);
          },
          [kept, wrong] {
            pid_t child = fork();
            if (child == 0) live_as_child(kept.get());
            int status = 0;
            waitpid(child, &status, 0);
            if (status != 0) {
              *wrong = WIFSIGNALED(status) ? "the forked child died by signal " + std::to_string(WTERMSIG(status))
                                           : "the forked child failed at " + std::to_string(WEXITSTATUS(status));
            }
            kept->free_all();
          }};
}

/* `clean_up` runs before everything has to be returned. */
void expect_fork_is_safe(const std::function<Actor(std::function<void()> *clean_up)> &make_other, size_t at_least,
                         size_t samples = 0) {
  expect_all_pass(
      [&] {
        auto wrong = std::make_shared<std::string>();
        auto clean_up = std::make_shared<std::function<void()>>([] {});
        Scenario s;
        s.actors = {make_other(clean_up.get()), forker(wrong)};
        s.when_stopped = [wrong] { return wrong->empty() ? check_heap() : *wrong; };
        s.at_end = [clean_up] {
          (*clean_up)();
          return check_all_returned();
        };
        return s;
      },
      at_least, samples);
}

TEST(Fork, DuringOverflow) {
  expect_fork_is_safe([](auto *) { return overflower("frees", std::make_shared<Blocks>(1)); }, 3);
}

TEST(Fork, DuringRefill) {
  expect_fork_is_safe([](auto *) { return refiller("allocates", 1); }, 100, 200);
}

TEST(Fork, DuringFreeOfAnExtent) {
  expect_fork_is_safe(
      [](auto *) {
        auto b = std::make_shared<Blocks>(1);
        return Actor{"frees",
                     [=] {
                       have_cache();
                       b->allocate(1, 300000);
                     },
                     [=] { b->free_all(); }};
      },
      3);
}

TEST(Fork, DuringPurge) {
  expect_fork_is_safe(
      [](auto *clean_up) {
        auto hollow = std::make_shared<Hollow>();
        *clean_up = [hollow] { hollow->kept.free_all(); };
        return purger(hollow);
      },
      100, 150);
}

}  // namespace
