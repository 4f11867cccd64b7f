/* Hardened build: blocks of no bytes. Each is an address of its own in inaccessible memory, so that whoever reads or
 * writes one is stopped; a byte a block says who has it. Addresses follow each other: a freed one comes again after all
 * the others. No lock. */
#ifndef HAK_GUARD_EMPTY_H
#define HAK_GUARD_EMPTY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "misuse/misuse.h"
#include "os/os.h"

#define HAK_EMPTY_BLOCKS ((size_t)1 << 16)
#define HAK_EMPTY_APART ((size_t)16)

extern HAK_HIDDEN uintptr_t hak_empty_base; /* 0: none was asked for yet */

HAK_INLINE bool hak_empty_contains(const void *p) {
  uintptr_t base = hak_load_relaxed(&hak_empty_base);
  return base != 0 && (uintptr_t)p - base < HAK_EMPTY_BLOCKS * HAK_EMPTY_APART;
}

/* tag: 1 to 127, the caller's. align: a power of two; 0 or less than HAK_EMPTY_APART: that. NULL: too many are live, it
 * is above HAK_EMPTY_ALIGN_MAX, or there are no addresses. */
#define HAK_EMPTY_ALIGN_MAX ((size_t)64 << 10)
void *hak_empty_alloc(size_t align, unsigned tag);
/* The tag of the live block at p, an address inside; 0: there is none, and *verdict says why. */
unsigned hak_empty_tag(const void *p, hak_verdict *verdict);
/* The same, and the block is freed. */
unsigned hak_empty_free(const void *p, hak_verdict *verdict);

#endif
