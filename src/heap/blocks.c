/* The blocks of a heap: in pieces at first, then in slabs of its own; large ones in spans, and huge ones in
 * mappings. */
#include "heap/heap.h"

#include <string.h>

#include "large/extent.h"
#include "large/huge.h"
#include "large/kept.h"
#include "large/large.h"

#define LARGE_TAG(h) HAK_TAG(h->owner, HAK_CODE_EXTENT)

unsigned hak_heap_class(size_t size, size_t align) {
  if (size > HAK_SHARED_MAX) return HAK_CLASS_COUNT;
  if (align <= HAK_GRANULE) return hak_class_for(size);
  int class_code = hak_class_for_aligned(size, align);
  return class_code < 0 || hak_class_size((unsigned)class_code) > HAK_SHARED_MAX ? HAK_CLASS_COUNT
                                                                                 : (unsigned)class_code;
}

/* --- the table of a heap's spans, under its lock --- */

/* First ones of slabs and large blocks. What leaves the heap leaves its entry behind: it is good while the span has the
 * heap's tag and says that it is in this place. Stale ones go when the table has doubled. It is a tree of metadata
 * blocks, as high as its entries ask for: so it grows where the system has no mapping left. */

#define ENTRIES_SHIFT 7
#define ENTRIES (1u << ENTRIES_SHIFT)
_Static_assert(ENTRIES * sizeof(void *) == HAK_META_SIZE, "a metadata block has so many");

static void **block_of(const hak_heap *h, uint32_t place) {
  void **block = h->spans;
  for (unsigned shift = h->span_levels * ENTRIES_SHIFT; shift > 0; shift -= ENTRIES_SHIFT)
    block = block[(place >> shift) % ENTRIES];
  return block;
}

hak_span *hak_heap_span_at(const hak_heap *h, uint32_t place) {
  HAK_ASSERT(place < h->span_count);
  hak_span *s = block_of(h, place)[place % ENTRIES];
  bool ours = HAK_TAG_OWNER(hak_load_relaxed(&s->tag)) == h->owner && hak_load_relaxed(&s->place) == place;
  return ours ? s : NULL;
}

static void put_span(const hak_heap *h, hak_span *s, uint32_t place) {
  hak_store_relaxed(&s->place, place);
  block_of(h, place)[place % ENTRIES] = s;
}

static void drop_stale(hak_heap *h) {
  uint32_t kept = 0;
  for (uint32_t i = 0; i < h->span_count; i++) {
    hak_span *s = hak_heap_span_at(h, i);
    if (s != NULL) put_span(h, s, kept++);
  }
  h->span_count = h->spans_kept = kept;
}

static void give_table(void **block, unsigned levels) {
  for (unsigned i = 0; levels > 0 && i < ENTRIES && block[i] != NULL; i++) give_table(block[i], levels - 1);
  hak_meta_give_one(block);
}

static void drop_table(hak_heap *h) {
  if (h->spans != NULL) give_table(h->spans, h->span_levels);
  h->spans = NULL;
  h->span_count = h->span_capacity = h->spans_kept = h->span_levels = 0;
}

/* What is above the entries says where nothing is. */
static bool make_block(void **slot) {
  if (*slot == NULL && (*slot = hak_meta_take()) != NULL) memset(*slot, 0, HAK_META_SIZE);
  return *slot != NULL;
}

/* One block more for entries, and those above it. */
static bool extend_table(hak_heap *h) {
  void *top = NULL;
  if (h->span_capacity == (size_t)ENTRIES << h->span_levels * ENTRIES_SHIFT) {
    if (!make_block(&top)) return false;
    *(void **)top = h->spans;
    h->spans = top;
    h->span_levels++;
  }
  void **slot = &h->spans;
  for (unsigned shift = h->span_levels * ENTRIES_SHIFT; make_block(slot); shift -= ENTRIES_SHIFT) {
    if (shift == 0) {
      h->span_capacity += ENTRIES;
      return true;
    }
    slot = &((void **)*slot)[(h->span_capacity >> shift) % ENTRIES];
  }
  return false;
}

