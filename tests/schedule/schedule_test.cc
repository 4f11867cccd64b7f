/* Send, park, drain, adopt and fork in every order: no packet is stranded in a heap that nobody owns, every block comes
 * back, nothing waits for ever. */
#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "accounting.h"
#include "controller.h"
#include "hakmem/hakmem.h"

extern "C" {
#include "heap/heap.h"
#include "heap/remote.h"
#include "os/os.h"
}

namespace {

/* --- what is always right --- */

/* malloc_trim without what it does for other threads' heaps, which would hide a packet that is left there. */
void trim_own() {
  hak_heap_trim_warm(false, 0);
  if (hak_tls_front.heap != nullptr) hak_heap_trim(hak_tls_front.heap);
}

/* The clock stands still, so that no thread helps another one's heap in passing. */
const bool kClockStopped = [] {
  static struct hak_os_ops stopped = hak_os_linux;
  stopped.now_ms = [] { return uint64_t{0}; };
  hak_os = &stopped;
  return true;
}();

std::string check_no_packet_stranded() {
  size_t n = accounting_stranded_packets();
  return n == 0 ? "" : std::to_string(n) + " parked heaps have packets stranded in their inboxes";
}

std::string check_heap() {
  size_t n = hakmem_heap_check();
  return n == 0 ? "" : "the heap walk found " + std::to_string(n) + " faults";
}

std::string check_stopped() {
  std::string wrong = check_no_packet_stranded();
  return wrong.empty() ? check_heap() : wrong;
}

std::string check_all_returned() {
  trim_own();
  std::string wrong = check_stopped();
  if (!wrong.empty()) return wrong;
  size_t n = accounting_check_nothing_live();
  return n == 0 ? "" : std::to_string(n) + " places still hold blocks";
}

/* --- the operations --- */

/* Blocks one thread allocated for others to free, of a class that goes home in packets; verified on the way: two owners of one heap would overlap. */
struct Blocks {
  std::vector<unsigned char *> all;
  int mark = 0;

  void allocate(int value, size_t count = 6, size_t size = 48) {
    mark = value;
    size_ = size;
    hak_heap_current();  // a young thread has none, and sends nothing
    for (size_t i = 0; i < count; i++) {
      all.push_back(static_cast<unsigned char *>(hakmem_malloc(size)));
      std::memset(all.back(), value, size);
    }
  }
  void free_all() {
    for (unsigned char *p : all) {
      for (size_t i = 0; i < size_; i++) {
        if (p[i] != mark) std::abort();
      }
      hakmem_free(p);
    }
    all.clear();
  }
  /* Part k of n, so that several threads can share the blocks. */
  void free_part(size_t k, size_t n) {
    for (size_t i = k; i < all.size(); i += n) hakmem_free(all[i]);
  }

 private:
  size_t size_ = 0;
};

/* A thread with a heap that owns `blocks`. */
Actor owner(const char *name, const std::shared_ptr<Blocks> &blocks, int mark, std::function<void()> body) {
  return {name, [=] { blocks->allocate(mark); }, std::move(body)};
}

/* Has `blocks` of another thread in an open packet and sends it. */
Actor sender(const char *name, const std::shared_ptr<Blocks> &blocks, size_t part = 0, size_t parts = 1) {
  return {name,
          [=] {
            hak_heap_current();
            blocks->free_part(part, parts);
          },
          [] { trim_own(); }};
}

void park() { hak_heap_park_current(); }

/* Allocates until the front had to refill, which takes the inbox, and frees it all. */
void refill() {
  Blocks own;
  own.allocate(77, 200);
  own.free_all();
}

/* A thread that has no heap yet and takes one. */
Actor newcomer(const char *name) { return {name, [] {}, refill}; }

void nothing() {}

template <class Make>
void expect_all_pass(Make make, size_t at_least, size_t samples = 0) {
  Exploration result = explore(make, samples);
  EXPECT_EQ(result.failure, "") << "schedule " << result.schedules;
  EXPECT_GE(result.schedules, at_least) << "the points are not where this test expects them";
  std::printf("%zu schedules\n", result.schedules);
}

void hold_heaps(unsigned count) {
  if (count == 0) return;
  Blocks own;
  own.allocate(3);
  std::thread([count] { hold_heaps(count - 1); }).join();
  own.free_all();
}

/* Each of `count` threads holds a heap until all have one; then all are parked. */
void leave_parked_heaps(unsigned count) {
  std::thread([count] { hold_heaps(count); }).join();
}

/* A thread, not scheduled, that owns blocks until it is told to end. */
class HeldOwner {
 public:
  explicit HeldOwner(const std::shared_ptr<Blocks> &blocks)
      : thread_([this, blocks] {
          blocks->allocate(1);
          allocated_.set_value();
          end_.get_future().wait();
        }) {
    allocated_.get_future().wait();
  }
  void end() {
    end_.set_value();
    thread_.join();
  }

