/* Seeded multi-threaded stress with payload checks.
 *
 * Every block is filled with a pattern made from its address, size and a random key; the pattern is verified when the
 * block is freed, resized or received from another thread, so that two blocks that overlap are noticed by whichever is
 * looked at later. Threads live for a few thousand operations, hand blocks to one another through mailboxes, and leave
 * blocks behind when they end. Between rounds no thread runs: then the heap is walked, and at the end nothing may be
 * live.
 *
 * usage: stress [--seed N] [--seconds S] [--threads T] [--max-bytes B] [--check-steps N] [--arenas N] [--thieves N]
 * --check-steps N walks the heap after every N operations of each thread as well. --arenas N makes up N CPUs, among which threads
 * move often; otherwise CPUs are the machine's. --thieves N: so many threads take what the others keep all the time. The seed is printed; a run repeats
 * the same operations a thread, the scheduler decides the rest. */
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "accounting.h"
#include "cpus.h"
#include "hakmem/hakmem.h"
#include "mailbox.h"

namespace {

struct Options {
  uint64_t seed = 1;
  double seconds = 10;
  unsigned threads = 4;
  size_t max_bytes = size_t{64} << 20;
  unsigned check_steps = 0;
  unsigned arenas = 0;
  unsigned thieves = 0;
};
Options options;

struct Block {
  unsigned char *p;
  size_t size;
  uint64_t key;
};

[[noreturn]] void fail(const char *what, const Block &b, size_t at) {
  std::fprintf(stderr, "stress: %s: block %p, size %zu, at byte %zu (repeat with --seed %llu --threads %u)\n", what,
               static_cast<void *>(b.p), b.size, at, static_cast<unsigned long long>(options.seed), options.threads);
  std::abort();
}

/* Large blocks are written and read in samples: both ends and a word in each page. */
constexpr size_t kWholeBytes = 32 << 10, kEdgeBytes = 4 << 10, kSampleStride = 4096;

uint64_t word_at(const Block &b, size_t offset) { return (b.key ^ offset) * UINT64_C(0x9fb21c651e98df25); }

/* Calls visit(offset, bytes) for each word (the last may be partial) that belongs to the sample. */
template <class Visit>
void each_word(const Block &b, size_t end, Visit visit) {
  size_t offset = 0;
  while (offset < end) {
    size_t bytes = end - offset < 8 ? end - offset : 8;
    visit(offset, bytes);
    bool dense = b.size <= kWholeBytes || offset < kEdgeBytes || offset + kEdgeBytes >= b.size;
    size_t step = dense ? 8 : kSampleStride;
    if (!dense && offset + step > b.size - kEdgeBytes) step = ((b.size - kEdgeBytes - offset) & ~size_t{7}) + 8;
    offset += step;
  }
}

void fill(const Block &b) {
  each_word(b, b.size, [&](size_t offset, size_t bytes) {
    uint64_t word = word_at(b, offset);
    std::memcpy(b.p + offset, &word, bytes);
  });
}

/* The first `end` bytes, which realloc must have kept, are those that fill() wrote for `was`. */
void verify_prefix(const Block &was, const unsigned char *now, size_t end) {
  each_word(was, end, [&](size_t offset, size_t bytes) {
    uint64_t word = word_at(was, offset);
    if (std::memcmp(now + offset, &word, bytes) != 0) fail("wrong contents", was, offset);
  });
}

void verify(const Block &b) { verify_prefix(b, b.p, b.size); }

void verify_zero(const Block &b) {
  each_word(b, b.size, [&](size_t offset, size_t bytes) {
    static const unsigned char zeros[8] = {};
    if (std::memcmp(b.p + offset, zeros, bytes) != 0) fail("calloc gave non-zero bytes", b, offset);
  });
}

/* Blocks on their way to another thread. */
std::vector<Mailbox<Block>> *mailboxes;
constexpr size_t kMailboxLimit = 400;

/* With --check-steps operations are taken one at a time, because the walk of runs is exact only while no other thread
 * allocates; threads begin and end at any moment all the same. */
std::mutex step_mutex;

std::mutex theft; // none while the heap is walked

void check_heap(const char *when) {
  std::lock_guard<std::mutex> guard(theft);
  size_t faults = hakmem_heap_check();
  if (faults != 0) {
    std::fprintf(stderr, "stress: %zu faults in the heap %s (repeat with --seed %llu --threads %u)\n", faults, when,
                 static_cast<unsigned long long>(options.seed), options.threads);
    std::abort();
  }
}

constexpr size_t kStepsOnCpu = 100;

class Worker {
 public:
  explicit Worker(uint64_t seed) : random_(seed) {}

