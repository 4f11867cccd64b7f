/* Size classes: which block size serves a request, and how a slab of that size is laid out.
 *
 * 53 ordinary classes: 16 to 128 bytes by 16, then 8 per doubling to 1 KiB, then 4 per doubling to 32 KiB; and 4,608
 * bytes, for pages of 4 KiB with what databases have beside them.
 *
 * 8 classes of whole spans, 60 to 256 KiB: a slab of theirs is one block, so that a free one goes back to the pool.
 * Half of them are a page short of their spans, which is room for a colour.
 *
 * 24 aligned classes: multiples of 128 bytes to 1 KiB, then 4 per doubling to 8 KiB, and 2; in slabs without colour, so
 * that each block is aligned to what its size is a multiple of; they serve alignments above 64.
 *
 * A class is the index of any. The tables are written once by hak_size_class_init, before the first slab. */
#ifndef HAK_REGION_SIZE_CLASS_H
#define HAK_REGION_SIZE_CLASS_H

#include "os/os.h"

#define HAK_PLAIN_CLASSES 61 /* ordinary ones and those of whole spans */
#define HAK_ALIGNED_CLASSES 24
#define HAK_CLASS_COUNT (HAK_PLAIN_CLASSES + HAK_ALIGNED_CLASSES)
/* Page map codes: what a span holds. Those of slabs are class + 1, so that a span nobody wrote to says "nothing". */
#define HAK_CODE_NONE 0
#define HAK_CODE_EXTENT (HAK_CLASS_COUNT + 1)      /* first span of an extent */
#define HAK_CODE_EXTENT_BODY (HAK_CLASS_COUNT + 2) /* any further span of one */
#define HAK_CODE_EXTENT_FREED (HAK_CLASS_COUNT + 3) /* first span of one that is being freed */
/* A slab of sampled blocks, or what a heap has: no thread cache takes them. The tag says more */
#define HAK_CODE_SAMPLED (HAK_CLASS_COUNT + 4)
#define HAK_CODES (HAK_CLASS_COUNT + 5)

#define HAK_GRANULE 16
#define HAK_SMALL_MAX ((size_t)262144)  /* largest block; beyond it a request is an extent */
#define HAK_SHARED_MAX ((size_t)32768)  /* largest block that shares its slab with others */
#define HAK_ALIGNED_MIN ((size_t)128)
#define HAK_SLAB_SPANS_MOST 4 /* of a slab of several blocks */
#define HAK_COLOUR_BYTES 64 /* a slab's first block starts at one of `colours` multiples of it */

#define HAK_SPAN_SHIFT 16
#define HAK_SPAN_SIZE ((size_t)1 << HAK_SPAN_SHIFT)
HAK_INLINE size_t hak_spans_of(size_t bytes) { return (bytes + HAK_SPAN_SIZE - 1) >> HAK_SPAN_SHIFT; }

typedef struct hak_class_info {
  uint32_t size;       /* block size in bytes */
  uint32_t spans;      /* spans in one slab: 1 or 4; of whole spans as many as a block needs */
  /* ceil(2^64 / size). Of offset * reciprocal the high half is offset / size for offsets below 2^32, and the low half
   * is less than the reciprocal where there is no remainder. */
  uint64_t reciprocal;
  uint32_t colours; /* 1: none */
} hak_class_info;

/* Class + 1 by 16-byte granules of a request, (n + 15) >> 4 for n <= HAK_SMALL_MAX; request 0 is of class 0. */
extern HAK_HIDDEN const uint8_t hak_code_of_granules[HAK_SMALL_MAX / HAK_GRANULE + 1];
extern HAK_HIDDEN hak_class_info hak_class_table[HAK_CLASS_COUNT];

/* tiny_max_group: largest C<n> that lives in 64 KiB slabs (HAKMEM_TINY_MAX_CLASS). */
void hak_size_class_init(unsigned tiny_max_group);

HAK_INLINE unsigned hak_class_for(size_t size) {
  HAK_ASSERT(size <= HAK_SMALL_MAX);
  return hak_code_of_granules[(size + HAK_GRANULE - 1) / HAK_GRANULE] - 1u;
}
HAK_INLINE bool hak_code_is_class(unsigned code) { return code - 1 < HAK_CLASS_COUNT; }
HAK_INLINE size_t hak_class_size(unsigned class_code) {
  HAK_ASSERT(class_code < HAK_CLASS_COUNT);
  return hak_class_table[class_code].size;
}

/* n of C<n>: 4*2^n < size <= 8*2^n. Blocks of a class all lie in one group. */
unsigned hak_class_group(size_t block_size);

/* Whether such a request is one for an ordinary class: one that holds a multiple of a power of two, of 32 and above, is
 * a multiple of it too, as in a doubling classes are at least an eighth apart, by a power of two; and slabs start on
 * 64-byte boundaries whatever their colour. Nearly all are; of no bytes, or of more, not all. */
HAK_INLINE bool hak_aligned_is_ordinary(size_t size, size_t align) {
  return align <= HAK_COLOUR_BYTES && size - 1 < HAK_SHARED_MAX;
}
/* Class whose blocks hold `size` bytes and are aligned to `align` (a power of two), or -1 when only an extent will
 * do. */
int hak_class_for_other_aligned(size_t size, size_t align);
HAK_INLINE int hak_class_for_aligned(size_t size, size_t align) {
  HAK_ASSERT(hak_is_pow2(align));
  return HAK_LIKELY(hak_aligned_is_ordinary(size, align)) ? (int)hak_class_for(hak_align_up(size, align))
                                                          : hak_class_for_other_aligned(size, align);
}

#endif
