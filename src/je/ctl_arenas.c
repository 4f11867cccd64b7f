/* mallctl's arena.<i>.* and arenas.*, epoch, and what belongs to the whole process. */
#include <errno.h>
#include <string.h>

#include "je/ctl.h"

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

/* HAKMEM_BACKGROUND: one thread, or none. */
int hak_ctl_background(const hak_ctl_call *c) {
  bool is = hak_je_option("BACKGROUND") != 0, wanted = is;
  int error = hak_ctl_exchange(c, &wanted, sizeof wanted);
  if (error == 0 && wanted != is) hakmem_option_set("BACKGROUND", wanted);
  return error;
}

/* Kept and shown: there is one at most. */
int hak_ctl_background_most(const hak_ctl_call *c) {
  static size_t most = 1; /* relaxed */
  size_t wanted = hak_load_relaxed(&most);
  int error = hak_ctl_exchange(c, &wanted, sizeof wanted);
  if (error == 0 && wanted == 0) error = EINVAL;
  if (error == 0) hak_store_relaxed(&most, wanted);
  return error;
}

/* No figures of locks are kept: there is nothing to reset. */
int hak_ctl_mutexes_reset(const hak_ctl_call *c) {
  (void)c;
  return 0;
}

int hak_ctl_arena_initialized(const hak_ctl_call *c) {
  bool is = hak_je_has_figures(c->index);
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
  hak_je_arena *a = hak_je_arena_at(c->index);
  if (a == NULL) return EFAULT;
  ssize_t wanted = dirty ? a->dirty_ms : a->muzzy_ms;
  int error = hak_ctl_exchange(c, &wanted, sizeof wanted);
  return error != 0 || c->given == NULL ? error : hak_je_set_decay(c->index, dirty, wanted);
}
int hak_ctl_arena_dirty(const hak_ctl_call *c) { return decay(c, true); }
int hak_ctl_arena_muzzy(const hak_ctl_call *c) { return decay(c, false); }

/* Of arenas made from now on. */
static int default_decay(const hak_ctl_call *c, ssize_t *of) {
  ssize_t wanted = *of;
  int error = hak_ctl_exchange(c, &wanted, sizeof wanted);
  if (error == 0 && wanted < -1) error = EFAULT;
  if (error == 0) *of = wanted;
  return error;
}
int hak_ctl_arenas_dirty(const hak_ctl_call *c) { return default_decay(c, &hak_je_dirty_ms); }
int hak_ctl_arenas_muzzy(const hak_ctl_call *c) { return default_decay(c, &hak_je_muzzy_ms); }

/* sbrk is never used: the setting is kept, and does nothing; as are the next two. */
int hak_ctl_arena_dss(const hak_ctl_call *c) {
  static const char *const words[] = {"disabled", "primary", "secondary"};
  hak_je_arena *a = hak_je_arena_at(c->index < HAK_JE_ARENAS ? c->index : 0);
  const char *wanted = NULL, *word = NULL;
  if (a == NULL) return EFAULT;
  int error = hak_ctl_take(c, &wanted, sizeof wanted);
  for (unsigned i = 0; error == 0 && wanted != NULL && i < 3; i++) {
    /* What was read stays the same string */
    if (strcmp(wanted, words[i]) == 0) word = strcmp(wanted, a->dss) == 0 ? a->dss : words[i];
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

int hak_ctl_arena_grow_limit(const hak_ctl_call *c) {
  hak_je_arena *a = hak_je_arena_at(c->index);
  if (a == NULL) return EFAULT;
  size_t is = a->grow_limit, wanted = is;
  int error = hak_ctl_take(c, &wanted, sizeof wanted);
  if (error == 0 && wanted < HAK_JE_PAGE) error = EFAULT;
  if (error == 0) hak_store_relaxed(&a->grow_limit, page_class(wanted));
  return error != 0 ? error : hak_ctl_give(c, &is, sizeof is);
}

int hak_ctl_arena_oversize(const hak_ctl_call *c) {
  hak_je_arena *a = hak_je_arena_at(c->index);
  if (a == NULL) return EFAULT;
  size_t wanted = a->oversize;
  int error = hak_ctl_exchange(c, &wanted, sizeof wanted);
  if (error == 0) hak_store_relaxed(&a->oversize, wanted);
  return error;
}

/* Read into the buffer that *oldp points to, of HAK_JE_NAME bytes. */
int hak_ctl_arena_name(const hak_ctl_call *c) {
  hak_je_arena *a = hak_je_arena_at(c->index);
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

/* With hooks for extents, which this allocator does not call, there is none. config: begins with the pointer to
 * them. */
static int create(const hak_ctl_call *c, void **config, size_t bytes) {
  unsigned index = 0;
  if (c->old != NULL && c->old_bytes != NULL && *c->old_bytes != sizeof index) {
    *c->old_bytes = 0;
    return EINVAL;
  }
  int error = hak_ctl_take(c, config, bytes);
  if (error == 0 && config[0] != NULL) error = EPERM;
  if (error == 0) error = hak_je_arena_make(&index);
  return error != 0 ? error : hak_ctl_give(c, &index, sizeof index);
}

int hak_ctl_arenas_create(const hak_ctl_call *c) {
  void *hooks[1] = {NULL};
  return create(c, hooks, sizeof hooks);
}

/* The hooks, and whether metadata is by them. */
int hak_ctl_arenas_create_ext(const hak_ctl_call *c) {
  void *config[2] = {NULL};
  return create(c, config, sizeof config);
}

int hak_ctl_batch_alloc(const hak_ctl_call *c) {
  struct {
    void **blocks;
    size_t count, size;
    int flags;
  } wanted = {0};
  size_t filled = 0;
  if (c->given == NULL || (c->old != NULL && c->old_bytes != NULL && *c->old_bytes != sizeof filled)) return EINVAL;
  int error = hak_ctl_take(c, &wanted, sizeof wanted);
  if (error != 0) return error;
  while (filled < wanted.count && (wanted.blocks[filled] = mallocx(wanted.size, wanted.flags)) != NULL) filled++;
  return hak_ctl_give(c, &filled, sizeof filled);
}

static int source(const hak_ctl_call *c, unsigned from) {
  const char *text = hak_je_conf_source(from);
  if (text == NULL) return ENOENT;
  return hak_ctl_writes(c) ? EPERM : hak_ctl_give(c, &text, sizeof text);
}
int hak_ctl_conf_program(const hak_ctl_call *c) { return source(c, 1); }
int hak_ctl_conf_link(const hak_ctl_call *c) { return source(c, 2); }
int hak_ctl_conf_variable(const hak_ctl_call *c) { return source(c, 3); }
int hak_ctl_conf_harder(const hak_ctl_call *c) { return source(c, 4); }

int hak_ctl_arenas_lookup(const hak_ctl_call *c) {
  const void *p = NULL;
  unsigned index = 0;
  int error = hak_ctl_take(c, &p, sizeof p);
  if (error == 0 && !hak_je_arena_of(p, &index)) error = EINVAL;
  return error != 0 ? error : hak_ctl_give(c, &index, sizeof index);
}