  void run(size_t operations) {
    for (size_t i = 0; i < operations; i++) {
      if (options.arenas > 0 && i % kStepsOnCpu == 0) cpus_move_to(static_cast<uint32_t>(random_.below(options.arenas)));
      if (options.check_steps == 0) {
        step();
        continue;
      }
      std::lock_guard<std::mutex> guard(step_mutex);
      step();
      if (i % options.check_steps == 0) check_heap("after a step");
    }
    std::unique_lock<std::mutex> guard(step_mutex, std::defer_lock);
    if (options.check_steps != 0) guard.lock();
    /* A third is freed here, the rest outlives this thread. */
    while (!live_.empty()) {
      Block b = take(random_.below(live_.size()));
      if (random_.below(3) == 0)
        release(b);
      else
        post(b);
    }
  }

  void release(const Block &b) {
    verify(b);
    if (b.size > 0) b.p[0] = static_cast<unsigned char>(~b.p[0]); /* a stale pattern must not satisfy the next check */
    if (random_.below(8) == 0)
      hakmem_free_sized(b.p, b.size);
    else
      hakmem_free(b.p);
  }

 private:
  size_t random_size() {
    uint64_t dice = random_.below(10000);
    size_t size;
    if (dice < 50)
      size = 0;
    else if (dice < 4500)
      size = random_.between(1, 128);
    else if (dice < 7000)
      size = random_.between(129, 1024);
    else if (dice < 9300)
      size = random_.between(1025, 32768);
    else if (dice < 9900)
      size = random_.between(32769, 512 << 10);
    else if (dice < 9985)
      size = random_.between(512 << 10, 4 << 20);
    else if (dice < 9997)
      size = random_.between(4 << 20, 33 << 20);
    else
      size = random_.between(33 << 20, 64 << 20);
    return size <= options.max_bytes ? size : size % options.max_bytes;
  }

  void step() {
    uint64_t dice = random_.below(100);
    bool full = live_.size() > 2000 || live_bytes_ > kLiveBytes;
    if (dice < 42 && !full)
      add(allocate());
    else if (dice < 52 && !live_.empty())
      resize(random_.below(live_.size()));
    else if (dice < 60 && !live_.empty())
      post(take(random_.below(live_.size())));
    else if (dice < 68)
      receive();
    else if (dice == 99 && random_.below(200) == 0)
      hakmem_malloc_trim(random_.below(2) * (1 << 20));
    else if (!live_.empty())
      free_some();
  }

  /* Mostly the newest, which is what programs do; sometimes a burst, so that caches overflow. */
  void free_some() {
    size_t n = random_.below(50) == 0 ? random_.between(1, 300) : 1;
    for (; n > 0 && !live_.empty(); n--) {
      size_t at = random_.below(2) ? live_.size() - 1 : random_.below(live_.size());
      release(take(at));
    }
  }

  Block allocate() {
    Block b{nullptr, random_size(), 0};
    size_t align = 16;
    uint64_t dice = random_.below(16);
    if (dice < 11) {
      b.p = static_cast<unsigned char *>(hakmem_malloc(b.size));
    } else if (dice < 13) {
      b.p = static_cast<unsigned char *>(hakmem_calloc(b.size, 1));
      if (b.p != nullptr) verify_zero(b);
    } else if (dice < 15) {
      align = size_t{1} << random_.between(4, random_.below(20) == 0 ? 21 : 13);
      b.p = static_cast<unsigned char *>(hakmem_aligned_alloc(align, b.size));
    } else {
      align = size_t{8} << random_.below(8);
      void *p = nullptr;
      if (hakmem_posix_memalign(&p, align, b.size) != 0) p = nullptr;
      b.p = static_cast<unsigned char *>(p);
    }
    if (b.p == nullptr) fail("out of memory", b, 0);
    if (reinterpret_cast<uintptr_t>(b.p) % (align < 16 ? 16 : align) != 0) fail("misaligned", b, 0);
    if (hakmem_malloc_usable_size(b.p) < b.size) fail("usable size below the size asked for", b, 0);
    return b;
  }

  void add(Block b) {
    b.key = random_.next() ^ reinterpret_cast<uintptr_t>(b.p);
    fill(b);
    live_bytes_ += b.size;
    live_.push_back(b);
  }

  Block take(size_t at) {
    Block b = live_[at];
    live_[at] = live_.back();
    live_.pop_back();
    live_bytes_ -= b.size;
    return b;
  }

  void resize(size_t at) {
    Block old = take(at);
    verify(old);
    size_t size = random_.below(4) == 0 ? random_size() : old.size / 2 + random_.below(old.size + 64);
    if (size == 0) size = 1; /* realloc(p, 0) frees */
    if (size > options.max_bytes) size = options.max_bytes;
    Block b{static_cast<unsigned char *>(hakmem_realloc(old.p, size)), size, 0};
    if (b.p == nullptr) fail("out of memory in realloc", old, 0);
    /* Words are sampled relative to the old size, so that they are those fill() wrote. */
    verify_prefix(old, b.p, old.size < size ? old.size : size);
    add(b);
  }

  void post(const Block &b) {
    if (!(*mailboxes)[random_.below(mailboxes->size())].put(b, kMailboxLimit)) release(b);
  }

