#include "watch/samplers.h"

#include <errno.h>
#include <string.h>

#include "guard/sample.h"
#include "os/print.h"
#include "profile/profile.h"
#include "profile/unwind.h"
#include "tcache/counted.h"
#include "tcache/tcache.h"
#include "watch/crash.h"

/* A guarded block costs some 10 us: system calls that make its pages accessible, and inaccessible again. Where all are
 * asked for, there are as many as there can be. */
#define GUARDS_A_SECOND 500

/* Hardened build: what a small program, or a test, ever allocates. A block costs some 8 us, and 4 KiB while it is
 * live. */
#define FIRST_BLOCKS 64

/* Without a sampler that asks for more the first blocks are guarded: not where addresses are scarce. */
static void guard_first(void) {
  if (!HAK_HARD(GUARDS) || hak_config.heap_profile != 0 || hak_os_is_limited(HAK_OS_ADDRESS_SPACE)) return;
  hak_sample_start(FIRST_BLOCKS, false);
  if (hak_sample_on()) hak_counting_guard_first(FIRST_BLOCKS);
}

#define RATE_MAX ((size_t)1 << 40) /* as of the option */

hak_lock hak_sampling_lock;
static bool started;
static struct wanted {
  int64_t guard, profile, rate, most; /* as options; of a profile that is not wanted all 0 */
} followed; /* what is in force; under the lock */
static bool asked; /* from outside; relaxed, as its rate */
static int64_t asked_rate; /* 0: none */

static struct wanted wanted_now(void) {
  int64_t option = hak_load_relaxed(&hak_config.heap_profile), rate = option != 0 ? 0 : hak_load_relaxed(&asked_rate);
  struct wanted w = {.guard = hak_load_relaxed(&hak_config.guard_sample),
                     .profile = option != 0 || hak_load_relaxed(&asked)};
  if (w.profile == 0) return w;
  w.rate = rate != 0 ? rate : hak_load_relaxed(&hak_config.heap_profile_rate);
  w.most = hak_load_relaxed(&hak_config.heap_profile_most);
  return w;
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
  if (memcmp(&now, &followed, sizeof now) == 0) return true;
  follow_guards(&now, &rates);
  bool made = follow_profile(&now, &rates);
  if (!made) {
    hak_store_relaxed(&hak_config.heap_profile, now.profile = 0);
    hak_store_relaxed(&asked, false);
  }
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

int hak_sampling_ask(bool on, uint64_t rate) {
  if (!started) return EAGAIN;
  if (on) hak_unwind_start();
  if (!hak_lock_try(&hak_sampling_lock)) return EAGAIN;
  hak_store_relaxed(&asked, on);
  hak_store_relaxed(&asked_rate, (int64_t)hak_min_size(rate, RATE_MAX));
  bool made = follow_locked();
  hak_lock_drop(&hak_sampling_lock);
  return made ? 0 : ENOMEM;
}

void hak_sampling_start(void) {
  hak_unwind_note_main();
  started = true;
  if (hak_config.guard_sample == 0) guard_first();
  if (!hak_sampling_follow()) hak_print("hakmem: HAKMEM_HEAP_PROFILE: no memory for the profile: switched off\n");
}
