/* A cache that its thread may not use for a while. */
#include "tcache/counted.h"
#include "tcache/tcache.h"

/* The thread's tops, and where those lie that are put aside. */
static void exchange_tops(hak_tcache *t) {
  HAK_ASSERT(t->top == hak_tls.top && t->busy > 0);
  for (unsigned c = 0; c < HAK_CLASS_COUNT && !t->all_slow; c++) {
    void **top = t->top[c + 1];
    t->top[c + 1] = t->bins[c].top;
    t->bins[c].top = top;
  }
}

/* The thread is in a slow path from here until the cache is taken back: no drainer claims it. */
void hak_tcache_put_aside(void) {
  hak_tcache *t = hak_tls.cache;
  HAK_ASSERT(hak_tls.phase != HAK_THREAD_FORBIDDEN && hak_tls.aside == NULL);
  if (t != NULL) {
    hak_tcache_enter(t);
    exchange_tops(t);
  }
  hak_tls.aside = t;
  hak_tls.cache = NULL;
  hak_tls.heap_cache = NULL;
  hak_tls.phase_aside = hak_tls.phase;
  hak_tls.phase = HAK_THREAD_FORBIDDEN;
  hak_count_forbid();
}

void hak_tcache_take_back(void) {
  hak_tcache *t = hak_tls.aside;
  HAK_ASSERT(hak_tls.phase == HAK_THREAD_FORBIDDEN);
  hak_count_allow();
  hak_tls.phase = hak_tls.phase_aside;
  hak_tls.aside = NULL;
  hak_tls.cache = t;
  if (t == NULL) return;
  exchange_tops(t);
  hak_tcache_leave(t);
}