static bool make_span_room(hak_heap *h) {
  hak_assert_held(hak_heap_lock(h));
  if (HAK_LIKELY(h->span_count < h->span_capacity)) return true;
  if (h->span_count >= h->spans_kept * 2) drop_stale(h);
  return h->span_count < h->span_capacity || extend_table(h);
}

static void add_span(hak_heap *h, hak_span *s) {
  hak_assert_held(hak_heap_lock(h));
  HAK_ASSERT(h->span_count < h->span_capacity && s->head == s);
  put_span(h, s, h->span_count++);
}

static void give_spans(hak_heap *h, bool *purge_due) {
  for (uint32_t i = 0; i < h->span_count; i++) {
    hak_span *s = hak_heap_span_at(h, i);
    if (s != NULL) hak_pool_give(s, 0, s->tag, purge_due);
  }
  drop_table(h);
}

/* --- slabs --- */

static hak_slab_set *bin_of(const hak_heap *h, unsigned c) {
  HAK_ASSERT(c < HAK_CLASS_COUNT);
  hak_slab_set *bins = hak_load_acquire(&h->bins[c / HAK_HEAP_BINS]);
  return bins == NULL ? NULL : &bins[c % HAK_HEAP_BINS];
}

static hak_slab_set *make_bin(hak_heap *h, unsigned c) {
  hak_slab_set *b = bin_of(h, c);
  if (HAK_LIKELY(b != NULL)) return b;
  hak_lock_take(hak_heap_lock(h));
  if (bin_of(h, c) == NULL) {
    hak_slab_set *bins = (hak_slab_set *)(void *)hak_meta_take();
    if (bins != NULL) {
      memset(bins, 0, HAK_META_SIZE);
      for (unsigned i = 0; i < HAK_HEAP_BINS; i++) bins[i].sampled = true;
      hak_store_release(&h->bins[c / HAK_HEAP_BINS], bins);
    }
  }
  hak_lock_drop(hak_heap_lock(h));
  return bin_of(h, c);
}

/* A new slab is in the heap's list before anyone can empty it, and nobody takes its place there meanwhile. */
static unsigned take_new(hak_heap *h, hak_slab_set *b, unsigned c, void **out, unsigned wanted) {
  unsigned n = 0;
  hak_assert_held(hak_heap_bin_lock(h, c));
  hak_lock_take(hak_heap_lock(h));
  if (make_span_room(h)) n = hak_slab_set_take(b, c, h->owner, out, wanted);
  if (n > 0) add_span(h, hak_region_span(hak_region_find(out[0]), out[0]));
  hak_lock_drop(hak_heap_lock(h));
  return n;
}

unsigned hak_heap_take_locked(hak_heap *h, unsigned c, void **out, unsigned wanted, bool charges, hak_heap **refuser) {
  HAK_ASSERT(wanted > 0);
  hak_assert_held(hak_heap_bin_lock(h, c));
  size_t size = hak_class_size(c);
  hak_slab_set *b = make_bin(h, c);
  unsigned n = 0;
  *refuser = NULL;
  if (b == NULL) return 0;
  if (charges) *refuser = hak_heap_charge(h, wanted * size);
  if (HAK_UNLIKELY(*refuser != NULL) && wanted > 1) {
    wanted = 1;
    *refuser = hak_heap_charge(h, size);
  }
  if (*refuser == NULL) {
    n = hak_slab_set_take_ready(b, c, out, wanted);
    if (n == 0) n = take_new(h, b, c, out, wanted);
    if (charges && n < wanted) hak_heap_charge_back(h, (wanted - n) * size);
    if (n > 0) hak_heap_note_taken(h, n, n * size);
  }
  return n;
}

/* Under the lock under which they were put back. */
static void note_put(hak_heap *h, unsigned blocks, size_t bytes, bool charged) {
  if (charged) hak_heap_uncharge(h, bytes);
  hak_heap_note_put(h, blocks, bytes);
}

