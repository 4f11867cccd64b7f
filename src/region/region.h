/* The region box: reserved address space, and for each 64 KiB span of it a byte of the page map, metadata and a free
 * bitmap.
 *
 * A region is a reservation that begins with its own tables and goes on with spans; it is extended in place up to
 * span_count, for which the tables are laid out, as far as the addresses behind it are free. It is made accessible from
 * the bottom up in growing steps; `limit` is published (release) after the map below it can be read. Nothing inside a
 * region's tables below `limit` is ever unmapped, so an address there can always be looked up. Where the system limits
 * what a process may have, free spans are unmapped too, and are then `absent` until the region has them back
 * (pool/absent.h).
 *
 * Page map: a code a span, or 0 for a span that holds no block. The pool writes it when a span is taken or returned,
 * that is, before a block of the span is handed out and after the last one came back, so whoever legally holds a block
 * reads a settled code with a relaxed load. Tag, in the metadata of a slab's or extent's first span: owner << 8 | code.
 *
 * The main region is found by one comparison; further ones (small reservations) through a table, the latest and largest
 * first. */
#ifndef HAK_REGION_REGION_H
#define HAK_REGION_REGION_H

#include "os/os.h"
#include "region/size_class.h"

#define HAK_CHUNK_SPANS 1024 /* one pool bitmap: 64 MiB */
#define HAK_CHUNK_WORDS (HAK_CHUNK_SPANS / 64)
#define HAK_CHUNK_ORDERS 11 /* alignments of a span to a chunk */
#define HAK_BITMAP_WORDS 64 /* free bits of one span's smallest blocks: 65536 / 16 / 64 */
#define HAK_MAX_REGIONS 256

#define HAK_TAG(owner, code) ((uint32_t)(owner) << 8 | (uint32_t)(code))
#define HAK_TAG_NONE 0xffffffffu /* in metadata only: matches no tag a free or flush can expect */
#define HAK_TAG_OWNER(tag) ((tag) >> 8)
#define HAK_TAG_CODE(tag) ((tag)&0xff)
/* Owners: 0: an extent; an arena's id + 1; from here on heaps (heap/heap.h), which have spans of the page map code
 * HAK_CODE_SAMPLED. */
#define HAK_OWNER_PIECES 255u /* a span whose pieces are several heaps' */
#define HAK_OWNER_HEAPS 256u  /* and a heap's index */
#define HAK_OWNERS (1u << 24)
#define HAK_TAG_IS_IN_HEAP(tag) (HAK_TAG_OWNER(tag) >= HAK_OWNER_PIECES && (tag) != HAK_TAG_NONE)
#define HAK_CODE_IN_HEAP HAK_CODES /* in no page map */

/* What the search for free pages saw of a slab at its last look (slab/sparse.c); all 0: nothing yet. */
typedef struct hak_slab_scan {
  uint16_t free_blocks : 13, round : 2; /* then, and in which round it looked */
  uint16_t unpurgeable : 1;             /* with so many free blocks there was nothing to gain */
  uint16_t gone_pages : 7;              /* of a slab on the last list: its pages that are gone … */
  uint16_t live_then : 9;               /* … and the blocks that were live when they went, or 511 */
} hak_slab_scan;

/* A span has four uses, one at a time, and two groups of words that each use has fields of its own in: it is a span of
 * a slab or an extent (its page map code says which), of heaps' pieces (its tag does), or claimed (neither free nor
 * coded). Fields of slabs and pieces, but for those by which it is found, are of the first span. */
