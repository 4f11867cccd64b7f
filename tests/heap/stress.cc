/* Threads that work in heaps which come and go, with payload checks.
 *
 * A heap is in a slot with a lock of its own: who uses the heap has it shared, who destroys, deletes or replaces it alone, since that must
 * not be done while others use it. Blocks are filled with a pattern, and passed between threads through mailboxes; of a block whose heap was
 * destroyed nothing is done any more. Others look at figures, visit blocks, list heaps, set limits and take what threads have cached
 * meanwhile. Threads have defaults, and are short-lived. At the end nothing may be live.
 *
 * usage: heap_stress [--seed N] [--seconds S] [--threads T] */
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <thread>
#include <vector>

#include "accounting.h"
#include "hakmem/hakmem.h"
#include "hakmem/heap.h"
#include "mailbox.h"

namespace {

constexpr unsigned SLOTS = 20;
constexpr size_t LIMIT = size_t{4} << 20;
#if defined(__SANITIZE_THREAD__)
constexpr bool kNoBarrier = true;
#else
constexpr bool kNoBarrier = false;
#endif
uint64_t the_seed = 1;
double the_seconds = 5;
unsigned the_threads = 4;

[[noreturn]] void fail(const char *what) {
  std::fprintf(stderr, "heap_stress: %s (repeat with --seed %llu --threads %u)\n", what, static_cast<unsigned long long>(the_seed), the_threads);
  std::abort();
}

struct Slot {
  std::shared_mutex lock;
  hakmem_heap *heap = nullptr;
  uint64_t age = 0; /* heaps so far */
  bool deletes = false; /* they end by delete, and their blocks are the main heap's */
};
Slot slots[SLOTS];
std::atomic<uint64_t> refusals{0}, heaps_made{0}, resets{0}, calls_back{0};

struct Block {
  unsigned char *p;
  size_t size;
  unsigned char value;
  int slot; /* -1: in the main heap */
  uint64_t age;
};

constexpr size_t kWhole = 8192;

bool holds(const Block &b) {
  for (size_t at = 0; at < b.size; at += b.size <= kWhole ? 1 : 1021)
    if (b.p[at] != b.value) return false;
  return b.size == 0 || b.p[b.size - 1] == b.value;
}

void fill(const Block &b) {
  if (b.size <= kWhole) {
    std::memset(b.p, b.value, b.size);
    return;
  }
  for (size_t at = 0; at < b.size; at += 1021) b.p[at] = b.value;
  b.p[b.size - 1] = b.value;
}

std::vector<Mailbox<Block>> *mailboxes;

/* Of what is live now. */
void under_pressure(hakmem_heap *heap, size_t, void *) {
  calls_back++;
  hakmem_free(hakmem_heap_malloc(heap, 100));
}

/* With its lock held alone. Blocks of a heap that is deleted live on: others have them still, hence `deletes` is set for good. */
void end_heap(Slot *slot) {
  if (slot->heap == nullptr) return;
  if (slot->deletes)
    hakmem_heap_delete(slot->heap);
  else
    hakmem_heap_destroy(slot->heap);
  slot->heap = nullptr;
}

/* Children come first, so that a parent has none when it ends: slots 0 to 3 have parents, which live on. */
hakmem_heap *parents[4];

void renew(unsigned at, Random *random) {
  Slot &slot = slots[at];
  std::unique_lock<std::shared_mutex> guard(slot.lock, std::try_to_lock);
  if (!guard.owns_lock()) return;
  if (slot.heap != nullptr && !slot.deletes && random->below(2) == 0) {
    hakmem_heap_reset(slot.heap);
    slot.age++;
    resets++;
    return;
  }
  end_heap(&slot);
  slot.age++;
  if (random->below(8) == 0) return;
  hakmem_heap_options options = {};
  options.size = sizeof options;
  options.name = "stress";
  options.limit = random->below(2) == 0 ? 0 : random->below(LIMIT) + 1;
  options.parent = at < 4 ? parents[at] : nullptr;
  options.flags = random->below(4) == 0 ? HAKMEM_HEAP_UNCACHED : 0;
  slot.heap = hakmem_heap_new(&options);
  if (slot.heap == nullptr) fail("no heap");
  if (random->below(2) == 0) (void)hakmem_heap_set_callback(slot.heap, 80, under_pressure, nullptr);
  heaps_made++;
}

class Worker {
 public:
  explicit Worker(uint64_t seed) : random_(seed) {}

  void run(size_t steps) {
    for (size_t i = 0; i < steps; i++) step();
    while (!own_.empty()) {
      Block b = take();
      if (random_.below(3) == 0)
        release(b);
      else
        post(b);
    }
  }

