/* Searching and marking the per-chunk bitmaps. Everything here runs under hak_span_pool.lock. */
#include "pool/span_pool.h"

#include "config/config.h"
#include "os/os.h"
#include "pool/absent.h"
#include "pool/budget.h"
#include "pool/chunk_index.h"
#include "pool/quick.h"
#include "region/first_touch.h"

/* The bits of a word whose first span has this page number that are aligned. */
static uint64_t aligned_bits(uintptr_t page, size_t align) {
  size_t period = hak_min_size(align, 64), first = (0 - page) & (align - 1);
  uint64_t every = period == 64 ? 1 : ~(uint64_t)0 / (((uint64_t)1 << period) - 1);
  return first < 64 ? every << first : 0;
}

static hak_span_set aligned_of(const hak_span_set *set, uintptr_t chunk_page, size_t align) {
  HAK_ASSERT(hak_is_pow2(align));
  hak_span_set aligned = *set;
  for (size_t w = 0; align > 1 && w < HAK_CHUNK_WORDS; w++)
    aligned.words[w] &= aligned_bits(chunk_page + w * 64, align);
  return aligned;
}

/* Lowest start in the chunk of adjacent free spans that are looked for, aligned by absolute address; HAK_CHUNK_SPANS if
 * none. *longest: the longest that start at one, until then. */
static size_t find_range(const hak_chunk_search *s, size_t chunk_index, size_t *longest) {
  const hak_chunk *c = &s->region->chunks[chunk_index];
  uintptr_t chunk_page = (s->region->base >> HAK_SPAN_SHIFT) + chunk_index * HAK_CHUNK_SPANS;
  hak_span_set set = hak_spans_of_kind(c, s->search, s->apart), starts = aligned_of(&set, chunk_page, s->align);
  size_t at = 0;
  *longest = 0;
  while ((at = hak_bits_next(starts.words, at, true)) < HAK_CHUNK_SPANS) {
    size_t end = hak_bits_next(set.words, at, false);
    if (at + s->spans <= end) return at;
    *longest = hak_max_size(*longest, end - at);
    at = end;
  }
  return HAK_CHUNK_SPANS;
}

static void raise_chunk(hak_region *r, size_t chunk) { hak_chunk_index_raise(r, chunk, 0, HAK_CHUNK_SPANS); }

/* Only in one chunk. */
static bool grow(hak_region *r, size_t spans, bool huge) {
  hak_assert_held(&hak_span_pool.lock);
  size_t from = r->ready_spans;
  if (!hak_region_grow(r, spans, huge)) return false;
  raise_chunk(r, from / HAK_CHUNK_SPANS);
  return true;
}

/* Clean spans that are taken while purged ones are missing were purged too early. */
static void note_taken(size_t clean) {
  hak_pool *pool = &hak_span_pool;
  hak_pool_note_live();
  hak_budget_note_peak();
  size_t again = hak_min_size(clean, hak_load_relaxed(&pool->purged_spans));
  if (again == 0) return;
  hak_sub_relaxed(&pool->purged_spans, again);
  hak_add_relaxed(&pool->refault_bytes, again << HAK_SPAN_SHIFT);
}

static hak_span *take_at(const hak_chunk_search *s, size_t chunk, size_t bit, bool *zeroed) {
  hak_region *r = s->region;
  HAK_ASSERT(bit + s->spans <= HAK_CHUNK_SPANS);
  size_t index = chunk * HAK_CHUNK_SPANS + bit, kept = hak_pool_mark_taken(r, index, s->spans);
  note_taken(s->spans - kept);
  *zeroed = kept == 0;
  return hak_region_span_at(r, index);
}

static hak_span *take_from_chunks(hak_chunk_search s, hak_region *r, bool huge, hak_search k, bool *zeroed) {
  s.region = r;
  s.search = k;
  s.huge = huge;
  size_t n = hak_region_chunks(r);
  for (size_t i = 0; (i = hak_chunk_index_find(&s, i, n, false)) < n; i++) {
    size_t bit = HAK_CHUNK_SPANS, longest = 0;
    if (r->chunks[i].huge == huge) bit = find_range(&s, i, &longest);
    if (bit < HAK_CHUNK_SPANS) return take_at(&s, i, bit, zeroed);
    hak_chunk_index_lower(&s, i, longest);
  }
  return NULL;
}

