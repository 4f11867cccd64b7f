#include "large/guard_pages.h"

#include "base/atomic.h"
#include "base/bits.h"
#include "large/huge.h"
#include "os/os.h"
#include "region/region.h"
#include "region/size_class.h"

/* Addresses that wait are one mapping each, and no memory. */
#define QUARANTINED_MAX 256
#define QUARANTINED_BYTES_MAX (64 * HAK_GIB)
#define QUARANTINED_BYTES_LIMITED (64 * HAK_MIB) /* where addresses are limited (RLIMIT_AS), the program needs them itself */

typedef struct quarantined {
  void *p; /* NULL: none */
  size_t bytes;
} quarantined;
static quarantined list[QUARANTINED_MAX]; /* a ring */
static size_t next, quarantined_bytes;

static size_t mapped_bytes(size_t bytes) { return bytes + 2 * HAK_GUARD_PAGES_BYTES; }

bool hak_guard_pages_reach(const void *p, size_t bytes, const void *address) {
  return (uintptr_t)address - ((uintptr_t)p - HAK_GUARD_PAGES_BYTES) < mapped_bytes(bytes);
}

bool hak_guard_pages_unmap(void *p, size_t bytes) { return hak_os_unmap((char *)p - HAK_GUARD_PAGES_BYTES, mapped_bytes(bytes)); }

/* Blocks follow each other from an address on that was drawn at random, each with as much room behind it as it takes: there it may grow.
 * Only hints: two threads may use one, and the kernel puts the second block elsewhere. */
#define ZONE_BYTES (1024 * HAK_GIB)
static uintptr_t zone; /* relaxed; 0: none yet */
static size_t zone_used = ZONE_BYTES;

static uintptr_t place_for(size_t all, size_t align, size_t room) {
  size_t step = hak_align_up(all + room, hak_max_size(align, HAK_GUARD_PAGES_BYTES));
  if (step > ZONE_BYTES) return 0;
  size_t used = hak_load_relaxed(&zone_used);
  if (used > ZONE_BYTES - step) {
    hak_store_relaxed(&zone, hak_os_random_place(HAK_HUGE_PAGE, ZONE_BYTES));
    used = 0;
  }
  hak_store_relaxed(&zone_used, used + step);
  uintptr_t start = hak_load_relaxed(&zone);
  return start == 0 ? 0 : hak_align_up(start + used, align);
}

/* `inner` of `all` bytes accessible, from `offset` on. */
static void *map_part(size_t all, size_t align, size_t offset, size_t inner) {
  char *reserved = hak_os_reserve_near(place_for(all, align, all), all, align);
  if (reserved == NULL || hak_os_commit(reserved + offset, inner)) return reserved;
  hak_os_unmap_own(reserved, all);
  return NULL;
}

void *hak_guard_pages_map(size_t bytes, size_t align, bool wanted) {
  static hak_os_refusal refused; /* mappings for guard pages */
  size_t before = hak_max_size(HAK_GUARD_PAGES_BYTES, align), all;
  if (__builtin_add_overflow(before + HAK_GUARD_PAGES_BYTES, bytes, &all)) return NULL;
  align = hak_max_size(align, hak_os_page_size());
  wanted = wanted && !hak_os_refused_lately(&refused);
  char *start = wanted ? map_part(all, align, before, bytes) : NULL;
  if (start == NULL) {
    start = hak_os_map_near(place_for(all, align, 0), all, align);
    if (start == NULL) return NULL;
    if (wanted) hak_os_note_refusal(&refused);
  }
  if (before > HAK_GUARD_PAGES_BYTES) hak_os_unmap_own(start, before - HAK_GUARD_PAGES_BYTES);
  return start + before;
}

bool hak_guard_pages_resize(void *p, size_t old_bytes, size_t bytes) {
  char *start = p;
  size_t change = bytes > old_bytes ? bytes - old_bytes : old_bytes - bytes;
  if (bytes > old_bytes) {
    char *end = start + old_bytes + HAK_GUARD_PAGES_BYTES;
    if (!hak_os_extend(end, change)) return false;
    if (hak_os_commit(start + old_bytes, change)) return true;
    hak_os_unmap(end, change);
    return false;
  }
  if (!hak_os_seal(start + bytes, change)) return false;
  hak_os_unmap(start + bytes + HAK_GUARD_PAGES_BYTES, change); /* else the addresses are lost */
  return true;
}

/* Puts one in, and takes the oldest out where it is full. */
static quarantined exchange(void *p, size_t bytes, size_t *all_bytes) {
  hak_lock_take(&hak_huge_lock);
  quarantined old = list[next];
  list[next] = (quarantined){p, bytes};
  next = (next + 1) % QUARANTINED_MAX;
  quarantined_bytes += bytes - old.bytes;
  *all_bytes = quarantined_bytes;
  hak_lock_drop(&hak_huge_lock);
  return old;
}

static quarantined take_oldest(size_t allowed_bytes) {
  quarantined old = {NULL, 0};
  hak_lock_take(&hak_huge_lock);
  for (size_t i = 0; quarantined_bytes > allowed_bytes && i < QUARANTINED_MAX && old.p == NULL; i++) {
    quarantined *r = &list[(next + i) % QUARANTINED_MAX];
    old = *r;
    *r = (quarantined){NULL, 0};
    quarantined_bytes -= old.bytes;
  }
  hak_lock_drop(&hak_huge_lock);
  return old;
}

static void release_down_to(size_t bytes) {
  quarantined old; /* of what is put in meanwhile by a function in munmap's place, no more than there was */
  for (size_t i = 0; i < QUARANTINED_MAX && (old = take_oldest(bytes)).p != NULL; i++) hak_guard_pages_unmap(old.p, old.bytes);
}

void hak_guard_pages_quarantine(void *p, size_t bytes) {
  if (!hak_os_seal(p, bytes)) {
    hak_guard_pages_unmap(p, bytes);
    return;
  }
  size_t all_bytes;
  quarantined old = exchange(p, bytes, &all_bytes);
  if (old.p != NULL) hak_guard_pages_unmap(old.p, old.bytes);
  if (all_bytes > QUARANTINED_BYTES_LIMITED)
    release_down_to(hak_os_address_space_is_limited() ? QUARANTINED_BYTES_LIMITED : QUARANTINED_BYTES_MAX);
}

void hak_guard_pages_release(void) { release_down_to(0); }

const void *hak_guard_pages_quarantined(const void *p, size_t *bytes) {
  hak_assert_held(&hak_huge_lock);
  for (size_t i = 0; i < QUARANTINED_MAX; i++) {
    if (list[i].p == NULL || (uintptr_t)p - (uintptr_t)list[i].p >= list[i].bytes) continue;
    *bytes = list[i].bytes;
    return list[i].p;
  }
  return NULL;
}
