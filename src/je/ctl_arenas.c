/* mallctl's arena.<i>.* and arenas.*, epoch, and what belongs to the whole process. */
#include <errno.h>
#include <string.h>

#include "api/background.h"
#include "je/conf.h"
#include "je/ctl.h"

/* Arena, or one that stands for several. */
static bool is_one(size_t index) { return index < HAK_JE_ARENAS; }

int hak_ctl_epoch(const hak_ctl_call *c) {
  uint64_t given = 0;
  int error = hak_ctl_take(c, &given, sizeof given);
  if (error != 0) return error;
  hak_lock_take(&hak_je_lock);
  if (c->given != NULL || hak_je_epoch == 0) hak_je_refresh_locked();
  uint64_t epoch = hak_je_epoch;
  hak_lock_drop(&hak_je_lock);
  return hak_ctl_give(c, &epoch, sizeof epoch);
}

static bool background; /* hak_je_lock; read relaxed: as it was set here */

size_t hak_je_helpers(void) { return hak_load_relaxed(&background); }

/* Once started the thread stays: off, it is one that sleeps. */
static void set_background_locked(bool on) {
  hak_store_relaxed(&background, on);
  if (!on) return;
  hak_store_relaxed(&hak_config.background, 1);
  hak_background_start();
}

int hak_ctl_background(const hak_ctl_call *c) {
  hak_lock_take(&hak_je_lock);
  bool is = hak_load_relaxed(&background), wanted = is;
  int error = hak_ctl_take(c, &wanted, sizeof wanted);
  if (error == 0) error = hak_ctl_give(c, &is, sizeof is);
  if (error == 0 && wanted != is) set_background_locked(wanted);
  hak_lock_drop(&hak_je_lock);
  return error;
}

/* Kept and shown: there is one at most. */
int hak_ctl_background_most(const hak_ctl_call *c) {
  static size_t most; /* under hak_je_lock; 0: as at the start */
  hak_lock_take(&hak_je_lock);
  size_t is = most != 0 ? most : hak_je_conf.max_background_threads, wanted = is;
  int error = hak_ctl_take(c, &wanted, sizeof wanted);
  if (error == 0) error = hak_ctl_give(c, &is, sizeof is);
  if (error == 0 && wanted == 0) error = EINVAL;
  if (error == 0) most = wanted;
  hak_lock_drop(&hak_je_lock);
  return error;
}

/* No figures of locks are kept: there is nothing to reset. */
int hak_ctl_mutexes_reset(const hak_ctl_call *c) {
  (void)c;
  return 0;
}

int hak_ctl_arena_initialized(const hak_ctl_call *c) {
  bool is = is_one(c->index) ? hak_je_arena_at(c->index) != NULL : hak_je_has_figures(c->index);
  return hak_ctl_writes(c) ? EPERM : hak_ctl_give(c, &is, sizeof is);
}

/* Free memory is no arena's: all of it goes back. */
int hak_ctl_arena_purge(const hak_ctl_call *c) {
  int error = hak_ctl_neither(c);
  if (error == 0) hakmem_purge();
  return error;
}

int hak_ctl_arena_reset(const hak_ctl_call *c) {
  int error = hak_ctl_neither(c);
  return error != 0 ? error : hak_je_arena_reset(c->index);
}

int hak_ctl_arena_destroy(const hak_ctl_call *c) {
  int error = hak_ctl_neither(c);
  return error != 0 ? error : hak_je_arena_destroy(c->index);
}

static int decay(const hak_ctl_call *c, bool dirty) {
  hak_je_arena *a = is_one(c->index) ? hak_je_arena_at(c->index) : NULL;
  if (a == NULL) return EFAULT;
  ssize_t is = dirty ? a->dirty_ms : a->muzzy_ms, wanted = is;
  int error = hak_ctl_give(c, &is, sizeof is);
  if (error == 0) error = hak_ctl_take(c, &wanted, sizeof wanted);
  return error != 0 || c->given == NULL ? error : hak_je_set_decay(c->index, dirty, wanted);
}
int hak_ctl_arena_dirty(const hak_ctl_call *c) { return decay(c, true); }
int hak_ctl_arena_muzzy(const hak_ctl_call *c) { return decay(c, false); }

/* Of arenas made from now on. */
static int default_decay(const hak_ctl_call *c, ssize_t *of) {
  ssize_t is = *of, wanted = is;
  int error = hak_ctl_give(c, &is, sizeof is);
  if (error == 0) error = hak_ctl_take(c, &wanted, sizeof wanted);
  if (error == 0 && wanted < -1) error = EFAULT;
  if (error == 0) *of = wanted;
  return error;
}
int hak_ctl_arenas_dirty(const hak_ctl_call *c) { return default_decay(c, &hak_je_dirty_ms); }
int hak_ctl_arenas_muzzy(const hak_ctl_call *c) { return default_decay(c, &hak_je_muzzy_ms); }

