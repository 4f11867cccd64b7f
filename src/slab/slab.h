/* The slab box: blocks of one class in one span (or four), and the set of an arena's slabs of that class.
 *
 * A slab's blocks are bumped in address order (`bumped` counts them); a bumped block is either handed out or has its
 * bit set in the free bitmap. Blocks in thread caches and depots count as handed out. Slabs with
 * set bits are on one of four lists by how full they are, so that a refill finds the fullest without scanning; those
 * whose free pages have been given back are on a fifth, which it comes to last.
 * Everything here runs under the lock of the bin that has the set. */
#ifndef HAK_SLAB_SLAB_H
#define HAK_SLAB_SLAB_H

#include "misuse/deferred.h"
#include "pool/span_pool.h"

#define HAK_FULLNESS_LISTS 5   /* lists[0]: fewest free blocks */
#define HAK_SPARSE_LIST 3      /* most free ones: three quarters, of few blocks about */
#define HAK_PURGED_LIST 4      /* the last: free pages given back */
#define HAK_NO_LIST 7

typedef struct hak_slab_set {
  hak_span *lists[HAK_FULLNESS_LISTS];
  /* Where the next look for pages to purge goes on, on the sparse list or lists[2]; NULL: at their beginning */
  hak_span *look_next;
  /* Slabs of one block: empty ones that stay, for the next block, and at most; read by any thread, as a hint */
  uint8_t kept, kept_most;
  bool sampled; /* its slabs' page map code is HAK_CODE_SAMPLED: none of its blocks is freed into a thread cache */
  uint8_t walk, walk_round; /* times that looks began there, and the round of the last one */
  hak_span *bump_slab; /* the slab whose blocks are not all bumped yet, or NULL */
  uint32_t slabs; /* read by any thread */
} hak_slab_set;

HAK_INLINE unsigned hak_slab_free_count(const hak_span *s) { return (unsigned)(s->settled - s->frees_left); }

/* Takes up to `wanted` blocks of class_code into out, as magazines hand them out, the last one first: free ones before
 * never used ones, addresses ascending within a slab. Makes a new slab (tagged for `owner`) when there is none. Returns
 * the number taken; 0: out of memory. */
unsigned hak_slab_set_take(hak_slab_set *set, unsigned class_code, uint32_t owner, void **out, unsigned wanted);

/* The same of free blocks alone: none that were never used, and no new slab. */
unsigned hak_slab_set_take_free(hak_slab_set *set, unsigned class_code, void **out, unsigned wanted);

/* The same of free blocks and what is not bumped yet: no new slab. */
unsigned hak_slab_set_take_ready(hak_slab_set *set, unsigned class_code, void **out, unsigned wanted);

/* Puts the blocks back that lie in slabs tagged `tag`, up to the first that does not: a slab's list is looked at only
 * when enough of its blocks are back. Returns the number put. *verdict: what is wrong with blocks[that number]; OK
 * where it is another set's. A slab that becomes empty leaves the set for the pool, unless it is the one being bumped,
 * or, of one block, kept for the next; *purge_due is then set if the pool says so (never cleared). */
unsigned hak_slab_set_put(hak_slab_set *set, uint32_t tag, void *const *blocks, unsigned count, hak_verdict *verdict,
                          bool *purge_due);

/* The slab leaves the set for good: its one block, which the program holds, becomes an extent. */
void hak_slab_set_release(hak_slab_set *set, hak_span *span);

/* Index of the block that starts at p; s->blocks or more: none does. */
size_t hak_slab_block_index(const hak_span *s, const void *p);

/* Whether p is the start of a bumped block, and not free. */
hak_verdict hak_slab_examine(const hak_span *span, const void *p);

/* --- the free pages of a slab that stays --- */

/* Collects up to `capacity` slabs that may have whole free pages, and have had no block taken or put since an earlier
 * round; at_once: whatever happened to them. `round` counts the calls for the set. Returns how many. A call looks at a
 * bounded number of slabs, and unless at_once the next call goes on behind them. */
unsigned hak_slab_find_sparse(hak_slab_set *set, unsigned class_code, unsigned round, bool at_once, hak_span **out,
                              unsigned capacity);

#define HAK_SLAB_PAGES_MAX (HAK_SLAB_SPANS_MOST * HAK_SPAN_SIZE / 4096)
/* Between two ranges lies a page with a live block. */
#define HAK_FREE_RANGES_MAX (HAK_SLAB_PAGES_MAX / 2)
typedef struct hak_free_pages {
  struct {
    void *start;
    size_t bytes;
  } pages[HAK_FREE_RANGES_MAX];
  unsigned count;
  uint64_t claimed[HAK_BITMAP_WORDS]; /* as the slab's bits; these blocks are as if handed out */
} hak_free_pages;

/* Claims the free blocks around whole free pages of a slab that hak_slab_find_sparse has found, and that may be gone or
 * somebody else's by now. False: there are none. Give pages[] back with no lock held, and then call
 * hak_slab_unclaim_free_pages. */
bool hak_slab_claim_free_pages(hak_slab_set *set, hak_span *span, uint32_t tag, hak_free_pages *out);
/* Puts the blocks back. `gone`: the pages went. Returns NULL, or a block that was freed while it was claimed: for the
 * second time, that is. */
void *hak_slab_unclaim_free_pages(hak_slab_set *set, hak_span *span, const hak_free_pages *free_pages, bool gone,
                                  bool *purge_due);

/* Of a set of slabs of one block: the block of the slab that was kept last. NULL: none is. */
void *hak_slab_set_take_kept(hak_slab_set *set);
/* Keeps the slab of the block, which the program frees. False: nothing has changed, it is no such block, or enough are
 * kept. Near a target none is: what is in the pool loses its pages, and serves any size. */
bool hak_slab_set_keep(hak_slab_set *set, hak_span *span, uint32_t tag, const void *p);
/* Gives the empty slabs that stay back to the pool: the one for bump_slab, and those of one block. */
void hak_slab_set_trim(hak_slab_set *set, bool *purge_due);

/* --- between the files of this box --- */

/* Blocks are about to be taken from a slab of one of the last two lists. */
void hak_slab_taken_again(hak_slab_set *set, hak_span *span);
void hak_slab_unlink(hak_slab_set *set, hak_span *span);
void hak_slab_link(hak_slab_set *set, hak_span *span, unsigned list);
/* free_count blocks of the slab, whose list stays, are free. */
void hak_slab_settle_count(hak_span *span, unsigned free_count);
/* Puts the slab, of which free_count blocks are free now, on the list it asks for … */
void hak_slab_settle(hak_slab_set *set, hak_span *span, unsigned free_count);
/* … or, after blocks came back, ends it. */
void hak_slab_settle_after_put(hak_slab_set *set, hak_span *span, unsigned free_count, bool *purge_due);

#endif
