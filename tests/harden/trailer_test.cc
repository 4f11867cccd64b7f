// The hardened build's trailer and fill, on blocks of our own: what is written is read, no byte of the request changes, and
// no byte behind it can.
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

extern "C" {
#include "harden/trailer.h"
}

namespace {

// Sizes of slabs' blocks, and a few that only sampled blocks have.
const size_t kBlockSizes[] = {8, 13, 16, 20, 24, 31, 32, 37, 48, 64, 80, 112, 128, 288, 1024, 1536, 32768};
const unsigned char kContent = 0xa5;

class Trailer : public testing::TestWithParam<size_t> {
 protected:
  void SetUp() override {
    hak_trailer_start();
    block.assign(GetParam() + 64, kContent);
  }
  // Some bytes into the vector: nothing before the block may change either.
  unsigned char *p() { return block.data() + 32; }
  size_t end() const { return GetParam() - HAK_TRAILER_BYTES; }

  // All small requests, and those that leave little, where a block is large.
  std::vector<size_t> sizes() const {
    std::vector<size_t> all;
    for (size_t size = 0; size <= end(); size++)
      if (size < 40 || size + 80 > end()) all.push_back(size);
    return all;
  }

  std::vector<unsigned char> block;
};

TEST_P(Trailer, ReadsWhatWasWrittenAndLeavesTheRequestAlone) {
  for (size_t size : sizes()) {
    for (hak_family family : {HAK_FAMILY_MALLOC, HAK_FAMILY_NEW, HAK_FAMILY_NEW_ARRAY}) {
      memset(block.data(), kContent, block.size());
      hak_trailer_write(p(), GetParam(), size, family);
      for (size_t i = 0; i < block.size(); i++) {
        if (i >= 32 + size && i < 32 + GetParam()) continue;
        ASSERT_EQ(block[i], kContent) << "byte " << i << " for a request of " << size;
      }
      size_t read_size = 0;
      hak_family read_family = HAK_FAMILY_MALLOC;
      ASSERT_TRUE(hak_trailer_read(p(), GetParam(), &read_size, &read_family)) << size;
      ASSERT_EQ(read_size, size);
      ASSERT_EQ(read_family, family);
    }
  }
}

TEST_P(Trailer, SeesEveryChangedByte) {
  for (size_t size : sizes()) {
    hak_trailer_write(p(), GetParam(), size, HAK_FAMILY_MALLOC);
    for (size_t at = size; at < GetParam(); at++) {
      if (at >= size + HAK_FILL_MAX && at < end()) continue;  // documented: not looked at
      p()[at] ^= 1;
      size_t read_size;
      hak_family family;
      bool whole = hak_trailer_read(p(), GetParam(), &read_size, &family);
      // The trailer's upper bytes are slack and family: another family is told as such, another size finds no fill there.
      if (whole) whole = read_size == size && family == HAK_FAMILY_MALLOC;
      ASSERT_FALSE(whole) << "byte " << at << " of a request of " << size;
      p()[at] ^= 1;
    }
  }
}

// What a string's end and a cleared struct write.
TEST_P(Trailer, SeesAZeroBehindTheRequest) {
  for (size_t size : sizes()) {
    if (size == end()) continue;
    hak_trailer_write(p(), GetParam(), size, HAK_FAMILY_MALLOC);
    p()[size] = 0;
    size_t read_size;
    hak_family family;
    ASSERT_FALSE(hak_trailer_read(p(), GetParam(), &read_size, &family)) << size;
  }
}

// An overflow of one byte of text is seen whatever the secret is.
TEST_P(Trailer, FillsWithNoByteThatTextHas) {
  for (size_t size : sizes()) {
    hak_trailer_write(p(), GetParam(), size, HAK_FAMILY_MALLOC);
    for (size_t at = size; at < hak_min_size(size + HAK_FILL_MAX, end()); at++) EXPECT_GE(p()[at], 0x80) << size << ", byte " << at;
  }
}

// What prints a string without an end prints no byte behind the block, nor the trailer's key.
TEST_P(Trailer, AStringThatFillsItsBlockEndsThere) {
  for (size_t size : sizes()) {
    memset(block.data(), kContent, block.size());
    hak_trailer_write(p(), GetParam(), size, HAK_FAMILY_NEW_ARRAY);
    size_t length = strnlen(reinterpret_cast<char *>(p()), GetParam());
    ASSERT_LE(length, end()) << size;
    if (size == end()) ASSERT_EQ(length, size);
  }
}

TEST_P(Trailer, TheFillDoesNotTellTheKey) {
  if (end() < sizeof(uint64_t) || GetParam() % sizeof(uint64_t) != 0) return;
  size_t size = end() - sizeof(uint64_t);
  uint64_t fill, word, content = (sizeof(uint64_t) << 8 | HAK_FAMILY_MALLOC) << HAK_TRAILER_CHECK_BITS;
  hak_trailer_write(p(), GetParam(), size, HAK_FAMILY_MALLOC);
  memcpy(&fill, p() + size, sizeof fill);
  memcpy(&word, p() + end(), sizeof word);
  EXPECT_GT(__builtin_popcountll((fill ^ word ^ content) & 0x7f7f7f7f7f7f7f7fu), 8) << "of 56 bits some 28 differ by chance";
}

TEST_P(Trailer, DiffersFromBlockToBlock) {
  hak_trailer_write(p(), GetParam(), 0, HAK_FAMILY_MALLOC);
  std::vector<unsigned char> copy(block);
  size_t size;
  hak_family family;
  EXPECT_FALSE(hak_trailer_read(copy.data() + 32, GetParam(), &size, &family)) << "a copied block's trailer";
}

INSTANTIATE_TEST_SUITE_P(Blocks, Trailer, testing::ValuesIn(kBlockSizes));

}  // namespace
