/* Which slabs' free pages go back, and when. */
#include "heap/remote.h"
#include "os/os.h"
#include "pool/budget.h"
#include "pool/release.h"
#include "pool/trial.h"

#define SLABS_AT_A_TIME 64 /* looked for under one lock */

/* Which slabs are taken: those that have stayed as they are since an earlier round, or all of them at once; and of those the
 * ones with so many bytes of holes in a piece. */
typedef struct terms {
  unsigned round;
  bool at_once;
  size_t least;
} terms;

/* Slabs of one heap whose holes go together. Those from `closed` to `count` are claimed; both change under the heap's lock, so
 * that at a fork each is claimed whole or not at all. */
typedef struct claimed {
  hak_span *slab;
  unsigned class_code;
  size_t bytes; /* of its holes */
  hak_holes holes;
} claimed;
typedef struct batch {
  unsigned room, count, closed, piece_count;
  size_t bytes;
  hak_heap *heap;
  claimed *slabs;
  hak_os_piece *pieces; /* HAK_HOLES_MAX for each slab */
  hak_pages *pages;
  hak_span **hollow; /* SLABS_AT_A_TIME: what is looked at */
} batch;

/* Claims what is in slabs of a class while there is room, and until it is as much as wanted; returns how many were looked at. */
static unsigned claim_holes(batch *b, unsigned c, hak_span **hollow, unsigned n, terms t, size_t wanted) {
  hak_heap *h = b->heap;
  unsigned i = 0;
  hak_lock_take(&h->lock);
  if (b->closed == b->count) b->closed = b->count = b->piece_count = 0;
  for (; i < n && i < b->room && b->count < b->room && b->bytes < wanted; i++) {
    claimed *next = &b->slabs[b->count];
    next->holes.pages = b->pieces + b->piece_count;
    if (!hak_slab_claim_holes(&h->bins[c].slabs, hollow[i], HAK_TAG(h->id, c), t.least, &next->holes)) continue;
    next->slab = hollow[i];
    next->class_code = c;
    b->count++;
    b->piece_count += next->holes.count;
    next->bytes = 0;
    for (unsigned k = 0; k < next->holes.count; k++) next->bytes += next->holes.pages[k].bytes;
    b->bytes += next->bytes;
  }
  hak_lock_drop(&h->lock);
  return i;
}

/* Puts the blocks of the next slab back. Caller holds the heap's lock. */
static void *close_next(batch *b, bool gone, bool *release_due) {
  const claimed *s = &b->slabs[b->closed++];
  void *twice = hak_slab_close_holes(&b->heap->bins[s->class_code].slabs, s->slab, &s->holes, gone, release_due);
  hak_heap_note_spare(b->heap, s->class_code); /* who borrowed meanwhile found none */
  return twice;
}

/* Nobody counts what is not leaving: the child of a fork in a signal handler may have forgotten it meanwhile. */
static void note_left(size_t pages) {
  size_t leaving = hak_load_relaxed(&hak_span_pool.leaving_hole_pages);
  hak_sub_relaxed(&hak_span_pool.leaving_hole_pages, hak_min_size(pages, leaving));
}

/* Returns the bytes that went. */
static size_t give_claimed(batch *b, terms t) {
  size_t given = 0, page = hak_os_page_size();
  bool release_due = false;
  if (b->closed == b->count) return 0;
  hak_add_relaxed(&hak_span_pool.leaving_hole_pages, b->bytes / page);
  hak_release_batch(b->pieces, b->piece_count, !t.at_once, b->pages);
  for (unsigned piece = 0; b->closed < b->count;) {
    const claimed *s = &b->slabs[b->closed];
    size_t bytes = 0;
    for (unsigned end = piece + s->holes.count; piece < end; piece++)
      bytes += b->pages[piece] == HAK_PAGES_KEPT ? 0 : b->pieces[piece].bytes;
    hak_add_relaxed(&hak_release_stats.hole_pages, bytes / page);
    if (bytes > 0) hak_pool_note_hole(s->slab);
    hak_outcome outcome = {0};
    hak_lock_take(&b->heap->lock);
    outcome.bad = close_next(b, bytes > 0, &release_due);
    hak_lock_drop(&b->heap->lock);
    note_left(s->bytes / page);
    if (HAK_UNLIKELY(outcome.bad != NULL)) outcome.verdict = HAK_VERDICT_DOUBLE_FREE;
    outcome.bad_class = s->class_code + 1;
    hak_outcome_report(&outcome, "when its class was flushed");
    given += bytes;
  }
  b->bytes = 0;
  if (release_due) hak_release_excess();
  return given;
}

