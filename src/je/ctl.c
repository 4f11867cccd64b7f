/* mallctl, mallctlnametomib and mallctlbymib: names, their MIBs, and what reads and writes have in common.
 *
 * A MIB has for each component of a name that is a number the number, else the first row of the table that begins with
 * the name's components up to there: so the last component of a whole name's MIB is its row. */
#include "je/ctl.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "life/thread.h"

HAK_EXPORT int mallctl(const char *name, void *oldp, size_t *oldlenp, void *newp, size_t newlen);
HAK_EXPORT int mallctlnametomib(const char *name, size_t *mibp, size_t *miblenp);
HAK_EXPORT int mallctlbymib(const size_t *mib, size_t miblen, void *oldp, size_t *oldlenp, void *newp, size_t newlen);

typedef struct row {
  const char *name;
  const void *setting; /* of opt.*: where it is */
  int (*act)(const hak_ctl_call *);
  uint16_t line; /* of ctl.def, where it is a value */
  uint8_t type;
} row;

static const row rows[] = {
#define VALUE(name, type, expression) {name, NULL, NULL, __LINE__, HAK_CTL_##type},
#define ACT(name, type, function) {name, NULL, function, 0, HAK_CTL_##type},
#include "je/ctl.def"
#define CONF(kind, name, initial) {"opt." #name, &hak_je_conf.name, NULL, 0, HAK_CTL_##kind},
#include "je/conf.def"
};
#define ROWS (sizeof rows / sizeof rows[0])

#define BYTES(name, type) sizeof(type),
static const uint8_t bytes_of[] = {HAK_JE_TYPES(BYTES)};

/* --- values --- */

int hak_ctl_give(const hak_ctl_call *c, const void *value, size_t bytes) {
  if (c->old == NULL || c->old_bytes == NULL) return 0;
  size_t room = *c->old_bytes, given = hak_min_size(room, bytes);
  memcpy(c->old, value, given);
  *c->old_bytes = given;
  return room == bytes ? 0 : EINVAL;
}

int hak_ctl_take(const hak_ctl_call *c, void *value, size_t bytes) {
  if (c->given == NULL) return 0;
  if (c->given_bytes != bytes) return EINVAL;
  memcpy(value, c->given, bytes);
  return 0;
}

int hak_ctl_exchange(const hak_ctl_call *c, void *value, size_t bytes) {
  char before[sizeof(hak_activity)];
  HAK_ASSERT(bytes <= sizeof before);
  memcpy(before, value, bytes);
  int error = hak_ctl_take(c, value, bytes);
  return error != 0 ? error : hak_ctl_give(c, before, bytes);
}

#define AS_WORD(x) ((uint64_t)(uintptr_t)(x))

/* What statistics of all arenas have for one's settings. */
static const hak_je_arena of_all = {.dirty_ms = -1, .muzzy_ms = -1, .dss = "N/A"};

/* Lower bytes are the value: machines that this builds for are little-endian. */
static uint64_t value_of(const row *r, const size_t *numbers, const hak_je_figures *f) {
  size_t i = numbers[0], j = numbers[1];
  const hak_je_arena *one = hak_je_arena_at(i), *arena = one != NULL ? one : &of_all;
  switch (r->line) {
#define VALUE(name, type, expression) case __LINE__: return AS_WORD(expression);
#define ACT(name, type, function)
#include "je/ctl.def"
    default: return 0;
  }
}

static int give_value(const row *r, const hak_ctl_call *c, const size_t *numbers) {
  uint64_t value = 0;
  if (hak_ctl_writes(c)) return EPERM;
  if (r->setting != NULL) {
    memcpy(&value, r->setting, bytes_of[r->type]);
  } else if (strncmp(r->name, "stats.", 6) != 0) {
    value = value_of(r, numbers, NULL);
  } else {
    hak_lock_take(&hak_je_lock);
    value = value_of(r, numbers,
                     hak_je_figures_locked(strncmp(r->name, "stats.arenas.", 13) == 0 ? numbers[0] : HAK_JE_ALL));
    hak_lock_drop(&hak_je_lock);
  }
  return hak_ctl_give(c, &value, bytes_of[r->type]);
}

const char *hak_ctl_name(size_t index, unsigned *type) {
  if (index >= ROWS) return NULL;
  *type = rows[index].type;
  return rows[index].name;
}

/* --- names --- */

/* A component: its length. */
static size_t component(const char *at) { return strcspn(at, "."); }
static const char *next(const char *at) {
  at += component(at);
  return *at == '.' ? at + 1 : NULL;
}

/* Where component number `depth` of a row's name begins; NULL: it has no such. */
static const char *component_at(const char *name, size_t depth) {
  for (; depth > 0 && name != NULL; depth--) name = next(name);
  return name;
}

