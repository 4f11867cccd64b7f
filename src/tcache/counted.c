#include "tcache/counted.h"

#include "base/sequence.h"
#include "tcache/draw.h"

/* Requests like the one that ended the last countdown, of which a thread that takes no other slow path makes so many
 * until the next end. Of whole spans fewer, of larger blocks again, and no more bytes than so many of the largest class
 * have: a thread that had some may go on with small ones, and come by after as many bytes of these. */
#define OFF_REQUESTS (HAK_COUNT_OFF_BYTES / 1024)
#define OFF_WHOLE_SPANS (OFF_REQUESTS / 4)
#define OFF_LARGE (OFF_REQUESTS / 16)
#define WINDOW_MS 20 /* in which samples are counted against what there may be in a second */
#define SHIFT_MAX 20
/* Requests that take less are guarded less often than one of N: else nearly all countdowns would end for nothing. Where
 * N is 1 none does. */
#define GUARD_TAKEN (64 + HAK_GRANULE - 1)

/* How many samples of a kind there have been lately. Any thread, relaxed: a lost change makes a window a little
 * longer. */
typedef struct pace {
  uint32_t shift, samples; /* samples: in this window */
  uint64_t window_ms;
} pace;

uint32_t hak_counting_on;
static hak_count_rates rates; /* relaxed, between two changes of hak_counting_on */
static uint32_t guards_a_second, profiles_a_second; /* relaxed */
static uint32_t generation; /* the latest; by who starts */
static pace guards, profiles;
static int32_t first_left; /* relaxed; below 0: none */
uint64_t hak_count_seeds;

/* What has been asked for stays the same. */
static void set_countdown(int64_t bytes) {
  hak_tls.count.given += bytes - hak_tls.countdown;
  hak_tls.countdown = bytes;
}

static double mean_for_guards(double guard_rate) {
  double taken = (double)HAK_COUNTED_BYTES(0) / hak_one_minus_exp(guard_rate);
  return (taken < GUARD_TAKEN ? taken : GUARD_TAKEN) / guard_rate;
}

static hak_count_rates rates_of(const hak_counting_rates *r) {
  hak_count_rates made = {.profile_bytes = (float)r->profile_bytes};
  if (r->guard_blocks != 0)
    made.guard_rate = r->guard_blocks == 1 ? HAK_CERTAIN : (float)-hak_ln(1 - 1 / r->guard_blocks);
  return made;
}

static void copy_float(float *to, const float *from) {
  float value;
  __atomic_load(from, &value, __ATOMIC_RELAXED);
  __atomic_store(to, &value, __ATOMIC_RELAXED);
}

static void copy_rates(hak_count_rates *to, const hak_count_rates *from) {
  copy_float(&to->guard_rate, &from->guard_rate);
  copy_float(&to->profile_bytes, &from->profile_bytes);
}

/* The rates' sequence is hak_counting_on (base/sequence.h); adopt() reads. */
void hak_counting_start(const hak_counting_rates *r) {
  HAK_ASSERT(r->guard_blocks == 0 || r->guard_blocks >= 1);
  HAK_ASSERT(r->profile_bytes >= 0);
  if (r->guard_blocks == 0 && r->profile_bytes == 0) {
    hak_store_release(&hak_counting_on, 0);
    return;
  }
  hak_count_rates made = rates_of(r);
  if (generation == 0) hak_os_random(&hak_count_seeds, sizeof hak_count_seeds);
  hak_sequence_begin_after(&hak_counting_on, generation);
  copy_rates(&rates, &made);
  hak_store_relaxed(&guards_a_second, r->guard_a_second);
  hak_store_relaxed(&profiles_a_second, r->profile_a_second);
  hak_store_relaxed(&guards.shift, 0);
  hak_store_relaxed(&profiles.shift, 0);
  generation = hak_sequence_end(&hak_counting_on);
  if (hak_tls.count.generation == 0) set_countdown(0);
}

/* False: they are being written, and nobody waits. */
static bool adopt(hak_count_state *s, uint32_t seen) {
  hak_count_rates copied;
  if (seen % 2 != 0) return false;
  copy_rates(&copied, &rates);
  __atomic_thread_fence(__ATOMIC_ACQUIRE);
  if (hak_load_relaxed(&hak_counting_on) != seen) return false;
  s->rates = copied;
  s->generation = seen;
  return true;
}

