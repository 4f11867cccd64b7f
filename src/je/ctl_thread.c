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
  unsigned wanted = hak_je_thread_arena();
  int error = hak_ctl_exchange(c, &wanted, sizeof wanted);
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
  hak_activity wanted = hak_activity_get();
  int error = hak_ctl_exchange(c, &wanted, sizeof wanted);
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
  bool wanted = !without_tcache;
  int error = hak_ctl_exchange(c, &wanted, sizeof wanted);
  if (error == 0 && !wanted) flush();
  if (error == 0) without_tcache = !wanted;
  return error;
}

int hak_ctl_thread_tcache_flush(const hak_ctl_call *c) {
  return without_tcache ? EFAULT : hak_ctl_thread_idle(c);
}

/* --- explicit caches --- */

int hak_ctl_tcache_create(const hak_ctl_call *c) {
  unsigned id = 0;
  if (hak_ctl_writes(c)) return EPERM;
  if (c->old != NULL && c->old_bytes != NULL && *c->old_bytes != sizeof id) {
    *c->old_bytes = 0;
    return EINVAL;
  }
  hak_lock_take(&hak_je_lock);
  id = hak_je_tcache_make();
  hak_lock_drop(&hak_je_lock);
  return id == HAK_JE_TCACHES ? EFAULT : hak_ctl_give(c, &id, sizeof id);
}

static int named(const hak_ctl_call *c, bool ends) {
  unsigned id = 0;
  if (hak_ctl_reads(c)) return EPERM;
  if (c->given == NULL) return EINVAL;
  int error = hak_ctl_take(c, &id, sizeof id);
  if (error != 0) return error;
  hak_lock_take(&hak_je_lock);
  bool found = hak_je_tcache_flush(id, ends);
  hak_lock_drop(&hak_je_lock);
  return found ? 0 : EFAULT;
}
int hak_ctl_tcache_flush(const hak_ctl_call *c) { return named(c, false); }
int hak_ctl_tcache_destroy(const hak_ctl_call *c) { return named(c, true); }
