/* The heap that is a thread's default. */
#include "heap/cache.h"
#include "tcache/counted.h"

/* The thread's default, if it was reset; NULL: it was destroyed. */
static hak_heap *default_after_reset(hak_thread_heaps *th) {
  hak_lock_take(&hak_heaps_lock);
  hak_heap *h = hak_heap_at_entry(th->default_entry);
  if (h != NULL && h->id != th->default_id) h = NULL;
  if (h != NULL) th->default_life = h->life;
  hak_lock_drop(&hak_heaps_lock);
  return h;
}

hak_heap *hak_heap_default(void) {
  const hak_tcache *t = hak_tls.cache;
  hak_thread_heaps *th = t == NULL ? NULL : hak_thread_heaps_of(t);
  if (th == NULL || th->default_entry == NULL) return NULL;
  bool is_same = HAK_LIKELY(hak_load_relaxed(&th->default_entry->life) == th->default_life);
  hak_heap *h = is_same ? hak_heap_at_entry(th->default_entry) : default_after_reset(th);
  if (HAK_LIKELY(h != NULL) && HAK_LIKELY(!hak_load_relaxed(&h->is_deleted))) return h;
  hak_heap_set_default(hak_tls.cache, NULL); /* it was destroyed, or deleted */
  return NULL;
}

bool hak_heap_set_default(hak_tcache *t, hak_heap *h) {
  hak_thread_heaps *th = h == NULL ? hak_thread_heaps_of(t) : hak_thread_make_heaps(t);
  if (th == NULL) return h == NULL;
  th->default_entry = h == NULL ? NULL : hak_heap_entry_of(h);
  th->default_id = h == NULL ? 0 : h->id;
  th->default_life = h == NULL ? 0 : h->life;
  if (hak_tls.in_heap == (h != NULL)) return true;
  hak_tls.in_heap = h != NULL;
  hak_count_aside(&th->countdown, h != NULL);
  return true;
}

int64_t *hak_heap_countdown(void) { return &hak_thread_heaps_of(hak_tls.cache)->countdown; }

bool hak_heap_suspend(void) {
  bool was = hak_tls.in_heap;
  if (HAK_LIKELY(!was)) return false;
  hak_tls.in_heap = false;
  hak_count_allow();
  return true;
}

void hak_heap_resume(bool was) {
  if (HAK_LIKELY(!was)) return;
  hak_tls.in_heap = true;
  hak_count_forbid();
}