static hak_span *take_from_regions(hak_chunk_search s, bool huge, hak_search k, bool *zeroed) {
  unsigned regions = hak_region_count();
  hak_span *span = NULL;
  for (unsigned i = 0; i < regions && span == NULL; i++) span = take_from_chunks(s, hak_region_at(i), huge, k, zeroed);
  return span;
}

static size_t free_now(void) {
  size_t spans = hak_quick_spans();
  for (unsigned i = hak_region_count(); i-- > 0;) {
    const hak_region *r = hak_region_at(i);
    for (size_t chunk = r->first_span / HAK_CHUNK_SPANS, n = hak_region_chunks(r); chunk < n; chunk++)
      spans += r->chunks[chunk].free_spans;
  }
  return spans;
}

static void note_grown(void) {
  hak_pool *pool = &hak_span_pool;
  hak_assert_held(&pool->lock);
  size_t all = pool->live_spans + free_now();
  hak_store_relaxed(&pool->full_spans, all - hak_min_size(all, HAK_SLAB_SPANS_MOST - 1));
}

/* Where that brought less than this part of what there is, as much as would become accessible instead, it is not done
 * again before more has. */
#define EMPTIED_PART 4
void hak_pool_note_emptied(void) {
  hak_pool *pool = &hak_span_pool;
  hak_lock_take(&pool->lock);
  size_t free_spans = free_now(), all = pool->live_spans + free_spans;
  if (free_spans < all / EMPTIED_PART) hak_store_relaxed(&pool->full_spans, SIZE_MAX);
  hak_lock_drop(&pool->lock);
}

/* Grows the region until the range fits or it cannot grow: to the end of the current chunk, into a chunk of the kind,
 * and there again where the alignment asks for more. */
static hak_span *take_by_growing(hak_chunk_search s, hak_region *r, bool huge, bool *zeroed) {
  if (s.apart && r->populated) return NULL;
  for (int round = 0; round < 4; round++) {
    /* A region whose new memory is resident at once has no new chunks of huge pages. Growing it costs memory, so any
     * chunk will do. */
    hak_span *other = r->populated ? take_from_chunks(s, r, !huge, HAK_SEARCH_FREE, zeroed) : NULL;
    if (other != NULL) return other;
    size_t wanted = s.spans + (round == 0 ? 0 : hak_min_size(s.align, HAK_CHUNK_SPANS));
    if (!grow(r, wanted, huge)) return NULL;
    note_grown();
    huge = huge && !hak_huge_pages_are_dear(); /* by another thread's touch: then the chunk grew by small ones */
    hak_span *span = take_from_chunks(s, r, huge, HAK_SEARCH_FREE, zeroed);
    if (span != NULL) return span;
  }
  return NULL;
}

static hak_span *take_dirty(hak_chunk_search s, bool *zeroed) {
  if (hak_load_relaxed(&hak_span_pool.dirty_spans) - hak_quick_spans() < s.spans) return NULL;
  hak_span *span = take_from_regions(s, s.huge, HAK_SEARCH_DIRTY, zeroed);
  return span != NULL ? span : take_from_regions(s, !s.huge, HAK_SEARCH_DIRTY, zeroed);
}

/* Far more is accessible than was ever in use. */
#define ROOMY_TIMES 2
static bool is_roomy(size_t spans) {
  size_t accessible = 0;
  for (unsigned i = hak_region_count(); i-- > 0;)
    accessible += hak_region_at(i)->ready_spans - hak_region_at(i)->first_span;
  return accessible > ROOMY_TIMES * hak_span_pool.peak_spans + spans;
}

/* Before the region grows: a chunk that has become small, and is free and clean by now. Without it a program that gives
 * memory back and takes it again would have new chunks for ever, and pay for their tables. */