/* False: there are no more of this class to look at. */
static bool give_some_holes(batch *b, unsigned c, terms t, size_t wanted, size_t *given) {
  hak_span **hollow = b->hollow;
  hak_lock_take(&b->heap->lock);
  unsigned n = hak_slab_find_hollow(&b->heap->bins[c].slabs, c, t.round, t.at_once, hollow, SLABS_AT_A_TIME);
  hak_lock_drop(&b->heap->lock);
  for (unsigned i = 0; i < n && *given + b->bytes < wanted;) {
    i += claim_holes(b, c, hollow + i, n - i, t, wanted - *given);
    if (b->count == b->room) *given += give_claimed(b, t);
  }
  if (n < SLABS_AT_A_TIME || t.least > 0) return false;
  *given += give_claimed(b, t); /* each is on another list then */
  return *given < wanted;
}

static size_t give_holes_by(batch *b, uint64_t classes, terms t, size_t wanted) {
  size_t given = 0;
  for (classes &= hak_load_relaxed(&b->heap->spare_classes); classes != 0 && given + b->bytes < wanted; classes &= classes - 1) {
    while (give_some_holes(b, hak_ctz64(classes), t, wanted, &given)) continue;
  }
  return given + give_claimed(b, t);
}

/* What is needed to look slab by slab: two kilobytes, which is too much for the smallest stacks. */
typedef struct single {
  struct single *next;
  claimed slab;
  hak_os_piece pieces[HAK_HOLES_MAX];
  hak_pages pages[HAK_HOLES_MAX];
  hak_span *hollow[SLABS_AT_A_TIME];
} single;
static single first_single;
static single *free_singles = &first_single; /* registry lock; never given back: as many as ever looked at one time */

static single *take_single(void) {
  hak_lock_take(&hak_registry_lock);
  single *s = free_singles;
  if (s != NULL) free_singles = s->next;
  hak_lock_drop(&hak_registry_lock);
  return s != NULL ? s : hak_cell_take_block((sizeof *s + HAK_CELL_SIZE - 1) / HAK_CELL_SIZE);
}

static void drop_single(single *s) {
  hak_lock_take(&hak_registry_lock);
  s->next = free_singles;
  free_singles = s;
  hak_lock_drop(&hak_registry_lock);
}

static size_t give_one_by_one(hak_heap *h, uint64_t classes, terms t, size_t wanted) {
  single *s = take_single();
  if (s == NULL) return 0;
  batch one = {.room = 1, .heap = h, .slabs = &s->slab, .pieces = s->pieces, .pages = s->pages, .hollow = s->hollow};
  size_t given = give_holes_by(&one, classes, t, wanted);
  drop_single(s);
  return given;
}

/* One thread's at a time; the others give back slab by slab meanwhile. */
#define BATCH_SLABS 16
static claimed many_slabs[BATCH_SLABS];
static hak_os_piece many_pieces[BATCH_SLABS * HAK_HOLES_MAX];
static hak_pages many_pages[BATCH_SLABS * HAK_HOLES_MAX];
static hak_span *many_hollow[SLABS_AT_A_TIME];
static batch many = {
    .room = BATCH_SLABS, .slabs = many_slabs, .pieces = many_pieces, .pages = many_pages, .hollow = many_hollow};
static const void *many_taker; /* the mark of the thread that has it */

static bool take_many(void) {
  const void *nobody = NULL;
  return hak_cas_acquire(&many_taker, &nobody, hak_thread_mark());
}

static void drop_many(void) { hak_store_release(&many_taker, NULL); }

static size_t give_together(hak_heap *h, uint64_t classes, terms t, size_t wanted) {
  many.heap = h;
  size_t given = give_holes_by(&many, classes, t, wanted);
  drop_many();
  return given;
}

