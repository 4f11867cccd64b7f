#include "tcache/counted.h"

#include <string.h>

#include "config/config.h"
#include "os/os.h"
#include "tcache/draw.h"

/* Blocks that malloc may pop between two slow paths: what is used in turn should stay in a near cache. */
#define FILL_BYTES (32 * HAK_KIB)
#define FILL_LEAST 16
/* And for how many others are fetched from slabs, which the thread then keeps. */
#define WANTED_MOST 16
#define WANTED_BYTES (8 * HAK_KIB)
#define SMALL_FILLS 8
#define WINDOW_MS 100 /* in which samples are counted against profile_a_second */
#define SHIFT_MAX 20
#define NEVER UINT64_MAX

typedef struct counted_bin {
  void **magazine; /* malloc's, or NULL */
  uint64_t until;  /* allocations, without those that were popped since it was filled, up to and including the next sample; 0: to be drawn */
  uint32_t filled; /* blocks it had when it was filled */
  uint16_t most;   /* blocks it may be filled with; 0: it has to be made */
  uint8_t wanted;  /* blocks it is filled with at least, where slabs have them: doubles each time they are asked … */
  uint8_t wanted_most;
  uint8_t small_fills; /* … and after so many fills with few */
  uint32_t shift;  /* the profile's distance was 2^shift times the set one when `profile` was drawn */
  uint64_t drawn;  /* `until` when it was set: the two below are of that moment, and the same for each sampler */
  uint64_t guard, profile;
} counted_bin;

/* How many samples there have been lately, and by what power of two their distance has grown for that. */
typedef struct pace {
  uint32_t shift, samples; /* samples: in this window */
  uint64_t window_ms;
} pace;

struct hak_counted {
  pace guard, profile;
  counted_bin bins[HAK_CLASS_COUNT];
};

uint32_t hak_counting_on;
static hak_counting_rates rates;

void hak_counting_start(const hak_counting_rates *r) {
  rates = *r;
  hak_store_relaxed(&hak_counting_on, 1);
  hak_size_class_count();
}

/* --- draws --- */

static double distance(uint32_t shift) { return rates.profile_bytes * (double)((uint64_t)1 << shift); }

static uint64_t draw_guard(uint32_t shift, size_t size, uint64_t random) {
  if (rates.guard_blocks == 0 || size > rates.guard_max) return NEVER;
  double blocks = rates.guard_blocks * (double)((uint64_t)1 << shift);
  return blocks == 1 ? 1 : hak_draw_trials(-1 / hak_ln(1 - 1 / blocks), random);
}

static uint64_t draw_profile(hak_tcache *t, counted_bin *b, size_t size) {
  if (rates.profile_bytes == 0) return NEVER;
  b->shift = t->counted->profile.shift;
  return hak_draw_trials(distance(b->shift) / (double)size, hak_tcache_random(t));
}

/* The distance grows while a window has more samples than it should, and shrinks with each that has few. What is drawn
 * already keeps the distance it was drawn with, which is what its sample stands for: so estimates stay unbiased. */
static void adapt(pace *k, uint32_t a_second) {
  if (a_second == 0) return;
  uint64_t now_ms = hak_os_now_ms(), windows = (now_ms - k->window_ms) / WINDOW_MS;
  uint32_t most = a_second / (1000 / WINDOW_MS) + 1;
  if (++k->samples > most) {
    if (windows == 0 && k->shift < SHIFT_MAX) k->shift++;
  } else if (windows == 0) {
    return;
  }
  if (windows > 0 && k->samples <= most / 4) k->shift -= (uint32_t)hak_min_size(windows, k->shift);
  k->samples = 0;
  k->window_ms = now_ms;
}

static void draw(hak_tcache *t, counted_bin *b, size_t size) {
  if (b->guard == 0) b->guard = draw_guard(t->counted->guard.shift, size, hak_tcache_random(t));
  if (b->profile == 0) b->profile = draw_profile(t, b, size);
  b->until = b->drawn = hak_min_size(b->guard, b->profile);
}