void hak_counting_guard_first(uint32_t blocks) {
  first_left = (int32_t)blocks;
  set_countdown(0);
}

/* Every request comes by here until they are used up: countdowns are 0. */
static bool is_first(void) { return hak_load_relaxed(&first_left) > 0 && hak_sub_relaxed(&first_left, 1) >= 0; }

static uint64_t next_random(hak_count_state *s) {
  if (s->random == 0) s->random = hak_draw_scrambled(hak_add_relaxed(&hak_count_seeds, HAK_DRAW_STEP)) | 1;
  s->random += HAK_DRAW_STEP;
  return hak_draw_scrambled(s->random);
}

/* The distance grows while a window has more samples than it should, and shrinks with each that has few. */
static void adapt(pace *k, uint32_t a_second) {
  HAK_ASSERT(hak_load_relaxed(&k->shift) <= SHIFT_MAX);
  if (a_second == 0) return;
  uint64_t now_ms = hak_os_now_ms(), windows = (now_ms - hak_load_relaxed(&k->window_ms)) / WINDOW_MS;
  uint32_t most = a_second / (1000 / WINDOW_MS) + 1, samples = hak_add_relaxed(&k->samples, 1) + 1,
           shift = hak_load_relaxed(&k->shift);
  if (samples > most) {
    if (windows == 0 && shift < SHIFT_MAX) hak_store_relaxed(&k->shift, shift + 1);
  } else if (windows == 0) {
    return;
  }
  if (windows > 0 && samples <= most / 4) hak_store_relaxed(&k->shift, shift - (uint32_t)hak_min_size(windows, shift));
  hak_store_relaxed(&k->samples, 0);
  hak_store_relaxed(&k->window_ms, now_ms);
}

static double grown(double distance, uint32_t shift) {
  HAK_ASSERT(shift <= SHIFT_MAX);
  return distance * (double)((uint64_t)1 << shift);
}

/* As short as the sampler with the shorter distance needs. */
static double mean_of(const hak_count_state *s) {
  const hak_count_rates *r = &s->rates;
  if (r->guard_rate == 0) return grown(r->profile_bytes, s->profile_shift);
  double mean = mean_for_guards(r->guard_rate);
  if (r->profile_bytes == 0) return grown(mean, s->guard_shift);
  return grown(r->profile_bytes < mean ? r->profile_bytes : mean,
               (uint32_t)hak_min_size(s->guard_shift, s->profile_shift));
}

/* A countdown keeps the distances it was drawn with: so each request's probability is known before it happens. */
static int64_t draw(hak_count_state *s) {
  s->guard_shift = (uint16_t)hak_load_relaxed(&guards.shift);
  s->profile_shift = (uint16_t)hak_load_relaxed(&profiles.shift);
  return (int64_t)hak_draw_trials(mean_of(s), next_random(s)) - 1;
}

/* The request is for both samplers, one, or neither: each wants it with its own probability, of which `ended` is the
 * part that has come true. */
static hak_due decide(hak_count_state *s, size_t size, double taken) {
  const hak_count_rates *r = &s->rates;
  double ended = hak_one_minus_exp(taken / mean_of(s)), guard = 0;
  double profile = r->profile_bytes == 0 ? 0 : hak_one_minus_exp(taken / grown(r->profile_bytes, s->profile_shift));
  if (size <= HAK_COUNT_GUARD_MAX) guard = hak_one_minus_exp(r->guard_rate / grown(1, s->guard_shift));
  double x = hak_draw_uniform(next_random(s)) * ended;
  bool profiled = x < profile;
  return (hak_due){
      .profile = profiled,
      .guard = profiled ? x < profile * guard : x < profile + guard * (1 - profile),
      .probability = profile,
  };
}

