/* Explicit thread caches (tcache.create): of each small class a few blocks, the latest first, which their first words
 * link. The program sees to it that one thread at a time uses a cache. What no cache has comes from slabs, and goes
 * back there. */
#include "entry/slow_exit.h"
#include "je/je.h"

typedef struct explicit_cache {
  void *heads[HAK_CLASS_COUNT];
  uint8_t counts[HAK_CLASS_COUNT]; /* at most a magazine's */
  bool taken; /* hak_je_lock */
} explicit_cache;

static explicit_cache *caches[HAK_JE_TCACHES]; /* release; each stays once it is made */

static explicit_cache *cache_of(unsigned id) { return id < HAK_JE_TCACHES ? hak_load_acquire(&caches[id]) : NULL; }

unsigned hak_je_tcache_make(void) {
  size_t page = hak_os_page_size();
  hak_assert_held(&hak_je_lock);
  for (unsigned id = 0; id < HAK_JE_TCACHES; id++) {
    if (cache_of(id) == NULL)
      hak_store_release(&caches[id], hak_os_map(hak_align_up(sizeof(explicit_cache), page), page));
    if (caches[id] == NULL) break;
    if (caches[id]->taken) continue;
    caches[id]->taken = true;
    return id;
  }
  return HAK_JE_TCACHES;
}

void *hak_je_tcache_pop(unsigned id, size_t size, size_t align) {
  explicit_cache *t = cache_of(id);
  int c = t == NULL || size > HAK_SHARED_MAX ? -1 : hak_class_for_aligned(size, align);
  void *p = c < 0 ? NULL : t->heads[c];
  if (p == NULL) return NULL;
  t->heads[c] = *(void **)p;
  t->counts[c]--;
  return p;
}

bool hak_je_tcache_push(unsigned id, void *p) {
  size_t offset, code = hak_tcache_code(p, &offset), c = code - 1;
  explicit_cache *t = cache_of(id);
  if (t == NULL || !hak_code_is_class((unsigned)code) || hak_class_size((unsigned)c) > HAK_SHARED_MAX) return false;
  if (t->counts[c] == hak_magazine_usable[c] || t->heads[c] == p) return false;
  hak_totals_take(p);
  *(void **)p = t->heads[c];
  t->heads[c] = p;
  t->counts[c]++;
  return true;
}

bool hak_je_tcache_flush(unsigned id, bool ends) {
  explicit_cache *t = cache_of(id);
  hak_deferred d = {0};
  hak_assert_held(&hak_je_lock);
  if (t == NULL || !t->taken) return false;
  for (unsigned c = 0; c < HAK_CLASS_COUNT; c++) {
    for (void *p; (p = t->heads[c]) != NULL;) {
      t->heads[c] = *(void **)p;
      hak_arena_free(p, c, &d);
    }
    t->counts[c] = 0;
  }
  t->taken = !ends;
  hak_slow_exit(&d);
  return true;
}
