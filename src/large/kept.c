#include "large/kept.h"

#include "pool/budget.h"

/* A block that is larger than the request by this part serves it, and keeping may add this part to what was in use. */
#define LARGER_PART 4

hak_freed_list hak_kept;
static size_t peak_now, peak_before; /* the most in use since the last turn, and between the two before */
bool hak_kept_no_mappings;

/* What threads' caches and depots hold is in use here. */
static size_t in_use(void) {
  size_t held = hak_budget_in_use(), idle = hak_kept_bytes();
  return held > idle ? held - idle : 0;
}

/* Bytes that may be kept when `use` is in use. */
static size_t room_beside(size_t use) {
  hak_assert_held(&hak_huge_lock);
  peak_now = hak_max_size(peak_now, in_use());
  size_t peak = hak_max_size(hak_max_size(peak_now, peak_before), use);
  HAK_ASSERT(peak >= use);
  return hak_budget_near_now() || hak_load_relaxed(&hak_kept_no_mappings) ? 0 : peak + peak / LARGER_PART - use;
}

/* Bytes that are kept beyond that when so many more are in use: which the system may yet refuse. */
static size_t excess_locked(size_t more) {
  size_t room = room_beside(in_use() + more), idle = hak_kept_bytes();
  return idle > room ? idle - room : 0;
}

bool hak_kept_put(void *p, size_t bytes, bool huge_pages, bool *over) {
  if (hak_config_lean() || hak_load_relaxed(&hak_config.decay_ms) == 0 || hak_budget_near_now() ||
      hak_load_relaxed(&hak_kept_no_mappings))
    return false;
  hak_freed r = {p, bytes, hak_os_now_ms(), huge_pages};
  hak_lock_take(&hak_huge_lock);
  room_beside(0); /* what is in use is most now */
  bool done = hak_freed_put(&hak_kept, r);
  *over |= excess_locked(0) > 0;
  hak_lock_drop(&hak_huge_lock);
  return done;
}

/* The tightest, and of those the latest. */
hak_freed hak_kept_take(size_t size, size_t align) {
  hak_freed found = {0};
  HAK_ASSERT(hak_is_pow2(align));
  if (hak_kept_bytes() == 0) return found;
  size_t best = HAK_FREED_MAX, most = hak_max_size(size + size / LARGER_PART, hak_align_up(size, HAK_SPAN_SIZE));
  hak_lock_take(&hak_huge_lock);
  for (size_t i = hak_kept.count; i-- > 0;) {
    const hak_freed *r = &hak_kept.all[i];
    if (r->bytes < size || r->bytes > most || ((uintptr_t)r->p & (align - 1)) != 0) continue;
    if (best == HAK_FREED_MAX || r->bytes < hak_kept.all[best].bytes) best = i;
    if (r->bytes - size < hak_os_page_size()) break;
  }
  if (best < HAK_FREED_MAX) found = hak_freed_remove(&hak_kept, best);
  hak_lock_drop(&hak_huge_lock);
  return found;
}

void hak_kept_replace(size_t size, size_t align) {
  hak_freed r = hak_kept_take(size, align);
  if (r.p != NULL) hak_huge_unmap(r.p, r.bytes);
}

/* The oldest, if it came until then or so much is kept too much, or a piece of `most_bytes` at the end of it. p is NULL
 * where there is none. */
static hak_freed take_oldest(uint64_t until_ms, size_t most_bytes, size_t excess) {
  hak_assert_held(&hak_huge_lock);
  hak_freed *oldest = &hak_kept.all[0];
  if (hak_kept.count == 0 || most_bytes == 0 || (oldest->since_ms > until_ms && excess == 0)) return (hak_freed){0};
  if (oldest->bytes <= most_bytes) return hak_freed_remove(&hak_kept, 0);
  HAK_ASSERT(hak_kept.bytes >= oldest->bytes);
  oldest->bytes -= most_bytes;
  hak_sub_single(&hak_kept.bytes, most_bytes);
  return (hak_freed){(char *)oldest->p + oldest->bytes, most_bytes, 0, false};
}

void hak_kept_make_room(size_t bytes) {
  if (hak_kept_bytes() == 0) return;
  for (size_t goes = bytes; goes > 0;) {
    hak_lock_take(&hak_huge_lock);
    size_t excess = excess_locked(bytes);
    hak_freed r = {0};
    if (excess > 0) r = take_oldest(0, hak_min_size(goes, hak_align_up(excess, hak_os_page_size())), excess);
    hak_lock_drop(&hak_huge_lock);
    if (r.p == NULL) return;
    hak_huge_unmap(r.p, r.bytes);
    goes -= r.bytes;
  }
}

size_t hak_kept_release(uint64_t until_ms, size_t most_bytes, bool *left) {
  size_t gone = 0;
  for (hak_freed r = {.p = &hak_kept}; r.p != NULL; gone += r.bytes) {
    hak_lock_take(&hak_huge_lock);
    size_t excess = excess_locked(0);
    r = take_oldest(until_ms, most_bytes - gone, excess);
    *left = hak_kept.count > 0 && (excess > 0 || hak_kept.all[0].since_ms <= until_ms);
    hak_lock_drop(&hak_huge_lock);
    if (r.p != NULL) hak_huge_unmap(r.p, r.bytes);
  }
  return gone;
}

void hak_kept_turn(void) {
  hak_lock_take(&hak_huge_lock);
  peak_before = peak_now;
  peak_now = 0;
  hak_lock_drop(&hak_huge_lock);
}