void hak_heap_put_locked(hak_heap *h, unsigned c, void *const *blocks, unsigned count, bool charged, hak_deferred *d) {
  hak_slab_set *b = bin_of(h, c);
  HAK_ASSERT(b != NULL);
  hak_assert_held(hak_heap_bin_lock(h, c));
  uint32_t tag = HAK_TAG(h->owner, c + 1);
  for (unsigned done = 0; done < count;) {
    hak_verdict verdict;
    unsigned n = hak_slab_set_put(b, tag, blocks + done, count - done, &verdict, &d->purge_due);
    if (n > 0) note_put(h, n, n * hak_class_size(c), charged);
    done += n;
    if (HAK_LIKELY(done == count)) break;
    if (verdict == HAK_VERDICT_OK) verdict = HAK_VERDICT_FREE_MEMORY; /* of another heap by now, or none */
    hak_deferred_note(d, verdict, blocks[done++], c, "in its heap");
  }
  hak_heap_note_end(h);
}

/* The program's, which is charged. */
static void put_one(hak_heap *h, unsigned c, void *p, hak_deferred *d) {
  hak_lock_take(hak_heap_bin_lock(h, c));
  hak_heap_put_locked(h, c, &p, 1, true, d);
  hak_lock_drop(hak_heap_bin_lock(h, c));
}

/* One block, which is the program's at once: it counts where it is charged. makes: a new slab, where no other has
 * one. */
static HAK_NOINLINE hak_heap_try take_slab_block(hak_heap *h, unsigned c, bool makes) {
  hak_heap_try t = {0};
  hak_slab_set *b = makes ? make_bin(h, c) : bin_of(h, c);
  if (b == NULL) return t;
  hak_lock_take(hak_heap_bin_lock(h, c));
  t.refuser = hak_heap_charge(h, hak_class_size(c));
  if (t.refuser == NULL) {
    if (hak_slab_set_take_ready(b, c, &t.p, 1) == 0 && !(makes && take_new(h, b, c, &t.p, 1) == 1)) t.p = NULL;
    t.p == NULL ? hak_heap_charge_back(h, hak_class_size(c)) : hak_heap_note_served(h, hak_class_size(c));
  }
  hak_lock_drop(hak_heap_bin_lock(h, c));
  return t;
}

void *hak_heap_take_ready(hak_heap *h, unsigned c) {
  if (HAK_LIKELY(!hak_heap_has_slabs(h, c))) return hak_piece_take(h, c, HAK_GRANULE).p;
  return hak_heap_caches(h) ? NULL : take_slab_block(h, c, false).p;
}

bool hak_heap_put_ready(uint32_t tag, void *p, hak_deferred *d) {
  unsigned c = HAK_TAG_CODE(tag) - 1;
  hak_heap *h = c < HAK_CLASS_COUNT ? hak_heap_of_owner(HAK_TAG_OWNER(tag)) : NULL;
  if (h == NULL || hak_class_size(c) > HAK_SHARED_MAX || hak_heap_caches(h)) return false;
  put_one(h, c, p, d);
  return true;
}

hak_heap_try hak_heap_take_one(hak_heap *h, unsigned c, size_t align) {
  bool piece = !hak_heap_has_slabs(h, c) && align <= HAK_PIECE_SIZE;
  return piece ? hak_piece_take(h, c, align) : take_slab_block(h, c, true);
}

/* --- large blocks --- */

/* A freed mapping that is kept, cut to the size: the limit counts what was asked for, whatever is kept. Else a new
 * one. */
static void *map_block(size_t bytes, size_t align, bool *zeroed) {
  hak_freed kept = HAK_HARD(GUARDS) ? (hak_freed){0} : hak_kept_take(bytes, align);
  if ((*zeroed = kept.p == NULL)) return hak_huge_alloc(bytes, align, true);
  if (kept.bytes != bytes && !hak_huge_unmap((char *)kept.p + bytes, kept.bytes - bytes))
    return hak_huge_unmap(kept.p, kept.bytes), NULL;
  return hak_huge_adopt(kept.p, bytes, kept.huge_pages ? HAK_HUGE_PAGES_ALL : HAK_HUGE_PAGES_NONE);
}

