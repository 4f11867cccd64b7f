#include "reclaim/keep.h"

#include "base/assert.h"

/* Of what became dirty so many looks ago, the latest last, what may still be, in 256ths: smoothstep at 1/8, 3/8, 5/8
 * and 7/8. */
static const uint16_t may_stay[HAK_KEEP_LOOKS] = {11, 81, 175, 245};

#define SLAB_LOOKS 2
_Static_assert(HAK_KEEP_LOOKS % SLAB_LOOKS == 0, "a decay time has whole rounds of slabs");

#define MARK_MIB 64
#define MARK_TIMES 2  /* what refaults are judged by: a purge down to half of the mark shows where it was too early */
#define FIT_PART 4    /* of the peak: so much more is left */
#define FIT_TIMES 4   /* decay times after refaults in which looks leave it, too */

#define REFAULT_PART 4      /* more than this part of what was purged, taken again, was purged too early */
#define REFAULT_LEAST_MIB 8 /* less is a fifth of a percent of a CPU */
#define REFAULT_MOST_MIB 32 /* and so much is worth it up to this part of what the program holds: */
#define REFAULT_HELD_PART 8

/* Where nobody has come by for a decay time the next call may be as far off: so many steps at once, a fiftieth of that
 * time, and 40 ms at most. */
#define IDLE_STEPS_MAX 32
#define IDLE_STEP_MS 64

/* --- refaults --- */

/* To a program of 200 MiB, 24 that stay for seconds are more than as many refaults are in these seconds. */
static size_t refaults_worth(const hak_keep *k, size_t in_use) {
  return hak_max_size(REFAULT_LEAST_MIB * k->mib, hak_min_size(in_use / REFAULT_HELD_PART, REFAULT_MOST_MIB * k->mib));
}

static bool was_too_early(const hak_keep *k, size_t in_use, uint64_t purged, uint64_t refaults) {
  return refaults >= refaults_worth(k, in_use) && refaults > purged / REFAULT_PART;
}

static size_t window_peak(const hak_keep *k, size_t peak) {
  for (unsigned i = 0; i < HAK_KEEP_WINDOW; i++) peak = hak_max_size(peak, hak_load_relaxed(&k->peaks[i]));
  return peak;
}

static size_t beyond_live(size_t spans, const hak_keep_now *now) { return spans > now->live ? spans - now->live : 0; }

/* What a program held at its peak, and more: what comes and goes does not always fit where it was. */
static size_t wanted_again(const hak_keep *k, size_t peak) {
  size_t most = window_peak(k, peak);
  return most + most / FIT_PART;
}

/* Once a decay time: whether what was purged was taken again, and whether the peaks still say anything. */
static void judge(hak_keep *k, const hak_keep_now *now) {
  uint64_t purged = now->purged - k->purged_judged, refaults = now->refaults - k->refaults_judged;
  size_t worth = refaults_worth(k, now->in_use);
  k->purged_judged = now->purged;
  k->refaults_judged = now->refaults;
  bool too_early = was_too_early(k, now->in_use, purged, refaults);
  unsigned fit = hak_load_relaxed(&k->fit_times);
  hak_store_relaxed(&k->fit_times, too_early ? FIT_TIMES : fit - (fit > 0));
  if (too_early)
    hak_store_relaxed(&k->keeps_peaks, true);
  else if (refaults < worth && k->most_below_peak < worth)
    hak_store_relaxed(&k->keeps_peaks, false);
  k->most_below_peak = 0;
  size_t most = hak_load_relaxed(&k->keeps_peaks) ? wanted_again(k, now->peak) : 0;
  hak_store_relaxed(&k->mark_raised, hak_min_size(hak_load_relaxed(&k->mark_raised), most));
}

/* --- a look --- */

/* Of sizes between two looks, the latest last, those that so many looks push out go. */
static void pass(size_t *sizes, unsigned count, unsigned passed) {
  HAK_ASSERT(passed <= count);
  for (unsigned i = 0; i < count; i++) {
    hak_store_relaxed(&sizes[i], i + passed < count ? hak_load_relaxed(&sizes[i + passed]) : 0);
  }
}

