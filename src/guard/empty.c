#include "guard/empty.h"

#include "os/os.h"

#define BYTES (HAK_EMPTY_BLOCKS * HAK_EMPTY_APART)
#define LOOKED_AT 64

uintptr_t hak_empty_base;

enum { NEVER, FREED = 0x80 };
static uint8_t state[HAK_EMPTY_BLOCKS]; /* NEVER, FREED or a tag */
static size_t next;

static uintptr_t base_or_reserve(void) {
  uintptr_t base = hak_load_relaxed(&hak_empty_base);
  if (HAK_LIKELY(base != 0)) return base;
  void *fresh = hak_os_map_near(hak_os_random_place(HAK_EMPTY_ALIGN_MAX, BYTES), BYTES, HAK_EMPTY_ALIGN_MAX,
                                HAK_OS_RESERVED);
  if (fresh == NULL) return 0;
  /* Two first calls at once: one of the reservations stays. */
  if (__atomic_compare_exchange_n(&hak_empty_base, &base, (uintptr_t)fresh, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
    return (uintptr_t)fresh;
  hak_os_unmap(fresh, BYTES);
  return base;
}

/* The next place of that alignment: those before it come later, if at all. */
static size_t next_place(size_t apart) {
  size_t found = hak_load_relaxed(&next), place;
  do place = hak_align_up(found, apart);
  while (!__atomic_compare_exchange_n(&next, &found, place + 1, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
  return place % HAK_EMPTY_BLOCKS;
}

void *hak_empty_alloc(size_t align, unsigned tag) {
  HAK_ASSERT(tag != NEVER && tag < FREED);
  if (align > HAK_EMPTY_ALIGN_MAX) return NULL;
  uintptr_t base = base_or_reserve();
  size_t apart = hak_max_size(align / HAK_EMPTY_APART, 1);
  for (unsigned n = 0; base != 0 && n < LOOKED_AT; n++) {
    size_t i = next_place(apart);
    uint8_t found = hak_load_relaxed(&state[i]);
    if (found != NEVER && found != FREED) continue;
    if (__atomic_compare_exchange_n(&state[i], &found, (uint8_t)tag, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
      return (void *)(base + i * HAK_EMPTY_APART);
  }
  return NULL;
}

static unsigned look(const void *p, bool frees, hak_verdict *verdict) {
  HAK_ASSERT(hak_empty_contains(p));
  size_t offset = (uintptr_t)p - hak_load_relaxed(&hak_empty_base);
  uint8_t *s = &state[offset / HAK_EMPTY_APART], found = hak_load_relaxed(s);
  *verdict = HAK_VERDICT_NO_BLOCK_START;
  if (offset % HAK_EMPTY_APART != 0 || found == NEVER) return 0;
  if (frees) found = __atomic_exchange_n(s, FREED, __ATOMIC_RELAXED); /* of two frees at once one finds it freed */
  *verdict = found == FREED ? HAK_VERDICT_DOUBLE_FREE : HAK_VERDICT_OK;
  return found == FREED ? 0 : found;
}

unsigned hak_empty_tag(const void *p, hak_verdict *verdict) { return look(p, false, verdict); }

unsigned hak_empty_free(const void *p, hak_verdict *verdict) { return look(p, true, verdict); }