/* The system may be the program's functions, so no lock is held while it is called. What is charged changes together
 * with what the heap has, under the heap's lock: a fork's child has either both or none. So a mapping is charged once
 * it is there, and first looked at whether it would be. */
static hak_heap_try take_mapping(hak_heap *h, size_t size, size_t align, bool *zeroed) {
  size_t bytes = hak_huge_bytes(size);
  hak_heap_try t = {.refuser = hak_heap_refuser(h, bytes)};
  if (t.refuser != NULL) return t;
  void *p = map_block(bytes, hak_max_size(align, hak_os_page_size()), zeroed);
  if (p == NULL) return t;
  hak_lock_take(hak_heap_lock(h));
  t.refuser = hak_heap_charge(h, bytes);
  if (t.refuser == NULL) {
    t.p = p;
    hak_huge_own(p, &h->mappings);
    hak_add_relaxed(&h->mapped, bytes);
    hak_heap_note_served(h, bytes);
  }
  hak_lock_drop(hak_heap_lock(h));
  bool purge_due;
  if (t.p == NULL) hak_huge_free(p, &purge_due); /* others have taken the room meanwhile */
  return t;
}

static hak_heap_try take_spans(hak_heap *h, size_t size, size_t align, bool *zeroed) {
  hak_heap_try t = {0};
  size_t bytes = hak_align_up(size, HAK_SPAN_SIZE);
  hak_assert_held(hak_heap_lock(h));
  if (!make_span_room(h)) return t;
  t.refuser = hak_heap_charge(h, bytes);
  if (t.refuser != NULL) return t;
  hak_pool_tags tags = {LARGE_TAG(h), HAK_CODE_SAMPLED, HAK_CODE_SAMPLED};
  hak_span *s = hak_pool_take(bytes >> HAK_SPAN_SHIFT, hak_extent_spans(align), tags, false, zeroed);
  if (s == NULL) {
    hak_heap_charge_back(h, bytes);
    return t;
  }
  add_span(h, s);
  hak_heap_note_served(h, bytes);
  t.p = (void *)s->start;
  return t;
}

hak_heap_try hak_heap_take_large(hak_heap *h, size_t size, size_t align, bool *zeroed) {
  hak_heap_try t = {0};
  *zeroed = true;
  if (size > PTRDIFF_MAX - HAK_SPAN_SIZE) return t;
  size = hak_max_size(size, 1);
  if (size <= HAK_EXTENT_MAX && align <= HAK_EXTENT_MAX) {
    hak_lock_take(hak_heap_lock(h));
    t = take_spans(h, size, align, zeroed);
    hak_lock_drop(hak_heap_lock(h));
    if (t.p != NULL || t.refuser != NULL) return t;
  }
  return take_mapping(h, size, align, zeroed); /* also where regions are full, or none fits */
}

size_t hak_heap_large_size(const hak_span *s, const void *p) {
  return HAK_TAG_OWNER(s->tag) != HAK_OWNER_PIECES && s->start == (uintptr_t)p ? (size_t)s->span_count << HAK_SPAN_SHIFT
                                                                               : 0;
}

/* Of a block that is in no slab. */
static void note_bad(hak_deferred *d, hak_verdict verdict, void *p, const char *where) {
  hak_deferred_note(d, verdict, p, HAK_CODE_NONE - 1u, where);
}

void hak_heap_put_large_locked(hak_heap *h, void *const *blocks, unsigned count, bool charged, hak_deferred *d) {
  hak_assert_held(hak_heap_lock(h));
  for (unsigned i = 0; i < count; i++) {
    hak_span *s = hak_region_span(hak_region_find(blocks[i]), blocks[i]);
    size_t bytes = hak_heap_large_size(s, blocks[i]);
    bool given = bytes != 0 && hak_pool_give(s, 0, LARGE_TAG(h), &d->purge_due);
    if (given) note_put(h, 1, bytes, charged);
    if (!given) note_bad(d, HAK_VERDICT_FREE_MEMORY, blocks[i], "in its heap");
  }
  hak_heap_note_end(h);
}

