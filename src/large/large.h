/* Large blocks, above the largest class: freed mappings that are kept (kept.h), extents of the pool (extent.h) and new
 * mappings (huge.h). */
#ifndef HAK_LARGE_LARGE_H
#define HAK_LARGE_LARGE_H

#include <stdbool.h>
#include <stddef.h>

/* The least that a block has, of a class, or large, whichever of these it is; one that is sampled has `size`, which can
 * be had. */
size_t hak_good_size(size_t size, size_t align);
/* A new block, not a kept one. align: power of two; zeros: they were asked for. *zeroed: it reads as zero. NULL: out of
 * memory. */
void *hak_large_alloc(size_t size, size_t align, bool zeros, bool *zeroed);
/* Hands a kept mapping out again, which has that, and is at most a quarter larger; NULL: none fits. */
void *hak_large_reuse(size_t size, size_t align);
/* Makes the bytes at p, of a block above 32 KiB, read as zero. memset would make all their pages resident: those of a
 * mapping, and where such blocks have been sparse, are given back instead. */
void hak_large_clear(void *p, size_t bytes);

#endif
