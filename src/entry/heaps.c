/* Requests of heaps, and frees of their blocks. */
#include "entry/heaps.h"

#include "entry/sampling.h"
#include "entry/slow_exit.h"
#include "heap/cache.h"
#include "large/huge.h"
#include "life/thread.h"
#include "tcache/counted.h"
#include "watch/black_box.h"

/* --- requests --- */

typedef struct request {
  hak_heap *h;
  hak_tcache *t;
  unsigned c; /* of a new block */
  size_t size, align;
  bool *zeroed;
  void *grows; /* a block, in place; NULL: a new one */
  hak_span *span; /* of that; NULL: a mapping … */
  bool may_move;  /* … which the kernel may move */
  bool or_copied; /* where it does not grow so, the caller copies it */
} request;

/* By which the thread's cache has such blocks; HAK_CLASS_COUNT: it has none. */
static unsigned cached_class(const request *q) {
  if (q->t == NULL || q->grows != NULL) return HAK_CLASS_COUNT;
  if (q->c < HAK_CLASS_COUNT) return hak_heap_has_slabs(q->h, q->c) ? q->c : HAK_CLASS_COUNT;
  return q->align <= HAK_SPAN_SIZE ? hak_heap_large_class(q->size) : HAK_CLASS_COUNT;
}

static hak_heap_try attempt(const request *q, hak_deferred *d) {
  unsigned cached = cached_class(q);
  if (cached < HAK_CLASS_COUNT) {
    hak_heap_try r = hak_heap_cached_alloc(q->t, q->h, cached, d);
    *q->zeroed = false;
    if (r.p != NULL || r.refuser != NULL) return r;
  }
  if (q->grows != NULL)
    return q->span == NULL ? hak_heap_resize_mapping(q->h, q->grows, q->size, q->may_move, q->or_copied)
                           : hak_heap_resize_large(q->h, q->span, q->grows, q->size, q->or_copied, d);
  return q->c < HAK_CLASS_COUNT ? hak_heap_take_one(q->h, q->c, q->align)
                                : hak_heap_take_large(q->h, q->size, q->align, q->zeroed);
}

/* What is asked for is more than the heap's share, and all that caches held of it is back. Once a request, of the heap
 * `of`. */
static void call_back(const hak_heap *of, hak_heap *h, bool called, hak_deferred *d) {
  hak_lock_take(&hak_heaps_lock);
  void (*callback)(hakmem_heap *, size_t, void *) = h->callback;
  void *context = h->context;
  bool due = callback != NULL && !hak_heap_was_called(h) && !called;
  hak_store_relaxed(&h->share, callback == NULL ? SIZE_MAX : HAK_HEAP_CALLED);
  hak_lock_drop(&hak_heaps_lock);
  if (callback != NULL) hak_heap_drain(h, d); /* from here on each free is seen at once */
  if (!due) return;
  const hak_heap_entry *entry = hak_heap_entry_of(of);
  uint64_t life = of->life;
  callback(h, hak_load_relaxed(&h->out), context);
  if (HAK_UNLIKELY(hak_load_relaxed(&entry->life) != life))
    hak_misuse_abort(HAK_VERDICT_NO_HEAP, of, 0, "by a request whose callback ended or reset it");
}

/* How far above h it is, as a bit; those too far have the last. */
static uint64_t bit_of(const hak_heap *h, const hak_heap *refuser) {
  uint64_t bit = 1;
  for (; h != refuser && bit << 1 != 0; h = h->parent) bit <<= 1;
  return bit;
}

/* What caches hold of the refuser's does not count: it is refused for good if they were empty before the attempt and
 * behind it, or if one could not be reached. Where the heap is drained no more, caches may have something again. */
static hak_heap_try without_caches(hak_heap_try r, const request *q, uint32_t before, hak_deferred *d) {
  for (bool final = before != 0 && hak_heap_drained(r.refuser) == before; r.p == NULL && r.refuser != NULL && !final;) {
    hak_heap *refuser = r.refuser;
    bool is_storm = hak_heap_is_in_storm(refuser);
    before = hak_heap_drained(refuser);
    if (is_storm) hak_heap_drain_own(refuser);
    bool reached = !is_storm && (before != 0 || hak_heap_drain(refuser, d));
    r = attempt(q, d);
    final = r.refuser == refuser && (before == 0 ? !reached : hak_heap_drained(refuser) == before);
  }
  return r;
}