  void receive() {
    std::vector<Block> got = (*mailboxes)[random_.below(mailboxes->size())].take(random_);
    for (const Block &b : got) {
      if (random_.below(5) == 0) {
        verify(b);
        live_bytes_ += b.size;
        live_.push_back(b);
      } else {
        release(b);
      }
    }
  }

  static constexpr size_t kLiveBytes = size_t{48} << 20;
  Random random_;
  std::vector<Block> live_;
  size_t live_bytes_ = 0;
};

void empty_mailboxes(uint64_t seed) {
  Worker w(seed);
  for (Mailbox<Block> &m : *mailboxes) {
    for (const Block &b : m.take_all()) w.release(b);
  }
}

/* Each slot starts one short-lived thread after another, so that threads end and begin at any moment. */
void run_slot(uint64_t seed, double seconds, std::atomic<uint64_t> *operations) {
  Random random(seed);
  auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  do {
    uint64_t worker_seed = random.next();
    size_t n = random.between(1, random.below(4) == 0 ? 20000 : 1500);
    std::thread([=] { Worker(worker_seed).run(n); }).join();
    *operations += n;
  } while (std::chrono::steady_clock::now() < end);
}

bool parse(int argc, char **argv) {
  for (int i = 1; i + 1 < argc; i += 2) {
    std::string name = argv[i];
    const char *value = argv[i + 1];
    if (name == "--seed")
      options.seed = std::strtoull(value, nullptr, 0);
    else if (name == "--seconds")
      options.seconds = std::atof(value);
    else if (name == "--threads")
      options.threads = static_cast<unsigned>(std::atoi(value));
    else if (name == "--max-bytes")
      options.max_bytes = std::strtoull(value, nullptr, 0);
    else if (name == "--check-steps")
      options.check_steps = static_cast<unsigned>(std::atoi(value));
    else if (name == "--arenas")
      options.arenas = static_cast<unsigned>(std::atoi(value));
    else if (name == "--thieves")
      options.thieves = static_cast<unsigned>(std::atoi(value));
    else
      return false;
  }
  return argc % 2 == 1 && options.threads > 0 && options.max_bytes > 0;
}

}  // namespace

int main(int argc, char **argv) {
  if (!parse(argc, argv)) {
    std::fprintf(stderr, "usage: %s [--seed N] [--seconds S] [--threads T] [--max-bytes B] [--check-steps N] [--arenas N] [--thieves N]\n",
                 argv[0]);
    return 2;
  }
  std::printf("stress: --seed %llu --threads %u --seconds %g\n", static_cast<unsigned long long>(options.seed),
              options.threads, options.seconds);
  std::fflush(stdout);
  if (options.arenas > 0) {
    hakmem_free(hakmem_malloc(1));
    cpus_make_up();
  }
  std::vector<Mailbox<Block>> boxes(options.threads);
  mailboxes = &boxes;
  Random random(options.seed);
  std::atomic<uint64_t> operations{0};
  auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(options.seconds);
  unsigned rounds = 0;
  size_t faults = 0;
  std::atomic<bool> ended{false};
  std::atomic<uint64_t> taken{0};
  std::vector<std::thread> thieves;
  for (unsigned i = 0; i < options.thieves; i++) {
    thieves.emplace_back([&] {
      while (!ended) {
        std::unique_lock<std::mutex> guard(theft, std::try_to_lock);
        taken += guard.owns_lock() ? accounting_reach() : 0;
      }
    });
  }
  do {
    std::vector<std::thread> slots;
    for (unsigned i = 0; i < options.threads; i++) {
      uint64_t seed = random.next();
      slots.emplace_back(run_slot, seed, options.seconds / 5, &operations);
    }
    for (std::thread &t : slots) t.join();
    check_heap("between rounds");
    {
      std::lock_guard<std::mutex> guard(theft);
      faults += accounting_check_depots();
    }
    if (random.below(2) == 0) {
      empty_mailboxes(random.next());
      check_heap("after the mailboxes were emptied");
    }
    rounds++;
  } while (std::chrono::steady_clock::now() < end);
  ended = true;
  for (std::thread &t : thieves) t.join();
  empty_mailboxes(random.next());
  hakmem_malloc_trim(0);
  check_heap("at the end");
  faults += accounting_check_nothing_live();
  /* Each slot had at most two threads alive at a time, one ending while the next begins. */
  size_t caches = accounting_caches();
  if (caches > 2u + options.thieves + 2 * options.threads) {
    std::fprintf(stderr, "stress: %zu caches for %u threads at a time: ended threads' caches are not used again\n", caches,
                 options.threads);
    faults++;
  }
  if (cpus_arenas() < options.arenas) {
    std::fprintf(stderr, "stress: %u arenas, and not %u: threads were not where they were put\n", cpus_arenas(), options.arenas);
    faults++;
  }
  std::printf("stress: %u rounds, %llu operations, %zu caches, %llu blocks taken, %zu faults\n", rounds,
              static_cast<unsigned long long>(operations.load()), caches, static_cast<unsigned long long>(taken.load()), faults);
  return faults == 0 ? 0 : 1;
}
