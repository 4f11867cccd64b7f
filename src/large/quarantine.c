#include "large/quarantine.h"

#include "large/guard_pages.h"
#include "large/mapping.h"

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

/* Puts one in, and takes the oldest out where it is full. */
static quarantined exchange(void *p, size_t bytes, size_t *all_bytes) {
  hak_lock_take(&hak_huge_lock);
  HAK_ASSERT(next < QUARANTINED_MAX && quarantined_bytes >= list[next].bytes);
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
    HAK_ASSERT(quarantined_bytes >= old.bytes);
    quarantined_bytes -= old.bytes;
  }
  hak_lock_drop(&hak_huge_lock);
  return old;
}

static void release_down_to(size_t bytes) {
  quarantined old; /* of what is put in meanwhile by a function in munmap's place, no more than there was */
  for (size_t i = 0; i < QUARANTINED_MAX && (old = take_oldest(bytes)).p != NULL; i++) hak_guard_pages_unmap(old.p, old.bytes);
}

void hak_mapping_quarantine(void *p, size_t bytes) {
  if (!hak_os_seal(p, bytes)) {
    hak_guard_pages_unmap(p, bytes);
    return;
  }
  size_t all_bytes;
  quarantined old = exchange(p, bytes, &all_bytes);
  if (old.p != NULL) hak_guard_pages_unmap(old.p, old.bytes);
  if (all_bytes > QUARANTINED_BYTES_LIMITED)
    release_down_to(hak_os_is_limited(HAK_OS_ADDRESS_SPACE) ? QUARANTINED_BYTES_LIMITED : QUARANTINED_BYTES_MAX);
}

void hak_mapping_quarantine_release(void) { release_down_to(0); }

const void *hak_mapping_quarantined(const void *p, size_t *bytes) {
  hak_assert_held(&hak_huge_lock);
  for (size_t i = 0; i < QUARANTINED_MAX; i++) {
    if (list[i].p == NULL || (uintptr_t)p - (uintptr_t)list[i].p >= list[i].bytes) continue;
    *bytes = list[i].bytes;
    return list[i].p;
  }
  return NULL;
}