/* drained: what hak_heap_drained said of the heap before the attempt. */
static hak_heap_try take_back(hak_heap_try r, const request *q, uint32_t drained, hak_deferred *d) {
  uint64_t called = 0;
  for (uint32_t before = r.refuser == q->h ? drained : 0;
       (r = without_caches(r, q, before, d)).p == NULL && r.refuser != NULL; before = 0) {
    if (hak_load_relaxed(&r.refuser->share) >= hak_load_relaxed(&r.refuser->limit)) return r;
    uint64_t bit = bit_of(q->h, r.refuser);
    call_back(q->h, r.refuser, (called & bit) != 0, d);
    called |= bit;
    r = attempt(q, d);
  }
  return r;
}

static void *serve(const request *q, bool counts, hak_deferred *d) {
  hak_slow_entry(hak_pool_is_full());
  uint32_t drained = hak_heap_drained(q->h);
  hak_heap_try r = attempt(q, d);
  if (HAK_UNLIKELY(r.p == NULL && r.refuser != NULL)) r = take_back(r, q, drained, d);
  if (HAK_UNLIKELY(r.p == NULL && r.refuser == NULL && q->grows == NULL)) hak_deferred_note_out(d);
  if (HAK_UNLIKELY(r.p == NULL && r.refuser != NULL && counts)) hak_add_relaxed(&r.refuser->refused, 1);
  return r.p;
}

static HAK_NOINLINE void *alloc_slowly(hak_heap *h, size_t size, size_t align, bool counts, bool *zeroed,
                                       hak_deferred *d) {
  request q = {.h = h,
               .t = hak_thread_grown(),
               .c = hak_heap_class(size, align),
               .size = size,
               .align = align,
               .zeroed = zeroed};
  *zeroed = false;
  d->slow = true;
  return serve(&q, counts, d); /* the library has started: there is a heap */
}

void *hak_heap_resize(hak_heap *h, hak_span *s, void *p, size_t size, bool may_move, bool or_copied,
                      hak_deferred *d) {
  request q = {.h = h,
               .t = hak_tls.cache,
               .size = size,
               .grows = p,
               .span = s,
               .may_move = may_move,
               .or_copied = or_copied};
  return serve(&q, !or_copied, d);
}

void *hak_heap_resize_in_place(hak_heap *h, hak_span *s, void *p, size_t size, bool or_copied, hak_deferred *d) {
  if (hak_heap_resize(h, s, p, size, false, or_copied, d) == NULL) return NULL;
  hak_sampled_forget(p);
  hak_heap_count_resized(h, p, size);
  return p;
}

static void note_due(hak_due due, const hak_heap *h, void *p, size_t size) {
  if (due.forbidden) hak_forbid_report("allocation", NULL, size);
  if (!due.profile || p == NULL) return;
  hak_profile_note_alloc(p, NULL, size, due.probability, h->owner, h->name);
  hak_black_box_note_growth();
}

/* Without a slow path: what the cache has, or a piece. */
HAK_INLINE void *take_quick(hak_heap *h, size_t size, size_t align) {
  bool unaligned = align <= HAK_GRANULE, large = unaligned && size > HAK_SHARED_MAX;
  unsigned c = large ? hak_heap_large_class(size) : hak_heap_class(size, align);
  if (c == HAK_CLASS_COUNT) return NULL;
  void *p = hak_heap_pop(h, c);
  return HAK_LIKELY(p != NULL) || large || !unaligned ? p : hak_heap_take_ready(h, c);
}

static HAK_NOINLINE hak_due count_end(size_t size, hak_deferred *d) {
  if (hak_tls.in_heap) return hak_count_end_aside(hak_heap_countdown(), size);
  hak_due due = hak_count_end(size);
  if (!due.profile && !due.forbidden) d->slow = hak_started(); /* the short ways take no other slow path */
  return due;
}