/* A limit refuses the same request in each run of a program. Whether a block grows in place differs from run to run: so
 * growth counts twice in place, too, where the caller copies the block otherwise. */
static hak_heap *charge_growth(hak_heap *h, size_t before, size_t after, bool or_copied) {
  hak_assert_held(hak_heap_lock(h));
  hak_heap *refuser = or_copied ? hak_heap_refuser(h, after) : NULL;
  return refuser != NULL ? refuser : hak_heap_charge(h, after - before);
}

static void note_resized(hak_heap *h, size_t before, size_t after, bool or_copied) {
  if (after <= before) return;
  hak_add_relaxed(&h->requests, 1); /* as a copy would */
  hak_heap_raise_peak(h, hak_load_relaxed(&h->taken) + (or_copied ? before : 0));
}

/* Whether the spans behind are free, and the limits allow it. Or gives those back that `size` does not reach. */
hak_heap_try hak_heap_resize_large(hak_heap *h, hak_span *s, void *p, size_t size, bool or_copied, hak_deferred *d) {
  hak_heap_try t = {0};
  if (s->start != (uintptr_t)p || size <= HAK_SHARED_MAX || size > HAK_EXTENT_MAX) return t;
  hak_lock_take(hak_heap_lock(h));
  size_t before = s->span_count, wanted = hak_extent_spans(size);
  bool done = hak_load_relaxed(&s->tag) == LARGE_TAG(h);
  if (done && wanted > before) {
    t.refuser = charge_growth(h, before << HAK_SPAN_SHIFT, wanted << HAK_SPAN_SHIFT, or_copied);
    done = t.refuser == NULL;
    if (done && !hak_pool_extend(s, wanted - before, HAK_CODE_SAMPLED)) {
      hak_heap_charge_back(h, (wanted - before) << HAK_SPAN_SHIFT);
      done = false;
    }
  } else if (done && wanted < before) {
    done = hak_pool_give(s, wanted, LARGE_TAG(h), &d->purge_due);
    if (done) hak_heap_uncharge(h, (before - wanted) << HAK_SPAN_SHIFT);
  }
  if (done) {
    hak_add_relaxed(&h->taken, (wanted - before) << HAK_SPAN_SHIFT);
    note_resized(h, before << HAK_SPAN_SHIFT, wanted << HAK_SPAN_SHIFT, or_copied);
    t.p = p;
  }
  hak_lock_drop(hak_heap_lock(h));
  return t;
}

void hak_heap_give_mapping(hak_heap *h, void *p, hak_deferred *d) {
  hak_lock_take(hak_heap_lock(h));
  hak_huge_pages pages;
  size_t bytes = hak_huge_take(p, &pages);
  if (bytes != 0) {
    hak_sub_relaxed(&h->mapped, bytes);
    note_put(h, 1, bytes, true);
    hak_heap_note_end(h);
  }
  hak_lock_drop(hak_heap_lock(h));
  if (bytes != 0)
    hak_huge_dispose(p, bytes, pages, &d->purge_due);
  else
    note_bad(d, HAK_VERDICT_FREE_MEMORY, p, "at the call");
}

/* What is charged for a mapping, and taken, is `more` bytes more. */
static void charge_more(hak_heap *h, size_t more) {
  hak_add_relaxed(&h->mapped, more);
  hak_add_relaxed(&h->taken, more);
}

