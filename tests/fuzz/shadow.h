// What the program holds, kept beside the allocator: address, size and contents of every live block. No block may
// overlap another, and each keeps the pattern that was written into it, over all of its usable bytes.
#ifndef HAKMEM_TESTS_FUZZ_SHADOW_H
#define HAKMEM_TESTS_FUZZ_SHADOW_H

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

struct Block {
  unsigned char *p;
  size_t size, usable;
  uint64_t key;   // of its pattern
  bool spoiled;   // something else was written to it: its contents say nothing
  bool shared;    // its address was misused: another block may overlap it, and nothing is written to it
};

class Shadow {
 public:
  size_t count() const { return blocks_.size(); }
  size_t bytes() const { return bytes_; }
  const Block &at(size_t index) const { return blocks_[index]; }

  // A block that the allocator has just handed out: checks that it overlaps none, and writes its pattern.
  void add(Block b);
  // As it was, after a call that failed.
  void put_back(const Block &b);
  Block take(size_t index);

  // Whoever starts at p has lost it without knowing, or never had it alone.
  void share(const void *p);
  // The contents of all blocks that overlap these bytes are unknown from now on.
  void spoil(const void *p, size_t bytes);
  // Whether somebody holds a block that starts at p, trusted or not.
  bool starts_at(const void *p) const;
  // The trusted block that p lies in, or NULL.
  const Block *around(const void *p) const;

 private:
  void enter(const Block &b);
  std::vector<Block> blocks_;
  std::map<uintptr_t, uintptr_t> ranges_; /* start and end of all that are not shared */
  size_t bytes_ = 0;
  uint64_t next_key_ = 1;
};

// The block's pattern is in its first `end` bytes, which are now at p.
void verify_prefix(const Block &was, const unsigned char *p, size_t end);
inline void verify(const Block &b) { verify_prefix(b, b.p, b.usable); }
void verify_zero(const unsigned char *p, size_t bytes);

#endif