typedef struct hak_span {
  /* written when the span is handed out, constant while it is tagged */
  uintptr_t start;       /* first block (after the colour), or first byte of an extent */
  struct hak_span *head; /* the first span of this slab or extent */
  union {
    struct { /* slab */
      uint64_t *bits;               /* free bitmap, constant; set bit = block in the slab's hands */
      struct hak_span *next, *prev; /* on its list, see slab/slab.h; the bin's lock */
    };
    struct { /* pieces; heap/pieces.c */
      struct hak_shelf *shelf;                  /* what each piece is; constant */
      struct hak_span *next_roomy, *prev_roomy; /* of those that have a free piece; the pieces' lock */
    };
    struct { /* extent */
      uint64_t : 64, : 64;
      uint64_t asked; /* what was asked for, while requests are noted; relaxed, by who has it */
    };
    struct { /* claimed; each span of the range, the pool's lock */
      uint64_t : 64;
      struct hak_span *next_claimed; /* of the first span: entry/reserve.c */
      const void *claimer;           /* mark of the thread */
    };
  };
  union {
    struct { /* slab, the bin's lock */
      /* Of `settled` free blocks the slab was on its list; so many frees later, or at once after a take, it is put on
       * another. The number of free blocks is settled - frees_left: a free counts in one instruction. */
      uint16_t settled, frees_left;
    };
    uint16_t free_pieces; /* pieces: a bit each; the pieces' lock */
    bool untouched;       /* claimed, of the first span: all of the range reads as zero; entry/reserve.c */
  };
  /* slab, the bin's lock */
  uint16_t bumped; /* blocks allocated once, at least; the others follow in address order */
  uint16_t blocks;
  hak_slab_scan scan;
  uint8_t class_code;
  uint8_t list; /* see slab/slab.h */
  /* any use, the pool's lock */
  uint16_t span_count; /* of the slab, the extent, or the claimed range */
  uint32_t tag;        /* of the first span: HAK_TAG of arena and page map code; HAK_TAG_NONE once returned */
  /* the heap's lock */
  uint32_t place; /* of the first span of what a heap has: in its list (heap/blocks.c) */
} hak_span;

/* Pool state of 1,024 spans; written under the pool lock. */
typedef struct hak_chunk {
  uint64_t free[HAK_CHUNK_WORDS];
  uint64_t dirty[HAK_CHUNK_WORDS]; /* hold pages; those that are neither dirty nor muzzy read as zero */
  uint64_t muzzy[HAK_CHUNK_WORDS]; /* purged lazily: read as zero or as what they held */
  /* Neither free nor held: their addresses went back to the system. Written under the pool lock before they go, read by
   * any thread. */
  uint64_t absent[HAK_CHUNK_WORDS];
  uint64_t lost[HAK_CHUNK_WORDS]; /* of them, those whose addresses are somebody else's now */
  /* A large block has had them, free or held since: a program may have told userfaultfd or a device of them, which
   * outlasts a purge. */
  uint64_t large[HAK_CHUNK_WORDS];
  uint32_t absent_spans; /* that are not lost */
  uint32_t free_spans, dirty_spans;
  uint32_t look[HAK_CHUNK_WORDS]; /* of each word: look of the last span returned there; read by any thread */
  /* Asks for huge pages; from when its first span becomes accessible, until it is made small, and again */
  bool huge;
  bool was_huge;        /* asked for huge pages before */
  uint16_t small_spans; /* relaxed; follows_page_sizes: its first ones up to here were asked to have small pages */
  bool has_split_pages; /* huge, and part of a huge page has been purged; read by any thread */
} hak_chunk;

/* The pool lock. From now on its pages are to be small; huge ones that are there stay, and the caller tells the system,
 * which would fill what goes of them again. */
HAK_INLINE void hak_chunk_end_huge(hak_chunk *c) {
  c->huge = false;
  c->was_huge = true;
  hak_store_relaxed(&c->has_split_pages, false);
}

typedef struct hak_region {
  uintptr_t base;
  size_t limit; /* bytes from base that can be looked up */
  struct hak_region *before; /* of the further regions, the one added before it */
  uint8_t *map; /* at base: a code a span */
  /* cold from here */
  hak_span *spans;
  uint64_t *bitmaps;
  uint8_t *held; /* hardened build: a byte a granule: who has the block that starts there, harden/held.h */
  hak_chunk *chunks;
  size_t span_count, first_span, ready_spans; /* ready: accessible, tables included */
  size_t reserved_bytes; /* grows up to span_count */
  uintptr_t tables_end; /* behind the last of its tables, in memory */
  size_t table_spans; /* whose entries in the tables are accessible: ready_spans or more; read by any thread */
  bool trimmed;      /* its tables end at span_count */
  bool follows_page_sizes; /* relaxed: of what comes, no small pages are asked for */
  bool populated;    /* what becomes accessible is resident at once (mlockall) */
  /* pool lock: pool/chunk_index.h; by whether chunks ask for huge pages, and by alignment; the last of spans apart */
  struct hak_chunk_node *index[2][HAK_CHUNK_ORDERS + 1];
} hak_region;

extern hak_region hak_main_region;