/* Whether two rows have the same first `depth` + 1 components. */
static bool begin_alike(const row *a, const row *b, size_t depth) {
  const char *end_a = component_at(a->name, depth), *end_b = component_at(b->name, depth);
  if (end_a == NULL || end_b == NULL) return false;
  size_t length = (size_t)(end_a - a->name) + component(end_a);
  return length == (size_t)(end_b - b->name) + component(end_b) && memcmp(a->name, b->name, length) == 0;
}

static size_t first_alike(const row *r, size_t depth) {
  size_t i = 0;
  while (!begin_alike(&rows[i], r, depth)) i++;
  return i;
}

/* Whether there is such a number where a name has <letter>. The number of arenas stands for all of them, as it did
 * before MALLCTL_ARENAS_ALL. */
static bool is_number_of(char letter, size_t number) {
  switch (letter) {
    case 'a': return number == HAK_JE_ALL || number == HAK_JE_DESTROYED || number <= hak_je_arena_count();
    case 's': return number == hak_je_arena_count() || hak_je_has_figures(number);
    case 'b': return number < HAK_JE_BINS;
    default: return number < HAK_JE_LEXTENTS;
  }
}

/* A number as strtoul reads it in any base, to the component's end. */
static bool parse_number(const char *text, size_t length, size_t *number) {
  char *end;
  if (length == 0 || *text < '0' || *text > '9') return false;
  int saved = errno;
  *number = strtoul(text, &end, 0);
  errno = saved;
  return end == text + length;
}

/* Where the name's components that were asked for are the row's, its MIB. False: they are not. */
static bool match(const row *r, const char *name, size_t *mib, size_t *length) {
  const char *at = r->name;
  size_t depth = 0;
  for (; depth < *length && name != NULL; depth++) {
    if (at == NULL) return false;
    size_t bytes = component(name);
    if (*at == '<') {
      if (!parse_number(name, bytes, &mib[depth]) || !is_number_of(at[1], mib[depth])) return false;
    } else if (bytes != component(at) || memcmp(name, at, bytes) != 0) {
      return false;
    }
    name = next(name);
    at = next(at);
  }
  at = r->name;
  for (size_t i = 0; i < depth; i++, at = next(at)) {
    if (*at != '<') mib[i] = first_alike(r, i);
  }
  *length = depth;
  return true;
}

/* The row of a whole MIB, and the numbers in it; NULL: it is none. */
static const row *row_of(const size_t *mib, size_t length, size_t numbers[2]) {
  if (length == 0 || mib[length - 1] >= ROWS) return NULL;
  const row *r = &rows[mib[length - 1]];
  const char *at = r->name;
  size_t found = 0;
  for (size_t i = 0; i < length; i++, at = next(at)) {
    if (at == NULL) return NULL;
    if (*at != '<') {
      if (mib[i] >= ROWS || !begin_alike(&rows[mib[i]], r, i)) return NULL;
    } else {
      if (!is_number_of(at[1], mib[i])) return NULL;
      bool all = (at[1] == 'a' || at[1] == 's') && mib[i] == hak_je_arena_count();
      numbers[found++] = all ? HAK_JE_ALL : mib[i];
    }
  }
  return at == NULL ? r : NULL;
}

static int name_to_mib(const char *name, size_t *mibp, size_t *miblenp) {
  size_t length = hak_min_size(*miblenp, HAK_CTL_DEPTH), mib[HAK_CTL_DEPTH];
  for (size_t i = 0; i < ROWS; i++) {
    size_t found = length;
    if (!match(&rows[i], name, mib, &found)) continue;
    memcpy(mibp, mib, found * sizeof *mib);
    *miblenp = found;
    return 0;
  }
  return ENOENT;
}

int mallctlnametomib(const char *name, size_t *mibp, size_t *miblenp) { return name_to_mib(name, mibp, miblenp); }

static int call_mib(const size_t *mib, size_t miblen, void *oldp, size_t *oldlenp, void *newp, size_t newlen) {
  size_t numbers[2] = {0, 0};
  if (!hak_start()) return EAGAIN;
  const row *r = row_of(mib, miblen, numbers);
  hak_ctl_call call = {numbers[0], oldp, oldlenp, newp, newlen};
  if (r == NULL) return ENOENT;
  return r->act != NULL ? r->act(&call) : give_value(r, &call, numbers);
}

int mallctlbymib(const size_t *mib, size_t miblen, void *oldp, size_t *oldlenp, void *newp, size_t newlen) {
  return call_mib(mib, miblen, oldp, oldlenp, newp, newlen);
}

int hak_ctl_call_name(const char *name, void *oldp, size_t *oldlenp, void *newp, size_t newlen) {
  size_t mib[HAK_CTL_DEPTH], length = HAK_CTL_DEPTH;
  if (!hak_start()) return EAGAIN;
  int error = name_to_mib(name, mib, &length);
  return error != 0 ? error : call_mib(mib, length, oldp, oldlenp, newp, newlen);
}

int mallctl(const char *name, void *oldp, size_t *oldlenp, void *newp, size_t newlen) {
  return hak_ctl_call_name(name, oldp, oldlenp, newp, newlen);
}