/* Out of the index, and charged for what the block is to be. NULL: it is none, or *refuser is in the way. */
static hak_huge_node *lift_mapping(hak_heap *h, const void *p, size_t bytes, bool or_copied, hak_heap **refuser) {
  hak_lock_take(hak_heap_lock(h));
  hak_huge_node *n = hak_huge_lift(p);
  size_t before = n == NULL ? 0 : n->bytes, more = n != NULL && bytes > before ? bytes - before : 0;
  *refuser = more == 0 ? NULL : charge_growth(h, before, bytes, or_copied);
  if (*refuser != NULL) {
    hak_huge_land(n, p, before);
    n = NULL;
  } else if (more != 0) {
    n->bytes = bytes;
    charge_more(h, more);
  }
  hak_lock_drop(hak_heap_lock(h));
  return n;
}

/* While the mapping changes, the block is in no index, and its bytes are what is charged for it: a fork's child, where
 * nobody goes on with it, forgets both. */
hak_heap_try hak_heap_resize_mapping(hak_heap *h, void *p, size_t size, bool may_move, bool or_copied) {
  hak_heap_try t = {0};
  if (size > PTRDIFF_MAX - HAK_SPAN_SIZE) return t;
  size_t before = hak_huge_size(p), bytes = hak_huge_bytes(size);
  if (before == 0) return t;
  /* The kernel always finds addresses for a mapping that may move. A small one would have been spans in another run. */
  bool always_grows = may_move && !HAK_HARD(GUARDS) && before > HAK_EXTENT_MAX;
  or_copied = or_copied && !always_grows;
  hak_huge_node *n = lift_mapping(h, p, bytes, or_copied, &t.refuser);
  if (n == NULL) return t;
  size_t charged = n->bytes;
  t.p = hak_huge_remap(p, before, bytes, may_move, &n->pages);
  size_t after = t.p == NULL ? before : bytes;
  hak_lock_take(hak_heap_lock(h));
  hak_huge_land(n, t.p == NULL ? p : t.p, after);
  if (after < charged) {
    charge_more(h, after - charged);
    t.p == NULL ? hak_heap_charge_back(h, charged - after) : hak_heap_uncharge(h, charged - after);
  }
  note_resized(h, before, after, or_copied);
  hak_lock_drop(hak_heap_lock(h));
  return t;
}

void hak_heap_forget_lost(void) {
  hak_huge_set *set;
  size_t bytes;
  hak_huge_fork_child();
  while (hak_huge_take_lost(&set, &bytes)) {
    hak_heap *h = set == NULL ? NULL : hak_heap_of_owner(set->owner);
    if (h == NULL) continue;
    hak_sub_relaxed(&h->mapped, bytes);
    note_put(h, 1, bytes, true);
  }
}

/* --- any block --- */

static void put_large(hak_heap *h, void *p, hak_deferred *d) {
  hak_lock_take(hak_heap_lock(h));
  hak_heap_put_large_locked(h, &p, 1, true, d);
  hak_lock_drop(hak_heap_lock(h));
}

static void give_of_piece(hak_heap *h, hak_span *s, void *p, hak_deferred *d) {
  size_t bytes = 0;
  hak_lock_take(hak_heap_lock(h));
  hak_verdict verdict = hak_piece_free(h, s, p, &bytes, &d->purge_due);
  if (verdict == HAK_VERDICT_OK)
    note_put(h, 1, bytes, true);
  else
    note_bad(d, verdict, p, "at the call");
  hak_heap_note_end(h);
  hak_lock_drop(hak_heap_lock(h));
}

void hak_heap_give_one(hak_heap *h, hak_span *s, void *p, unsigned class_code, hak_deferred *d) {
  if (HAK_TAG_OWNER(s->tag) == HAK_OWNER_PIECES)
    give_of_piece(h, s, p, d);
  else if (class_code < HAK_CLASS_COUNT)
    put_one(h, class_code, p, d);
  else if (hak_heap_large_size(s, p) == 0)
    note_bad(d, HAK_VERDICT_NO_BLOCK_START, p, "at the call");
  else
    put_large(h, p, d);
}

/* --- all of a heap --- */