/* The main region's base and limit once more, as words of their own: the fast path reads them with one instruction
 * each. The limit is stored last (release). A thread that holds a block of the region has synchronised with the thread
 * that allocated it, and so sees limit and tags; for a wild pointer either answer is good. */
extern HAK_HIDDEN uintptr_t hak_main_base;
extern HAK_HIDDEN size_t hak_main_limit;
/* Where its metadata would be of the span at address 0: by address >> HAK_SPAN_SHIFT it is an array of all spans there
 * are. */
extern HAK_HIDDEN uintptr_t hak_main_spans;

/* Hardened build: the last span of each so many is nobody's, and inaccessible: no run of 1 MiB misses one. */
#define HAK_GUARD_PERIOD 16
HAK_INLINE bool hak_region_is_guard(size_t index) {
  return HAK_HARD(GUARDS) && index % HAK_GUARD_PERIOD == HAK_GUARD_PERIOD - 1;
}

/* The chunk behind the last that has spans. Pool lock. */
HAK_INLINE size_t hak_region_chunks(const hak_region *region) {
  return (region->ready_spans + HAK_CHUNK_SPANS - 1) / HAK_CHUNK_SPANS;
}

#define HAK_HUGE_PAGE_SPANS (HAK_HUGE_PAGE / HAK_SPAN_SIZE)

/* What a region may grow to. */
#define HAK_REGION_BYTES_MOST ((size_t)1 << 40)
/* Reserves the first region: the largest of the ladder 1 TiB … 16 MiB, none above max_bytes, of which the system grants
 * the first 16 GiB or all. Where the address space is limited, the tables for as much as the limit and a sixteenth of
 * it for spans. False when none is. */
bool hak_region_init(size_t max_bytes);

/* Regions in order of creation; index 0 is the main one. Callers that add hold the pool lock. */
hak_region *hak_region_at(unsigned index);
unsigned hak_region_count(void);
/* Adds a region that can hold an extent of `spans`, of as much as there is already at most, so that there are few; NULL
 * when none can be had. */
hak_region *hak_region_add(size_t spans);

/* Fresh memory gets pages of 64 KiB by itself: all regions leave it to the system which pages those spans will have
 * that are not accessible yet. Once; caller holds the pool lock. */
void hak_region_follow_page_sizes(void);
/* Tells the system of spans of one chunk that were mapped anew which pages that chunk has. */
void hak_region_advise(const hak_region *region, size_t first, size_t spans);

/* Makes more spans accessible: at least `spans`, or what is left of the current chunk; where that chunk is of the other
 * kind, the rest of it, so that the next call begins a chunk of the kind. False: nothing more. Caller holds the pool
 * lock. */
bool hak_region_grow(hak_region *region, size_t spans, bool huge);

/* Gives back what is reserved and not accessible: the rest of the spans, and of the tables what describes more than
 * `spans`. The region ends there. Caller holds the pool lock; none of this was ever seen by the program. Returns the
 * bytes. */
size_t hak_region_give_back_reserved(hak_region *region, size_t spans);

/* Makes spans of one chunk accessible whose addresses had been unmapped. False: not now; or, with *lost, never. Caller
 * holds the pool lock. */
bool hak_region_restore(hak_region *region, size_t first, size_t spans, bool *lost);

/* The latest of the further regions, or NULL: release after it is complete. */
extern HAK_HIDDEN hak_region *hak_latest_region;

/* The one that an address lies in, or NULL. Each may be as large as all before it, so the latest has most blocks. */
HAK_INLINE hak_region *hak_region_further(const void *p) {
  for (hak_region *r = hak_load_acquire(&hak_latest_region); r != 0; r = r->before) {
    if ((uintptr_t)p - r->base < hak_load_acquire(&r->limit)) return r;
  }
  return 0;
}

/* Page map code of what lies at `offset` of the main region, below its limit: the map is at its base. */
HAK_INLINE uint8_t hak_region_main_code(uintptr_t base, uintptr_t offset) {
  return hak_load_relaxed((const uint8_t *)base + (offset >> HAK_SPAN_SHIFT));
}

/* Region that an address lies in, of its tables and what is absent too, or NULL. Any thread, no lock. */
HAK_INLINE hak_region *hak_region_around(const void *p) {
  if (HAK_LIKELY((uintptr_t)p - hak_load_relaxed(&hak_main_base) < hak_load_acquire(&hak_main_limit)))
    return &hak_main_region;
  return hak_region_further(p);
}

