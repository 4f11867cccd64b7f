/* Pieces of 4 KiB, of spans that heaps share: the first blocks of each heap, bumped one behind the other, whatever
 * their size.
 *
 * A span of pieces has two bitmaps by granule: where blocks start (the one that a slab's free blocks have), and which
 * of these are live, in a metadata block with what each piece is. The size of a block is the distance to the next
 * start. Free blocks at the end of a piece's bumped part are bumped again; the others wait until the piece is empty.
 * Which pieces of a span are free is `free_pieces`, under the pieces' lock; spans that have some are listed. */
#include <string.h>

#include "heap/heap.h"

#define PIECES (HAK_SPAN_SIZE / HAK_PIECE_SIZE)
#define GRANULES (HAK_PIECE_SIZE / HAK_GRANULE)
#define USED_END (1u << 12) /* above hak_piece.used */
#define ALL_FREE ((uint16_t)0xffff)

_Static_assert(HAK_PIECES_MOST * GRANULES < USED_END && HAK_PIECES_MOST < 16, "bits of hak_piece");

typedef struct hak_shelf {
  hak_piece pieces[PIECES];
  uint64_t live[HAK_BITMAP_WORDS];
} shelf;
_Static_assert(sizeof(shelf) == HAK_META_SIZE && PIECES == 16,
               "one metadata block a span, and as many pieces as `free_pieces` has bits");

static hak_span *with_room; /* spans that have a free piece */

static shelf *shelf_of(const hak_span *s) { return s->shelf; }
static shelf *shelf_of_piece(const hak_piece *k) { return (shelf *)hak_align_down((uintptr_t)k, HAK_META_SIZE); }
HAK_INLINE uint64_t *starts_of(const hak_span *s) { return hak_region_bits(hak_pool_region_of(s), s); }

static bool has_bit(const uint64_t *bits, size_t i) { return (bits[i / 64] >> (i % 64) & 1) != 0; }
static void set_bit(uint64_t *bits, size_t i) { bits[i / 64] |= (uint64_t)1 << (i % 64); }
static void clear_bit(uint64_t *bits, size_t i) { bits[i / 64] &= ~((uint64_t)1 << (i % 64)); }

static size_t first_granule(const hak_piece *k) { return (size_t)(k - shelf_of_piece(k)->pieces) * GRANULES; }
uintptr_t hak_piece_address(const hak_piece *k) { return k->span->start + first_granule(k) * HAK_GRANULE; }

/* --- spans of pieces --- */

static void list_span(hak_span *s) {
  hak_assert_held(&hak_pieces_lock);
  s->prev_roomy = NULL;
  s->next_roomy = with_room;
  if (s->next_roomy != NULL) s->next_roomy->prev_roomy = s;
  with_room = s;
}

static void unlist_span(hak_span *s) {
  hak_assert_held(&hak_pieces_lock);
  *(s->prev_roomy != NULL ? &s->prev_roomy->next_roomy : &with_room) = s->next_roomy;
  if (s->next_roomy != NULL) s->next_roomy->prev_roomy = s->prev_roomy;
}

static hak_span *make_span(void) {
  shelf *sh = (shelf *)(void *)hak_meta_take();
  if (sh == NULL) return NULL;
  bool zeroed;
  /* As a slab of small blocks, to the pool */
  hak_pool_tags tags = {HAK_TAG(HAK_OWNER_PIECES, 1), HAK_CODE_SAMPLED, HAK_CODE_SAMPLED};
  hak_span *s = hak_pool_take(1, 1, tags, false, &zeroed);
  if (s == NULL) {
    hak_meta_give_one(sh);
    return NULL;
  }
  memset(sh, 0, sizeof *sh);
  memset(starts_of(s), 0, HAK_BITMAP_WORDS * sizeof(uint64_t));
  s->shelf = sh;
  s->free_pieces = ALL_FREE;
  return s;
}

/* The lowest free pieces of that number in a row; PIECES: there are none. */
static unsigned find_free(const hak_span *s, unsigned count) {
  unsigned mask = s->free_pieces;
  for (unsigned i = 1; i < count; i++) mask &= mask >> 1; /* a bit stays where the next ones are set too */
  return mask == 0 ? PIECES : hak_ctz64(mask);
}

/* Spans that are looked at under the lock before a new one is made. What is free behind is found once they are full. */
#define LOOKED_AT 64
static hak_piece *take_pieces(uint32_t owner, unsigned count) {
  hak_lock_take(&hak_pieces_lock);
  unsigned first = PIECES, looks = LOOKED_AT;
  hak_span *s = with_room;
  for (; s != NULL && looks > 0 && (first = find_free(s, count)) == PIECES; s = s->next_roomy) looks--;
  if (first == PIECES) {
    s = make_span();
    if (s != NULL) list_span(s);
    first = 0;
  }
  hak_piece *k = NULL;
  if (s != NULL) {
    k = &shelf_of(s)->pieces[first];
    s->free_pieces &= (uint16_t)~(((1u << count) - 1) << first);
    if (s->free_pieces == 0) unlist_span(s);
    for (unsigned i = 0; i < count; i++) {
      k[i] = (hak_piece){.span = s, .count = (uint16_t)(i == 0 ? count : 0)};
      hak_store_relaxed(&k[i].owner, owner);
    }
  }
  hak_lock_drop(&hak_pieces_lock);
  return k;
}

