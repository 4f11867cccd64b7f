#include "large/fenced.h"

#include "base/bits.h"
#include "large/huge.h"
#include "os/os.h"
#include "region/size_class.h"

/* Addresses that wait are one mapping each, and no memory. */
#define RETIRED_MAX 256
#define RETIRED_BYTES_MAX (64 * HAK_GIB)

typedef struct retired {
  void *p; /* NULL: none */
  size_t bytes;
} retired;
static retired list[RETIRED_MAX]; /* a ring */
static size_t next, retired_bytes;

static size_t fenced_bytes(size_t bytes) { return bytes + 2 * HAK_FENCE_BYTES; }

bool hak_fenced_reaches(const void *p, size_t bytes, const void *address) {
  return (uintptr_t)address - ((uintptr_t)p - HAK_FENCE_BYTES) < fenced_bytes(bytes);
}

bool hak_fenced_unmap(void *p, size_t bytes) { return hak_os_unmap((char *)p - HAK_FENCE_BYTES, fenced_bytes(bytes)); }

void *hak_fenced_map(size_t bytes, size_t align) {
  size_t before = hak_max_size(HAK_FENCE_BYTES, align), all;
  if (__builtin_add_overflow(before + HAK_FENCE_BYTES, bytes, &all)) return NULL;
  char *reserved = hak_os_reserve(all, hak_max_size(align, hak_os_page_size()));
  if (reserved == NULL) return NULL;
  if (!hak_os_commit(reserved + before, bytes)) {
    hak_os_unmap(reserved, all);
    return NULL;
  }
  if (before > HAK_FENCE_BYTES) hak_os_unmap(reserved, before - HAK_FENCE_BYTES);
  return reserved + before;
}

/* Puts one in, and takes the oldest out where it is full. */
static retired exchange(void *p, size_t bytes) {
  hak_lock_take(&hak_huge_lock);
  retired old = list[next];
  list[next] = (retired){p, bytes};
  next = (next + 1) % RETIRED_MAX;
  retired_bytes += bytes - old.bytes;
  hak_lock_drop(&hak_huge_lock);
  return old;
}

static retired take_oldest(size_t allowed_bytes) {
  retired old = {NULL, 0};
  hak_lock_take(&hak_huge_lock);
  for (size_t i = 0; retired_bytes > allowed_bytes && i < RETIRED_MAX && old.p == NULL; i++) {
    retired *r = &list[(next + i) % RETIRED_MAX];
    old = *r;
    *r = (retired){NULL, 0};
    retired_bytes -= old.bytes;
  }
  hak_lock_drop(&hak_huge_lock);
  return old;
}

static void release_down_to(size_t bytes) {
  for (retired old; (old = take_oldest(bytes)).p != NULL;) hak_fenced_unmap(old.p, old.bytes);
}

void hak_fenced_retire(void *p, size_t bytes) {
  if (!hak_os_seal(p, bytes)) {
    hak_fenced_unmap(p, bytes);
    return;
  }
  retired old = exchange(p, bytes);
  if (old.p != NULL) hak_fenced_unmap(old.p, old.bytes);
  release_down_to(RETIRED_BYTES_MAX);
}

void hak_fenced_release(void) { release_down_to(0); }

const void *hak_fenced_retired(const void *p, size_t *bytes) {
  hak_assert_held(&hak_huge_lock);
  for (size_t i = 0; i < RETIRED_MAX; i++) {
    if (list[i].p == NULL || (uintptr_t)p - (uintptr_t)list[i].p >= list[i].bytes) continue;
    *bytes = list[i].bytes;
    return list[i].p;
  }
  return NULL;
}
