/* Huge blocks: above 32 MiB, or aligned beyond that; each is a mapping of its own, in an index (huge_index.h) that only
 * the slow path reads. A block leaves the index before its mapping changes and enters it after, so that the index never
 * names memory that is not ours. Freed ones are kept for a while (kept.h). Own lock, leaf rank, never held across a
 * system call. */
#ifndef HAK_LARGE_HUGE_H
#define HAK_LARGE_HUGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "large/extent.h"
#include "large/huge_index.h"
#include "large/mapping.h"
#include "misuse/misuse.h"

/* Bytes of the mapping for such a request: whole pages; whole spans where an extent could have served it, so that a
 * block has what hakmem_good_size says whichever of the two it is. Hardened build: whole pages, for its usable size is
 * the request. */
HAK_INLINE size_t hak_huge_bytes(size_t size) {
  bool as_extent = !HAK_HARD(GUARDS) && size <= HAK_EXTENT_MAX;
  return hak_align_up(hak_max_size(size, 1), as_extent ? HAK_SPAN_SIZE : hak_os_page_size());
}

/* A new mapping, zeroed. align: power of two; zeros: they were asked for. NULL: out of memory. */
void *hak_huge_alloc(size_t size, size_t align, bool zeros);
/* Makes a mapping that was kept a block again; NULL: no memory for the index, and the mapping is gone. */
void *hak_huge_adopt(void *p, size_t bytes, hak_huge_pages pages);
/* False when p is no huge block of ours. *purge_due: freed mappings have to go. */
bool hak_huge_free(void *p, bool *purge_due);
/* The two halves of that. Out of the index: its bytes, 0 when p is no huge block. Then, with no lock held, the mapping
 * is kept or given back. */
size_t hak_huge_take(const void *p, hak_huge_pages *pages);
void hak_huge_dispose(void *p, size_t bytes, hak_huge_pages pages, bool *purge_due);
/* Usable bytes, 0 when p is no huge block of ours. */
size_t hak_huge_size(const void *p);
/* All that is known of an address, at one moment. */
typedef struct hak_huge_at {
  size_t bytes;        /* of the huge block that starts there; 0: none does */
  uint32_t owner;      /* whose heap's the block is that it lies in, as HAK_TAG_OWNER; 0: none's, or no huge block */
  hak_verdict verdict; /* HAK_VERDICT_NO_BLOCK_START inside a block, HAK_VERDICT_FREE_MEMORY inside a freed mapping
                        * that is kept, else HAK_VERDICT_OK */
} hak_huge_at;
hak_huge_at hak_huge_ask(const void *p);
/* Grows or shrinks by mremap; the block may move, to a page, where that is allowed. Hardened build: in place, between
 * guard pages; what is added is zero. NULL: not ours or no memory, and unchanged. */
void *hak_huge_resize(void *p, size_t size, bool may_move);
/* The three steps of that, for who has something of its own to change with the first and the last. Out of the index,
 * NULL: no block of ours; the node's `bytes` may be changed before its lock is dropped that fork takes. The mapping
 * changes, with no lock held; NULL: it is as it was. Into the index again. */
hak_huge_node *hak_huge_lift(const void *p);
void *hak_huge_remap(void *p, size_t old_bytes, size_t bytes, bool may_move, hak_huge_pages *pages);
void hak_huge_land(hak_huge_node *node, const void *p, size_t bytes);
/* In the child of a fork, with all locks: forgets a block that another thread was resizing, whose mapping may be
 * anywhere. False: there is none. */
bool hak_huge_take_lost(hak_huge_set **set, size_t *bytes);

/* Makes a live block, which is none's, one of the set. */
void hak_huge_own(const void *p, hak_huge_set *set);
/* The next block of the set by address, NULL: the first. NULL: no more. */
void *hak_huge_next_of(const hak_huge_set *set, const void *after, size_t *bytes);
/* The set's blocks are no heap's any more, and it is empty. Returns how many. Makes no call of the system. */
size_t hak_huge_end_set(hak_huge_set *set);
/* Gives so many of such blocks back, this set's or others': who ended a set gives back as many as it had. Caller holds
 * no lock. */
void hak_huge_free_ended(size_t most, bool *purge_due);
/* In the child of a fork, with all locks: the threads that were to do so are not there. Whoever comes by does, so many
 * blocks at most; caller holds no lock. */
void hak_huge_fork_child(void);
void hak_huge_free_lost(size_t most, bool *purge_due);

/* Blocks looked at in one hold of the lock, each a cache miss: callers come again for the next ones. */
#define HAK_HUGE_LOOKED_AT 64
/* A live block, which is no heap's, of which `is` says yes, among the next ones by address; NULL: none. *after is 0 at
 * first, and again behind the last. `is` runs under the lock: the block is nobody else's to free meanwhile. */
const void *hak_huge_find(bool (*is)(const void *p, size_t bytes), uintptr_t *after, size_t *bytes);

/* Hardened build: the block in whose pages or guard pages p lies, or which had them before it was freed. False: there
 * is none. */
typedef struct hak_huge_place {
  const void *block;
  size_t bytes;
  bool quarantined;
} hak_huge_place;
bool hak_huge_locate(const void *p, hak_huge_place *place);

/* Statistics, at one moment. */
typedef struct hak_huge_figures {
  size_t live_count, live_bytes, kept_count, kept_bytes;
  size_t owned_count, owned_bytes; /* of the live ones, heaps' */
} hak_huge_figures;
void hak_huge_read(hak_huge_figures *figures);
/* The next block above *address, which is 0 at first: live, or a freed mapping that is kept. False: no more. What comes
 * and goes meanwhile may be listed or not; what stays is listed once. */
bool hak_huge_next(uintptr_t *address, size_t *bytes, bool *is_kept);

#endif