/* One allocation of the bin. */
static void count_one(hak_tcache *t, counted_bin *b, size_t size, hak_due *due) {
  if (b->until == 0) draw(t, b, size);
  if (--b->until > 0) return;
  b->guard -= b->drawn;
  b->profile -= b->drawn;
  due->guard = b->guard == 0;
  due->profile = b->profile == 0;
  due->distance = distance(b->shift);
  if (due->guard) adapt(&t->counted->guard, rates.guard_a_second);
  if (due->profile) adapt(&t->counted->profile, rates.profile_a_second);
}

/* --- a thread's bins --- */

static bool attach(hak_tcache *t) {
  if (t->counted != NULL) return true;
  t->counted = hak_meta_take_block((sizeof *t->counted + HAK_META_SIZE - 1) / HAK_META_SIZE);
  return t->counted != NULL;
}

static void ***top_of(const hak_tcache *t, unsigned c) { return &t->top[HAK_CODES + c]; }

unsigned hak_tcache_counted_left(const hak_tcache *t, unsigned c) {
  const counted_bin *b = t->counted == NULL ? NULL : &t->counted->bins[c];
  return b == NULL || b->magazine == NULL ? 0 : (unsigned)(*top_of(t, c) - hak_magazine_empty_top(b->magazine, c));
}

/* What has been popped since it was filled: at most what was left before the next sample. */
static void settle(hak_tcache *t, unsigned c) {
  counted_bin *b = &t->counted->bins[c];
  unsigned left = hak_tcache_counted_left(t, c), popped = b->filled - left;
  HAK_ASSERT(popped == 0 || popped < b->until);
  b->until -= popped;
  b->filled = left;
}

void **hak_tcache_counted_empty(hak_tcache *t, unsigned c, unsigned *count) {
  if (t->counted == NULL || t->counted->bins[c].magazine == NULL) return NULL;
  settle(t, c);
  counted_bin *b = &t->counted->bins[c];
  void **magazine = b->magazine;
  *count = b->filled;
  b->magazine = NULL;
  b->filled = 0;
  b->most = b->wanted = 0;
  *top_of(t, c) = HAK_NULL_TOP;
  return magazine;
}

void hak_tcache_counted_reset(hak_tcache *t) {
  if (t->counted != NULL) memset(t->counted, 0, sizeof *t->counted);
}

HAK_INLINE void move(hak_tcache *t, unsigned c, void **to, size_t n) {
  void **top = t->top[c + 1] - n;
  memcpy(to, top + 1, n * sizeof *to);
  t->top[c + 1] = top;
}

static void want_more(counted_bin *b) {
  b->wanted = (uint8_t)hak_min_size(b->wanted_most, 2u * b->wanted + 1);
}

/* The blocks that were freed last become malloc's, and where they are few others from slabs: as many as may be popped before the
 * next sample, and twice as many as the last time. */
static void fill(hak_tcache *t, unsigned c, hak_deferred *d) {
  counted_bin *b = &t->counted->bins[c];
  if (b->magazine == NULL) {
    b->magazine = hak_tcache_take_spare(t);
    if (b->magazine == NULL) return;
    *hak_magazine_empty_top(b->magazine, c) = NULL;
  }
  void **empty = hak_magazine_empty_top(b->magazine, c);
  b->most = (uint16_t)hak_min_size(hak_magazine_usable[c], hak_max_size(FILL_BYTES / hak_class_size(c), FILL_LEAST));
  b->wanted_most = (uint8_t)hak_min_size(WANTED_MOST, hak_max_size(WANTED_BYTES / hak_class_size(c), 1));
  want_more(b);
  size_t most = hak_min_size(b->most, b->until - 1), n = hak_min_size(most, hak_tcache_loaded(t, c)), more = 0;
  move(t, c, empty + 1, n);
  if (n < hak_min_size(b->wanted, most) && hak_tcache_refill(t, c, d)) more = hak_min_size(most - n, hak_tcache_loaded(t, c));
  move(t, c, empty + 1 + n, more);
  *top_of(t, c) = empty + n + more;
  b->filled = (uint32_t)(n + more);
  t->bins[c].active = true;
}