/* A request counts in the main way, or in the default's. */
static hak_due count(size_t size, hak_deferred *d) {
  if (HAK_UNLIKELY(hak_tls.in_heap)) return count_end(size, d);
  return HAK_UNLIKELY(!hak_count_request(size)) ? count_end(size, d) : (hak_due){0};
}

HAK_INLINE void *take_any(hak_heap *h, size_t size, size_t align, bool counts, bool *zeroed, hak_deferred *d) {
  if (HAK_UNLIKELY(size > PTRDIFF_MAX)) return NULL;
  bool small = size <= HAK_SMALL_MAX; /* larger ones count once they are served: none is so large that sums overflow */
  bool counted = d->memory == HAK_MEMORY_LAST_TRY;
  hak_due due = small && HAK_LIKELY(!counted) ? count(size, d) : (hak_due){0};
  *zeroed = false;
  void *p = take_quick(h, size, align);
  if (HAK_UNLIKELY(p == NULL))
    p = alloc_slowly(h, size, align, counts, zeroed, d);
  else if (HAK_UNLIKELY(d->slow))
    d->from_cache = size;
  if (!small && p != NULL) due = count(size, d);
  if (HAK_UNLIKELY(due.profile || due.forbidden)) note_due(due, h, p, size);
  return p;
}

void *hak_heap_take_any(hak_heap *h, size_t size, size_t align, bool counts, bool *zeroed, hak_deferred *d) {
  return take_any(h, size, align, counts, zeroed, d);
}

void *hak_heap_alloc(hak_heap *h, size_t size, size_t align, bool counts, bool *zeroed) {
  hak_deferred d = {0};
  void *p;
  do {
    p = take_any(h, size, align, counts, zeroed, &d);
    if (d.slow) hak_slow_exit(&d);
  } while (HAK_UNLIKELY(hak_slow_again(&d)));
  return p;
}

bool hak_heap_serves(size_t size, size_t align, bool *zeroed, void **p, hak_deferred *d) {
  hak_heap *h = hak_heap_default();
  if (h == NULL) return false;
  *p = hak_heap_take_any(h, size, align, true, zeroed, d);
  /* The entry points have counted smaller ones. */
  if (*p != NULL && size > HAK_SMALL_MAX) hak_count_request(size);
  return true;
}

void hak_heap_count_resized(hak_heap *h, void *p, size_t size) {
  hak_deferred d = {0}; /* whoever resizes ends in a slow exit */
  note_due(count(size, &d), h, p, size);
}

/* --- frees --- */

static HAK_NOINLINE bool put_ready(uint32_t tag, void *p) {
  hak_deferred d = {0};
  if (!hak_heap_put_ready(tag, p, &d)) return false;
  if (HAK_UNLIKELY(d.purge_due) || HAK_UNLIKELY(d.verdict != HAK_VERDICT_OK) || HAK_UNLIKELY(hak_heap_some_ended()))
    hak_slow_exit(&d);
  return true;
}

bool hak_heap_free_ready(void *p) {
  uint32_t tag = hak_heap_tag_of(p);
  if (HAK_TAG_OWNER(tag) < HAK_OWNER_HEAPS) return false; /* of pieces, or an arena's */
  return HAK_TAG_CODE(tag) > HAK_CLASS_COUNT ? hak_heap_push_large(p) : put_ready(tag, p);
}

void hak_heap_free(const hak_where *w, void *p, hak_deferred *d) {
  hak_heap *h = hak_where_heap(w);
  if (HAK_UNLIKELY(h == NULL)) hak_misuse_abort(HAK_VERDICT_FREE_MEMORY, p, 0, "at the call");
  hak_sampled_note_free(p);
  if (w->kind == HAK_KIND_HUGE) {
    hak_heap_give_mapping(h, p, d);
    return;
  }
  hak_tcache *t = hak_thread_grown(); /* a thread may free alone */
  bool large = w->kind == HAK_KIND_EXTENT && w->what == HAK_BLOCK;
  unsigned cached = large ? hak_heap_large_class(w->size) : w->class_code;
  if (cached != HAK_CLASS_COUNT && t != NULL && hak_heap_cached_free(t, h, cached, p, d)) return;
  hak_heap_give_one(h, w->head, p, w->class_code, d);
}
