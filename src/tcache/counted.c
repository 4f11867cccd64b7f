#include "tcache/counted.h"

#include "tcache/draw.h"

/* Requests like the one that ended the last countdown, of which a thread that takes no other slow path makes so many until the next end. */
#define OFF_REQUESTS 1024
#define WINDOW_MS 20 /* in which samples are counted against what there may be in a second */
#define SHIFT_MAX 20
#define CERTAIN 64                  /* a rate at which 1 - e^-rate is 1 */
/* Requests that take less are guarded less often than one of N: else nearly all countdowns would end for nothing. */
#define GUARD_TAKEN (64 + HAK_GRANULE - 1)
#define GUARD_ALL_UP_TO 16 /* but not where N is that low */

/* How many samples of a kind there have been lately. Any thread, relaxed: a lost change makes a window a little longer. */
typedef struct pace {
  uint32_t shift, samples; /* samples: in this window */
  uint64_t window_ms;
} pace;

uint32_t hak_counting_on;
static hak_counting_rates rates;
static double mean, guard_rate; /* bytes of a countdown, and guards of a request, while no distance has grown */
static pace guards, profiles;
static int32_t first_left; /* relaxed; below 0: none */
uint64_t hak_count_seeds;

static double mean_for_guards(double blocks) {
  double least = HAK_COUNTED_BYTES(0), taken = least * (blocks < GUARD_ALL_UP_TO ? 1 : blocks / GUARD_ALL_UP_TO);
  return (taken < GUARD_TAKEN ? taken : GUARD_TAKEN) / guard_rate;
}

void hak_counting_start(const hak_counting_rates *r) {
  HAK_ASSERT(r->guard_blocks == 0 || r->guard_blocks >= 1);
  HAK_ASSERT(r->profile_bytes >= 0 && (r->guard_blocks != 0 || r->profile_bytes != 0));
  rates = *r;
  guard_rate = r->guard_blocks == 0 ? 0 : r->guard_blocks == 1 ? CERTAIN : -hak_ln(1 - 1 / r->guard_blocks);
  mean = r->profile_bytes;
  if (guard_rate != 0 && (mean == 0 || mean_for_guards(r->guard_blocks) < mean)) mean = mean_for_guards(r->guard_blocks);
  hak_os_random(&hak_count_seeds, sizeof hak_count_seeds);
  hak_tls.countdown = 0;
  hak_store_release(&hak_counting_on, 1);
}

void hak_counting_guard_first(uint32_t blocks) {
  first_left = (int32_t)blocks;
  hak_tls.countdown = 0;
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
  uint32_t most = a_second / (1000 / WINDOW_MS) + 1, samples = hak_add_relaxed(&k->samples, 1) + 1, shift = hak_load_relaxed(&k->shift);
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
  if (rates.guard_blocks == 0) return grown(mean, s->profile_shift);
  return grown(mean, rates.profile_bytes == 0 ? s->guard_shift : (uint32_t)hak_min_size(s->guard_shift, s->profile_shift));
}

/* A countdown keeps the distances it was drawn with: so each request's probability is known before it happens. */
static int64_t draw(hak_count_state *s) {
  s->guard_shift = hak_load_relaxed(&guards.shift);
  s->profile_shift = hak_load_relaxed(&profiles.shift);
  return (int64_t)hak_draw_trials(mean_of(s), next_random(s)) - 1;
}

/* The request is for both samplers, one, or neither: each wants it with its own probability, of which `ended` is the part that has come true. */
static hak_due decide(hak_count_state *s, size_t size, double taken) {
  double ended = hak_one_minus_exp(taken / mean_of(s)), guard = 0;
  double profile = rates.profile_bytes == 0 ? 0 : hak_one_minus_exp(taken / grown(rates.profile_bytes, s->profile_shift));
  if (size <= rates.guard_max) guard = hak_one_minus_exp(guard_rate / grown(1, s->guard_shift));
  double x = hak_draw_uniform(next_random(s)) * ended;
  bool profiled = x < profile;
  return (hak_due){
      .profile = profiled,
      .guard = profiled ? x < profile * guard : x < profile + guard * (1 - profile),
      .probability = profile,
  };
}

void hak_count_lengthen(size_t size) {
  int64_t bytes = OFF_REQUESTS * HAK_COUNTED_BYTES(size);
  if (!hak_counting() && bytes > HAK_COUNT_OFF_BYTES) hak_tls.countdown = bytes;
}

HAK_COLD hak_due hak_count_end(size_t size) {
  hak_count_state *s = &hak_tls.count;
  int64_t taken = HAK_COUNTED_BYTES(size);
  if (!hak_counting()) {
    hak_tls.countdown = 0;
    if (HAK_HARD(GUARDS) && is_first()) return (hak_due){.guard = true};
    hak_tls.countdown = HAK_COUNT_OFF_BYTES;
    return (hak_due){0};
  }
  if (s->random == 0) { /* what has ended was none of ours */
    hak_tls.countdown = draw(s) - taken;
    if (hak_tls.countdown >= 0) return (hak_due){0};
  }
  hak_due due = decide(s, size, (double)taken);
  if (due.guard) adapt(&guards, rates.guard_a_second);
  if (due.profile) adapt(&profiles, rates.profile_a_second);
  hak_tls.countdown = draw(s);
  return due;
}