size_t hak_heap_give_all(hak_heap *h, hak_deferred *d) {
  hak_lock_take(hak_heap_lock(h));
  size_t mappings = hak_huge_end_set(&h->mappings);
  hak_store_relaxed(&h->mapped, 0);
  hak_piece_give_all(h, &d->purge_due);
  give_spans(h, &d->purge_due);
  hak_lock_drop(hak_heap_lock(h));
  for (unsigned i = 0; i < HAK_HEAP_BIN_BLOCKS; i++) {
    if (h->bins[i] != NULL) hak_meta_give_one(h->bins[i]);
  }
  return mappings;
}

/* --- what is empty and stays with a heap --- */

/* The piece that is bumped, and the table of spans. */
static void trim_rest(hak_heap *h, hak_deferred *d) {
  hak_piece_trim(h, &d->purge_due);
  /* A visitor goes by places: what is live keeps its own. */
  while (h->span_count > 0 && hak_heap_span_at(h, h->span_count - 1) == NULL) h->span_count--;
  if (h->span_count == 0) drop_table(h);
}

/* From the class on, slabs that are kept for its next block; then the rest. Returns the lock that somebody else has,
 * *class_code's or, HAK_CLASS_COUNT, the heap's own; NULL: nobody had one. */
static hak_lock *trim(hak_heap *h, unsigned *class_code, hak_deferred *d) {
  hak_assert_held(&hak_heaps_lock); /* the heap does not end */
  for (unsigned c = *class_code; c <= HAK_CLASS_COUNT; c++) {
    hak_slab_set *b = c == HAK_CLASS_COUNT ? NULL : bin_of(h, c);
    if (c < HAK_CLASS_COUNT && (b == NULL || hak_load_relaxed(&b->slabs) == 0)) continue;
    hak_lock *lock = b == NULL ? hak_heap_lock(h) : hak_heap_bin_lock(h, c);
    *class_code = c;
    if (!hak_lock_try(lock)) return lock;
    b == NULL ? trim_rest(h, d) : hak_slab_set_trim(b, &d->purge_due);
    hak_lock_drop(lock);
  }
  return NULL;
}

/* Who has a lock may have no processor: where memory has to go back now it is waited for, but not with the registry's
 * lock, behind which others would wait. Locks are tables: they are there when the heap is not. */
#define WAITS_MOST 16 /* for one lock that others take again and again */
static void trim_from(uint32_t index, uint32_t end, bool waits, hak_deferred *d) {
  for (; index < end; index++) {
    hak_lock *held;
    unsigned c = 0, waited = 0;
    do {
      hak_lock_take(&hak_heaps_lock);
      hak_heap *h = hak_heap_of_owner(HAK_OWNER_HEAPS + index);
      held = h == NULL ? NULL : trim(h, &c, d);
      hak_lock_drop(&hak_heaps_lock);
      if (held != NULL && waits && waited++ < WAITS_MOST) {
        hak_lock_take(held);
        hak_lock_drop(held);
      } else {
        c++;
        waited = 0;
      }
    } while (held != NULL && c <= HAK_CLASS_COUNT);
  }
}

void hak_heap_trim_all(hak_deferred *d) { trim_from(0, hak_heap_indices(), true, d); }

#define TURN_HEAPS 1024 /* in one turn of the clock: a fraction of a millisecond */

void hak_heap_trim_some(hak_deferred *d) {
  static uint32_t next; /* relaxed: two threads may trim the same */
  uint32_t first = hak_load_relaxed(&next), indices = hak_heap_indices(),
           end = (uint32_t)hak_min_size(first + TURN_HEAPS, indices);
  trim_from(first, end, false, d);
  hak_store_relaxed(&next, end >= indices ? 0 : end);
}

/* Whoever finds the lock held leaves what has ended to the holder, who looks again behind it; where the two miss each
 * other, to the next slow exit of any thread. */
void hak_heap_end_deleted(bool waits, hak_deferred *d) {
  hak_lock *end = hak_heap_end_lock(NULL);
  while (hak_heap_some_ended()) {
    if (waits)
      hak_lock_take(end);
    else if (!hak_lock_try(end))
      return;
    hak_heap *h = hak_heap_take_ended();
    if (h != NULL) {
      hak_heap_give_all(h, d);
      hak_heap_release(h);
    }
    hak_lock_drop(end);
  }
}