/* sbrk is never used: the setting is kept, and does nothing; as are the next two. */
int hak_ctl_arena_dss(const hak_ctl_call *c) {
  static const char *const words[] = {"disabled", "primary", "secondary"};
  hak_je_arena *a = is_one(c->index) ? hak_je_arena_at(c->index) : hak_je_arena_at(0);
  const char *wanted = NULL, *word = NULL;
  if (a == NULL) return EFAULT;
  int error = hak_ctl_take(c, &wanted, sizeof wanted);
  for (unsigned i = 0; error == 0 && wanted != NULL && i < 3; i++) {
    if (strcmp(wanted, words[i]) == 0) word = words[i];
  }
  if (error == 0 && c->given != NULL && word == NULL) error = EINVAL;
  if (error == 0) error = hak_ctl_give(c, &a->dss, sizeof a->dss);
  if (error == 0 && word != NULL) hak_store_relaxed(&a->dss, word);
  return error;
}

/* The largest size of whole pages, four to a doubling, that is no larger. */
static size_t page_class(size_t bytes) {
  if (bytes < 8 * HAK_JE_PAGE) return hak_align_down(bytes, HAK_JE_PAGE);
  return hak_align_down(bytes, (size_t)1 << (61 - __builtin_clzll(bytes)));
}

static int kept_size(const hak_ctl_call *c, size_t *of, size_t least) {
  size_t is = *of, wanted = is;
  int error = hak_ctl_take(c, &wanted, sizeof wanted);
  if (error == 0 && wanted < least) error = EFAULT;
  if (error == 0) hak_store_relaxed(of, least != 0 ? page_class(wanted) : wanted);
  return error != 0 ? error : hak_ctl_give(c, &is, sizeof is);
}

int hak_ctl_arena_grow_limit(const hak_ctl_call *c) {
  hak_je_arena *a = is_one(c->index) ? hak_je_arena_at(c->index) : NULL;
  return a == NULL ? EFAULT : kept_size(c, &a->grow_limit, HAK_JE_PAGE);
}

int hak_ctl_arena_oversize(const hak_ctl_call *c) {
  hak_je_arena *a = is_one(c->index) ? hak_je_arena_at(c->index) : NULL;
  return a == NULL ? EFAULT : kept_size(c, &a->oversize, 0);
}

/* Read into the buffer that *oldp points to, of HAK_JE_NAME bytes. */
int hak_ctl_arena_name(const hak_ctl_call *c) {
  hak_je_arena *a = is_one(c->index) ? hak_je_arena_at(c->index) : NULL;
  const char *wanted = NULL;
  if (a == NULL) return EINVAL;
  int error = hak_ctl_take(c, &wanted, sizeof wanted);
  if (error != 0) return error;
  if (hak_ctl_reads(c)) {
    if (c->old == NULL || c->old_bytes == NULL || *c->old_bytes != sizeof(char *)) return EINVAL;
    memcpy(*(char **)c->old, a->name, HAK_JE_NAME);
  }
  if (wanted == NULL) return 0;
  size_t length = strnlen(wanted, HAK_JE_NAME - 1);
  hak_lock_take(&hak_je_lock);
  memset(a->name, 0, HAK_JE_NAME);
  memcpy(a->name, wanted, length);
  hak_lock_drop(&hak_je_lock);
  return 0;
}

/* With hooks for extents, which this allocator does not call, there is none. */
int hak_ctl_arenas_create(const hak_ctl_call *c) {
  void *hooks = NULL;
  unsigned index = 0;
  if (c->old != NULL && c->old_bytes != NULL && *c->old_bytes != sizeof index) {
    *c->old_bytes = 0;
    return EINVAL;
  }
  int error = hak_ctl_take(c, &hooks, sizeof hooks);
  if (error == 0 && hooks != NULL) error = EPERM;
  if (error == 0) error = hak_je_arena_make(&index);
  return error != 0 ? error : hak_ctl_give(c, &index, sizeof index);
}

int hak_ctl_arenas_lookup(const hak_ctl_call *c) {
  const void *p = NULL;
  unsigned index = 0;
  int error = hak_ctl_take(c, &p, sizeof p);
  if (error == 0 && !hak_je_arena_of(p, &index)) error = EINVAL;
  return error != 0 ? error : hak_ctl_give(c, &index, sizeof index);
}
