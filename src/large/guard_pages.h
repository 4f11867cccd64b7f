/* Hardened build: the mapping of a huge block lies between two inaccessible pieces of a span's size. Blocks are whole
 * pages. */
#ifndef HAK_LARGE_GUARD_PAGES_H
#define HAK_LARGE_GUARD_PAGES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Once, before the first block. */
void hak_guard_pages_start(void);
/* Gives addresses back that are kept for when no mapping is left. Returns the bytes. */
size_t hak_guard_pages_give_back_reserved(void);
/* A zeroed block. align: power of two. NULL: out of memory. Where guard pages are not wanted, or no mappings are left
 * for them, the pages around it are accessible: to the kernel neighbouring blocks are one mapping then. */
void *hak_guard_pages_map(size_t bytes, size_t align, bool wanted);
/* Unmaps a block with its guard pages. False: it could not; the memory may be there still. */
bool hak_guard_pages_unmap(void *p, size_t bytes);
/* Grows or shrinks a block where it is. False: it cannot, and is as it was. */
bool hak_guard_pages_resize(void *p, size_t old_bytes, size_t bytes);
/* Whether the address lies in the block or its guard pages. */
bool hak_guard_pages_reach(const void *p, size_t bytes, const void *address);

#endif
