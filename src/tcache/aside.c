/* A cache that its thread may not use for a while. */
#include <string.h>

#include "tcache/counted.h"
#include "tcache/tcache.h"

/* Of the calling thread, which is in a slow path from here until it is taken back: no thief comes by. */
static bool put_tops_aside(hak_tcache *t) {
  if (t->aside == NULL) t->aside = (void ***)hak_meta_take_block((HAK_CODES * sizeof(void **) + HAK_META_SIZE - 1) / HAK_META_SIZE);
  if (t->aside == NULL) return false;
  hak_tcache_enter(t);
  HAK_ASSERT(t->top == hak_tls.top);
  memcpy(t->aside, hak_tls.top, sizeof hak_tls.top);
  for (unsigned code = 0; code < HAK_CODES; code++) hak_tls.top[code] = HAK_NULL_TOP;
  hak_store_relaxed(&t->top, t->aside);
  return true;
}

bool hak_tcache_put_aside(void) {
  hak_tcache *t = hak_tls.cache;
  HAK_ASSERT(hak_tls.phase != HAK_THREAD_FORBIDDEN && hak_tls.aside == NULL);
  if (t != NULL && !put_tops_aside(t)) return false;
  hak_tls.aside = t;
  hak_tls.cache = NULL;
  hak_tls.phase_aside = hak_tls.phase;
  hak_tls.phase = HAK_THREAD_FORBIDDEN;
  hak_count_forbid();
  return true;
}

void hak_tcache_take_back(void) {
  hak_tcache *t = hak_tls.aside;
  HAK_ASSERT(hak_tls.phase == HAK_THREAD_FORBIDDEN);
  hak_count_allow();
  hak_tls.phase = hak_tls.phase_aside;
  hak_tls.aside = NULL;
  hak_tls.cache = t;
  if (t == NULL) return;
  memcpy(hak_tls.top, t->aside, sizeof hak_tls.top);
  hak_store_relaxed(&t->top, hak_tls.top);
  hak_tcache_leave(t);
}
