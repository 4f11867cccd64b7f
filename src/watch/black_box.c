#include "watch/black_box.h"

#include "os/os.h"
#include "os/print.h"

/* Near: less than a quarter of the limit is left, where the target of a cgroup wakes too (pool/budget.c). From one
 * profile to the next what is in use grows by a quarter of what is left, by a 64th of the limit at least: some ten
 * profiles from where it is near … */
#define NEAR_PART 4
#define GROWTH_PART 64
/* … and where nothing grows, one a minute. */
#define AGAIN_MS 60000
/* A profile takes milliseconds to write: a thread waits no longer for a file system that hangs. */
#define WRITE_MS 500

size_t hak_black_box_watch = SIZE_MAX;

static uint32_t *bell; /* relaxed */
static uint32_t rounds; /* relaxed; written by the thread */
/* By the thread. */
static size_t watch = SIZE_MAX, written_in_use;
static uint64_t written_ms; /* 0: never */

/* A thread that is about to wait for its bell does not hear it: so again each millisecond. Who has waited in vain, for
 * a file system that hangs or a thread that gets no processor, has nobody wait before the next look. */
void hak_black_box_wait(void) {
  uint32_t *word = hak_load_relaxed(&bell), before = hak_load_relaxed(&rounds);
  if (word == NULL || hak_inside_own_fork()) return;
  for (unsigned ms = 0; ms < WRITE_MS; ms++) {
    hak_os_futex_wake_shared(word);
    hak_os_futex_wait_ms(&rounds, before, 1);
    if (hak_load_relaxed(&rounds) != before || !hak_black_box_is_due()) return;
  }
  hak_store_relaxed(&hak_black_box_watch, SIZE_MAX);
}

void hak_black_box_done(void) {
  hak_add_relaxed(&rounds, 1);
  hak_os_futex_wake(&rounds);
}

static void set_watch(size_t in_use) {
  watch = in_use;
  hak_store_relaxed(&hak_black_box_watch, in_use);
}

/* A sample that comes before the first look waits for it. */
void hak_black_box_start(uint32_t *new_bell) {
  hak_store_relaxed(&bell, new_bell);
  set_watch(SIZE_MAX);
  written_ms = 0;
  if (new_bell != NULL && hak_config.heap_profile_near_limit != 0) hak_store_relaxed(&hak_black_box_watch, 0);
}

/* At the second look, a second after the first: the many short programs of a shell script say nothing. */
static void say_unbound(void) {
  static unsigned looks;
  if (looks < 2 && ++looks == 2)
    hak_print(
        "hakmem: HAKMEM_HEAP_PROFILE_NEAR_LIMIT: there is no limit of a cgroup, HAKMEM_RSS_TARGET or HAKMEM_LIMIT to "
        "be near to\n");
}

/* Bytes in use from which on a profile is due, as things are now. */
static size_t watch_of(hak_os_bound b, size_t in_use, uint64_t now_ms) {
  size_t left = hak_os_left(b), near = b.limit / NEAR_PART, next = in_use + (left > near ? left - near : 0);
  if (written_ms == 0 || now_ms - written_ms >= AGAIN_MS) return next;
  return hak_max_size(next, written_in_use + hak_max_size(left / NEAR_PART, b.limit / GROWTH_PART));
}

/* What has grown to the watch since the last look is written even where the limit seems far: memory may be asked for
 * and not yet touched. */
bool hak_black_box_look(uint64_t now_ms) {
  if (hak_load_relaxed(&hak_config.heap_profile) == 0) {
    set_watch(SIZE_MAX);
    return false;
  }
  size_t in_use = hak_budget_in_use(); /* first: what comes while the files are read counts as grown */
  hak_os_bound nearest = hak_budget_nearest();
  if (nearest.limit == SIZE_MAX) {
    say_unbound();
    set_watch(SIZE_MAX);
    return false;
  }
  bool due = in_use >= watch || in_use >= watch_of(nearest, in_use, now_ms);
  if (due) {
    written_in_use = in_use;
    written_ms = now_ms;
  }
  set_watch(watch_of(nearest, in_use, now_ms));
  return due;
}