size_t hak_heap_held(hak_heap *h) {
  hak_lock_take(hak_heap_lock(h));
  size_t bytes = h->piece_count * HAK_PIECE_SIZE + hak_load_relaxed(&h->mapped);
  for (uint32_t i = 0; i < h->span_count; i++) {
    const hak_span *s = hak_heap_span_at(h, i);
    if (s != NULL) bytes += (size_t)s->span_count << HAK_SPAN_SHIFT;
  }
  hak_lock_drop(hak_heap_lock(h));
  return bytes;
}

typedef bool visitor(void *block, size_t size, void *context);

/* Threads that use other heaps may put back what they have cached of this one, and end the slab. */
static bool visit_slab(hak_heap *h, unsigned c, const hak_span *s, visitor *visit, void *context, size_t *count) {
  size_t size = hak_class_size(c);
  for (uint32_t i = 0;; i++) {
    hak_lock_take(hak_heap_bin_lock(h, c));
    bool there = s->tag == HAK_TAG(h->owner, c + 1) && i < s->bumped;
    bool live = there && (s->bits[i / 64] >> (i % 64) & 1) == 0;
    void *p = (void *)(s->start + i * size);
    hak_lock_drop(hak_heap_bin_lock(h, c));
    if (!there) return true;
    if (!live) continue;
    ++*count;
    if (!visit(p, size, context)) return false;
  }
}

/* From *place on; NULL: there is no further one. */
static const hak_span *next_span(hak_heap *h, uint32_t *place, unsigned *code) {
  const hak_span *s = NULL;
  hak_lock_take(hak_heap_lock(h));
  while (s == NULL && *place < h->span_count) s = hak_heap_span_at(h, (*place)++);
  if (s != NULL) *code = HAK_TAG_CODE(hak_load_relaxed(&s->tag));
  hak_lock_drop(hak_heap_lock(h));
  return s;
}

static bool visit_span(hak_heap *h, const hak_span *s, unsigned code, visitor *visit, void *context, size_t *count) {
  if (code == HAK_CODE_NONE || code == HAK_TAG_CODE(HAK_TAG_NONE)) return true;
  if (hak_code_is_class(code)) return visit_slab(h, code - 1, s, visit, context, count);
  ++*count;
  return visit((void *)s->start, (size_t)s->span_count << HAK_SPAN_SHIFT, context);
}

bool hak_heap_visit_mappings(const hak_heap *h, visitor *visit, void *context, size_t *count) {
  size_t bytes;
  for (void *p = NULL; (p = hak_huge_next_of(&h->mappings, p, &bytes)) != NULL;) {
    ++*count;
    if (!visit(p, bytes, context)) return false;
  }
  return true;
}

/* The next that has live blocks: the clock, on any thread, may take an empty one away meanwhile. */
static const hak_piece *next_piece(hak_heap *h, const hak_piece *k) {
  hak_lock_take(hak_heap_lock(h));
  k = k == NULL ? h->pieces : k->next;
  while (k != NULL && k->live == 0) k = k->next;
  hak_lock_drop(hak_heap_lock(h));
  return k;
}

/* No block of the heap comes or goes meanwhile; what is empty may, under its locks. */
size_t hak_heap_visit_blocks(hak_heap *h, visitor *visit, void *context) {
  size_t count = 0;
  for (const hak_piece *k = NULL; (k = next_piece(h, k)) != NULL;) {
    if (!hak_piece_visit(k, visit, context, &count)) return count;
  }
  const hak_span *s;
  unsigned code;
  for (uint32_t place = 0; (s = next_span(h, &place, &code)) != NULL;) {
    if (!visit_span(h, s, code, visit, context, &count)) return count;
  }
  hak_heap_visit_mappings(h, visit, context, &count);
  return count;
}