  /* Whose heap was destroyed is gone. The slot's lock is held shared as long as the block is looked at. */
  template <class Body>
  void with(const Block &b, Body body) {
    if (b.slot < 0) return body();
    Slot &slot = slots[b.slot];
    std::shared_lock<std::shared_mutex> guard(slot.lock);
    bool same = slot.age == b.age;
    if (!same && !slot.deletes) return;
    if (!holds(b)) fail("wrong contents");
    hakmem_heap *of = hakmem_heap_of(b.p);
    if (of != (same ? slot.heap : nullptr)) {
      std::fprintf(stderr, "heap_stress: %p of %zu bytes is in heap %p, not %p of slot %d\n", static_cast<void *>(b.p), b.size, static_cast<void *>(of),
                   static_cast<void *>(same ? slot.heap : nullptr), b.slot);
      fail("the wrong heap");
    }
    body();
  }

  void release(const Block &b) {
    with(b, [&] {
      if (!holds(b)) fail("wrong contents");
      if (b.size > 0) b.p[0] = static_cast<unsigned char>(~b.value);
      hakmem_free(b.p);
    });
  }

 private:
  size_t size() {
    uint64_t dice = random_.below(1000);
    if (dice < 900) return random_.below(600);
    if (dice < 985) return random_.below(20000);
    return random_.below(dice < 999 ? 300000 : 3000000);
  }

  void step() {
    uint64_t dice = random_.below(1000);
    if (dice < 450 && own_.size() < 1000)
      allocate();
    else if (dice < 500)
      resize();
    else if (dice < 560 && !own_.empty())
      post(take());
    else if (dice < 620)
      receive();
    else if (dice < 624)
      renew(static_cast<unsigned>(random_.below(SLOTS)), &random_);
    else if (dice < 628)
      look();
    else if (!own_.empty())
      release(take());
  }

  void allocate() {
    unsigned at = static_cast<unsigned>(random_.below(SLOTS + 2));
    if (at >= SLOTS) {
      /* The default may be a heap that has ended, or ends now. */
      hakmem_heap_set_default(nullptr);
      size_t of_main = size();
      return add(hakmem_malloc(of_main), of_main, -1, 0);
    }
    Slot &slot = slots[at];
    std::shared_lock<std::shared_mutex> guard(slot.lock);
    if (slot.heap == nullptr) return;
    bool as_default = random_.below(4) == 0;
    if (as_default) hakmem_heap_set_default(slot.heap);
    for (uint64_t n = random_.below(20) == 0 ? random_.below(400) : 1; n > 0; n--) {
      size_t bytes = size();
      void *p = as_default              ? hakmem_malloc(bytes)
                : random_.below(8) == 0 ? hakmem_heap_aligned_alloc(slot.heap, size_t{64} << random_.below(7), bytes)
                                        : hakmem_heap_malloc(slot.heap, bytes);
      if (p == nullptr) {
        refusals++;
        break;
      }
      if (hakmem_heap_of(p) != slot.heap) fail("the wrong heap");
      add(p, bytes, static_cast<int>(at), slot.age);
    }
    if (as_default && random_.below(8) != 0) hakmem_heap_set_default(nullptr);
  }

  void add(void *p, size_t size, int slot, uint64_t age) {
    Block b{static_cast<unsigned char *>(p), size, static_cast<unsigned char>(random_.next()), slot, age};
    fill(b);
    own_.push_back(b);
  }

  Block take() {
    std::swap(own_[random_.below(own_.size())], own_.back());
    Block b = own_.back();
    own_.pop_back();
    return b;
  }

  void resize() {
    if (own_.empty()) return;
    Block b = take();
    with(b, [&] {
      size_t size = 1 + random_.below(2 * b.size + 100);
      void *p = hakmem_realloc(b.p, size);
      if (p == nullptr) {
        refusals++;
        own_.push_back(b);
        return;
      }
      Block kept{static_cast<unsigned char *>(p), b.size < size ? b.size : size, b.value, b.slot, b.age};
      if (kept.size > 0 && (kept.p[0] != b.value || (b.size <= kWhole && !holds(kept)))) fail("wrong contents after realloc");
      add(p, size, b.slot, b.age);
    });
  }

  void post(const Block &b) {
    if (!(*mailboxes)[random_.below(mailboxes->size())].put(b, 500)) release(b);
  }

  void receive() {
    std::vector<Block> got = (*mailboxes)[random_.below(mailboxes->size())].take(random_);
    for (const Block &b : got) release(b);
  }

