/* The configuration box. Owns the effective settings; options.def is the one list of them.
 *
 * hak_config_load runs once, before the first slab where libc has its environment by then. Reading a
 * field is a plain load: START options never change afterwards, LIVE options are single words read relaxed. */
#ifndef HAK_CONFIG_CONFIG_H
#define HAK_CONFIG_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HAK_TEXT_MAX 1024
#define HAK_CLASS_GROUPS 13 /* C1 … C12; index 0 is unused */

typedef struct hak_config {
#define OPTION(field, name, kind, def, lo, hi, when, text) int64_t field;
#define CHOICE(field, name, words, def, when, text) int64_t field;
#define PER_CLASS(field, prefix, def, lo, hi, when, text) int64_t field[HAK_CLASS_GROUPS];
#define TEXT(field, name, def, text) char field[HAK_TEXT_MAX];
#include "config/options.def"
} hak_config_t;

extern hak_config_t hak_config;

/* Blocks that the thread caches' capacity for C<group> is pinned to; 0: it adapts, as that of larger blocks always
 * does. */
static inline size_t hak_config_pinned(unsigned group) {
  return group < HAK_CLASS_GROUPS ? (size_t)hak_config.hot_ring[group] : 0;
}

enum { HAK_PROFILE_BALANCED, HAK_PROFILE_SPEED, HAK_PROFILE_LEAN, HAK_PROFILE_HARDENED };
enum { HAK_THP_OFF, HAK_THP_AUTO, HAK_THP_ON };
enum { HAK_LEAN_FREE, HAK_LEAN_DONTNEED, HAK_LEAN_OFF };
enum { HAK_FORBID_REPORT, HAK_FORBID_ABORT };
enum { HAK_STATS_OFF, HAK_STATS_TEXT, HAK_STATS_JSON };
enum { HAK_KIND_BOOL, HAK_KIND_COUNT, HAK_KIND_CHOICE, HAK_KIND_RATE, HAK_KIND_SIZE, HAK_KIND_TEXT };
enum { HAK_WHEN_START, HAK_WHEN_LIVE };

/* One row an option name, per-class rows expanded; for listing. */
typedef struct hak_option_row {
  char name[48];
  int64_t *value; /* of a TEXT option its first bytes */
  int64_t initial, lowest, highest;
  int kind, when;
  const char *text;
  const char *words; /* of a CHOICE option; the default of a TEXT option; else NULL */
} hak_option_row;

/* Calls visit(row, context) for every option in table order until it returns false. */
void hak_config_visit(bool (*visit)(const hak_option_row *row, void *context), void *context);
/* The row of a name with or without HAKMEM_. */
bool hak_config_find(const char *name, size_t length, hak_option_row *row);

/* Applies hakmem_conf and the HAKMEM_* variables (ignored in setuid programs), "NAME=value", which NULL ends. False:
 * there are none; libc has no environment yet. */
bool hak_config_load(char **variables);
bool hak_config_loaded(void);

/* Memory-lean mode is on and gives memory back. */
static inline bool hak_config_lean(void) {
  return hak_config.mem_lean != 0 && hak_config.mem_lean_decommit != HAK_LEAN_OFF;
}

/* The name with or without HAKMEM_. 0, or EINVAL (unknown name or value out of range), or EBUSY (a START option after
 * the start). */
int hak_config_set(const char *name, int64_t value);
int hak_config_get(const char *name, int64_t *value);
/* Where the value of a row that is no TEXT is from: HAKMEM_ORIGIN_…. */
int hak_config_origin(const hak_option_row *row);

/* The word of that place in a CHOICE option's words; NULL: there are fewer. */
const char *hak_config_word(const char *words, int64_t place);
/* A SIZE option that may be "auto" has this for its lowest value. */
#define HAK_SIZE_AUTO (-101)
/* A value as the variable would be written: a word, "512M", "80%" for -80, "auto", "1/N", or a number. */
#define HAK_VALUE_TEXT 24
const char *hak_config_value_text(const hak_option_row *row, int64_t value, char buffer[HAK_VALUE_TEXT]);

/* hakmem_option_list. */
struct hakmem_option;
size_t hak_config_list(bool (*visit)(const struct hakmem_option *option, void *context), void *context);
void hak_config_print(void); /* HAKMEM_VERBOSE */

#endif