 private:
  std::promise<void> allocated_, end_;
  std::thread thread_;
};

/* --- pairs --- */

TEST(Pairs, SendAndPark) {
  expect_all_pass(
      [] {
        auto b = std::make_shared<Blocks>();
        return Scenario{{owner("owner parks", b, 1, park), sender("sender", b)},
                        check_stopped,
                        check_all_returned};
      },
      20);
}

TEST(Pairs, SendAndRefill) {
  expect_all_pass(
      [] {
        auto b = std::make_shared<Blocks>();
        return Scenario{{owner("owner refills", b, 1, refill), sender("sender", b)},
                        check_stopped,
                        check_all_returned};
      },
      3);
}

TEST(Pairs, SendAndSendToAnActiveHeap) {
  expect_all_pass(
      [] {
        auto b = std::make_shared<Blocks>();
        return Scenario{
            {owner("owner", b, 1, nothing), sender("first", b, 0, 2), sender("second", b, 1, 2)},
            check_stopped,
            check_all_returned};
      },
      20);
}

TEST(Pairs, SendAndSendToAParkedHeap) {
  expect_all_pass(
      [] {
        auto b = std::make_shared<Blocks>();
        auto o = std::make_shared<HeldOwner>(b);
        Actor first = sender("first", b, 0, 2), second = sender("second", b, 1, 2);
        /* Only when both have heaps of their own; they would adopt this one otherwise. */
        second.set_up = [=, free_blocks = second.set_up] {
          free_blocks();
          o->end();
        };
        return Scenario{{first, second}, check_stopped, check_all_returned};
      },
      20);
}

TEST(Pairs, SendAndAdopt) {
  expect_all_pass(
      [] {
        auto b = std::make_shared<Blocks>();
        auto o = std::make_shared<HeldOwner>(b);
        Actor adopter = newcomer("adopter");
        adopter.set_up = [o] { o->end(); };
        return Scenario{{sender("sender", b), adopter}, check_stopped, check_all_returned};
      },
      10);
}

TEST(Pairs, ParkAndAdopt) {
  expect_all_pass(
      [] {
        auto b = std::make_shared<Blocks>();
        return Scenario{{owner("owner parks", b, 1, park), newcomer("adopter")},
                        check_stopped,
                        [b] {
                          b->free_all();
                          return check_all_returned();
                        }};
      },
      10);
}

TEST(Pairs, ParkAndPark) {
  expect_all_pass(
      [] {
        auto b = std::make_shared<Blocks>(), c = std::make_shared<Blocks>();
        /* Each also sends the other's blocks on its way out. */
        Actor first = owner("first parks", b, 1, [c] {
          c->free_all();
          park();
        });
        Actor second = owner("second parks", c, 2, [b] {
          b->free_all();
          park();
        });
        return Scenario{{first, second}, check_stopped, check_all_returned};
      },
      100);
}

TEST(Pairs, AdoptAndAdopt) {
  for (unsigned heaps : {1u, 2u}) {
    expect_all_pass(
        [heaps] {
          leave_parked_heaps(heaps);
          return Scenario{{newcomer("first"), newcomer("second")}, check_stopped, check_all_returned};
        },
        6);
  }
}

/* A sender with a backlog drains for the owner while the owner does something else. */
TEST(Pairs, DrainAndPark) {
  expect_all_pass(
      [] {
        auto b = std::make_shared<Blocks>();
        auto heap = std::make_shared<hak_heap *>(nullptr);
        Actor o = owner("owner parks", b, 1, park);
        o.set_up = [=] {
          b->allocate(1);
          *heap = hak_heap_current();
        };
        Actor d{"drainer",
                [=] {
                  b->free_all();
                  trim_own(); /* the packet waits in the active owner's inbox */
                },
                [=] { hak_remote_drain(*heap); }};
        return Scenario{{o, d}, check_stopped, check_all_returned};
      },
      10);
}

TEST(Pairs, DrainAndRefill) {
  expect_all_pass(
      [] {
        auto b = std::make_shared<Blocks>();
        auto heap = std::make_shared<hak_heap *>(nullptr);
        Actor o{"owner refills",
                [=] {
                  b->allocate(1);
                  *heap = hak_heap_current();
                },
                refill};
        Actor d{"drainer",
                [=] {
                  b->free_all();
                  trim_own();
                },
                [=] { hak_remote_drain(*heap); }};
        return Scenario{{o, d}, check_stopped, check_all_returned};
      },
      3);
}

/* --- three at a time --- */

TEST(Triples, SendParkAdopt) {
  expect_all_pass(
      [] {
        auto b = std::make_shared<Blocks>();
        return Scenario{{owner("owner parks", b, 1, park), sender("sender", b), newcomer("adopter")},
                        check_stopped,
                        check_all_returned};
      },
      200, 2000);
}

TEST(Triples, TwoSendersAndPark) {
  expect_all_pass(
      [] {
        auto b = std::make_shared<Blocks>();
        return Scenario{{owner("owner parks", b, 1, park), sender("first", b, 0, 2),
                         sender("second", b, 1, 2)},
                        check_stopped,
                        check_all_returned};
      },
      200, 2000);
}

/* The adopter parks again at once: a sender may have read the state of the first parking. */
TEST(Triples, SendParkAdoptPark) {
  expect_all_pass(
      [] {
        auto b = std::make_shared<Blocks>();
        Actor again = newcomer("adopter parks too");
        again.body = [] {
          hakmem_free(hakmem_malloc(64));
          park();
        };
        return Scenario{{owner("owner parks", b, 1, park), sender("sender", b), again},
                        check_stopped,
                        check_all_returned};
      },
      200, 2000);
}

/* --- fork at every moment of each --- */

/* In the child: whatever the others were doing, the heaps can all be adopted, and then no packet waits anywhere. */
[[noreturn]] void live_as_child(const Blocks *blocks) {
  stop_scheduling_here();
  alarm(20);
  if (hakmem_heap_check() != 0) _exit(2);
  for (uint32_t id = HAK_EMERGENCY_ID; id < hak_heap_id_limit(); id++) {
    hak_heap *h = hak_heap_by_id(id);
    if (h != hak_tls_front.heap && hak_load_seq(&h->state) == HAK_HEAP_ACTIVE) _exit(3);
  }
  /* Frees for heaps without a thread. Whether the block was in a packet or a front that is lost here is not known to a
   * program; it frees what it knows to be live, the blocks nobody has freed yet. */
  for (unsigned char *p : blocks->all) hakmem_free(p);
  leave_parked_heaps(static_cast<unsigned>(accounting_heaps()));
  if (hak_tls_front.heap != nullptr) trim_own();
  if (accounting_stranded_packets() != 0) _exit(4);
  if (hakmem_heap_check() != 0) _exit(5);
  pid_t grandchild = fork();
  if (grandchild == 0) _exit(hakmem_heap_check() == 0 ? 0 : 6);
  int status = 0;
  waitpid(grandchild, &status, 0);
  _exit(status == 0 ? 0 : 7);
}

/* kept: blocks of the forking thread's that no other thread touches. */
Actor forker(const std::shared_ptr<std::string> &wrong) {
  auto kept = std::make_shared<Blocks>();
  return {"forker", [kept] { kept->allocate(9, 50); },
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

void expect_fork_is_safe(const std::function<std::vector<Actor>()> &make_others, size_t at_least, size_t samples = 0) {
  expect_all_pass(
      [&] {
        auto wrong = std::make_shared<std::string>();
        Scenario s;
        s.actors = make_others();
        s.actors.push_back(forker(wrong));
        s.when_stopped = [wrong] { return wrong->empty() ? check_stopped() : *wrong; };
        s.at_end = check_all_returned;
        return s;
      },
      at_least, samples);
}

TEST(Fork, DuringPark) {
  expect_fork_is_safe(
      [] {
        auto b = std::make_shared<Blocks>();
        return std::vector<Actor>{owner("owner parks", b, 1, [b] {
          b->free_all();
          park();
        })};
      },
      4);
}

TEST(Fork, DuringSend) {
  expect_fork_is_safe(
      [] {
        auto b = std::make_shared<Blocks>();
        return std::vector<Actor>{owner("owner", b, 1, nothing), sender("sender", b)};
      },
      5);
}

TEST(Fork, DuringSendAndPark) {
  expect_fork_is_safe(
      [] {
        auto b = std::make_shared<Blocks>();
        return std::vector<Actor>{owner("owner parks", b, 1, park), sender("sender", b)};
      },
      100);
}

TEST(Fork, DuringAdopt) {
  expect_fork_is_safe(
      [] {
        leave_parked_heaps(1);
        return std::vector<Actor>{newcomer("adopter")};
      },
      3);
}

TEST(Fork, DuringAdoptAndPark) {
  expect_fork_is_safe(
      [] {
        auto b = std::make_shared<Blocks>();
        return std::vector<Actor>{owner("owner parks", b, 1,
                                        [b] {
                                          b->free_all();
                                          park();
                                        }),
                                  newcomer("adopter")};
      },
      30);
}

}  // namespace