  void look() {
    Slot &slot = slots[random_.below(SLOTS)];
    if (random_.below(4) == 0) {
      std::unique_lock<std::shared_mutex> guard(slot.lock, std::try_to_lock);
      if (!guard.owns_lock() || slot.heap == nullptr) return;
      size_t blocks = hakmem_heap_visit(slot.heap, [](void *, size_t, void *) { return true; }, nullptr);
      hakmem_heap_stats s;
      hakmem_heap_get_stats(slot.heap, &s, sizeof s);
      /* Without membarrier, which ThreadSanitizer does not know, what other threads have cached is visited too. */
      if (kNoBarrier ? blocks < s.blocks : blocks != s.blocks) {
        std::fprintf(stderr, "heap_stress: %zu blocks visited, %zu counted\n", blocks, s.blocks);
        fail("visited blocks and counted ones differ");
      }
      return;
    }
    std::shared_lock<std::shared_mutex> guard(slot.lock);
    if (slot.heap == nullptr) return;
    switch (random_.below(3)) {
      case 0: {
        hakmem_heap_stats s;
        hakmem_heap_get_stats(slot.heap, &s, sizeof s);
        if (s.id == 0 && s.held > SIZE_MAX / 2) fail("figures out of range");
        break;
      }
      case 1:
        hakmem_heap_set_limit(slot.heap, random_.below(2) == 0 ? 0 : random_.below(LIMIT));
        break;
      default:
        hakmem_heap_list([](hakmem_heap *heap, void *) { return hakmem_heap_name(heap)[0] != 'x'; }, nullptr);
    }
  }

  Random random_;
  std::vector<Block> own_;
};

void empty_mailboxes() {
  Worker w(0);
  for (Mailbox<Block> &m : *mailboxes) {
    for (const Block &b : m.take_all()) w.release(b);
  }
}

void check_heap(const char *when) {
  if (hakmem_heap_check() == 0) return;
  fail(when);
}

}  // namespace

int main(int argc, char **argv) {
  for (int i = 1; i + 1 < argc; i += 2) {
    std::string name = argv[i];
    if (name == "--seed") the_seed = std::strtoull(argv[i + 1], nullptr, 0);
    else if (name == "--seconds") the_seconds = std::atof(argv[i + 1]);
    else if (name == "--threads") the_threads = static_cast<unsigned>(std::atoi(argv[i + 1]));
    else return 2;
  }
  std::printf("heap_stress: --seed %llu --threads %u --seconds %g\n", static_cast<unsigned long long>(the_seed), the_threads, the_seconds);
  std::fflush(stdout);
  std::vector<Mailbox<Block>> boxes(the_threads);
  mailboxes = &boxes;
  Random random(the_seed);
  for (hakmem_heap *&parent : parents) {
    hakmem_heap_options options = {};
    options.size = sizeof options;
    options.limit = LIMIT;
    parent = hakmem_heap_new(&options);
    if (parent == nullptr) fail("no heap");
  }
  for (unsigned i = 0; i < SLOTS; i++) {
    slots[i].deletes = i % 5 == 4;
    renew(i, &random);
  }
  std::atomic<bool> ended{false};
  std::atomic<uint64_t> taken{0}, steps{0};
  std::mutex theft; /* none while the heap is walked */
  std::thread thief([&] {
    while (!ended) {
      std::unique_lock<std::mutex> guard(theft, std::try_to_lock);
      taken += guard.owns_lock() ? accounting_reach() : 0;
    }
  });
  auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(the_seconds);
  unsigned rounds = 0;
  do {
    std::vector<std::thread> runners;
    for (unsigned t = 0; t < the_threads; t++) {
      uint64_t seed = random.next();
      runners.emplace_back([seed, &steps] {
        Random own(seed);
        for (int i = 0; i < 4; i++) {
          uint64_t worker = own.next();
          size_t n = 1 + own.below(own.below(4) == 0 ? 20000 : 2000);
          std::thread([=] { Worker(worker).run(n); }).join();
          steps += n;
        }
      });
    }
    for (std::thread &t : runners) t.join();
    std::lock_guard<std::mutex> guard(theft);
    check_heap("faults in the heap between rounds");
    rounds++;
  } while (std::chrono::steady_clock::now() < end);
  ended = true;
  thief.join();
  empty_mailboxes();
  for (Slot &slot : slots) {
    std::unique_lock<std::shared_mutex> guard(slot.lock);
    if (slot.heap != nullptr) {
      hakmem_heap_stats s;
      hakmem_heap_get_stats(slot.heap, &s, sizeof s);
      if (s.blocks != 0 || s.live != 0) fail("blocks are live in a heap at the end");
    }
    end_heap(&slot);
  }
  for (hakmem_heap *parent : parents) {
    hakmem_heap_stats s;
    hakmem_heap_get_stats(parent, &s, sizeof s);
    if (s.total != 0) fail("bytes count to a parent at the end");
    hakmem_heap_destroy(parent);
  }
  hakmem_malloc_trim(0);
  check_heap("faults in the heap at the end");
  size_t faults = hakmem_heap_list(nullptr, nullptr) + accounting_check_nothing_live();
  std::printf("heap_stress: %u rounds, %llu steps, %llu heaps, %llu resets, %llu refusals, %llu calls back, %llu blocks taken, %zu faults\n", rounds,
              static_cast<unsigned long long>(steps.load()), static_cast<unsigned long long>(heaps_made.load()),
              static_cast<unsigned long long>(resets.load()), static_cast<unsigned long long>(refusals.load()), static_cast<unsigned long long>(calls_back.load()),
              static_cast<unsigned long long>(taken.load()), faults);
  return faults == 0 ? 0 : 1;
}