static int64_t long_countdown(size_t size) {
  int64_t requests = size > HAK_SMALL_MAX    ? OFF_LARGE
                     : size > HAK_SHARED_MAX ? OFF_WHOLE_SPANS
                                             : OFF_REQUESTS,
          most = OFF_WHOLE_SPANS * HAK_COUNTED_BYTES(HAK_SMALL_MAX), bytes = requests * HAK_COUNTED_BYTES(size);
  return bytes < most ? bytes : most;
}

void hak_count_lengthen(size_t size, hak_count_visit *last, uint64_t now_ms, uint64_t within_ms) {
  uint64_t asked = hak_count_asked(), bytes_a_ms = (asked - last->asked) / hak_max_size(now_ms - last->ms, 1);
  int64_t bytes = long_countdown(size);
  bool in_time = (uint64_t)bytes / hak_max_size(within_ms, 1) <= bytes_a_ms;
  *last = (hak_count_visit){now_ms, asked};
  if (in_time && bytes > HAK_COUNT_OFF_BYTES && !hak_counting()) set_countdown(bytes);
}

void hak_count_shorten_to(int64_t most) {
  hak_count_state *s = &hak_tls.count;
  uint32_t seen = hak_load_acquire(&hak_counting_on);
  if (seen != 0 && s->generation == seen) return;
  set_countdown(seen == 0 || s->generation != 0 ? most : 0);
  /* By earlier rates there is no sample in `most` bytes; from there on the new ones count */
  if (seen != 0) s->generation = 0;
}

static hak_due end_off(hak_count_state *s) {
  s->generation = 0;
  set_countdown(0);
  if (HAK_HARD(GUARDS) && is_first()) return (hak_due){.guard = true};
  set_countdown(HAK_COUNT_OFF_BYTES);
  return (hak_due){0};
}

void hak_count_forbid(void) { set_countdown(INT64_MIN / 2); }

/* Countdowns have no memory: one that is drawn anew is as good as what was left of the last. */
void hak_count_allow(void) {
  hak_tls.count.generation = 0;
  set_countdown(0);
}

static hak_due end(size_t size) {
  hak_count_state *s = &hak_tls.count;
  int64_t taken = HAK_COUNTED_BYTES(size);
  uint32_t seen = hak_load_acquire(&hak_counting_on);
  if (seen == 0) return end_off(s);
  if (s->random == 0) s->generation = 0;
  if (s->generation == 0) { /* what has ended was none of ours */
    if (!adopt(s, seen)) {
      set_countdown(0);
      return (hak_due){0};
    }
    set_countdown(draw(s) - taken);
    if (hak_tls.countdown >= 0) return (hak_due){0};
  }
  hak_due due = decide(s, size, (double)taken);
  if (due.guard) adapt(&guards, hak_load_relaxed(&guards_a_second));
  if (due.profile) adapt(&profiles, hak_load_relaxed(&profiles_a_second));
  if (s->generation != seen) adopt(s, seen); /* else by the earlier ones once more */
  set_countdown(draw(s));
  return due;
}

HAK_COLD hak_due hak_count_end(size_t size) {
  if (HAK_LIKELY(hak_tls.phase != HAK_THREAD_FORBIDDEN && !hak_tls.in_heap)) return end(size);
  hak_count_allow();
  hak_due due = end(size);
  hak_count_forbid();
  due.forbidden = hak_tls.phase == HAK_THREAD_FORBIDDEN;
  return due;
}

/* What has been asked for meanwhile is counted by the thread's countdown, which stays below 0. */
void hak_count_aside(int64_t *aside, bool begins) {
  if (begins) {
    *aside = hak_tls.countdown;
    hak_count_forbid();
  } else if (hak_tls.phase != HAK_THREAD_FORBIDDEN) {
    set_countdown(*aside);
  }
}

hak_due hak_count_end_aside(int64_t *aside, size_t size) {
  if (HAK_UNLIKELY(hak_tls.phase == HAK_THREAD_FORBIDDEN)) return hak_count_end(size);
  int64_t below = hak_tls.countdown;
  *aside -= HAK_COUNTED_BYTES(size);
  if (HAK_LIKELY(*aside >= 0)) return (hak_due){0};
  set_countdown(*aside);
  hak_due due = end(size);
  *aside = hak_tls.countdown;
  set_countdown(below);
  return due;
}
