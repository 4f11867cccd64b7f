/* Whose is it: the one question about an address. The slow halves of free and realloc, usable sizes, hakmem_is_ours,
 * hakmem_heap_of, the hardened build's checks, the crash handler and the profile ask it here, and derive nothing
 * themselves. (The fast path reads one byte of the page map.)
 *
 * The answer is right for good where the caller has the block. Of any other address it is a hint that was right at some
 * moment of the call. */
#ifndef HAK_ENTRY_WHERE_H
#define HAK_ENTRY_WHERE_H

#include "heap/heap.h"

typedef enum hak_what {
  HAK_FOREIGN,     /* nothing of ours, or a table of ours */
  HAK_FREE_MEMORY, /* ours, and no block is there */
  HAK_INSIDE,      /* inside a block, not at its start */
  HAK_BLOCK,       /* a block; in a slab, an address among its blocks: hak_where_slab_start tells the rest */
} hak_what;

typedef enum hak_kind {
  HAK_KIND_NONE,
  HAK_KIND_SLAB,
  HAK_KIND_EXTENT, /* whole spans */
  HAK_KIND_PIECE,  /* of a heap that is small yet: heap/pieces.c */
  HAK_KIND_HUGE,   /* a mapping of its own */
  HAK_KIND_GUARDED, /* by guard/sample.c */
  HAK_KIND_EMPTY,  /* hardened: no bytes, by guard/empty.c */
} hak_kind;

typedef struct hak_where {
  uint8_t what, kind;  /* hak_what, hak_kind */
  uint8_t class_code;  /* of a slab; HAK_CLASS_COUNT: it is none */
  bool sampled;        /* in a slab of the profile's blocks */
  uint32_t owner;      /* of a heap's block, as HAK_TAG_OWNER; 0: the main heap's */
  size_t size;         /* usable bytes; of a piece hak_where_size tells */
  hak_region *region;  /* NULL: outside of regions */
  hak_span *head;      /* of the slab or extent */
} hak_where;

hak_where hak_where_is(const void *p);
/* Whether the address is in a heap's memory, or was. */
HAK_INLINE bool hak_where_in_heap(const hak_where *w) { return w->owner != 0; }
/* The heap; NULL: the main one, or it has ended. */
HAK_INLINE hak_heap *hak_where_heap(const hak_where *w) { return w->owner == 0 ? NULL : hak_heap_of_owner(w->owner); }
/* Usable bytes of the block that begins at p; 0: none does, as far as can be told without a slab's bitmap. */
size_t hak_where_size(const hak_where *w, const void *p);
/* Of an address in a slab: where the block begins that it lies in; NULL: behind the last block that was ever allocated,
 * or before the first. */
const void *hak_where_slab_start(const hak_where *w, const void *p);

#endif
