/* What the lists of mappings share: live ones (huge.c), kept ones (kept.c) and, in the hardened build, those in quarantine. */
#ifndef HAK_LARGE_MAPPING_H
#define HAK_LARGE_MAPPING_H

#include <stdbool.h>
#include <stddef.h>

#include "pool/budget.h"

/* Of all three lists. Leaf rank, never held across a system call. */
extern hak_lock hak_huge_lock;

/* Gives a mapping, or a piece at its end, that is in no list back. */
bool hak_huge_unmap(void *p, size_t bytes);

#endif