static void give_pieces(hak_piece *k, bool *purge_due) {
  hak_span *s = k->span;
  shelf *sh = shelf_of(s);
  unsigned first = (unsigned)(k - sh->pieces), count = k->count;
  HAK_ASSERT(sh == shelf_of_piece(k) && first + count <= PIECES && count > 0);
  size_t at = first_granule(k) / 8, bytes = count * GRANULES / 8;
  memset((char *)starts_of(s) + at, 0, bytes);
  memset((char *)sh->live + at, 0, bytes);
  hak_lock_take(&hak_pieces_lock);
  for (unsigned i = 0; i < count; i++) hak_store_relaxed(&k[i].owner, 0);
  if (s->free_pieces == 0) list_span(s);
  s->free_pieces |= (uint16_t)(((1u << count) - 1) << first);
  /* One that is empty stays, for the next heap. */
  bool goes = s->free_pieces == ALL_FREE && (with_room != s || s->next_roomy != NULL);
  if (goes) unlist_span(s);
  hak_lock_drop(&hak_pieces_lock);
  if (!goes) return;
  hak_pool_give(s, 0, s->tag, purge_due);
  hak_meta_give_one(sh);
}

/* --- the pieces of a heap --- */

static void link_piece(hak_heap *h, hak_piece *k) {
  k->prev = NULL;
  k->next = h->pieces;
  if (k->next != NULL) k->next->prev = k;
  h->pieces = k;
  h->piece_count += k->count;
}

static void unlink_piece(hak_heap *h, hak_piece *k) {
  *(k->prev != NULL ? &k->prev->next : &h->pieces) = k->next;
  if (k->next != NULL) k->next->prev = k->prev;
  h->piece_count -= k->count;
}

/* Bytes into the piece where such a block would begin; more than it has: there is no room. */
HAK_INLINE size_t place_in(const hak_piece *k, size_t bytes, size_t align) {
  size_t at = hak_align_up(k->used * (size_t)HAK_GRANULE, align);
  return at + bytes <= k->count * HAK_PIECE_SIZE ? at : SIZE_MAX;
}

HAK_INLINE void *bump(hak_piece *k, size_t at, size_t bytes) {
  hak_span *s = k->span;
  size_t first = first_granule(k), start = first + at / HAK_GRANULE;
  uint64_t *starts = starts_of(s);
  /* What the alignment leaves out begins where a block would, and is none. */
  if (at / HAK_GRANULE != k->used) set_bit(starts, first + k->used);
  set_bit(starts, start);
  set_bit(shelf_of(s)->live, start);
  k->used = (at + bytes) / HAK_GRANULE % USED_END;
  k->live++;
  return (void *)(s->start + start * HAK_GRANULE);
}

static HAK_NOINLINE void *alloc_in_new(hak_heap *h, size_t bytes) {
  hak_piece *k = take_pieces(h->owner, (unsigned)((bytes + HAK_PIECE_SIZE - 1) / HAK_PIECE_SIZE));
  if (k == NULL) return NULL;
  link_piece(h, k);
  /* Bumped on is the one that has more room. */
  if (k->count == 1 && (h->current == NULL || h->current->used * (size_t)HAK_GRANULE > bytes)) h->current = k;
  return bump(k, 0, bytes);
}

HAK_INLINE void *alloc(hak_heap *h, size_t bytes, size_t align) {
  hak_assert_held(hak_heap_lock(h));
  HAK_ASSERT(bytes > 0 && bytes % HAK_GRANULE == 0 && bytes <= HAK_PIECES_MOST * HAK_PIECE_SIZE &&
             align <= HAK_PIECE_SIZE);
  size_t at = h->current == NULL ? SIZE_MAX : place_in(h->current, bytes, align);
  return HAK_LIKELY(at != SIZE_MAX) ? bump(h->current, at, bytes) : alloc_in_new(h, bytes);
}

hak_heap_try hak_piece_take(hak_heap *h, unsigned c, size_t align) {
  hak_heap_try t = {0};
  size_t bytes = hak_class_size(c);
  hak_lock_take(hak_heap_lock(h));
  t.refuser = hak_heap_charge(h, bytes);
  if (HAK_LIKELY(t.refuser == NULL)) {
    t.p = alloc(h, bytes, align);
    if (HAK_LIKELY(t.p != NULL)) {
      hak_store_relaxed(&h->bumped[c], (uint16_t)(h->bumped[c] + bytes / HAK_GRANULE));
      hak_heap_note_served(h, bytes);
    } else {
      hak_heap_charge_back(h, bytes);
    }
  }
  hak_lock_drop(hak_heap_lock(h));
  return t;
}

static size_t granule_of(const void *p) { return ((uintptr_t)p % HAK_SPAN_SIZE) / HAK_GRANULE; }

