/* What the lists of mappings share: live ones (huge.c), kept ones (kept.c) and, in the hardened build, those in
 * quarantine. */
#ifndef HAK_LARGE_MAPPING_H
#define HAK_LARGE_MAPPING_H

#include <stdbool.h>
#include <stddef.h>

#include "pool/budget.h"

/* Of all three lists. Leaf rank, never held across a system call. */
extern hak_lock hak_huge_lock;

/* Gives a mapping, or a piece at its end, that is in no list back. */
bool hak_huge_unmap(void *p, size_t bytes);

/* Freed mappings that are in the table no more, the latest last. */
#define HAK_FREED_MAX 256
typedef struct hak_freed {
  void *p; /* NULL: there is none */
  size_t bytes;
  uint64_t since_ms;
  bool huge_pages; /* kept ones: the kernel may give it some */
} hak_freed;
typedef struct hak_freed_list {
  hak_freed all[HAK_FREED_MAX];
  size_t count, bytes; /* bytes: read by any thread, relaxed */
} hak_freed_list;

/* Caller holds the lock. False: the list is full. */
bool hak_freed_put(hak_freed_list *list, hak_freed mapping);
hak_freed hak_freed_remove(hak_freed_list *list, size_t i);
/* The one that p lies in, or NULL. */
const hak_freed *hak_freed_around(const hak_freed_list *list, const void *p);

#endif