/* The same, but for absent spans: what is there may be anybody's. Who has a block of a region sees its code. */
hak_region *hak_region_unless_absent(hak_region *region, const void *p);
hak_region *hak_region_find_slow(const void *p);
HAK_INLINE hak_region *hak_region_find(const void *p) {
  uintptr_t base = hak_load_relaxed(&hak_main_base), offset = (uintptr_t)p - base;
  if (HAK_UNLIKELY(offset >= hak_load_acquire(&hak_main_limit))) return hak_region_find_slow(p);
  return HAK_UNLIKELY(hak_region_main_code(base, offset) == HAK_CODE_NONE)
             ? hak_region_unless_absent(&hak_main_region, p)
             : &hak_main_region;
}

HAK_INLINE size_t hak_region_index(const hak_region *region, const void *p) {
  return ((uintptr_t)p - region->base) >> HAK_SPAN_SHIFT;
}
HAK_INLINE void *hak_region_address(const hak_region *region, size_t index) {
  return (void *)(region->base + (index << HAK_SPAN_SHIFT));
}
HAK_INLINE unsigned hak_region_code(const hak_region *region, const void *p) {
  return hak_load_relaxed(&region->map[hak_region_index(region, p)]);
}
/* Page map code of a span; of a slab of sampled blocks, the one of its class; of what heaps have, HAK_CODE_IN_HEAP. */
HAK_INLINE unsigned hak_region_slab_code(const hak_region *region, size_t index) {
  unsigned code = hak_load_acquire(&region->map[index]); /* a neighbour's may be asked for */
  if (HAK_LIKELY(code != HAK_CODE_SAMPLED)) return code;
  uint32_t tag = hak_load_relaxed(&hak_load_relaxed(&region->spans[index].head)->tag);
  return HAK_TAG_IS_IN_HEAP(tag) ? HAK_CODE_IN_HEAP : HAK_TAG_CODE(tag);
}
HAK_INLINE unsigned hak_region_code_at(const hak_region *region, size_t index) {
  return hak_load_relaxed(&region->map[index]);
}
/* Pool lock, or who has the extent that begins there. Releases what the span's metadata says. */
HAK_INLINE void hak_region_set_code(hak_region *region, size_t index, unsigned code) {
  hak_store_release(&region->map[index], (uint8_t)code);
}
/* False: the span's code is another one than `from`. Of two threads that change it, one is told true. */
HAK_INLINE bool hak_region_change_code(hak_region *region, size_t index, unsigned from, unsigned to) {
  uint8_t expected = (uint8_t)from;
  return hak_cas_acquire(&region->map[index], &expected, (uint8_t)to);
}
/* Metadata of a span, its index, and the free bitmap of the slab that it is the first of. */
HAK_INLINE hak_span *hak_region_span_at(const hak_region *region, size_t index) { return &region->spans[index]; }
HAK_INLINE size_t hak_region_span_index(const hak_region *region, const hak_span *span) {
  return (size_t)(span - region->spans);
}
HAK_INLINE uint64_t *hak_region_bits(const hak_region *region, const hak_span *span) {
  return &region->bitmaps[hak_region_span_index(region, span) * HAK_BITMAP_WORDS];
}
/* Hardened build: the byte of the granule at `offset`. */
HAK_INLINE uint8_t *hak_region_held_byte(const hak_region *region, size_t offset) {
  return &region->held[offset / HAK_GRANULE];
}
/* Of an address in the main region; `spans`: hak_main_spans. */
HAK_INLINE hak_span *hak_region_main_span(uintptr_t spans, uintptr_t address) {
  return (hak_span *)(spans + (address >> HAK_SPAN_SHIFT) * sizeof(hak_span));
}
/* Bytes of tables that `spans` spans have; and whole pages of those that are accessible, where the region is up to span
 * `end`. */
size_t hak_region_table_bytes(size_t spans);
size_t hak_region_table_pages(const hak_region *region, size_t end);
/* First span of the slab or extent that p lies in; p must be in a tagged span. */
HAK_INLINE hak_span *hak_region_span(const hak_region *region, const void *p) {
  return region->spans[hak_region_index(region, p)].head;
}

#endif
