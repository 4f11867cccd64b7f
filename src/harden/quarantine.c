#include "harden/quarantine.h"

#include "entry/slow_exit.h"
#include "entry/where.h"

void hak_quarantine_release_slow(hak_tcache *t, void *p) {
  const hak_region *further = hak_region_further(p); /* the fast path looks in the main region alone */
  if (further != NULL && hak_tcache_push_code(p, hak_region_code(further, p))) return;
  hak_where w = hak_where_is(p);
  /* Two threads freed p at once; it has left the other's quarantine, and its slab has gone to the pool. */
  if (HAK_UNLIKELY(w.kind != HAK_KIND_SLAB || hak_where_in_heap(&w)))
    hak_misuse_abort(HAK_VERDICT_FREE_MEMORY, p, 0, "at the call");
  hak_deferred d = {0};
  if (HAK_UNLIKELY(w.sampled)) /* no sample any more (entry/sampling.h), but in a slab of them */
    hak_arena_free(p, w.class_code, &d);
  else
    hak_tcache_free(t, p, w.class_code, &d);
  hak_slow_exit(&d);
}

bool hak_quarantine_flush(void) {
  hak_tcache *t = hak_tls.cache;
  hak_quarantine *q = !HAK_HARD(QUARANTINE) || t == NULL ? NULL : t->quarantine;
  if (q == NULL || q->count == 0) return false;
  while (q->count > 0) hak_quarantine_release_oldest(t, q);
  return true;
}
