/* Quick lists: ranges of large blocks that came back lately, by their number of spans. The next request for as many
 * takes the one that came last, without a search. They are not in the bitmaps, but free: before memory is touched that
 * was not, and before dirty memory is looked for to be given back, all of them go there, and coalesce with what is free
 * beside them. So no request has new memory because of them.
 *
 * A range has the tag below, and the codes of an extent that is being freed. It counts as dirty, though not in its
 * chunk. Everything here runs under hak_span_pool.lock. */
#ifndef HAK_POOL_QUICK_H
#define HAK_POOL_QUICK_H

#include "pool/budget.h"
#include "pool/chunk_index.h"
#include "pool/counters.h"

#define HAK_QUICK_TAG HAK_TAG(0, HAK_CODE_EXTENT_FREED)
#define HAK_QUICK_LISTS 64     /* so many numbers of spans have a list of their own; more share one */
#define HAK_QUICK_RANGES 64u   /* at most, so that what one request settles takes some microseconds */

typedef struct hak_quick {
  size_t spans; /* of all; read by any thread, as a hint */
  unsigned ranges;
  hak_span *lists[HAK_QUICK_LISTS]; /* linked by `next`, the latest first */
} hak_quick;
extern hak_quick hak_quick_lists;

HAK_INLINE void hak_quick_count(size_t spans, bool more) {
  size_t change = more ? spans : 0 - spans;
  hak_quick_lists.ranges += more ? 1u : 0u - 1;
  hak_add_single(&hak_quick_lists.spans, change);
  hak_add_single(&hak_span_pool.dirty_spans, change);
  hak_sub_single(&hak_span_pool.live_spans, change);
}

/* A range of so many spans, aligned so, held from now on, with the codes of an extent's body; its head is the caller's
 * to tag. NULL: there is none. */
HAK_INLINE hak_span *hak_quick_take(size_t spans, size_t align) {
  hak_assert_held(&hak_span_pool.lock);
  hak_span **link = &hak_quick_lists.lists[spans % HAK_QUICK_LISTS];
  for (hak_span *s; (s = *link) != NULL; link = &s->next) {
    if (s->span_count != spans || ((s->start >> HAK_SPAN_SHIFT) & (align - 1)) != 0) continue;
    *link = s->next;
    hak_quick_count(spans, false);
    return s;
  }
  return NULL;
}
/* Spans of ranges on quick lists; any thread, as a hint. */
HAK_INLINE size_t hak_quick_spans(void) { return hak_load_relaxed(&hak_quick_lists.spans); }

/* What is held of a range beyond the first `keep` spans is free and dirty, in the bitmaps, as of that look. */
void hak_pool_free_range(hak_span *span, size_t keep, uint32_t look);
HAK_INLINE void hak_pool_set_codes(hak_region *region, size_t first, size_t spans, unsigned code) {
  hak_assert_held(&hak_span_pool.lock);
  HAK_ASSERT(first >= region->first_span && first + spans <= region->ready_spans && code < HAK_CODES);
  for (size_t i = 0; i < spans; i++) hak_region_set_code(region, first + i, code);
}
/* Of [at, end) what lies in one chunk. */
HAK_INLINE size_t hak_pool_in_chunk(size_t at, size_t end) {
  return hak_min_size(end, hak_align_up(at + 1, HAK_CHUNK_SPANS)) - at;
}

/* All go into the bitmaps. False: there is none. */
bool hak_quick_settle(void);
/* The same without the lock: before dirty memory is looked for. */
void hak_quick_settle_all(void);
/* What is wrong with a range or its counts, or NULL: for the heap walk. *range: which one, NULL: none. */
const char *hak_quick_fault(const hak_span **range);
/* Whether one of the spans, which are accessible, is on a quick list. */
bool hak_quick_meets(const hak_region *region, size_t first, size_t end);

/* The range that starts with this span, held so far. */
HAK_INLINE void hak_quick_put(hak_region *r, hak_span *s) {
  hak_assert_held(&hak_span_pool.lock);
  size_t index = hak_region_span_index(r, s), spans = s->span_count;
  HAK_ASSERT(s->head == s && spans > 0);
  if (HAK_UNLIKELY(hak_quick_lists.ranges == HAK_QUICK_RANGES)) hak_quick_settle();
  if (spans > 1 && HAK_UNLIKELY(hak_region_code_at(r, index + 1) != HAK_CODE_EXTENT_BODY))
    hak_pool_set_codes(r, index + 1, spans - 1, HAK_CODE_EXTENT_BODY);
  hak_region_set_code(r, index, HAK_CODE_EXTENT_FREED);
  hak_store_relaxed(&s->tag, HAK_QUICK_TAG);
  hak_store_relaxed(&s->place, hak_load_relaxed(&hak_span_pool.look));
  hak_span **list = &hak_quick_lists.lists[spans % HAK_QUICK_LISTS];
  s->next = *list;
  *list = s;
  hak_quick_count(spans, true);
}

/* --- what takes the lock --- */

/* As hak_pool_take (span_pool.h), of a range that came back lately; NULL: there is none. Its start is the last block's,
 * whose colour it may keep. As much is held, or dirty, as before. */
HAK_INLINE hak_span *hak_pool_take_quick(size_t spans, size_t align, hak_pool_tags tags) {
  if (hak_quick_spans() < spans) return NULL;
  hak_lock_take(&hak_span_pool.lock);
  hak_span *span = hak_quick_take(spans, align);
  if (HAK_LIKELY(span != NULL)) {
    hak_pool_note_live();
    hak_takes_large = true;
    hak_region *r = hak_pool_region_of(span);
    size_t index = hak_region_span_index(r, span);
    hak_store_relaxed(&span->tag, tags.head);
    if (tags.body_code != HAK_CODE_EXTENT_BODY) hak_pool_set_codes(r, index + 1, spans - 1, tags.body_code);
    hak_region_set_code(r, index, tags.head_code);
    hak_add_single(&hak_os_stats.alloc, 1);
  }
  hak_lock_drop(&hak_span_pool.lock);
  return span;
}

/* hak_pool_give; quick: onto a quick list. `sparse`: so many live spans count as dirty. */
HAK_INLINE bool hak_pool_give_range(hak_region *r, hak_span *span, size_t keep, uint32_t tag, bool quick, size_t sparse,
                                    bool *purge_due) {
  HAK_ASSERT(r == hak_pool_region_of(span));
  hak_lock_take(&hak_span_pool.lock);
  if (HAK_UNLIKELY(span->tag != tag || span->head != span || span->span_count <= keep)) {
    hak_lock_drop(&hak_span_pool.lock);
    return false;
  }
  if (HAK_LIKELY(quick))
    hak_quick_put(r, span);
  else
    hak_pool_free_range(span, keep, hak_pool_look());
  size_t live = hak_span_pool.live_spans, dirty = hak_span_pool.dirty_spans;
  hak_add_single(&hak_os_stats.free, 1);
  hak_lock_drop(&hak_span_pool.lock);
  if (HAK_UNLIKELY(hak_pool_is_over_mark(dirty, live, sparse))) *purge_due = true;
  return true;
}
/* The same of all of a range that was a large block. Near a target not quickly: what is reused by its length alone lies
 * scattered, and takes a third more calls to give back. */
HAK_INLINE bool hak_pool_give_large(hak_region *r, hak_span *span, uint32_t tag, bool *purge_due) {
  return hak_pool_give_range(r, span, 0, tag, !hak_budget_near_now(), 0, purge_due);
}

#endif
