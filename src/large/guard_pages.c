#include "large/guard_pages.h"

#include "base/bits.h"
#include "large/huge.h"
#include "os/os.h"
#include "region/size_class.h"

/* Addresses that wait are one mapping each, and no memory. */
#define QUARANTINED_MAX 256
#define QUARANTINED_BYTES_MAX (64 * HAK_GIB)

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

void *hak_guard_pages_map(size_t bytes, size_t align) {
  size_t before = hak_max_size(HAK_GUARD_PAGES_BYTES, align), all;
  if (__builtin_add_overflow(before + HAK_GUARD_PAGES_BYTES, bytes, &all)) return NULL;
  char *reserved = hak_os_reserve(all, hak_max_size(align, hak_os_page_size()));
  if (reserved == NULL) return NULL;
  if (!hak_os_commit(reserved + before, bytes)) {
    hak_os_unmap(reserved, all);
    return NULL;
  }
  if (before > HAK_GUARD_PAGES_BYTES) hak_os_unmap(reserved, before - HAK_GUARD_PAGES_BYTES);
  return reserved + before;
}

/* Puts one in, and takes the oldest out where it is full. */
static quarantined exchange(void *p, size_t bytes) {
  hak_lock_take(&hak_huge_lock);
  quarantined old = list[next];
  list[next] = (quarantined){p, bytes};
  next = (next + 1) % QUARANTINED_MAX;
  quarantined_bytes += bytes - old.bytes;
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
  for (quarantined old; (old = take_oldest(bytes)).p != NULL;) hak_guard_pages_unmap(old.p, old.bytes);
}

void hak_guard_pages_quarantine(void *p, size_t bytes) {
  if (!hak_os_seal(p, bytes)) {
    hak_guard_pages_unmap(p, bytes);
    return;
  }
  quarantined old = exchange(p, bytes);
  if (old.p != NULL) hak_guard_pages_unmap(old.p, old.bytes);
  release_down_to(QUARANTINED_BYTES_MAX);
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
