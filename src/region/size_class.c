#include "region/size_class.h"

#include "os/os.h"

/* X(index, block size, next smaller block size): the one list of ordinary classes. */
#define EVERY_CLASS(X)                                                                                        \
  X(0, 16, 0) X(1, 32, 16) X(2, 48, 32) X(3, 64, 48) X(4, 80, 64) X(5, 96, 80) X(6, 112, 96) X(7, 128, 112)   \
  X(8, 144, 128) X(9, 160, 144) X(10, 176, 160) X(11, 192, 176) X(12, 208, 192) X(13, 224, 208)               \
  X(14, 240, 224) X(15, 256, 240) X(16, 288, 256) X(17, 320, 288) X(18, 352, 320) X(19, 384, 352)             \
  X(20, 416, 384) X(21, 448, 416) X(22, 480, 448) X(23, 512, 480) X(24, 576, 512) X(25, 640, 576)             \
  X(26, 704, 640) X(27, 768, 704) X(28, 832, 768) X(29, 896, 832) X(30, 960, 896) X(31, 1024, 960)            \
  X(32, 1280, 1024) X(33, 1536, 1280) X(34, 1792, 1536) X(35, 2048, 1792) X(36, 2560, 2048) X(37, 3072, 2560) \
  X(38, 3584, 3072) X(39, 4096, 3584) X(40, 4608, 4096) X(41, 5120, 4608) X(42, 6144, 5120) X(43, 7168, 6144) \
  X(44, 8192, 7168) X(45, 10240, 8192) X(46, 12288, 10240) X(47, 14336, 12288) X(48, 16384, 14336)            \
  X(49, 20480, 16384) X(50, 24576, 20480) X(51, 28672, 24576) X(52, 32768, 28672) X(53, 61440, 32768)         \
  X(54, 65536, 61440) X(55, 126976, 65536) X(56, 131072, 126976) X(57, 192512, 131072) X(58, 196608, 192512)  \
  X(59, 258048, 196608) X(60, 262144, 258048)

const uint8_t hak_code_of_granules[HAK_SMALL_MAX / HAK_GRANULE + 1] = {
#define ROW(index, size, below) [(below) / HAK_GRANULE + 1 ...(size) / HAK_GRANULE] = (index) + 1,
    [0] = 1,
    EVERY_CLASS(ROW)
#undef ROW
};

static const uint32_t class_sizes[HAK_PLAIN_CLASSES] = {
#define ROW(index, size, below) [index] = (size),
    EVERY_CLASS(ROW)
#undef ROW
};

HAK_ALIGNED(HAK_CACHE_LINE) hak_class_info hak_class_table[HAK_CLASS_COUNT];

unsigned hak_class_group(size_t block_size) {
  return hak_log2(hak_max_size(block_size, 16) - 1) - 2;
}

static uint32_t spans_of_slab(size_t size, unsigned tiny_max_group) {
  if (size > HAK_SHARED_MAX) return (uint32_t)hak_spans_of(size);
  return hak_class_group(size) <= tiny_max_group ? 1 : HAK_SLAB_SPANS_MOST;
}

/* Where a slab is one block, as many as there is room for; that is, one of each cache set of a page. */
static uint32_t colours_of(size_t size, size_t slab_bytes) {
  return size <= HAK_SHARED_MAX ? 16 : (uint32_t)hak_max_size((slab_bytes - size) / HAK_COLOUR_BYTES, 1);
}

static uint8_t aligned_of[HAK_PLAIN_CLASSES]; /* of an ordinary class: the aligned one that is no smaller */

static unsigned aligned_class(size_t size) { return HAK_PLAIN_CLASSES + aligned_of[hak_class_for(size)]; }

/* Above QUARTERS_TO what is left of a block is whole pages, which hold nothing until they are used. */
#define QUARTERS_TO 8192

static bool has_aligned(size_t size) {
  size_t doubling = ((size_t)4 << hak_class_group(size)), step = doubling / (size > QUARTERS_TO ? 2 : 4);
  return size <= HAK_SHARED_MAX && size % hak_max_size(step, HAK_ALIGNED_MIN) == 0;
}

static hak_class_info info_of(size_t size, unsigned tiny_max_group) {
  HAK_ASSERT(size % HAK_GRANULE == 0 && size <= HAK_SMALL_MAX);
  uint32_t spans = spans_of_slab(size, tiny_max_group);
  /* Where a look at the block before finds writes before this one, blocks lie one behind the other. */
  if (HAK_HARD(CANARY) && size > HAK_SHARED_MAX) size = spans * HAK_SPAN_SIZE;
  return (hak_class_info){
      .size = (uint32_t)size,
      .spans = spans,
      .reciprocal = UINT64_MAX / size + 1,
      .colours = colours_of(size, spans * HAK_SPAN_SIZE),
  };
}

void hak_size_class_init(unsigned tiny_max_group) {
  unsigned aligned = 0;
  for (unsigned c = 0; c < HAK_PLAIN_CLASSES; c++) {
    size_t size = class_sizes[c];
    hak_class_table[c] = info_of(size, tiny_max_group);
    aligned_of[c] = (uint8_t)aligned;
    if (!has_aligned(size)) continue;
    HAK_ASSERT(aligned < HAK_ALIGNED_CLASSES);
    hak_class_info *info = &hak_class_table[HAK_PLAIN_CLASSES + aligned++];
    *info = info_of(size, tiny_max_group);
    info->colours = 1;
  }
}

int hak_class_for_other_aligned(size_t size, size_t align) {
  if (size > HAK_SMALL_MAX || align > HAK_SPAN_SIZE) return -1;
  size_t some = hak_max_size(size, 1);
  if (align <= HAK_COLOUR_BYTES) return (int)hak_class_for(size > HAK_SHARED_MAX ? size : hak_align_up(some, align));
  if (size > HAK_SHARED_MAX) return (int)hak_class_for(hak_align_up(size, HAK_SPAN_SIZE));
  return align <= HAK_SHARED_MAX ? (int)aligned_class(hak_align_up(some, align)) : -1;
}
