/* Large blocks, of more than a class has: freed ones that are kept (kept.h), extents of the pool (extent.h) and mappings (huge.h). */
#ifndef HAK_LARGE_LARGE_H
#define HAK_LARGE_LARGE_H

#include <stdbool.h>
#include <stddef.h>

/* A new block: none of those that are kept. align: power of two; zeros: they were asked for. *zeroed: it reads as zero. NULL: out of memory. */
void *hak_large_alloc(size_t size, size_t align, bool zeros, bool *zeroed);
/* One that is kept, at most a quarter larger, the program's again; NULL: there is none that fits. */
void *hak_large_reuse(size_t size, size_t align);

#endif
