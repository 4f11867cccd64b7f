/* Absent spans: free ones whose addresses went back to the system, because it limits what a process may have: RLIMIT_AS
 * counts what is mapped, RLIMIT_DATA and the charge of vm.overcommit_memory 2 what is or was writable, touched or not.
 * They serve again, before the region grows, when the system grants their addresses and memory; what somebody else has
 * mapped there meanwhile is lost.
 *
 * Spans become absent under the pool lock, before they are unmapped with no lock held: whoever has memory at their
 * addresses finds them absent (region.h). One range at a time is on its way; a fork's child finishes it. */
#ifndef HAK_POOL_ABSENT_H
#define HAK_POOL_ABSENT_H

#include "pool/counters.h"

/* Unmaps the chunk's next free range from span *at on that is long enough; where `clean`, of clean spans alone, in
 * words to which nothing came back for `looks`. Moves *at behind it. Returns the bytes that went; 0: there is none.
 * Caller holds no lock. */
size_t hak_pool_withdraw(hak_region *region, size_t chunk, size_t *at, bool clean, uint32_t looks);

/* What is reserved and not accessible, of all regions, and of their tables what describes more than limit_bytes.
 * Returns the bytes. Caller holds no lock. */
size_t hak_pool_give_back_reserved(size_t limit_bytes);

/* Makes a range accessible again in which `spans` fit, aligned, and which are free then. False: none. Caller holds the
 * pool lock. */
bool hak_pool_restore(size_t spans, size_t align_spans);

void hak_absent_fork_child(void);

#endif
