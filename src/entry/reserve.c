/* hakmem_reserve: free spans are made ready before they are asked for. They are claimed, as by a purge, until there are
 * enough of them: so a fork's child puts back what another thread had in hand. */
#include <errno.h>

#include "hakmem/hakmem.h"
#include "entry/slow_exit.h"
#include "life/init.h"
#include "life/thread.h"
#include "os/memory_limits.h"
#include "reclaim/decay.h"

HAK_LINK_INIT;

/* What is claimed: a list by the first span of each piece, which says how many there are and whether all are clean. */
static hak_span *claim_all(size_t spans, bool huge, bool *enough) {
  hak_span *list = NULL;
  /* Else in steps that show the pool where its huge pages begin. What fits nowhere, between guards too, would make the
   * region grow for nothing. */
  size_t most = huge ? HAK_EXTENT_MAX_SPANS : hak_min_size(HAK_HUGE_PAGE_SPANS, HAK_EXTENT_MAX_SPANS);
  while (spans > 0 && most > 0) {
    bool zeroed;
    size_t some = hak_min_size(spans, most);
    hak_span *s = hak_pool_claim_free(some, huge, &zeroed);
    if (s == NULL) {
      most = some / 2;
      continue;
    }
    s->next_claimed = list;
    s->span_count = (uint16_t)some;
    s->untouched = zeroed;
    list = s;
    spans -= some;
  }
  *enough = spans == 0;
  return list;
}

static bool populate(hak_span *list) {
  for (hak_span *s = list; s != NULL; s = s->next_claimed) {
    s->untouched = false;
    hak_region *r = hak_pool_region_of(s);
    if (!hak_os_populate(hak_region_address(r, hak_region_span_index(r, s)), (size_t)s->span_count << HAK_SPAN_SHIFT))
      return false;
  }
  return true;
}

static void unclaim_all(hak_span *list) {
  for (hak_span *s = list, *next; s != NULL; s = next) {
    next = s->next_claimed;
    hak_region *r = hak_pool_region_of(s);
    hak_pool_unclaim(r, hak_region_span_index(r, s), s->span_count,
                     s->untouched ? HAK_PAGES_UNTOUCHED : HAK_PAGES_KEPT);
  }
}

/* Before anything becomes accessible: its tables would stay, and count. */
static bool is_refused(size_t bytes) {
  hak_budget_figures f;
  hak_budget_state(&f);
  size_t dirty = hak_load_relaxed(&hak_span_pool.dirty_spans) << HAK_SPAN_SHIFT,
         used = f.used - hak_min_size(f.used, dirty);
  return bytes > hak_min_size(hak_os_memory_limit(), PTRDIFF_MAX) ||
         (f.limit != 0 && (used > f.limit || bytes > f.limit - used));
}

HAK_EXPORT HAK_COLD int hakmem_reserve(size_t bytes, unsigned flags) {
  hak_deferred d = {0};
  bool enough = true, populated = (flags & HAKMEM_RESERVE_POPULATE) != 0;
  if ((flags & ~(HAKMEM_RESERVE_POPULATE | HAKMEM_RESERVE_HUGE)) != 0) return EINVAL;
  if (!hak_start() || is_refused(bytes)) return ENOMEM;
  int saved = errno;
  size_t spans = hak_align_up(bytes, HAK_SPAN_SIZE) >> HAK_SPAN_SHIFT;
  hak_span *list = claim_all(spans, (flags & HAKMEM_RESERVE_HUGE) != 0, &enough);
  if (enough && populated) enough = populate(list);
  unclaim_all(list);
  if (enough) hak_decay_reserve(populated ? spans : 0);
  hak_slow_exit(&d);
  errno = saved;
  return enough ? 0 : ENOMEM;
}
