#include "api/sampling.h"

#include "api/black_box.h"
#include "api/crash.h"
#include "api/forbid.h"
#include "api/slow_exit.h"
#include "api/trailer.h"
#include "guard/sample.h"
#include "os/os.h"
#include "os/print.h"
#include "profile/unwind.h"

/* A guarded block costs some 10 us: system calls that make its pages accessible, and inaccessible again. Where all are asked for,
 * there are as many as there can be. */
#define GUARDS_A_SECOND 500

/* Hardened build: what a small program, or a test, ever allocates. A block costs some 8 us, and 4 KiB while it is live. */
#define FIRST_BLOCKS 64

/* Without a sampler that asks for more the first blocks are guarded: not where addresses are scarce. */
static void guard_first(void) {
  if (!HAK_HARD(GUARDS) || hak_config.heap_profile != 0 || hak_os_address_space_is_limited()) return;
  hak_sample_start(FIRST_BLOCKS, false);
  if (hak_sample_on()) hak_counting_guard_first(FIRST_BLOCKS);
}

hak_lock hak_sampling_lock;
static bool started;
static struct wanted {
  int64_t guard, profile, rate, most; /* as options */
} followed; /* what is in force; under the lock */

static struct wanted wanted_now(void) {
  return (struct wanted){
      .guard = hak_load_relaxed(&hak_config.guard_sample),
      .profile = hak_load_relaxed(&hak_config.heap_profile),
      .rate = hak_load_relaxed(&hak_config.heap_profile_rate),
      .most = hak_load_relaxed(&hak_config.heap_profile_most),
  };
}

static bool is_same(const struct wanted *a, const struct wanted *b) {
  return a->guard == b->guard && a->profile == b->profile && (a->profile == 0 || (a->rate == b->rate && a->most == b->most));
}

static void follow_guards(const struct wanted *w, hak_counting_rates *rates) {
  if (w->guard == 0) return;
  hak_sample_start(HAK_SAMPLE_SLOTS, true);
  if (!hak_sample_on()) return;
  hak_crash_start();
  rates->guard_blocks = (double)w->guard;
  rates->guard_a_second = w->guard == 1 ? 0 : GUARDS_A_SECOND;
}

static bool follow_profile(const struct wanted *w, hak_counting_rates *rates) {
  if (w->profile == 0) {
    if (hak_profile_made()) hak_profile_stop();
    return true;
  }
  if (hak_region_count() == 0 || !hak_profile_start((size_t)w->rate)) return false;
  hak_arena_start_sampled();
  rates->profile_bytes = (double)w->rate;
  rates->profile_a_second = (uint32_t)w->most;
  return true;
}

/* The profile is there before anybody draws for it. */
static bool follow_locked(void) {
  struct wanted now = wanted_now();
  hak_counting_rates rates = {0};
  if (is_same(&now, &followed)) return true;
  follow_guards(&now, &rates);
  bool made = follow_profile(&now, &rates);
  if (!made) hak_store_relaxed(&hak_config.heap_profile, now.profile = 0);
  followed = now;
  hak_counting_start(&rates);
  return made;
}

bool hak_sampling_follow(void) {
  struct wanted now = wanted_now();
  if (!started) return true;
  if (now.guard != 0 || now.profile != 0) hak_unwind_start();
  hak_lock_take(&hak_sampling_lock);
  bool made = follow_locked();
  hak_lock_drop(&hak_sampling_lock);
  return made;
}

void hak_sampling_start(void) {
  hak_unwind_note_main();
  started = true;
  if (hak_config.guard_sample == 0) guard_first();
  if (!hak_sampling_follow()) hak_print("hakmem: HAKMEM_HEAP_PROFILE: no memory for the profile: switched off\n");
}

static bool note_alloc(void *p, void *companion, size_t size, double probability) {
  bool noted = hak_profile_note_alloc(p, companion, size, probability);
  hak_black_box_note_growth();
  return noted;
}

/* A block in a slab of sampled ones, and for one that would share its pages another in its place: what that pins the
 * profile can tell. */
static void *profiled_block(hak_tcache *t, unsigned c, size_t size, double probability, hak_deferred *d) {
  void *p = hak_arena_alloc_sampled(c);
  if (p == NULL) {
    hak_profile_note_dropped();
    return NULL;
  }
  size_t block_size = hak_class_size(c);
  void *companion = t != NULL && block_size < hak_os_page_size() ? hak_tcache_alloc(t, c, d) : NULL;
  if (note_alloc(p, companion, size, probability)) return p;
  hak_arena_free(p, c, d);
  return companion;
}

void *hak_sampled_alloc(hak_due due, hak_tcache *t, unsigned c, size_t size, size_t align, hak_deferred *d) {
  HAK_ASSERT(due.guard || due.profile);
  /* The guard is behind what the program asked for: a slot knows the size, and needs no trailer. */
  void *p = due.guard ? hak_sample_alloc(size - HAK_TRAILER_BYTES_BUILT, align) : NULL;
  if (!due.profile) return p;
  if (p == NULL) return profiled_block(t, c, size, due.probability, d);
  note_alloc(p, NULL, size, due.probability);
  return p;
}

void hak_sampled_count_large(void *p, size_t size) {
  if (HAK_LIKELY(hak_count_request(size))) return;
  hak_due due = hak_count_end(size);
  if (due.forbidden) hak_forbid_report("allocation", NULL, size);
  if (due.profile) note_alloc(p, NULL, size, due.probability);
}

static void end_sample(void *p, unsigned c, hak_deferred *d) {
  void *companion = NULL;
  hak_profile_note_free(p, &companion);
  hak_tcache *t = hak_tls.cache;
  if (companion != NULL && t != NULL)
    hak_tcache_free(t, companion, c, d);
  else if (companion != NULL)
    hak_arena_free(companion, c, d);
}

void hak_sampled_end(void *p) {
  hak_deferred d = {0};
  end_sample(p, hak_region_span(hak_region_find(p), p)->class_code, &d);
  hak_slow_exit(&d);
}

void hak_sampled_free(void *p) {
  hak_deferred d = {0};
  unsigned c = hak_region_span(hak_region_find(p), p)->class_code;
  end_sample(p, c, &d);
  hak_arena_free(p, c, &d); /* says what is wrong where it was not live */
  hak_slow_exit(&d);
}
