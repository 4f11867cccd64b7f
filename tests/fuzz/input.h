// The bytes of one input, read from front to back, and what they mean as sizes and alignments. After the end all bytes
// are zero, so that every prefix of an input is an input.
#ifndef HAKMEM_TESTS_FUZZ_INPUT_H
#define HAKMEM_TESTS_FUZZ_INPUT_H

#include <cstddef>
#include <cstdint>

class Input {
 public:
  Input(const uint8_t *data, size_t bytes) : at_(data), end_(data + bytes) {}

  bool done() const { return at_ == end_; }
  uint8_t byte() { return done() ? 0 : *at_++; }
  uint64_t number(unsigned bytes);
  // One of `count` things; count is not 0.
  size_t below(size_t count) { return number(count <= 256 ? 1 : count <= 65536 ? 2 : 4) % count; }

  // Of a request: every class and its edges, runs, huge blocks, and what no system grants.
  size_t size();
  // Mostly powers of two that can be served, some that cannot, some that are none.
  size_t alignment();

 private:
  const uint8_t *at_, *end_;
};

#endif
