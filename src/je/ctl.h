/* What a row of mallctl's table (ctl.def) is, and what its actions have in common. */
#ifndef HAK_JE_CTL_H
#define HAK_JE_CTL_H

#include <errno.h>

#include "je/je.h"

typedef enum hak_ctl_type {
  HAK_CTL_BOOL, HAK_CTL_UNSIGNED, HAK_CTL_SIZE, HAK_CTL_SSIZE, HAK_CTL_U64, HAK_CTL_I64, HAK_CTL_STRING, HAK_CTL_POINTER,
  HAK_CTL_NOTHING /* an act */
} hak_ctl_type;

/* What a program calls with. */
typedef struct hak_ctl_call {
  size_t index; /* the first number of the name */
  void *old;
  size_t *old_bytes;
  const void *given;
  size_t given_bytes;
} hak_ctl_call;

/* All return 0 or an errno value. Gives the program a value: where it has room for another length, as many bytes as fit, with EINVAL. */
int hak_ctl_give(const hak_ctl_call *call, const void *value, size_t bytes);
/* Takes what it has given, if it has: *value stays else. EINVAL: of another length. */
int hak_ctl_take(const hak_ctl_call *call, void *value, size_t bytes);
HAK_INLINE bool hak_ctl_reads(const hak_ctl_call *c) { return c->old != NULL || c->old_bytes != NULL; }
HAK_INLINE bool hak_ctl_writes(const hak_ctl_call *c) { return c->given != NULL || c->given_bytes != 0; }
/* An act that neither reads nor writes: EPERM where the call does. */
HAK_INLINE int hak_ctl_neither(const hak_ctl_call *c) { return hak_ctl_reads(c) || hak_ctl_writes(c) ? EPERM : 0; }

#define HAK_CTL_DEPTH 8

/* Rows' actions, by file. */
int hak_ctl_epoch(const hak_ctl_call *c);
int hak_ctl_background(const hak_ctl_call *c);
int hak_ctl_background_most(const hak_ctl_call *c);
int hak_ctl_mutexes_reset(const hak_ctl_call *c);
int hak_ctl_arena_initialized(const hak_ctl_call *c);
int hak_ctl_arena_purge(const hak_ctl_call *c);
int hak_ctl_arena_reset(const hak_ctl_call *c);
int hak_ctl_arena_destroy(const hak_ctl_call *c);
int hak_ctl_arena_dirty(const hak_ctl_call *c);
int hak_ctl_arena_muzzy(const hak_ctl_call *c);
int hak_ctl_arena_name(const hak_ctl_call *c);
int hak_ctl_arena_dss(const hak_ctl_call *c);
int hak_ctl_arena_grow_limit(const hak_ctl_call *c);
int hak_ctl_arena_oversize(const hak_ctl_call *c);
int hak_ctl_arenas_dirty(const hak_ctl_call *c);
int hak_ctl_arenas_muzzy(const hak_ctl_call *c);
int hak_ctl_arenas_create(const hak_ctl_call *c);
int hak_ctl_arenas_lookup(const hak_ctl_call *c);
int hak_ctl_thread_arena(const hak_ctl_call *c);
int hak_ctl_thread_peak_reset(const hak_ctl_call *c);
int hak_ctl_thread_activity(const hak_ctl_call *c);
int hak_ctl_thread_idle(const hak_ctl_call *c);
int hak_ctl_thread_tcache_enabled(const hak_ctl_call *c);
int hak_ctl_thread_tcache_flush(const hak_ctl_call *c);
int hak_ctl_tcache_create(const hak_ctl_call *c);
int hak_ctl_tcache_flush(const hak_ctl_call *c);
int hak_ctl_tcache_destroy(const hak_ctl_call *c);
int hak_ctl_prof_active(const hak_ctl_call *c);
int hak_ctl_prof_dump(const hak_ctl_call *c);
int hak_ctl_prof_dump_hook(const hak_ctl_call *c);
int hak_ctl_prof_gdump(const hak_ctl_call *c);
int hak_ctl_prof_prefix(const hak_ctl_call *c);
int hak_ctl_prof_reset(const hak_ctl_call *c);
int hak_ctl_prof_thread_active_init(const hak_ctl_call *c);
int hak_ctl_thread_prof_active(const hak_ctl_call *c);
int hak_ctl_thread_prof_name(const hak_ctl_call *c);
int hak_ctl_query(const hak_ctl_call *c);
int hak_ctl_batch_query(const hak_ctl_call *c);

/* mallctl itself, for this library: a program may have put something before it. */
int hak_ctl_call_name(const char *name, void *oldp, size_t *oldlenp, void *newp, size_t newlen);
size_t hak_je_prof_lg_sample(void);
/* The table's rows: a name and its type; NULL: there are no more. */
const char *hak_ctl_name(size_t row, unsigned *type);

#endif
