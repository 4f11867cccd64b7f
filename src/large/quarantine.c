#include "large/quarantine.h"

#include "large/guard_pages.h"

/* Addresses that wait are one mapping each, and no memory: a terabyte is little of them. Where addresses are limited
 * (RLIMIT_AS), the program needs them itself. */
#define BYTES_MAX ((size_t)1 << 40)
#define BYTES_LIMITED (64 * HAK_MIB)

hak_freed_list hak_quarantined;

/* The oldest first. What is put in meanwhile by a function in munmap's place is no more than there was. */
static void release_down_to(size_t bytes) {
  for (size_t i = 0; i < HAK_FREED_MAX; i++) {
    hak_freed old = {0};
    hak_lock_take(&hak_huge_lock);
    if (hak_quarantined.bytes > bytes) old = hak_freed_remove(&hak_quarantined, 0);
    hak_lock_drop(&hak_huge_lock);
    if (old.p == NULL) return;
    hak_guard_pages_unmap(old.p, old.bytes);
  }
}

void hak_mapping_quarantine(void *p, size_t bytes) {
  HAK_ASSERT(p != NULL && bytes > 0);
  if (!hak_os_seal(p, bytes)) {
    hak_guard_pages_unmap(p, bytes);
    return;
  }
  hak_freed old = {0};
  hak_lock_take(&hak_huge_lock);
  if (hak_quarantined.count == HAK_FREED_MAX) old = hak_freed_remove(&hak_quarantined, 0);
  hak_freed_put(&hak_quarantined, (hak_freed){p, bytes, 0});
  size_t all_bytes = hak_quarantined.bytes;
  hak_lock_drop(&hak_huge_lock);
  if (old.p != NULL) hak_guard_pages_unmap(old.p, old.bytes);
  if (all_bytes > BYTES_LIMITED) release_down_to(hak_os_is_limited(HAK_OS_ADDRESS_SPACE) ? BYTES_LIMITED : BYTES_MAX);
}

void hak_mapping_quarantine_release(void) { release_down_to(0); }
