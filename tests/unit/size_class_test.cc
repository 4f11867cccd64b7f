// Size classes: smallest fitting block for every size, exact division, alignment.
#include <gtest/gtest.h>

#include "hak.h"

namespace {

TEST(SizeClass, EverySizeGetsTheSmallestBlockThatFits) {
  hak_size_class_init(7);
  for (size_t size = 0; size <= HAK_SMALL_MAX; size++) {
    unsigned c = hak_class_for(size);
    ASSERT_LT(c, unsigned(HAK_PLAIN_CLASSES));
    ASSERT_GE(hak_class_size(c), size);
    if (c > 0) {
      ASSERT_LT(hak_class_size(c - 1), size) << "a smaller block would do";
    }
  }
}

TEST(SizeClass, SizesAreThoseOfTheDesign) {
  hak_size_class_init(7);
  std::vector<size_t> expected;
  for (size_t s = 16; s <= 128; s += 16) expected.push_back(s);
  for (size_t base = 128; base < 1024; base *= 2)
    for (size_t k = 1; k <= 8; k++) expected.push_back(base + k * base / 8);
  for (size_t base = 1024; base < 32768; base *= 2) {
    if (base == 4096) expected.push_back(4608);
    for (size_t k = 1; k <= 4; k++) expected.push_back(base + k * base / 4);
  }
  for (size_t spans = 1; spans <= 4; spans++) {
    expected.push_back(spans * HAK_SPAN_SIZE - 4096);
    expected.push_back(spans * HAK_SPAN_SIZE);
  }
  ASSERT_EQ(expected.size(), size_t(HAK_PLAIN_CLASSES));
  for (unsigned c = 0; c < HAK_PLAIN_CLASSES; c++) EXPECT_EQ(hak_class_size(c), expected[c]);
  std::vector<size_t> aligned;
  for (size_t s = 128; s <= 1024; s += 128) aligned.push_back(s);
  for (size_t base = 1024; base < 32768; base *= 2)
    for (size_t k = 1; k <= 4; k++) {
      if (base < 8192 || k % 2 == 0) aligned.push_back(base + k * base / 4);
    }
  ASSERT_EQ(aligned.size(), size_t(HAK_ALIGNED_CLASSES));
  for (unsigned t = 0; t < HAK_ALIGNED_CLASSES; t++) {
    EXPECT_EQ(hak_class_size(HAK_PLAIN_CLASSES + t), aligned[t]);
    EXPECT_EQ(hak_class_table[HAK_PLAIN_CLASSES + t].colours, 1u);
  }
}

TEST(SizeClass, ReciprocalsDivideExactly) {
  hak_size_class_init(3);
  for (unsigned c = 0; c < HAK_CLASS_COUNT; c++) {
    uint64_t size = hak_class_size(c), reciprocal = hak_class_table[c].reciprocal;
    for (uint64_t offset = 0; offset < 4 * HAK_SPAN_SIZE; offset++) {
      __extension__ unsigned __int128 product = (unsigned __int128)offset * reciprocal;
      if (uint64_t(product >> 64) != offset / size || (uint64_t(product) < reciprocal) != (offset % size == 0)) {
        ADD_FAILURE() << "class " << c << ", offset " << offset;
        break;
      }
    }
  }
}

TEST(SizeClass, GroupsAreDoublings) {
  hak_size_class_init(7);
  EXPECT_EQ(hak_class_group(16), 1u);
  EXPECT_EQ(hak_class_group(1024), 7u);
  EXPECT_EQ(hak_class_group(32768), 12u);
  for (unsigned c = 0; c < HAK_CLASS_COUNT; c++) {
    size_t size = hak_class_size(c);
    unsigned n = hak_class_group(size);
    EXPECT_LE(size, size_t(8) << n);
    if (n > 1) EXPECT_GT(size, size_t(4) << n);
  }
}

TEST(SizeClass, BoundaryOptionMovesTheSlabSizeAndBitmapsStillFit) {
  for (unsigned boundary = 3; boundary <= 12; boundary++) {
    hak_size_class_init(boundary);
    for (unsigned c = 0; c < HAK_CLASS_COUNT; c++) {
      const hak_class_info &info = hak_class_table[c];
      if (info.size > HAK_SHARED_MAX) {
        EXPECT_EQ(info.spans, (info.size + HAK_SPAN_SIZE - 1) / HAK_SPAN_SIZE) << "one block";
        EXPECT_EQ(info.colours, info.size % HAK_SPAN_SIZE == 0 ? 1u : 64u);
        continue;
      }
      EXPECT_EQ(info.spans, hak_class_group(info.size) <= boundary ? 1u : 4u);
      EXPECT_LE(info.spans * HAK_SPAN_SIZE / info.size, size_t(HAK_BITMAP_WORDS) * 64);
      EXPECT_GE((info.spans * HAK_SPAN_SIZE - (info.colours - 1) * 64) / info.size, 1u);
    }
  }
}

// Of what is asked for, an alignment above 64 wastes no more than the ordinary class of the next multiple; above 8 KiB, than half a doubling.
TEST(SizeClass, AlignedRequestsWasteLittleMoreThanOrdinaryOnes) {
  hak_size_class_init(7);
  for (size_t align = 128; align <= HAK_SHARED_MAX; align *= 2) {
    for (size_t size = 1; size <= HAK_SHARED_MAX; size++) {
      int c = hak_class_for_aligned(size, align);
      ASSERT_GE(c, HAK_PLAIN_CLASSES);
      size_t multiple = hak_align_up(size, align), block = hak_class_size(hak_class_for(multiple));
      if (block == 4608) block = 5120;
      if (block > 8192) block = hak_align_up(block, multiple > 16384 ? 8192 : 4096);
      ASSERT_EQ(hak_class_size(c), block) << "alignment " << align << ", size " << size;
    }
  }
}

TEST(SizeClass, AlignedRequestsGetAlignedBlocks) {
  hak_size_class_init(7);
  for (size_t align = 1; align <= 128 * HAK_KIB; align *= 2) {
    for (size_t size = 0; size <= HAK_SMALL_MAX + 64; size++) {
      int c = hak_class_for_aligned(size, align);
      if (c < 0) {
        // Whole spans are aligned to one; the aligned classes end at 32 KiB.
        bool none = size > HAK_SMALL_MAX || align > (size > HAK_SHARED_MAX ? HAK_SPAN_SIZE : HAK_SHARED_MAX);
        ASSERT_TRUE(none) << "alignment " << align << ", size " << size << " needs no extent";
        continue;
      }
      ASSERT_LT(c, HAK_CLASS_COUNT);
      ASSERT_GE(hak_class_size(c), size);
      if (align > 16) ASSERT_EQ(hak_class_size(c) % align, 0u) << "alignment " << align << ", size " << size;
      // A coloured slab starts on 64 bytes, no more.
      if (hak_class_table[c].colours > 1) ASSERT_LE(align, 64u);
    }
  }
}

}  // namespace