static hak_span *take_by_enabling_huge(hak_chunk_search s, hak_region *r, bool *zeroed) {
  hak_chunk_search whole = {.region = r, .search = HAK_SEARCH_FREE, .spans = HAK_CHUNK_SPANS, .align = 1};
  size_t n = r->populated ? 0 : hak_region_chunks(r), longest;
  s.region = r;
  s.search = HAK_SEARCH_FREE;
  for (size_t i = 0; (i = hak_chunk_index_find(&whole, i, n, false)) < n; i++) {
    hak_chunk *c = &r->chunks[i];
    if (c->huge || find_range(&whole, i, &longest) == HAK_CHUNK_SPANS) {
      hak_chunk_index_lower(&whole, i, c->huge ? 0 : longest);
      continue;
    }
    size_t bit = c->dirty_spans == 0 ? find_range(&s, i, &longest) : HAK_CHUNK_SPANS;
    if (bit == HAK_CHUNK_SPANS) continue;
    c->huge = true;
    raise_chunk(r, i);
    hak_os_huge_pages(hak_region_address(r, i * HAK_CHUNK_SPANS), HAK_CHUNK_SPANS << HAK_SPAN_SHIFT);
    return take_at(&s, i, bit, zeroed);
  }
  return NULL;
}

/* What is added costs tables, a percent of it: where it is roomy, small pages are taken where huge ones were wanted. */
#define ROOMY_SPANS (8 * HAK_CHUNK_SPANS)

/* Spans that are clean, or new. Apart, little more becomes accessible than twice what was ever in use: else a program
 * whose memory is small blocks and large ones by turns would grow without end. */
static hak_span *take_clean(hak_chunk_search s, bool *zeroed) {
  hak_span *span;
  bool huge = s.huge;
  if ((span = take_from_regions(s, huge, HAK_SEARCH_FREE, zeroed)) != NULL) return span;
  /* Absent spans have tables. Of either kind: they are few, under a limit. */
  if (hak_pool_restore(s.spans, s.align)) {
    if ((span = take_from_regions(s, huge, HAK_SEARCH_FREE, zeroed)) != NULL) return span;
    if ((span = take_from_regions(s, !huge, HAK_SEARCH_FREE, zeroed)) != NULL) return span;
  }
  unsigned regions = hak_region_count();
  for (unsigned i = 0; huge && i < regions; i++) {
    if ((span = take_by_enabling_huge(s, hak_region_at(i), zeroed)) != NULL) return span;
  }
  if (huge && is_roomy(ROOMY_SPANS) && (span = take_from_regions(s, false, HAK_SEARCH_FREE, zeroed)) != NULL)
    return span;
  for (unsigned i = s.apart && is_roomy(HAK_HUGE_PAGE_SPANS) ? regions : 0; i < regions; i++) {
    if ((span = take_by_growing(s, hak_region_at(i), huge, zeroed)) != NULL) return span;
  }
  return s.apart && huge ? NULL : take_from_regions(s, !huge, HAK_SEARCH_FREE, zeroed);
}

/* Dirty spans of large blocks may have pages that were never touched, or that went before. Slabs take clean ones
 * instead, as long as no more than this becomes resident by it; and where it costs no huge pages. */
#define PASSED_PART 16
#define PASSED_LEAST (16 * HAK_MIB / HAK_SPAN_SIZE) /* a program of some MiB, too, has its large blocks apart */

static bool may_pass_over(size_t spans) {
  const hak_pool *pool = &hak_span_pool;
  if (pool->dirty_spans < spans) return false; /* there is none */
  size_t most = pool->peak_spans / PASSED_PART + PASSED_LEAST;
  return !hak_budget_limited() && !hak_budget_targeted() && pool->passed_over + spans <= most;
}

