/* What a row of mallctl's table (ctl.def) is, and what its actions have in common. */
#ifndef HAK_JE_CTL_H
#define HAK_JE_CTL_H

#include <errno.h>

#include "je/je.h"

#define HAK_CTL_TYPE(name, type) HAK_CTL_##name,
enum { HAK_JE_TYPES(HAK_CTL_TYPE) HAK_CTL_NOTHING /* an act */ };

/* What a program calls with. */
typedef struct hak_ctl_call {
  size_t index; /* the first number of the name */
  void *old;
  size_t *old_bytes;
  const void *given;
  size_t given_bytes;
} hak_ctl_call;

/* All return 0 or an errno value. Gives the program a value: where it has room for another length, as many bytes as
 * fit, with EINVAL. */
int hak_ctl_give(const hak_ctl_call *call, const void *value, size_t bytes);
/* Takes what it has given, if it has: *value stays else. EINVAL: of another length. */
int hak_ctl_take(const hak_ctl_call *call, void *value, size_t bytes);
/* Gives the program *value, as it is, and takes what it has given in its place. */
int hak_ctl_exchange(const hak_ctl_call *call, void *value, size_t bytes);
HAK_INLINE bool hak_ctl_reads(const hak_ctl_call *c) { return c->old != NULL || c->old_bytes != NULL; }
HAK_INLINE bool hak_ctl_writes(const hak_ctl_call *c) { return c->given != NULL || c->given_bytes != 0; }
/* An act that neither reads nor writes: EPERM where the call does. */
HAK_INLINE int hak_ctl_neither(const hak_ctl_call *c) { return hak_ctl_reads(c) || hak_ctl_writes(c) ? EPERM : 0; }

#define HAK_CTL_DEPTH 8

/* Rows' actions. */
#define VALUE(name, type, expression)
#define ACT(name, type, function) int function(const hak_ctl_call *c);
#include "je/ctl.def"

/* mallctl itself, for this library: a program may have put something before it. */
int hak_ctl_call_name(const char *name, void *oldp, size_t *oldlenp, void *newp, size_t newlen);
/* The table's rows: a name and its type; NULL: there are no more. */
const char *hak_ctl_name(size_t row, unsigned *type);

#endif
