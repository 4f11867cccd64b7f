/* mallctl's thread.* and tcache.*. */
#include <errno.h>

#include "je/ctl.h"

uint64_t hak_je_flushes;
static HAK_TLS bool without_tcache;

static void flush(void) {
  hakmem_thread_idle();
  hak_add_relaxed(&hak_je_flushes, 1);
}

int hak_ctl_thread_arena(const hak_ctl_call *c) {
  unsigned is = hak_je_thread_arena(), wanted = is;
  int error = hak_ctl_take(c, &wanted, sizeof wanted);
  if (error == 0) error = hak_ctl_give(c, &is, sizeof is);
  return error != 0 ? error : hak_je_set_thread_arena(wanted);
}

int hak_ctl_thread_peak_reset(const hak_ctl_call *c) {
  int error = hak_ctl_neither(c);
  if (error == 0) {
    hak_totals.base = (int64_t)(hak_totals.allocated - hak_totals.deallocated);
    hak_totals.peak = 0;
  }
  return error;
}

int hak_ctl_thread_activity(const hak_ctl_call *c) {
  hak_activity is = hak_activity_get(), wanted = is;
  int error = hak_ctl_give(c, &is, sizeof is);
  if (error == 0) error = hak_ctl_take(c, &wanted, sizeof wanted);
  if (error == 0 && c->given != NULL) hak_activity_set(wanted);
  return error;
}

int hak_ctl_thread_idle(const hak_ctl_call *c) {
  int error = hak_ctl_neither(c);
  if (error == 0) flush();
  return error;
}

/* What is cached goes back at once; the thread goes on with a cache all the same. */
int hak_ctl_thread_tcache_enabled(const hak_ctl_call *c) {
  bool is = !without_tcache, wanted = is;
  int error = hak_ctl_take(c, &wanted, sizeof wanted);
  if (error == 0 && !wanted) flush();
  if (error == 0) without_tcache = !wanted;
  return error != 0 ? error : hak_ctl_give(c, &is, sizeof is);
}

int hak_ctl_thread_tcache_flush(const hak_ctl_call *c) {
  if (without_tcache) return EFAULT;
  return hak_ctl_thread_idle(c);
}

/* --- explicit caches --- */

#define CACHES HAK_JE_TCACHES
#define WORDS ((CACHES + 63) / 64)
static uint64_t taken[WORDS]; /* hak_je_lock */

static bool is_taken(unsigned id) { return id < CACHES && (taken[id / 64] >> id % 64 & 1) != 0; }

int hak_ctl_tcache_create(const hak_ctl_call *c) {
  unsigned id = 0;
  if (hak_ctl_writes(c)) return EPERM;
  if (c->old != NULL && c->old_bytes != NULL && *c->old_bytes != sizeof id) {
    *c->old_bytes = 0;
    return EINVAL;
  }
  hak_lock_take(&hak_je_lock);
  while (id < CACHES && is_taken(id)) id++;
  if (id < CACHES && !hak_je_tcache_make(id)) id = CACHES;
  if (id < CACHES) taken[id / 64] |= (uint64_t)1 << id % 64;
  hak_lock_drop(&hak_je_lock);
  return id == CACHES ? EFAULT : hak_ctl_give(c, &id, sizeof id);
}

static int named(const hak_ctl_call *c, bool ends) {
  unsigned id = 0;
  if (hak_ctl_reads(c)) return EPERM;
  if (c->given == NULL) return EINVAL;
  int error = hak_ctl_take(c, &id, sizeof id);
  if (error != 0) return error;
  hak_lock_take(&hak_je_lock);
  error = is_taken(id) ? 0 : EFAULT;
  if (error == 0) hak_je_tcache_flush(id);
  if (error == 0 && ends) taken[id / 64] &= ~((uint64_t)1 << id % 64);
  hak_lock_drop(&hak_je_lock);
  return error;
}
int hak_ctl_tcache_flush(const hak_ctl_call *c) { return named(c, false); }
int hak_ctl_tcache_destroy(const hak_ctl_call *c) { return named(c, true); }
