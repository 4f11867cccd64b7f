#include "profile/pinned.h"

#include "os/os.h"
#include "tcache/cache.h"

/* Bytes of the block that lie on [from, to). */
static size_t overlap(uintptr_t block, size_t size, uintptr_t from, uintptr_t to) {
  uintptr_t first = hak_max_size(block, from), end = hak_min_size(block + size, to);
  return end > first ? end - first : 0;
}

static bool is_free(const hak_span *s, size_t i) {
  return i >= s->bumped || (hak_load_relaxed(&s->bits[i / 64]) >> (i % 64) & 1) != 0;
}

/* Under the lock of the slab's bin. Each page's free bytes go to the blocks on it in proportion to what they have of it. */
static double share_locked(const hak_span *s, size_t size, uintptr_t p) {
  HAK_ASSERT(p >= s->start && (p - s->start) % size == 0 && (p - s->start) / size < s->blocks);
  size_t page = hak_os_page_size();
  double share = 0;
  for (uintptr_t from = hak_align_down(p, page); from < p + size; from += page) {
    size_t used = 0, first = from <= s->start ? 0 : (from - s->start) / size;
    for (size_t i = first; i < s->blocks && s->start + i * size < from + page; i++)
      if (!is_free(s, i)) used += overlap(s->start + i * size, size, from, from + page);
    if (used > 0) share += (double)(page - used) * (double)overlap(p, size, from, from + page) / (double)used;
  }
  return share;
}

double hak_pinned_beside(const void *p) {
  const hak_region *r = hak_region_find(p);
  const hak_span *s = hak_region_span(r, p);
  uint32_t tag = hak_load_relaxed(&s->tag), id = HAK_TAG_OWNER(tag) - 1;
  if (id >= hak_arena_count()) return 0;
  unsigned c = HAK_TAG_CODE(tag) - 1;
  HAK_ASSERT(c < HAK_CLASS_COUNT);
  hak_lock *lock = &hak_arena_at(id)->bins[c].lock;
  hak_lock_take(lock);
  double share = share_locked(s, hak_class_size(c), (uintptr_t)p);
  hak_lock_drop(lock);
  return share;
}
