/* Which freed memory stays, as a value: hak_keep_at_look says how much of what is dirty may stay, hak_keep_due when to
 * ask again. Nothing here reads a clock, a counter or an option, takes a lock or purges: decay.c says what is live and
 * dirty, and does what is answered.
 *
 * At a look, of which there are four in a decay time, may stay
 *
 *     max(curve, min(room, max(reserved, floor, peak - live)))
 *
 *     curve     of what became dirty in the last decay time, by its age: a smoothstep
 *     room      0 near a target
 *     reserved  what hak_keep_reserve said, and is not in use yet
 *     floor     what is not worth a call
 *     peak      the most that was live in the last 7/4 of a decay time; only while refaults show that the program takes
 *               purged memory again. For four decay times after refaults a quarter more: what comes and goes does
 *               not always fit where it was
 *
 * Between looks the mark bounds what is dirty: a free that leaves more begins a purge down to half of it, unless the
 * last such purge was too early (hak_keep_raise_mark).
 *
 * All sizes are in spans. One thread at a time looks; what others may call too says so. */
#ifndef HAK_RECLAIM_KEEP_H
#define HAK_RECLAIM_KEEP_H

#include "base/atomic.h"
#include "base/bits.h"

#define HAK_KEEP_LOOKS 4 /* in a decay time */
/* Looks whose peaks count: gone before two decay times are over. */
#define HAK_KEEP_WINDOW (2 * HAK_KEEP_LOOKS - 1)

typedef struct hak_keep {
  size_t mib; /* constant: spans in a MiB; all else begins at 0 */
  /* Written by the thread that looks; last_ms, peaks and fit_times are read by any, relaxed. */
  uint64_t last_ms; /* of the last look; 0: none yet */
  unsigned looks;
  size_t backlog[HAK_KEEP_LOOKS]; /* what became dirty between two looks, the latest last */
  size_t left_dirty;              /* after the last look */
  size_t peaks[HAK_KEEP_WINDOW];  /* the most live between two looks, the latest last */
  uint64_t purged_at_look;        /* in all, when the last look began */
  uint64_t purged_judged, refaults_judged; /* in all, when refaults were judged last */
  size_t most_below_peak;                  /* at a look since then */
  unsigned fit_times;                      /* decay times for which more than the peak stays */
  /* Written by any thread, relaxed. */
  bool keeps_peaks;                    /* refaults have shown that the program takes purged memory again */
  bool mark_purges;                    /* a purge that the mark began is not over */
  size_t mark_raised;                  /* the mark, where its own purges were too early; else 0 */
  uint64_t mark_purged, mark_refaults; /* by the mark's last purge; refaults in all when it began */
  size_t reserved_to;                  /* live and free, up to which free spans stay */
} hak_keep;

/* What the caller sees. */
typedef struct hak_keep_now {
  size_t live, dirty;
  size_t peak;               /* the most that was live since the last look began */
  size_t in_use;             /* live, and mapped beside spans */
  uint64_t purged, refaults; /* in all */
  size_t room, floor;
  bool by_age_alone; /* memory-lean mode, or no decay time: refaults count for nothing */
} hak_keep_now;

/* What is due at a look. */
typedef struct hak_keep_look {
  unsigned passed;       /* looks since the last one: 1, unless nobody came by */
  unsigned peaks_passed; /* the same of the window, by multiples of a quarter of the decay time: no time is lost */
  bool idle;             /* nobody came by for a decay time */
  bool time_over;        /* a decay time is over: depots, refaults */
  bool slabs_due;        /* free pages inside slabs */
  unsigned slab_round;   /* which the slabs that are looked at get as a stamp */
  unsigned steps;        /* of a purge at once */
} hak_keep_look;

/* Whether it is time for a look. Any thread. The decay time may be another each time: who comes near a target does not
 * wait for the end of a long one. A clock that went back begins anew. */
HAK_INLINE bool hak_keep_due(const hak_keep *k, uint64_t now_ms, uint64_t decay_ms) {
  uint64_t last = hak_load_relaxed(&k->last_ms);
  return last == 0 || now_ms < last || now_ms - last >= hak_max_size(decay_ms / HAK_KEEP_LOOKS, 1);
}

/* --- a look: these in this order, purging before the last --- */

hak_keep_look hak_keep_begin(hak_keep *k, uint64_t now_ms, uint64_t decay_ms);
/* Nobody came by: what caches have put back meanwhile is as old as what was dirty. */
HAK_INLINE void hak_keep_all_old(hak_keep *k, size_t dirty) { k->left_dirty = dirty; }
/* Takes the most that was live since the last look began, and what was purged in all. Returns what was purged since the
 * last look began: when that is taken again, it is a refault. A program that takes it later would find it outside of
 * the window too. */
size_t hak_keep_next_interval(hak_keep *k, const hak_keep_look *look, size_t peak, uint64_t purged);
/* How much may be dirty. `now`: peak is of this interval. */
size_t hak_keep_at_look(hak_keep *k, const hak_keep_look *look, const hak_keep_now *now);
/* With time_over, judges refaults; then hak_keep_mark may be another. */
void hak_keep_end(hak_keep *k, const hak_keep_look *look, const hak_keep_now *now);

/* So much went, between two looks: it is not to make up for what becomes dirty. By who looks. */
void hak_keep_note_purged(hak_keep *k, size_t spans);

/* --- any thread --- */

/* How much may stay of what is dirty when the last thread that worked ends. */
size_t hak_keep_at_thread_end(const hak_keep *k, const hak_keep_now *now);

/* So much may be dirty between two looks. takes_none: the program has taken no memory for a while; then the mark is
 * lower, by how much is in use. */
size_t hak_keep_mark(const hak_keep *k, bool takes_none, size_t in_use);
/* More than the mark is dirty. True: all may stay, since the program took again what the last purge at the mark took;
 * hak_keep_mark is higher now. A load that comes and goes faster than a decay time would pass the mark many times
 * before refaults are judged. */
bool hak_keep_raise_mark(hak_keep *k, const hak_keep_now *now);
/* Else: how much may stay. What is purged from now on until mark_purges is cleared is the mark's. */
size_t hak_keep_at_mark(hak_keep *k, const hak_keep_now *now, size_t mark);

/* So many free spans stay, until as many more are live. 0: none. */
HAK_INLINE void hak_keep_reserve(hak_keep *k, size_t spans, size_t live) {
  hak_store_relaxed(&k->reserved_to, spans == 0 ? 0 : live + spans);
}
HAK_INLINE size_t hak_keep_reserved(const hak_keep *k, size_t live) {
  size_t to = hak_load_relaxed(&k->reserved_to);
  return to > live ? to - live : 0;
}

#endif