/* Granules of the block that starts at `start`. */
static size_t length_of(const hak_piece *k, const uint64_t *starts, size_t start) {
  size_t end = first_granule(k) + k->used, next = start + 1;
  while (next < end && !has_bit(starts, next)) next++;
  return next - start;
}

/* The piece whose block could start at p. */
static hak_piece *piece_at(const hak_span *s, const void *p) {
  return &shelf_of(s)->pieces[((uintptr_t)p % HAK_SPAN_SIZE) / HAK_PIECE_SIZE];
}

size_t hak_piece_block_size(const hak_span *s, const void *p) {
  const hak_piece *k = piece_at(s, p);
  const uint64_t *starts = starts_of(s);
  size_t start = granule_of(p);
  bool is_block =
      (uintptr_t)p % HAK_GRANULE == 0 && k->count > 0 && has_bit(starts, start) && has_bit(shelf_of(s)->live, start);
  return is_block ? length_of(k, starts, start) * HAK_GRANULE : 0;
}

uint32_t hak_piece_owner(const hak_span *s, const void *p) { return hak_load_relaxed(&piece_at(s, p)->owner); }

/* Free blocks at the end of what is bumped are bumped again: 10,000 heaps of 5 KB, each block beside two short-lived
 * ones, hold 2.3 times what they were asked for, 3.7 times without. */
static void lower(hak_piece *k, const uint64_t *live, uint64_t *starts) {
  size_t first = first_granule(k);
  while (k->used > 0) {
    size_t last = first + k->used - 1;
    while (!has_bit(starts, last)) last--;
    if (has_bit(live, last)) return;
    clear_bit(starts, last);
    k->used = (last - first) % USED_END;
  }
}

hak_verdict hak_piece_free(hak_heap *h, hak_span *s, const void *p, size_t *bytes, bool *purge_due) {
  hak_assert_held(hak_heap_lock(h));
  hak_piece *k = piece_at(s, p);
  uint64_t *starts = starts_of(s), *live = shelf_of(s)->live;
  size_t start = granule_of(p), first = first_granule(k);
  if ((uintptr_t)p % HAK_GRANULE != 0 || k->count == 0) return HAK_VERDICT_NO_BLOCK_START;
  if (start >= first + k->used) return HAK_VERDICT_FREE_MEMORY;
  if (!has_bit(starts, start)) return HAK_VERDICT_NO_BLOCK_START;
  if (!has_bit(live, start)) return HAK_VERDICT_DOUBLE_FREE;
  HAK_ASSERT(k->live > 0 && hak_load_relaxed(&k->owner) == h->owner);
  *bytes = length_of(k, starts, start) * HAK_GRANULE;
  clear_bit(live, start);
  k->live--;
  if (k->live > 0 || k == h->current) {
    lower(k, live, starts);
    return HAK_VERDICT_OK;
  }
  unlink_piece(h, k);
  give_pieces(k, purge_due);
  return HAK_VERDICT_OK;
}

void hak_piece_trim(hak_heap *h, bool *purge_due) {
  hak_piece *k = h->current;
  if (k == NULL || k->live != 0) return;
  h->current = NULL;
  unlink_piece(h, k);
  give_pieces(k, purge_due);
}

void hak_piece_give_all(hak_heap *h, bool *purge_due) {
  for (hak_piece *k = h->pieces, *next; k != NULL; k = next) {
    next = k->next;
    give_pieces(k, purge_due);
  }
  h->pieces = h->current = NULL;
  h->piece_count = 0;
}

bool hak_piece_visit(const hak_piece *k, bool (*visit)(void *block, size_t size, void *context), void *context,
                     size_t *count) {
  const hak_span *s = k->span;
  const uint64_t *starts = starts_of(s), *live = shelf_of(s)->live;
  size_t first = first_granule(k);
  for (size_t i = first; i < first + k->used; i++) {
    if (!has_bit(live, i)) continue;
    ++*count;
    if (!visit((void *)(s->start + i * HAK_GRANULE), length_of(k, starts, i) * HAK_GRANULE, context)) return false;
  }
  return true;
}

const char *hak_piece_fault(const hak_piece *k, uint32_t owner, size_t *live_bytes) {
  const hak_span *s = k->span;
  const uint64_t *starts = starts_of(s), *live = shelf_of(s)->live;
  size_t first = first_granule(k), end = first + k->count * GRANULES, used = first + k->used, count = 0;
  *live_bytes = 0;
  if (k->count == 0 || end > HAK_SPAN_SIZE / HAK_GRANULE || used > end) return "it has more than there is";
  for (unsigned i = 0; i < k->count; i++) {
    if (hak_load_relaxed(&k[i].owner) != owner) return "it is another heap's";
  }
  if (k->used > 0 && !has_bit(starts, first)) return "no block begins where it begins";
  for (size_t i = first; i < end; i++) {
    if (i >= used && has_bit(starts, i)) return "a block begins behind what is bumped";
    if (!has_bit(live, i)) continue;
    if (!has_bit(starts, i)) return "a live block does not begin";
    count++;
    *live_bytes += length_of(k, starts, i) * HAK_GRANULE;
  }
  return count == k->live ? NULL : "its blocks are not as many as it says";
}
