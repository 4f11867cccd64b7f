#include "api/reclaim.h"

#include "api/slow_exit.h"
#include "heap/heap.h"
#include "large/kept.h"
#include "large/quarantine.h"
#include "os/os.h"
#include "reclaim/decay.h"

/* What others are purging counts until it is gone, and a request would be refused while memory is free. */
static void wait_for_purges(void) {
  for (unsigned ms = 0; ms < HAK_LOCK_PATIENCE_MS && hak_load_relaxed(&hak_span_pool.claimed_spans) > 0; ms++) hak_os_sleep_ms(1);
}

void hak_reclaim(void) {
  hak_deferred d = {0};
  bool left;
  hak_kept_release(UINT64_MAX, SIZE_MAX, &left);
  if (HAK_HARD(GUARDS)) hak_mapping_quarantine_release();
  hak_tcache *t = hak_tls.cache;
  hak_heap_flush(NULL, &d);
  hak_heap_end_deleted(&d);
  if (t != NULL) hak_tcache_flush(t, &d);
  hak_tcache_reach(UINT64_MAX, true, &d);
  hak_arena_shrink_all(&d);
  hak_slow_exit(&d);
  hak_decay_for_limit();
  if (!hak_budget_limited()) return;
  hak_decay_all(0, &d); /* what is free but does not fit counts against the limit */
  wait_for_purges();
}