/* NULL: none, or ranges on quick lists may do together. */
static hak_span *take_locked(hak_chunk_search s, bool *zeroed) {
  hak_assert_held(&hak_span_pool.lock);
  HAK_ASSERT(s.spans > 0 && s.spans <= HAK_CHUNK_SPANS && hak_is_pow2(s.align));
  bool apart = s.apart;
  hak_span *span = apart ? take_dirty(s, zeroed) : NULL;
  if (span == NULL && apart && !s.huge && may_pass_over(s.spans) && (span = take_clean(s, zeroed)) != NULL)
    hak_span_pool.passed_over += s.spans;
  s.apart = false;
  if (span != NULL || (span = take_dirty(s, zeroed)) != NULL) return span;
  if (hak_quick_spans() > 0) return NULL;
  /* At the limit memory changes hands; none is added. */
  if (hak_budget_limited() && !hak_budget_admits_locked(s.spans)) return NULL;
  s.apart = apart;
  if (apart && (span = take_clean(s, zeroed)) != NULL) return span;
  s.apart = false;
  if ((span = take_clean(s, zeroed)) != NULL) return span;
  hak_region *added = hak_region_add(s.spans + hak_min_size(s.align, HAK_CHUNK_SPANS) - 1);
  if (added == NULL) return NULL;
  if ((span = take_from_chunks(s, added, false, HAK_SEARCH_FREE, zeroed)) != NULL) return span;
  return take_by_growing(s, added, false, zeroed);
}

/* The first of the free spans up to the chunk's last accessible one, which end there; `end` if that is not free. */
static size_t start_of_last(const hak_region *r, size_t chunk, size_t end) {
  size_t bit = (end - 1) % HAK_CHUNK_SPANS;
  const uint64_t *words = r->chunks[chunk].free;
  return hak_bits_has(words, bit) ? chunk * HAK_CHUNK_SPANS + hak_bits_first_of_run(words, bit) : end;
}

/* Takes spans of more than one chunk, or aligned to one and more: of neighbouring chunks what is free, and what becomes
 * accessible behind the last. */
static hak_span *take_long_from(hak_region *r, size_t spans, size_t align, bool *zeroed) {
  size_t base = r->base >> HAK_SPAN_SHIFT, start = hak_align_up(base + r->first_span, align) - base, kept = 0;
  for (size_t chunk = r->first_span / HAK_CHUNK_SPANS; chunk < hak_region_chunks(r); chunk++) {
    size_t end = hak_min_size((chunk + 1) * HAK_CHUNK_SPANS, r->ready_spans), last = start_of_last(r, chunk, end);
    if (last > hak_max_size(chunk * HAK_CHUNK_SPANS, r->first_span)) start = hak_align_up(base + last, align) - base;
    while (end == r->ready_spans && end < start + spans && grow(r, start + spans - end, false)) end = r->ready_spans;
    if (end >= start + spans) break;
  }
  if (r->ready_spans < start + spans) return NULL;
  for (size_t at = start, n; at < start + spans; at += n) {
    n = hak_pool_in_chunk(at, start + spans);
    kept += hak_pool_mark_taken(r, at, n);
  }
  note_taken(spans - kept);
  *zeroed = kept == 0;
  return hak_region_span_at(r, start);
}

static hak_span *take_long(size_t spans, size_t align, bool *zeroed) {
  hak_assert_held(&hak_span_pool.lock);
  hak_span *span = NULL;
  if (HAK_HARD(GUARDS) || (hak_budget_limited() && !hak_budget_admits_locked(spans))) return NULL;
  for (unsigned i = 0, n = hak_region_count(); i < n && span == NULL; i++)
    span = take_long_from(hak_region_at(i), spans, align, zeroed);
  return span;
}

/* Of a slab of blocks that share it. */
static bool is_shared(uint32_t tag) {
  unsigned code = HAK_TAG_CODE(tag);
  return hak_code_is_class(code) && hak_class_size(code - 1) <= HAK_SHARED_MAX;
}

/* Between guards what is free is short already: there heaps' ranges go back at once. Else accessible memory grows by a
 * fifth while 20,000 heaps come and go (066). */
static bool goes_quickly(uint32_t tag) { return !is_shared(tag) && !(HAK_HARD(GUARDS) && HAK_TAG_IS_IN_HEAP(tag)); }