hak_keep_look hak_keep_begin(hak_keep *k, uint64_t now_ms, uint64_t decay_ms) {
  uint64_t last = k->last_ms, step_ms = hak_max_size(decay_ms / HAK_KEEP_LOOKS, 1);
  hak_keep_look look = {.passed = 1, .peaks_passed = 1, .steps = 1};
  if (last != 0 && now_ms >= last) {
    look.passed = (unsigned)hak_min_size((now_ms - last) / step_ms, HAK_KEEP_LOOKS);
    look.peaks_passed = (unsigned)hak_min_size(now_ms / step_ms - last / step_ms, HAK_KEEP_WINDOW);
    look.idle = look.passed == HAK_KEEP_LOOKS;
    if (look.idle) look.steps = (unsigned)hak_min_size((now_ms - last) / IDLE_STEP_MS + 1, IDLE_STEPS_MAX);
  }
  unsigned before = k->looks;
  k->looks += look.passed;
  look.time_over = k->looks / HAK_KEEP_LOOKS != before / HAK_KEEP_LOOKS;
  look.slabs_due = k->looks / SLAB_LOOKS != before / SLAB_LOOKS;
  look.slab_round = k->looks / SLAB_LOOKS;
  hak_store_relaxed(&k->last_ms, now_ms);
  return look;
}

size_t hak_keep_next_interval(hak_keep *k, const hak_keep_look *look, size_t peak, uint64_t purged) {
  size_t young = look->passed == HAK_KEEP_LOOKS ? 0 : purged - k->purged_at_look;
  k->purged_at_look = purged;
  pass(k->peaks, HAK_KEEP_WINDOW, look->peaks_passed);
  hak_store_relaxed(&k->peaks[HAK_KEEP_WINDOW - 1], peak);
  return young;
}

static size_t curve(hak_keep *k, unsigned passed, size_t dirty) {
  size_t may = 0;
  pass(k->backlog, HAK_KEEP_LOOKS, passed);
  if (dirty > k->left_dirty) k->backlog[HAK_KEEP_LOOKS - 1] += dirty - k->left_dirty;
  for (unsigned i = 0; i < HAK_KEEP_LOOKS; i++) may += k->backlog[i] * may_stay[i] / 256;
  return may;
}

static size_t beyond_curve(const hak_keep *k, const hak_keep_now *now) {
  size_t beyond = hak_max_size(hak_keep_reserved(k, now->live), now->floor);
  if (hak_load_relaxed(&k->keeps_peaks) && !now->by_age_alone) {
    size_t most = hak_load_relaxed(&k->fit_times) > 0 ? wanted_again(k, now->peak) : window_peak(k, now->peak);
    beyond = hak_max_size(beyond, beyond_live(most, now));
  }
  return hak_min_size(now->room, beyond);
}

size_t hak_keep_at_look(hak_keep *k, const hak_keep_look *look, const hak_keep_now *now) {
  k->most_below_peak = hak_max_size(k->most_below_peak, beyond_live(window_peak(k, now->peak), now));
  return hak_max_size(curve(k, look->passed, now->dirty), beyond_curve(k, now));
}

size_t hak_keep_at_thread_end(const hak_keep *k, const hak_keep_now *now) { return beyond_curve(k, now); }

void hak_keep_end(hak_keep *k, const hak_keep_look *look, const hak_keep_now *now) {
  k->left_dirty = now->dirty;
  if (look->time_over) judge(k, now);
}

void hak_keep_note_purged(hak_keep *k, size_t spans) {
  k->left_dirty -= hak_min_size(k->left_dirty, spans);
  if (hak_load_relaxed(&k->mark_purges)) hak_add_relaxed(&k->mark_purged, spans);
}

/* --- the mark --- */

size_t hak_keep_mark(const hak_keep *k, bool takes_none, size_t in_use) {
  size_t least = MARK_MIB * k->mib;
  if (takes_none) least = hak_min_size(least, MARK_TIMES * refaults_worth(k, in_use));
  return hak_max_size(least, hak_load_relaxed(&k->mark_raised));
}

bool hak_keep_raise_mark(hak_keep *k, const hak_keep_now *now) {
  uint64_t purged = hak_load_relaxed(&k->mark_purged), refaults = now->refaults - hak_load_relaxed(&k->mark_refaults);
  if (now->by_age_alone || purged == 0 || !was_too_early(k, now->in_use, purged, refaults)) return false;
  hak_store_relaxed(&k->mark_purged, 0);
  hak_store_relaxed(&k->keeps_peaks, true);
  hak_store_relaxed(&k->mark_raised, wanted_again(k, now->peak));
  return true;
}

size_t hak_keep_at_mark(hak_keep *k, const hak_keep_now *now, size_t mark) {
  hak_store_relaxed(&k->mark_refaults, now->refaults);
  hak_store_relaxed(&k->mark_purged, 0);
  hak_store_relaxed(&k->mark_purges, true);
  return hak_max_size(mark / 2, hak_keep_reserved(k, now->live));
}
