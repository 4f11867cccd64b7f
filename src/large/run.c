#include "large/run.h"

#include "os/os.h"
#include "pool/budget.h"
#include "pool/release.h"

#define RUN_TAG HAK_TAG(0, HAK_CODE_RUN)
#define BODY_TAG HAK_TAG(0, HAK_CODE_RUN_BODY)

/* Less is not worth a system call. */
#define TAIL_LEAST (16 * HAK_KIB)

/* `looked` of a run: pages of its tail that have gone and that nobody can have touched since; of one that was used while
 * the target was far it may be more than have, which keeps them until the run is free. */
void hak_run_drop_tail(void *p, size_t size) {
  size_t used = hak_align_up(size, hak_os_page_size()), bytes = hak_run_spans(size) << HAK_SPAN_SHIFT;
  size_t pages = (bytes - used) / hak_os_page_size();
  hak_span *s = hak_region_span(hak_region_find(p), p);
  bool gone = pages <= s->looked;
  s->looked = (uint16_t)(gone || bytes - used >= TAIL_LEAST ? pages : s->looked);
  if (gone || bytes - used < TAIL_LEAST) return;
  if (hak_budget_of_group()) hak_os_split_huge((char *)p + used, bytes - used);
  if (hak_os_decommit_piece((char *)p + used, bytes - used)) hak_budget_note_given(bytes - used);
}

bool hak_requests_noted;

HAK_INLINE void note_request(hak_span *s, size_t size) {
  if (HAK_UNLIKELY(hak_load_relaxed(&hak_requests_noted))) hak_store_relaxed(&s->summary, size);
}

/* A large run for which no dirty one is long enough takes new memory, and what is dirty stays beside it. Where the program
 * never held so much, as much goes back as is taken, which costs less than taking it. Memory that only changes hands
 * sets no record, and nothing is given back for it. */
#define LARGE_SPANS HAK_HUGE_PAGE_SPANS

static size_t record_spans; /* relaxed; most that was held or dirty, as far as it was looked at */

static void make_way(size_t spans) {
  if (spans < LARGE_SPANS) return;
  const hak_pool *pool = &hak_span_pool;
  size_t record = hak_load_relaxed(&record_spans);
  size_t held = hak_load_relaxed(&pool->live_spans) + hak_load_relaxed(&pool->dirty_spans);
  if (held <= record) return;
  held -= hak_min_size(held, hak_release_some(hak_min_size(held - record, spans)));
  if (held > record) hak_store_relaxed(&record_spans, held);
}

void *hak_run_alloc(size_t size, size_t align, bool *zeroed) {
  hak_span *s = hak_pool_take(hak_run_spans(size), hak_run_spans(align),
                              (hak_pool_tags){RUN_TAG, BODY_TAG}, true, zeroed);
  if (s == NULL) return NULL;
  make_way(s->span_count);
  s->looked = 0;
  if (!*zeroed && hak_budget_full_now()) hak_run_drop_tail((void *)s->start, size);
  note_request(s, size);
  return (void *)s->start;
}

hak_verdict hak_run_keep(hak_region *r, void *p) {
  if (hak_region_span(r, p)->start != (uintptr_t)p) return HAK_VERDICT_NO_BLOCK_START;
  uint32_t expected = RUN_TAG;
  bool won = hak_cas_acquire(&r->tags[hak_region_index(r, p)], &expected, HAK_TAG(0, HAK_CODE_RUN_KEPT));
  return won ? HAK_VERDICT_OK : HAK_VERDICT_FREE_MEMORY;
}

void hak_run_reuse(void *p, size_t size) {
  hak_region *r = hak_region_find(p);
  note_request(&r->spans[hak_region_index(r, p)], size);
  hak_store_relaxed(&r->tags[hak_region_index(r, p)], RUN_TAG);
}

void hak_run_give_kept(void *p, bool *release_due) {
  hak_pool_give(hak_region_span(hak_region_find(p), p), 0, RUN_TAG, release_due);
}

hak_verdict hak_run_free(hak_region *r, void *p, bool *release_due) {
  hak_verdict verdict = hak_run_keep(r, p);
  if (HAK_LIKELY(verdict == HAK_VERDICT_OK)) hak_run_give_kept(p, release_due);
  return verdict;
}

size_t hak_run_size(const hak_region *r, const void *p) {
  return (size_t)hak_region_span(r, p)->span_count << HAK_SPAN_SHIFT;
}

bool hak_run_resize(hak_region *r, void *p, size_t size, bool *release_due) {
  hak_span *s = hak_region_span(r, p);
  size_t wanted = hak_run_spans(size), have = s->span_count;
  bool done = wanted == have;
  if (wanted > have)
    done = wanted <= HAK_RUN_LONGEST_SPANS && hak_pool_extend(s, wanted - have, BODY_TAG);
  else if (wanted < have)
    done = hak_pool_give(s, wanted, RUN_TAG, release_due);
  if (!done) return false;
  s->looked = 0;
  note_request(s, size);
  return true;
}
