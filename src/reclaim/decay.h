/* When memory goes back to the system: decay, and nothing else.
 *
 * Every free page, in whole spans or inside slabs, in thread caches and depots, may stay HAKMEM_DECAY_MS (`decay_ms`;
 * the profile's unless set). Four times in that span whoever comes by a slow path, or the helper thread, takes a look:
 * keep.h says how many dirty spans may stay, and this file purges the others, in steps. So does the free that leaves
 * more dirty than the mark.
 *
 * Purging costs at most one purge of each dirty span a decay time, whatever the load does. A target (budget.h) and
 * memory-lean mode shorten the decay. */
#ifndef HAK_RECLAIM_DECAY_H
#define HAK_RECLAIM_DECAY_H

#include "reclaim/purge.h"

/* Takes what does not change from the settings. */
void hak_decay_start(void);
/* HAKMEM_DECAY_MS may have changed. Where it is 0 now, what is free goes. Caller holds no lock. */
void hak_decay_follow(hak_deferred *deferred);
/* Milliseconds that memory may stay near a target and in memory-lean mode; and a target is looked at as often. */
#define HAK_DECAY_NEAR_MS 250
/* Milliseconds that memory may stay, now; and what threads' caches keep, at least so long: each is walked whole. */
#define HAK_DECAY_CACHE_LEAST_MS 250
uint64_t hak_decay_ms(void);
HAK_INLINE uint64_t hak_decay_cache_ms(void) { return hak_max_size(hak_decay_ms(), HAK_DECAY_CACHE_LEAST_MS); }
/* Called at the end of slow paths, with no lock held, when the clock has moved: where a look is due, takes it, with a
 * step, and returns true. */
bool hak_decay_tick(uint64_t now_ms, hak_deferred *deferred);
/* When it has not, and a cache has not served the request: sees whether spans or mappings were taken. */
void hak_decay_note_takes(uint64_t now_ms);
/* While a program works, so much may stay dirty: it is not worth calls, which a program may be forbidden to make
 * (SECCOMP_MODE_STRICT). After a decay time without slow paths, and where there is the helper, it goes too. Constant;
 * tests have their own. */
extern size_t hak_decay_worth_spans;
extern size_t hak_decay_goal; /* relaxed: spans that may stay dirty */
extern bool hak_decay_kept_due; /* relaxed: of what is kept some has to go */
/* Whether a step is left to do; it is done at the end of any slow path. */
HAK_INLINE bool hak_decay_step_due(void) {
  return HAK_UNLIKELY(hak_load_relaxed(&hak_decay_goal) != SIZE_MAX || hak_load_relaxed(&hak_decay_kept_due));
}
/* That, or memory waits for its time. */
bool hak_decay_waits(void);
void hak_decay_step(uint64_t now_ms, bool all);
/* The calling thread ends, and has given back what it cached. Where it is the last that worked, and did so for a decay
 * time, the first thread may wait from now on, and nobody come by: so it empties depots, gives empty slabs back, and
 * purges what is not worth keeping, four steps at most. Beside others it does not: they may be at what they have just
 * freed. Caller holds no lock. */
void hak_decay_thread_end(uint64_t lived_ms, hak_deferred *deferred);
/* More is dirty than the mark, or than the target leaves room for. Caller holds no lock. */
void hak_decay_excess(hak_deferred *deferred);
/* Purges all but keep_bytes; returns the bytes. */
size_t hak_decay_all(size_t keep_bytes, hak_deferred *deferred);
/* Where the system limits addresses, accessible memory or its promises (RLIMIT_AS, RLIMIT_DATA, vm.overcommit_memory
 * 2), free memory becomes inaccessible: all that is free, once the system has refused a request or the program trims,
 * and by and by what is purged and stays so. Returns the bytes. Caller holds no lock. */
size_t hak_decay_for_limit(void);
/* So many free spans stay, from now on until as many more are in use or all free memory is purged; but near a target.
 * 0: none. */
void hak_decay_reserve(size_t spans);
/* The target lacks memory: free pages of slabs too. Caller holds no lock. */
HAK_COLD void hak_decay_for_target(hak_deferred *deferred);

/* Nearly all that is accessible is held, some of it by caches: empties those, the calling thread's and the shared ones.
 * Caller holds no lock. */
HAK_COLD void hak_decay_make_room(hak_deferred *deferred);

/* In the child of a fork: another thread's look has ended with it. */
void hak_decay_fork_child(void);

/* The helper thread's futex word: 1 while it sleeps until there is something to do; who makes some sets 0 and wakes
 * it. */
extern uint32_t hak_decay_sleeper;
void hak_decay_wake_helper(void);
/* Relaxed: bytes in depots and of large memory that is kept. */
size_t hak_decay_idle_bytes(void);
/* Before the helper sleeps: whether there is something to purge. Lowers the mark, so that the next free of spans wakes
 * it. */
bool hak_decay_has_work(void);
/* The helper does not sleep, or has slept: the mark is what it was before. */
void hak_decay_stay_awake(void);

#endif