static size_t give_holes_in(hak_heap *h, uint64_t classes, terms t, size_t wanted) {
  bool together = hak_release_in_batches(!t.at_once) && take_many();
  size_t given = together ? give_together(h, classes, t, wanted) : give_one_by_one(h, classes, t, wanted);
  if (h != hak_tls_front.heap) hak_remote_look_again(h); /* a sender may have found the lock taken */
  return given;
}

/* Written while every lock is held. */
static bool forking_has_many;

void hak_heap_holes_fork_lock(void) { forking_has_many = take_many(); }

void hak_heap_holes_fork_unlock(void) {
  if (forking_has_many) drop_many();
}

/* Who had it is not there to put the blocks back; unless it is this thread, which forks in a signal handler and goes on. */
void hak_heap_holes_fork_child(void) {
  bool release_due = false;
  const void *taker = hak_load_relaxed(&many_taker);
  if (forking_has_many || taker == NULL || taker == hak_thread_mark()) return;
  while (many.closed < many.count) close_next(&many, false, &release_due);
  many.bytes = 0;
  forking_has_many = true;
}

/* Slabs with few blocks are looked at more often while they are much of what the heap holds. */
#define HOLLOW_MUCH ((size_t)8 * HAK_MIB)
#define MUCH_MS 50
#define LITTLE_MS 1000
/* … and where they are much, whenever the program has taken so much new memory since: else it would hold both. */
#define GROWTH_SPANS (HAK_MIB / HAK_SPAN_SIZE)

/* Slabs whose pages have gone and that did not stay as they were. */
static hak_trial rest_of_slabs;
static const hak_trial_least least_pages = {.vain = 64, .given = 4096};

uint64_t hak_heap_holes_rest_ms(void) { return hak_load_relaxed(&rest_of_slabs.rest_ms); }

bool hak_heap_holes_wait(void) { return hak_heap_holes_rest_ms() != 0; }

#define THIN_BYTES_TO (8 * HAK_MIB)

void hak_heap_thin_no_more(hak_heap *h, uint64_t now_ms, unsigned young_takes) {
  bool done = !hak_heap_has_thin_slabs(&h->bins[h->thin_cause].slabs, h->thin_cause, THIN_BYTES_TO);
  bool waits = hak_heap_holes_wait(); /* since others' were wanted again */
  if (!done && !waits && now_ms - h->thin_begun_ms < HAK_THIN_MS) return;
  h->thin_in_vain = !done;
  /* What is used seldom costs nothing. */
  if (!done && !waits && h->bins[h->thin_cause].young == HAK_THIN_TAKES) return;
  h->thin_classes = 0;
  for (unsigned c = 0; c < HAK_FRONT_CLASSES; c++)
    h->bins[c].young = (uint8_t)hak_min_size(h->bins[c].young, young_takes);
}

static size_t hollow_bytes(const hak_heap *h) {
  size_t spans = 0;
  for (unsigned c = 0; c < HAK_FRONT_CLASSES; c++)
    spans += (size_t)hak_load_relaxed(&h->bins[c].slabs.hollow) * hak_class_table[c].spans;
  return spans << HAK_SPAN_SHIFT;
}

static size_t give_holes(hak_heap *h, unsigned round, bool at_once) {
  return give_holes_in(h, ~(uint64_t)0, (terms){round, at_once, 0}, SIZE_MAX);
}

size_t hak_heap_give_holes(hak_heap *h, uint64_t now_ms) {
  uint64_t last = hak_load_relaxed(&h->last_holes_ms), since = now_ms > last ? now_ms - last : 0; /* now may be stale */
  hak_trial_judge(&rest_of_slabs, least_pages, now_ms, hak_load_relaxed(&hak_release_stats.hole_pages),
                  hak_load_relaxed(&hak_span_pool.regret_pages));
  size_t fresh = hak_load_relaxed(&hak_span_pool.fresh_spans);
  bool grows = fresh - hak_load_relaxed(&h->fresh_spans_seen) >= GROWTH_SPANS;
  if (since == 0 || (since < MUCH_MS && !grows) || since < hak_load_relaxed(&rest_of_slabs.rest_ms)) return 0;
  if (since < LITTLE_MS && hollow_bytes(h) < HOLLOW_MUCH) return 0;
  if (!hak_cas_acquire(&h->last_holes_ms, &last, now_ms)) return 0; /* somebody else looks */
  hak_store_relaxed(&h->fresh_spans_seen, fresh);
  return give_holes(h, hak_add_relaxed(&h->hole_rounds, 1), false);
}

