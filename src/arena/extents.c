/* Freed extents that an arena keeps for its next requests: the pool costs one lock for all threads, and a search. An extent
 * lies in the cache of the arena that freed it, with the page map code of a freed one. */
#include "arena/arena.h"
#include "base/schedule.h"
#include "config/config.h"
#include "large/extent.h"
#include "pool/span_pool.h"

size_t hak_extent_cache_bytes;

#define EXACT_LISTS 8 /* of so many spans and fewer: one list a size */

/* The list of extents of so many spans. */
static unsigned list_of(size_t spans) {
  if (spans <= EXACT_LISTS) return (unsigned)spans - 1;
  unsigned doubling = 63 - (unsigned)__builtin_clzll(spans); /* 3: 8 to 15 spans */
  unsigned quarter = (unsigned)(spans >> (doubling - 2)) & 3;
  return EXACT_LISTS - 1 + (doubling - 3) * 4 + quarter;
}

static size_t bytes_of(const hak_span *s) { return (size_t)s->span_count << HAK_SPAN_SHIFT; }

static hak_span *pop(hak_extent_cache *cache, hak_extent_list *list) {
  hak_assert_held(&cache->lock);
  HAK_ASSERT(list->count > 0 && cache->count > 0);
  hak_span *s = list->newest;
  list->newest = s->next;
  list->count--;
  list->low = (uint32_t)hak_min_size(list->low, list->count);
  hak_sub_single(&cache->count, 1);
  hak_sub_relaxed(&hak_extent_cache_bytes, bytes_of(s));
  return s;
}

/* Of the newest extents of the lists, the first of at least `spans` and at most a quarter more. */
static hak_span *take_locked(hak_extent_cache *cache, size_t spans) {
  hak_assert_held(&cache->lock);
  size_t most = spans + spans / 4;
  for (unsigned i = list_of(spans), last = (unsigned)hak_min_size(list_of(most), HAK_EXTENT_LISTS - 1); i <= last; i++) {
    const hak_span *s = cache->lists[i].newest;
    if (s != NULL && s->span_count >= spans && s->span_count <= most) return pop(cache, &cache->lists[i]);
  }
  return NULL;
}

void *hak_arena_take_extent(size_t size) {
  size_t spans = hak_extent_spans(size);
  uint32_t count = hak_arena_count(), own = hak_arena_current()->id;
  hak_span *s = NULL;
  for (uint32_t i = 0; s == NULL && i < count; i++) {
    uint32_t id = own + i < count ? own + i : own + i - count;
    hak_extent_cache *cache = &hak_arena_at(id)->extents;
    if (hak_load_relaxed(&cache->count) == 0) continue;
    if (id == own)
      hak_lock_take(&cache->lock);
    else if (!hak_lock_try(&cache->lock))
      continue;
    s = take_locked(cache, spans);
    hak_lock_drop(&cache->lock);
  }
  if (s == NULL) return NULL;
  HAK_SCHEDULE_POINT("extent: out of its cache, not the program's yet");
  void *p = (void *)s->start;
  hak_extent_reuse(p, size);
  return p;
}

/* This, or an eighth of what the program holds. */
#define BYTES_LEAST (16 * HAK_MIB)
#define LIVE_PART 8

static bool has_room(size_t bytes) {
  size_t part = (hak_load_relaxed(&hak_span_pool.live_spans) << HAK_SPAN_SHIFT) / LIVE_PART;
  return hak_arena_has_room(hak_load_relaxed(&hak_extent_cache_bytes), bytes, hak_max_size(BYTES_LEAST, part));
}

bool hak_arena_put_extent(void *p) {
  hak_span *s = hak_region_span(hak_region_find(p), p);
  unsigned i = list_of(s->span_count);
  if (i >= HAK_EXTENT_LISTS || hak_config.hot_ring_enable == 0 || !has_room(bytes_of(s))) return false;
  hak_extent_cache *cache = &hak_arena_current()->extents;
  hak_lock_take(&cache->lock);
  s->next = cache->lists[i].newest;
  cache->lists[i].newest = s;
  cache->lists[i].count++;
  hak_add_single(&cache->count, 1);
  hak_add_relaxed(&hak_extent_cache_bytes, bytes_of(s));
  hak_lock_drop(&cache->lock);
  return true;
}

static void give(hak_span *s, hak_deferred *d) { hak_extent_give((void *)s->start, &d->purge_due); }

void hak_arena_shrink_extents(hak_arena *a, bool all, hak_deferred *d) {
  hak_extent_cache *cache = &a->extents;
  for (unsigned i = 0; i < HAK_EXTENT_LISTS; i++) {
    hak_extent_list *list = &cache->lists[i];
    hak_lock_take(&cache->lock);
    for (uint32_t n = all ? list->count : list->low; n > 0 && list->newest != NULL; n--) {
      hak_span *s = pop(cache, list);
      hak_lock_drop(&cache->lock);
      give(s, d);
      hak_lock_take(&cache->lock);
    }
    list->low = list->count;
    hak_lock_drop(&cache->lock);
  }
}
