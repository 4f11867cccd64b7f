// Included once by each program: it has main.
//
// Loads that end with most of their memory freed, and what is resident then.
#ifndef HAKMEM_TESTS_MEMORY_LOADS_H
#define HAKMEM_TESTS_MEMORY_LOADS_H

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <vector>

extern "C" {
#include "../support/proc_status.h"
}

constexpr size_t KIB = 1024, MIB = 1024 * KIB;

inline size_t resident() { return proc_status_kib("VmRSS:") * KIB; }

inline void rest(unsigned ms) {
  timespec t = {ms / 1000, long(ms % 1000) * 1000000};
  nanosleep(&t, nullptr);
}

// Whether it comes to be so within half a minute; `meanwhile` is done every millisecond.
inline bool comes_to(const std::function<bool()> &so, const std::function<void()> &meanwhile = [] {}) {
  for (int ms = 0; ms < 30000; ms++) {
    if (so()) return true;
    meanwhile();
    rest(1);
  }
  return so();
}

struct Block {
  unsigned char *p;
  size_t size;
};

// `bytes` in blocks of min to max, all of them written to, in an array that is not malloc's.
class Blocks {
 public:
  Blocks(size_t bytes, size_t min, size_t max, unsigned seed = 1) : random_(seed) {
    capacity_ = bytes / min + 1;
    blocks_ = static_cast<Block *>(mmap(nullptr, capacity_ * sizeof(Block), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (blocks_ == MAP_FAILED) abort();
    for (size_t done = 0; done < bytes; count_++) {
      size_t size = min + random_() % (max - min + 1);
      blocks_[count_] = {static_cast<unsigned char *>(malloc(size)), size};
      memset(blocks_[count_].p, int(count_ % 251 + 1), size);
      done += size;
    }
    std::shuffle(blocks_, blocks_ + count_, random_);
  }
  ~Blocks() {
    free_to(0);
    munmap(blocks_, capacity_ * sizeof(Block));
  }
  // Frees in random order until `left` of them are left.
  void free_to(size_t left) {
    while (count_ > left) free(blocks_[--count_].p);
  }
  size_t count() const { return count_; }
  // Each holds one byte's value from its start to its end.
  bool whole() const {
    for (size_t i = 0; i < count_; i++)
      for (size_t at = 1; at < blocks_[i].size; at++)
        if (blocks_[i].p[at] != blocks_[i].p[0]) return false;
    return true;
  }

 private:
  std::mt19937 random_;
  Block *blocks_;
  size_t capacity_, count_ = 0;
};

// Now and then a few small blocks, as a program that has little to do. One in a hundred is larger than what threads cache: a
// program that stays within its caches for good comes by no slow path, and
// gives nothing back (docs/reclaim.md).
inline void light_work() {
  static unsigned calls = 0;
  if (++calls % 25 == 0) free(malloc(300000));
  static std::vector<void *> slots(64);
  static std::mt19937 random(2);
  for (int i = 0; i < 4; i++) {
    void *&slot = slots[random() % slots.size()];
    free(slot);
    slot = malloc(16 + random() % 1024);
  }
}

inline size_t purge() {
  auto function = reinterpret_cast<size_t (*)()>(dlsym(RTLD_DEFAULT, "hakmem_purge"));
  return function();
}

inline size_t heap_faults() { return reinterpret_cast<size_t (*)()>(dlsym(RTLD_DEFAULT, "hakmem_heap_check"))(); }

// The allocator reads its settings at the start: with SETTINGS, "NAME=value", the program begins anew.
int main(int argc, char **argv) {
  static char setting[] = SETTINGS;
  char *equals = strchr(setting, '=');
  if (equals != nullptr) {
    *equals = '\0';
    if (getenv(setting) == nullptr) {
      setenv(setting, equals + 1, 1);
      execv("/proc/self/exe", argv);
      abort();
    }
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}

#endif
