/* The one place where pages go back to the system: free spans of the pool, and free pages inside slabs. Mechanism only;
 * decay.h says when and how much. A range is claimed under a lock, advised with no lock held, and put back. */
#ifndef HAK_RECLAIM_PURGE_H
#define HAK_RECLAIM_PURGE_H

#include "tcache/tcache.h"

/* Relaxed. */
struct hak_purge_stats {
  uint64_t purges; /* ranges */
  uint64_t bytes;
  uint64_t purged_slab_pages; /* of them, inside slabs */
};
extern struct hak_purge_stats hak_purge_stats;

/* Purges dirty spans until at most keep_spans are: whole huge pages first, from the highest address down. `lazily`: the
 * kernel may take its time. Returns how many went. Caller holds no lock. */
size_t hak_purge_spans(size_t keep_spans, bool lazily);

/* Purges free pages of the arena's slabs: of those that stayed as they were since the call before this one, or of all
 * (`at_once`), until `wanted` bytes have gone. Returns the bytes. Caller holds no lock. */
size_t hak_purge_slabs(hak_arena *arena, unsigned round, bool at_once, size_t wanted, hak_deferred *deferred);

/* Once a decay time: chunks of which a part stays purged, and to which nothing came back for `looks`, ask for huge
 * pages no more. Caller holds no lock. */
void hak_purge_settle_chunks(uint32_t looks);

/* Makes free memory inaccessible, as pool/absent.h says: all of it that lies in long ranges, and what is reserved
 * ahead, or clean spans beside which nothing came back for `looks`. Returns the bytes. Caller holds no lock. */
size_t hak_purge_withdraw_all(size_t limit_bytes);
size_t hak_purge_withdraw_idle(uint32_t looks);

/* Whether the system refused the last range, as it does for locked memory. */
bool hak_purge_refused(void);

/* fork: who is in the middle of a slab; and in the child, its blocks. */
void hak_purge_fork_lock(void);
void hak_purge_fork_unlock(void);
void hak_purge_fork_child(void);

#endif
