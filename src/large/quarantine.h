/* Hardened build: freed huge blocks. The memory goes at once; the addresses stay inaccessible until HAK_FREED_MAX
 * others were freed. */
#ifndef HAK_LARGE_QUARANTINE_H
#define HAK_LARGE_QUARANTINE_H

#include "large/mapping.h"

extern hak_freed_list hak_quarantined;

/* The memory goes, the addresses wait. Takes the lock. */
void hak_mapping_quarantine(void *p, size_t bytes);
/* Gives up all addresses that wait. Takes the lock. */
void hak_mapping_quarantine_release(void);

#endif
