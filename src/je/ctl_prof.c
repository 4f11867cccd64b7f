/* mallctl's prof.* and thread.prof.*: the heap profile, where opt.prof says that there is to be one. As in jemalloc,
 * where it does not, reading says no, and all else ENOENT. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "je/ctl.h"

#define PREFIX_MAX 1024

static bool thread_active_init; /* relaxed */
static bool gdump;              /* relaxed */
static char prefix[PREFIX_MAX]; /* hak_je_lock; "": as at the start */
static unsigned dumps, manual;  /* hak_je_lock */
static void (*dump_hook)(const char *path); /* relaxed: called behind each dump that mallctl makes */

static int set_active(bool on) {
  int error = on ? hakmem_profile_start(0) : hakmem_profile_stop();
  return error == ENOTSUP ? 0 : error == ENOMEM ? EAGAIN : error;
}

int hak_ctl_prof_active(const hak_ctl_call *c) {
  bool is = hak_je_conf.prof && hak_je_option("HEAP_PROFILE") != 0, wanted = is;
  int error = hak_ctl_take(c, &wanted, sizeof wanted);
  if (error == 0 && !hak_je_conf.prof && wanted) error = ENOENT;
  if (error == 0 && wanted != is) error = set_active(wanted);
  return error != 0 ? error : hak_ctl_give(c, &is, sizeof is);
}

/* What stands before the file's ending: m and a number, or f. False: the prefix is empty, so that there are no such
 * files. */
static bool own_name(char *out, size_t room, bool final) {
  hak_lock_take(&hak_je_lock);
  const char *before = prefix[0] != '\0' ? prefix : hak_je_conf.prof_prefix;
  bool named = *before != '\0';
  if (final)
    snprintf(out, room, "%s.%d.%u.f.heap", before, hak_os_pid(), dumps);
  else
    snprintf(out, room, "%s.%d.%u.m%u.heap", before, hak_os_pid(), dumps, manual++);
  dumps++;
  hak_lock_drop(&hak_je_lock);
  return named;
}

bool hak_je_prof_final(void) {
  char path[PREFIX_MAX + 64];
  if (!own_name(path, sizeof path, true)) return false;
  int error = hakmem_profile_dump(path, HAKMEM_PROFILE_JEMALLOC);
  if (error != 0 && error != ENOTSUP) hak_je_say("<jemalloc>: failed to open \"%s\"\n", path);
  return true;
}

int hak_ctl_prof_dump_hook(const hak_ctl_call *c) {
  void (*wanted)(const char *) = hak_load_relaxed(&dump_hook);
  if (c->old == NULL && c->given == NULL) return EINVAL;
  if (hak_ctl_writes(c) && !hak_je_conf.prof) return ENOENT;
  int error = hak_ctl_exchange(c, &wanted, sizeof wanted);
  if (error == 0) hak_store_relaxed(&dump_hook, wanted);
  return error;
}

int hak_ctl_prof_dump(const hak_ctl_call *c) {
  const char *path = NULL;
  char own[PREFIX_MAX + 64];
  if (!hak_je_conf.prof) return ENOENT;
  if (hak_ctl_reads(c)) return EPERM;
  int error = hak_ctl_take(c, &path, sizeof path);
  if (error != 0) return error;
  if (path == NULL && !own_name(own, sizeof own, false)) return EFAULT;
  if (path == NULL) path = own;
  if (hakmem_profile_dump(path, HAKMEM_PROFILE_JEMALLOC) != 0) return EFAULT;
  void (*hook)(const char *) = hak_load_relaxed(&dump_hook);
  if (hook != NULL) hook(path);
  return 0;
}

static int flag(const hak_ctl_call *c, bool *of) {
  bool wanted = hak_je_conf.prof && hak_load_relaxed(of);
  if (!hak_je_conf.prof && hak_ctl_writes(c)) return ENOENT;
  int error = hak_ctl_exchange(c, &wanted, sizeof wanted);
  if (error == 0) hak_store_relaxed(of, wanted);
  return error;
}
int hak_ctl_prof_gdump(const hak_ctl_call *c) { return flag(c, &gdump); }
int hak_ctl_prof_thread_active_init(const hak_ctl_call *c) { return flag(c, &thread_active_init); }

int hak_ctl_prof_prefix(const hak_ctl_call *c) {
  const char *text = NULL;
  if (!hak_je_conf.prof) return ENOENT;
  if (hak_ctl_reads(c)) return EPERM;
  int error = hak_ctl_take(c, &text, sizeof text);
  if (error != 0 || text == NULL) return error;
  if (strlen(text) >= sizeof prefix) return EINVAL;
  hak_lock_take(&hak_je_lock);
  strcpy(prefix, text);
  hak_lock_drop(&hak_je_lock);
  return 0;
}

int hak_ctl_prof_reset(const hak_ctl_call *c) {
  size_t lg = hak_je_prof_lg_sample();
  if (!hak_je_conf.prof) return ENOENT;
  if (hak_ctl_reads(c)) return EPERM;
  int error = hak_ctl_take(c, &lg, sizeof lg);
  if (error != 0) return error;
  if (c->given != NULL) hak_je_set_rate_option(lg);
  error = hakmem_profile_reset();
  return error == ENOTSUP ? 0 : error;
}

/* All threads are sampled, or none. */
int hak_ctl_thread_prof_active(const hak_ctl_call *c) {
  bool is = hak_je_conf.prof, wanted = is;
  if (!is && hak_ctl_writes(c)) return ENOENT;
  int error = hak_ctl_take(c, &wanted, sizeof wanted);
  if (error == 0 && !wanted && is) error = EPERM;
  return error != 0 ? error : hak_ctl_give(c, &is, sizeof is);
}

/* Kept and shown: profiles name no threads. */
static bool is_name(const char *text) {
  for (; *text != '\0'; text++) {
    if (*text != ' ' && *text != '\t' && (*text < '!' || *text > '~')) return false;
  }
  return true;
}

int hak_ctl_thread_prof_name(const hak_ctl_call *c) {
  static HAK_TLS char *own;
  const char *is = own != NULL ? own : "", *wanted = NULL;
  if (!hak_je_conf.prof) return ENOENT;
  if (hak_ctl_writes(c) && hak_ctl_reads(c)) return EPERM;
  if (!hak_ctl_writes(c)) return hak_ctl_give(c, &is, sizeof is);
  int error = hak_ctl_take(c, &wanted, sizeof wanted);
  if (error == 0 && wanted == NULL) error = EFAULT;
  if (error == 0 && !is_name(wanted)) error = EFAULT;
  char *copy = error != 0 ? NULL : hak_raw_malloc(strlen(wanted) + 1);
  if (error == 0 && copy == NULL) error = EAGAIN;
  if (error != 0) return error;
  strcpy(copy, wanted);
  hak_raw_free(own);
  own = copy;
  return 0;
}
