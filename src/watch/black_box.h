/* When a heap profile is kept because a limit is near, beyond which the kernel ends the process or requests fail
 * (HAKMEM_HEAP_PROFILE_NEAR_LIMIT). The profile's thread looks once a second, and when a sample finds that what is in
 * use has grown to the watch: the thread that drew the sample waits until it has looked, so that what allocates fast
 * does not meet the limit before. Files are profiler.c's. */
#ifndef HAK_WATCH_BLACK_BOX_H
#define HAK_WATCH_BLACK_BOX_H

#include "reclaim/decay.h"

/* Bytes in use from which on a profile is due; SIZE_MAX: never. Relaxed; written by the profile's thread. */
extern size_t hak_black_box_watch;
HAK_INLINE bool hak_black_box_is_due(void) {
  return HAK_UNLIKELY(hak_budget_in_use() >= hak_load_relaxed(&hak_black_box_watch));
}

/* After each sample; the caller holds no lock. */
HAK_COLD void hak_black_box_wait(void);
HAK_INLINE void hak_black_box_note_growth(void) {
  if (hak_black_box_is_due()) hak_black_box_wait();
}

/* Before the thread starts, which waits on `bell`, and in the child of a fork, which has none until then. */
void hak_black_box_start(uint32_t *bell);
/* By the thread: whether a profile is to be written now. It counts as written … */
bool hak_black_box_look(uint64_t now_ms);
/* … and now it is, or could not be. */
void hak_black_box_done(void);

#endif
