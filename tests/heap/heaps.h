// A heap that a test has, and what it says of itself.
#ifndef HAKMEM_TESTS_HEAPS_H
#define HAKMEM_TESTS_HEAPS_H

#include <gtest/gtest.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#include "hakmem/hakmem.h"
#include "hakmem/heap.h"
#include "hakmem/stats.h"

constexpr size_t KIB = 1024, MIB = 1024 * KIB;

inline hakmem_heap *new_heap(size_t limit = 0, hakmem_heap *parent = nullptr, unsigned flags = 0, const char *name = nullptr) {
  hakmem_heap_options options = {};
  options.size = sizeof options;
  options.name = name;
  options.limit = limit;
  options.parent = parent;
  options.flags = flags;
  hakmem_heap *heap = hakmem_heap_new(&options);
  if (heap == nullptr) abort();
  return heap;
}

inline hakmem_heap_stats stats_of(hakmem_heap *heap) {
  hakmem_heap_stats stats = {};
  hakmem_heap_get_stats(heap, &stats, sizeof stats);
  return stats;
}

inline hakmem_stats process_stats() {
  hakmem_stats stats = {};
  hakmem_stats_get(&stats, sizeof stats);
  return stats;
}

// Destroyed at the end.
class Heap {
 public:
  template <class... Options>
  explicit Heap(Options... options) : heap_(new_heap(options...)) {}
  Heap(const Heap &) = delete;
  ~Heap() { hakmem_heap_destroy(heap_); }
  operator hakmem_heap *() const { return heap_; }
  // The test ends it itself.
  hakmem_heap *let_go() { return std::exchange(heap_, nullptr); }
  hakmem_heap_stats stats() const { return stats_of(heap_); }
  size_t live() const { return stats().live; }

 private:
  hakmem_heap *heap_;
};

struct Block {
  unsigned char *p;
  size_t size;
  unsigned char value;

  size_t usable() const { return hakmem_malloc_usable_size(p); }
  // Up to `end`: all of a small block, both ends and each page of a large one.
  bool holds(size_t end) const {
    for (size_t at = 0; at < end; at += at < 4 * KIB || at + 4 * KIB >= end ? 1 : at + 8 * KIB < end ? 4 * KIB : 1)
      if (p[at] != value) return false;
    return true;
  }
  bool holds() const { return holds(size); }
};

inline Block filled(void *p, size_t size, unsigned char value) {
  if (p == nullptr) return {nullptr, size, value};
  memset(p, value, size);
  return {static_cast<unsigned char *>(p), size, value};
}

inline Block block_in(hakmem_heap *heap, size_t size, unsigned char value = 1) {
  return filled(hakmem_heap_malloc(heap, size), size, value);
}

// Around each place where blocks come from elsewhere: classes, pieces of 4 KiB and their share of 8 KiB a class, slabs, whole spans, mappings.
inline const std::vector<size_t> &sizes() {
  static const std::vector<size_t> all = {0,         1,         15,        16,        17,         48,         64,        100,       128,      500,
                                          512,       1000,      1024,      1025,      2000,       2048,       4000,      4095,      4096,     4097,
                                          8191,      8192,      8193,      12000,     16384,      20000,      32767,     32768,     32769,    65535,
                                          65536,     65537,     100000,    200000,    262143,     262144,     262145,    MIB - 1,   MIB,      3 * MIB + 5,
                                          32 * MIB - 1, 32 * MIB, 32 * MIB + 1, 40 * MIB, 100 * MIB};
  return all;
}

// Of those the ones that tests of pairs take.
inline const std::vector<size_t> &edges() {
  static const std::vector<size_t> some = {1, 16, 100, 1000, 4096, 5000, 8193, 32768, 32769, 65536, 262145, 2 * MIB, 32 * MIB, 33 * MIB};
  return some;
}

#endif