static void mark_large(hak_region *r, size_t index, size_t spans) {
  for (size_t at = index, n; at < index + spans; at += n) {
    n = hak_pool_in_chunk(at, index + spans);
    hak_bits_change(r->chunks[at / HAK_CHUNK_SPANS].large, at % HAK_CHUNK_SPANS, n, true);
  }
}

void hak_pool_follow_page_sizes(bool huge, bool spans) {
  hak_lock_take(&hak_span_pool.lock);
  if (!huge) hak_span_pool.huge_from_spans = SIZE_MAX;
  if (spans) hak_region_follow_page_sizes();
  hak_lock_drop(&hak_span_pool.lock);
}

/* Apart: what takes from the pool, or gives to it, may be deep in the stack. */
static HAK_NOINLINE hak_span *take_quick(size_t spans, size_t align, hak_pool_tags tags) {
  return hak_pool_take_quick(spans, align, tags);
}

hak_span *hak_pool_take(size_t spans, size_t align, hak_pool_tags tags, bool dense, bool *zeroed) {
  HAK_ASSERT(spans > 0 && spans <= HAK_LONGEST_SPANS && hak_is_pow2(align) && tags.head != HAK_TAG_NONE &&
             tags.head_code != HAK_CODE_NONE);
  hak_span *span = goes_quickly(tags.head) ? take_quick(spans, align, tags) : NULL;
  if (span != NULL) {
    span->start = hak_align_down(span->start, HAK_SPAN_SIZE);
    *zeroed = false;
    return span;
  }
  hak_chunk_index_prepare();
  hak_lock_take(&hak_span_pool.lock);
  bool huge = dense && !hak_huge_pages_are_dear() &&
              hak_span_pool.live_spans + spans > hak_span_pool.huge_from_spans;
  bool shared = is_shared(tags.head);
  bool apart = shared && align == 1 && !hak_os_single_threaded(); /* who is alone does not wait for itself */
  bool is_long = spans > HAK_CHUNK_SPANS || align > HAK_CHUNK_SPANS / 2;
  if (is_long) hak_quick_settle();
  hak_chunk_search s = {.spans = spans, .align = align, .huge = huge, .apart = apart};
  bool begins_huge_page = false;
  do span = is_long ? take_long(spans, align, zeroed) : take_locked(s, zeroed);
  while (span == NULL && hak_quick_settle());
  if (span != NULL) {
    hak_region *r = hak_pool_region_of(span);
    size_t index = hak_region_span_index(r, span);
    begins_huge_page = huge && hak_config.thp != HAK_THP_ON && *zeroed && index % HAK_HUGE_PAGE_SPANS == 0 &&
                       r->chunks[index / HAK_CHUNK_SPANS].huge && !hak_pool_was_large(span);
    if (!shared) mark_large(r, index, spans);
    hak_takes_large |= !shared;
    span->start = (uintptr_t)hak_region_address(r, index);
    span->span_count = (uint16_t)spans;
    hak_store_relaxed(&span->tag, tags.head);
    for (size_t i = 0; i < spans; i++) hak_store_relaxed(&span[i].head, span);
    hak_pool_set_codes(r, index + 1, spans - 1, tags.body_code);
    hak_pool_set_codes(r, index, 1, tags.head_code);
    hak_add_single(&hak_os_stats.alloc, 1);
  }
  hak_lock_drop(&hak_span_pool.lock);
  if (begins_huge_page) hak_time_first_touch((void *)span->start);
  return span;
}

hak_span *hak_pool_claim_free(size_t spans, bool huge, bool *zeroed) {
  HAK_ASSERT(spans > 0 && spans <= HAK_EXTENT_MAX_SPANS);
  hak_chunk_index_prepare();
  hak_lock_take(&hak_span_pool.lock);
  size_t from = hak_span_pool.huge_from_spans;
  bool of_huge = huge ? from != SIZE_MAX : hak_span_pool.live_spans + spans > from;
  hak_quick_settle();
  hak_span *span = take_locked((hak_chunk_search){.spans = spans, .align = 1, .huge = of_huge}, zeroed);
  for (size_t i = 0; span != NULL && i < spans; i++) span[i].claimer = hak_thread_mark();
  if (span != NULL) hak_add_single(&hak_span_pool.claimed_spans, spans);
  hak_lock_drop(&hak_span_pool.lock);
  return span;
}