void *hak_tcache_count_ready(unsigned c) {
  hak_tcache *t = hak_tls.cache;
  if (HAK_UNLIKELY(t == NULL || t->counted == NULL)) return NULL;
  counted_bin *b = &t->counted->bins[c];
  void **empty = *top_of(t, c);
  if (HAK_UNLIKELY(b->most == 0 || *empty != NULL)) return NULL;
  hak_tcache_bin *freed = &t->bins[c];
  if (HAK_UNLIKELY(freed->loaded == NULL)) return NULL;
  b->until -= b->filled;
  b->filled = 0;
  void **top = t->top[c + 1], **freed_empty = freed->loaded + (empty - b->magazine);
  size_t n = (size_t)(top - freed_empty);
  if (HAK_UNLIKELY(b->until <= n || 2 * n < b->wanted)) return NULL; /* a sample among them, or one is to be drawn, or few blocks */
  if (HAK_LIKELY(n <= b->most)) { /* the two magazines change places */
    void **magazine = b->magazine;
    b->magazine = freed->loaded;
    freed->loaded = magazine;
    t->top[c + 1] = empty;
    empty = freed_empty;
  } else {
    n = b->most;
    move(t, c, empty + 1, n);
  }
  if (n < b->wanted_most / 2u && ++b->small_fills % SMALL_FILLS == 0) want_more(b);
  b->until--; /* the last of them is for the caller */
  freed->active = true;
  b->filled = (uint32_t)(n - 1);
  *top_of(t, c) = empty + n - 1;
  return empty[n];
}

void *hak_tcache_alloc_counted(hak_tcache *t, unsigned c, hak_due *due, hak_deferred *d) {
  if (HAK_UNLIKELY(!attach(t))) return hak_tcache_alloc(t, c, d);
  counted_bin *b = &t->counted->bins[c];
  void **top = *top_of(t, c), *p = *top;
  if (p != NULL) {
    *top_of(t, c) = top - 1;
    return p;
  }
  settle(t, c);
  count_one(t, b, hak_class_size(c), due);
  if (due->guard || due->profile) return NULL;
  p = hak_tcache_alloc(t, c, d);
  if (HAK_LIKELY(p != NULL) && b->until > 1) fill(t, c, d);
  return p;
}

/* --- without a cache --- */

/* Nobody's: a counter, scrambled. */
static uint64_t shared_random(void) {
  static uint64_t state;
  if (hak_load_relaxed(&state) == 0) {
    uint64_t seed = 0;
    hak_os_random(&seed, sizeof seed);
    hak_store_relaxed(&state, seed | 1);
  }
  uint64_t x = hak_add_relaxed(&state, 0x9e3779b97f4a7c15u);
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}

void hak_count_uncached(hak_tcache *t, size_t bytes, hak_due *due) {
  bool cached = t != NULL && attach(t);
  uint64_t guard_random = cached ? hak_tcache_random(t) : shared_random();
  *due = (hak_due){.guard = draw_guard(cached ? t->counted->guard.shift : 0, bytes, guard_random) == 1};
  if (rates.profile_bytes == 0) return;
  due->distance = distance(cached ? t->counted->profile.shift : 0);
  uint64_t random = cached ? hak_tcache_random(t) : shared_random();
  double mean = due->distance / (double)hak_max_size(bytes, 1), uniform = (double)(random >> 11) * 0x1p-53;
  due->profile = uniform * mean < 1 && uniform < hak_one_minus_exp(1 / mean); /* the first is implied, and quick */
  if (cached && due->profile) adapt(&t->counted->profile, rates.profile_a_second);
}