size_t hak_heap_give_all_holes(hak_heap *h) { return give_holes(h, hak_add_relaxed(&h->hole_rounds, 1), true); }

/* --- for the target --- */

/* A class without a refill for so long is not what the program is at. */
#define COLD_MS 5
#define OTHERS_MAX 16

static uint64_t cold_classes(const hak_heap *h) {
  uint64_t cold = 0, now_ms = hak_os_now_ms();
  for (unsigned c = 0; c < HAK_FRONT_CLASSES; c++)
    if (now_ms - h->bins[c].refill_ms > COLD_MS) cold |= (uint64_t)1 << c;
  return cold;
}

/* Of this thread's heap: holes of so many bytes in a piece, at once, while any are left to give. */
static void give_own(uint64_t classes, size_t least, size_t *left) {
  if (*left == 0 || hak_tls_front.heap == NULL) return;
  size_t given = give_holes_in(hak_tls_front.heap, classes, (terms){0, true, least}, *left);
  *left -= hak_min_size(*left, given);
}

/* Of other threads' heaps, a few at a time. */
static void give_others(bool at_once, size_t least, size_t *left) {
  static uint32_t next; /* relaxed; two threads may get the same one */
  uint32_t heaps = hak_heap_id_limit() - HAK_EMERGENCY_ID;
  for (uint32_t n = (uint32_t)hak_min_size(heaps, OTHERS_MAX); n > 0 && *left > 0; n--) {
    hak_heap *h = hak_heap_by_id(HAK_EMERGENCY_ID + hak_add_relaxed(&next, 1) % heaps);
    if (h == hak_tls_front.heap) continue;
    unsigned round = at_once ? 0 : hak_add_relaxed(&h->hole_rounds, 1);
    size_t given = give_holes_in(h, ~(uint64_t)0, (terms){round, at_once, least}, *left);
    *left -= hak_min_size(*left, given);
  }
}

static HAK_TLS bool giving; /* the inboxes that are looked at on the way end in the same question */

#define LARGE_HOLE (16 * HAK_KIB) /* each may be a call: first those that are worth it */
#define ROOM_MS ((uint64_t)2) /* from one look to the next */
#define ROOM_MS_MAX (128 * ROOM_MS)

void hak_heap_make_room_for_target(void) {
  static uint64_t looked, rest = ROOM_MS; /* relaxed */
  hak_heap *self = hak_tls_front.heap;
  uint64_t now_ms = hak_os_now_ms(), last = hak_load_relaxed(&looked);
  if (giving || self == NULL || now_ms - last < hak_load_relaxed(&rest)) return;
  size_t wanted = hak_budget_room_lacking();
  if (wanted == 0 || !hak_cas_acquire(&looked, &last, now_ms)) return;
  giving = true;
  size_t left = wanted;
  give_own(cold_classes(self), LARGE_HOLE, &left);
  giving = false;
  hak_budget_note_given(wanted - left);
  uint64_t longer = hak_min_size(2 * hak_load_relaxed(&rest), ROOM_MS_MAX);
  hak_store_relaxed(&rest, left == wanted ? longer : ROOM_MS); /* lists without anything to give are long to look at */
}

/* What costs least first: slabs with large holes, of classes that are not at work, of this thread and then of others that
 * rest, before all; then the same with any. */
void hak_heap_give_holes_for_target(void) {
  size_t wanted = giving ? 0 : hak_budget_holes_wanted(), left = wanted;
  if (wanted == 0) return;
  giving = true;
  hak_heap *self = hak_tls_front.heap;
  for (unsigned pass = 0; pass < 2 && left > 0; pass++) {
    size_t least = pass == 0 ? LARGE_HOLE : 0;
    if (self != NULL) give_own(cold_classes(self), least, &left);
    if (pass == 0) give_others(false, 0, &left);
    give_own(~(uint64_t)0, least, &left);
    give_others(true, least, &left);
  }
  giving = false;
  hak_budget_note_given(wanted - left);
  hak_budget_holes_given();
}
