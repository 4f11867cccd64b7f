/* mallctl's thread.* and tcache.*. */
#include <errno.h>

#include <stdlib.h>
#include <string.h>

#include "entry/slow_exit.h"
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

/* Kept and shown: what a cache takes is hakmem's to say. */
#define TCACHE_MOST ((size_t)8 * HAK_MIB)
static HAK_TLS size_t tcache_max; /* 0: as opt.tcache_max */

int hak_ctl_thread_tcache_max(const hak_ctl_call *c) {
  size_t wanted = tcache_max != 0 ? tcache_max : hak_je_conf.tcache_max;
  int error = hak_ctl_exchange(c, &wanted, sizeof wanted);
  if (error == 0 && c->given != NULL) tcache_max = hak_max_size(hak_min_size(wanted, TCACHE_MOST), HAK_GRANULE);
  return error;
}

/* Of the blocks that serve so many bytes: as many as a magazine has. */
int hak_ctl_thread_ncached_read(const hak_ctl_call *c) {
  size_t bytes = 0, cached = 0;
  if (c->given == NULL) return EINVAL;
  int error = hak_ctl_take(c, &bytes, sizeof bytes);
  if (error == 0 && bytes > TCACHE_MOST) error = EINVAL;
  if (error == 0 && bytes <= HAK_SMALL_MAX) cached = hak_magazine_usable[hak_class_for(bytes)];
  return error != 0 ? error : hak_ctl_give(c, &cached, sizeof cached);
}

/* from-to:count|...; understood, and without effect. */
#define SETTINGS_LONGEST 1000
static bool is_list_of_counts(const char *text) {
  static const char after[] = "-:|";
  for (unsigned i = 0; *text != '\0'; i++) {
    char *end;
    if (*text < '0' || *text > '9') return false;
    strtoull(text, &end, 10);
    if (*end == '\0') return i % 3 == 2;
    if (*end != after[i % 3]) return false;
    text = end + 1;
  }
  return false;
}

int hak_ctl_thread_ncached_write(const hak_ctl_call *c) {
  const char *settings = NULL;
  if (hak_ctl_reads(c)) return EPERM;
  if (without_tcache && c->given != NULL) return ENOENT;
  int error = hak_ctl_take(c, &settings, sizeof settings);
  if (error != 0 || c->given == NULL) return error;
  if (settings == NULL || memchr(settings, '\0', SETTINGS_LONGEST) == NULL) return EINVAL;
  return *settings == '\0' || is_list_of_counts(settings) ? 0 : EINVAL;
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
