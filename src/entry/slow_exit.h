/* Beginning and end of every slow path. Functions below the entry points leave work in a hak_deferred; only entry
 * points end in hak_slow_exit. */
#ifndef HAK_ENTRY_SLOW_EXIT_H
#define HAK_ENTRY_SLOW_EXIT_H

#include "tcache/tcache.h"

/* Ends the program if a bad block was noted. Caller holds no lock. */
HAK_INLINE void hak_report_bad(const hak_deferred *d) {
  if (HAK_LIKELY(d->verdict == HAK_VERDICT_OK)) return;
  hak_misuse_abort(d->verdict, d->bad, d->bad_code == 0 ? 0 : hak_class_size(d->bad_code - 1), d->where);
}

/* Does what lower layers left to do, and what is due by the clock: ends the program after a misuse, then calls the
 * watchers. Caller holds no lock. */
void hak_slow_exit(hak_deferred *deferred);

/* Behind the exit, of an entry that allocates: whether it asks once more, since memory was out and the exit has taken
 * back what was free. Once. */
HAK_INLINE bool hak_slow_again(hak_deferred *d) {
  if (HAK_LIKELY(d->memory != HAK_MEMORY_RECLAIMED)) return false;
  d->memory = HAK_MEMORY_LAST_TRY;
  return true;
}

/* Who watches: at each slow exit, with `moved` whether the coarse clock has moved since the thread's last one; and only
 * where it has. NULL ends a list. Both are constant, as is all that leads to code. */
typedef void hak_watcher(uint64_t now_ms, bool moved, hak_deferred *deferred);
extern hak_watcher *const hak_exit_watchers[], *const hak_clock_watchers[];

/* At the beginning of an allocation's slow path: calls the program's pressure callback if it is due. `needs_spans`: the
 * call may take spans, and if the pool is full, flushes caches for them. */
void hak_slow_entry(bool needs_spans);

#endif
