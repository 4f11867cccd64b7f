// What the programs with threads that pass blocks have in common: seeded random numbers, and mailboxes.
#ifndef HAKMEM_TESTS_STRESS_MAILBOX_H
#define HAKMEM_TESTS_STRESS_MAILBOX_H

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t next() {
    uint64_t z = (state_ += UINT64_C(0x9e3779b97f4a7c15));
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
  }
  uint64_t below(uint64_t n) { return next() % n; }
  size_t between(size_t lo, size_t hi) { return lo + below(hi - lo + 1); }

 private:
  uint64_t state_;
};

template <typename Block>
class Mailbox {
 public:
  // False: it holds `limit` blocks.
  bool put(const Block &block, size_t limit) {
    std::lock_guard<std::mutex> guard(mutex_);
    if (blocks_.size() >= limit) return false;
    blocks_.push_back(block);
    return true;
  }
  // Some of them, the latest.
  std::vector<Block> take(Random &random) {
    std::lock_guard<std::mutex> guard(mutex_);
    size_t n = random.below(blocks_.size() + 1);
    std::vector<Block> taken(blocks_.end() - static_cast<ptrdiff_t>(n), blocks_.end());
    blocks_.resize(blocks_.size() - n);
    return taken;
  }
  std::vector<Block> take_all() {
    std::lock_guard<std::mutex> guard(mutex_);
    return std::move(blocks_);
  }

 private:
  std::mutex mutex_;
  std::vector<Block> blocks_;
};

#endif