static bool are_of_kind(const hak_chunk *c, size_t bit, size_t spans, hak_search k) {
  hak_span_set set = hak_spans_of_kind(c, k, false);
  return hak_bits_next(set.words, bit, false) >= bit + spans;
}

/* At the limit, only what is dirty already. */
static bool may_take(const hak_chunk *c, size_t bit, size_t spans) {
  return !hak_budget_limited() || are_of_kind(c, bit, spans, HAK_SEARCH_DIRTY) || hak_budget_admits_locked(spans);
}

bool hak_pool_extend(hak_span *span, size_t extra_spans, unsigned body_code) {
  HAK_ASSERT(extra_spans > 0 && span->head == span && span->span_count > 0 && body_code != HAK_CODE_NONE);
  hak_region *r = hak_pool_region_of(span);
  size_t index = hak_region_span_index(r, span) + span->span_count;
  size_t bit = index % HAK_CHUNK_SPANS;
  if (bit == 0 || bit + extra_spans > HAK_CHUNK_SPANS) return false; /* extents stay inside a chunk */
  bool taken = false;
  hak_chunk *c = &r->chunks[index / HAK_CHUNK_SPANS];
  hak_lock_take(&hak_span_pool.lock);
  size_t end = index + extra_spans, ready = r->ready_spans;
  if (hak_quick_meets(r, index, hak_min_size(end, ready))) hak_quick_settle();
  /* All that is accessible behind it is free: then more becomes accessible. */
  if (end > ready && are_of_kind(c, bit, ready - index, HAK_SEARCH_FREE)) grow(r, end - ready, c->huge);
  if (end <= r->ready_spans) {
    if (are_of_kind(c, bit, extra_spans, HAK_SEARCH_FREE) && may_take(c, bit, extra_spans)) {
      note_taken(extra_spans - hak_pool_mark_taken(r, index, extra_spans));
      mark_large(r, index, extra_spans);
      for (size_t i = 0; i < extra_spans; i++) hak_store_relaxed(&hak_region_span_at(r, index + i)->head, span);
      hak_pool_set_codes(r, index, extra_spans, body_code);
      span->span_count = (uint16_t)(span->span_count + extra_spans);
      taken = true;
    }
  }
  hak_lock_drop(&hak_span_pool.lock);
  return taken;
}

void hak_pool_retag(hak_span *span, hak_pool_tags tags) {
  HAK_ASSERT(span->head == span && span->tag != HAK_TAG_NONE && tags.head != HAK_TAG_NONE);
  hak_region *r = hak_pool_region_of(span);
  size_t index = hak_region_span_index(r, span);
  hak_lock_take(&hak_span_pool.lock);
  hak_store_relaxed(&span->tag, tags.head);
  hak_pool_set_codes(r, index + 1, span->span_count - 1u, tags.body_code);
  hak_pool_set_codes(r, index, 1, tags.head_code);
  hak_lock_drop(&hak_span_pool.lock);
}

/* Apart, as above. */
static HAK_NOINLINE bool give_quick(hak_region *r, hak_span *span, uint32_t tag, bool *purge_due) {
  return hak_pool_give_large(r, span, tag, purge_due);
}

bool hak_pool_give(hak_span *span, size_t keep, uint32_t tag, bool *purge_due) {
  HAK_ASSERT(tag != HAK_TAG_NONE);
  hak_region *r = hak_pool_region_of(span);
  if (keep == 0 && goes_quickly(tag)) return give_quick(r, span, tag, purge_due);
  return hak_pool_give_range(r, span, keep, tag, false, hak_load_relaxed(&hak_span_pool.sparse_spans), purge_due);
}
