/* Hardened build: freed huge blocks. The memory goes at once; the addresses stay inaccessible until so many others were freed. The ring of
 * them is under hak_huge_lock. */
#ifndef HAK_LARGE_QUARANTINE_H
#define HAK_LARGE_QUARANTINE_H

#include <stdbool.h>
#include <stddef.h>

/* The memory goes, the addresses wait. Takes the lock. */
void hak_mapping_quarantine(void *p, size_t bytes);
/* Gives up all addresses that wait. Takes the lock. */
void hak_mapping_quarantine_release(void);
/* The quarantined block that p lies in, or NULL. Under the lock. */
const void *hak_mapping_quarantined(const void *p, size_t *bytes);

#endif
