/* jemalloc's settings: where they are read, in which form, and which options of hakmem follow from them. The rows are
 * conf.def's. Runs before libc's own constructor, so that nothing here may need the environment or allocate. */
#include "je/je.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

HAK_EXPORT void (*malloc_message)(void *context, const char *text);
HAK_EXPORT const char *malloc_conf __attribute__((weak));
HAK_EXPORT const char *malloc_conf_2_conf_harder __attribute__((weak));

struct hak_je_conf hak_je_conf = {
#define CONF(kind, name, initial) .name = initial,
#include "je/conf.def"
};

#define DECAY_MOST INT64_C(18446744072000) /* jemalloc's: more does not fit its clock */
#define LONGEST_DECAY_MS 3600000           /* HAKMEM_DECAY_MS */
#define LG_RATE_MOST 40                    /* HAKMEM_HEAP_PROFILE_RATE */

typedef enum kind { BOOL, UNSIGNED, SIZE, SSIZE, U64, I64, WORDS, TEXT } kind;
enum { REFUSED, CLIPPED };

typedef struct row {
  const char *name, *words; /* words: or letters */
  void *value;
  int64_t lowest, highest;
  uint8_t kind, beyond;
} row;

static size_t lg_tcache_max; /* tcache_max in jemalloc's older form */
static const char *ignored;  /* what is taken, is no opt.*, and changes nothing */

static const row rows[] = {
    {"lg_tcache_max", NULL, &lg_tcache_max, 0, 23, SIZE, CLIPPED},
#define IGNORED(name) {#name, NULL, &ignored, 0, 0, TEXT, 0},
    IGNORED(bin_shards) IGNORED(slab_sizes) IGNORED(narenas_ratio) IGNORED(tcache_ncached_max)
        IGNORED(hpa_purge_threshold_ratio) IGNORED(hpa_hugification_threshold_ratio) IGNORED(prof_unbias)
#define FLAG(name, initial, meaning) {#name, NULL, &hak_je_conf.name, 0, 0, BOOL, 0},
#define NUMBER(kind, name, initial, lowest, highest, beyond, meaning) \
  {#name, NULL, &hak_je_conf.name, lowest, highest, kind, beyond},
#define WORD(name, initial, words, meaning) {#name, words, &hak_je_conf.name, 0, 0, WORDS, 0},
#define LINE(name, initial, letters, meaning) {#name, letters, &hak_je_conf.name, 0, 0, TEXT, 0},
#include "je/conf.def"
};

#define VALUE_MAX 1024
static char texts[4 * VALUE_MAX]; /* of TEXT rows, one after the other: strings that opt.* shows stay where they are */
static size_t texts_used;
static bool wrong;

void hak_je_say(const char *format, ...) {
  char text[2 * VALUE_MAX];
  va_list values;
  va_start(values, format);
  int n = vsnprintf(text, sizeof text, format, values);
  va_end(values);
  if (n >= (int)sizeof text) text[sizeof text - 2] = '\n';
  if (malloc_message != NULL)
    malloc_message(NULL, text);
  else
    hak_os_write_stderr(text, strlen(text));
}

/* --- values --- */

/* Out of range: the second is true. */
static bool set_number(const row *r, const char *text, bool *beyond) {
  char *end;
  errno = 0;
  uint64_t value = strtoumax(text, &end, 0);
  if (errno != 0 || end == text || *end != '\0') return false;
  bool is_signed = r->kind == SSIZE || r->kind == I64;
  bool low = is_signed ? (int64_t)value < r->lowest : value < (uint64_t)r->lowest;
  bool high = is_signed ? (int64_t)value > r->highest : value > (uint64_t)r->highest;
  *beyond = (low || high) && r->beyond == REFUSED;
  if (*beyond) return false;
  if (low || high) value = (uint64_t)(low ? r->lowest : r->highest);
  if (r->kind == UNSIGNED)
    *(unsigned *)r->value = (unsigned)value;
  else
    *(uint64_t *)r->value = value;
  return true;
}

static bool set_word(const row *r, const char *text) {
  for (const char *word = r->words; *word != '\0'; word += strlen(word) + 1)
    if (strcmp(word, text) == 0) return *(const char **)r->value = word, true;
  return false;
}

/* Where there are letters, others are left out, and each is there once. */
static bool set_text(const row *r, const char *text) {
  if (r->value == &ignored) return *text != '\0';
  char *to = texts + texts_used;
  size_t length = 0;
  if (strlen(text) >= sizeof texts - texts_used) return false;
  for (; *text != '\0'; text++)
    if (r->words == NULL || (strchr(r->words, *text) != NULL && memchr(to, *text, length) == NULL))
      to[length++] = *text;
  to[length] = '\0';
  texts_used += length + 1;
  *(const char **)r->value = to;
  return true;
}

static bool set(const row *r, const char *text, bool *beyond) {
  switch ((kind)r->kind) {
    case BOOL:
      if (strcmp(text, "true") != 0 && strcmp(text, "false") != 0) return false;
      *(bool *)r->value = *text == 't';
      return true;
    case WORDS:
      return set_word(r, text);
    case TEXT:
      return set_text(r, text);
    default:
      return set_number(r, text, beyond);
  }
}

static const row *find(const char *name, size_t length) {
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
    if (strncmp(rows[i].name, name, length) == 0 && rows[i].name[length] == '\0') return &rows[i];
  return NULL;
}

/* --- pairs --- */

typedef struct pair {
  const char *name, *value;
  int name_length, value_length;
} pair;

static void complain(const char *what, const pair *p) {
  hak_je_say("<jemalloc>: %s: %.*s:%.*s\n", what, p->name_length, p->name, p->value_length, p->value);
  wrong = true;
}

static void apply(const pair *p) {
  char text[VALUE_MAX];
  bool beyond = false;
  const row *r = find(p->name, (size_t)p->name_length);
  if (r == NULL) return complain("Invalid conf pair", p);
  snprintf(text, sizeof text, "%.*s", p->value_length, p->value);
  bool known = (r->value == &hak_je_conf.narenas && strcmp(text, "default") == 0) ||
               (p->value_length < VALUE_MAX && set(r, text, &beyond));
  if (!known) return complain(beyond ? "Out-of-range conf value" : "Invalid conf value", p);
  if (r->value == &lg_tcache_max) hak_je_conf.tcache_max = (size_t)1 << lg_tcache_max;
  if (hak_je_conf.confirm_conf)
    hak_je_say("<jemalloc>: -- Set conf value: %.*s:%.*s\n", p->name_length, p->name, p->value_length, p->value);
}

static bool is_of_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

/* The next pair of *at, which moves behind it. False: there is none, or *fault says what is there instead. */
static bool next_pair(const char **at, pair *p, const char **fault) {
  const char *c = *at;
  *fault = NULL;
  if (*c == '\0') return false;
  p->name = c;
  while (is_of_name(*c)) c++;
  p->name_length = (int)(c - p->name);
  if (*c != ':') return *fault = *c == '\0' ? "Conf string ends with key" : "Malformed conf string", false;
  p->value = ++c;
  c += strcspn(c, ",");
  p->value_length = (int)(c - p->value);
  if (*c == ',' && *++c == '\0') *fault = "Conf string ends with comma";
  *at = c;
  return true;
}

/* --- sources --- */

enum { BUILT_IN, PROGRAM, LINK, ENVIRONMENT, PROGRAM_HARDER, SOURCES };
static const char *source_texts[SOURCES]; /* NULL: there is none */

const char *hak_je_conf_source(unsigned source) { return source_texts[source]; }

static const char *variable(char **variables) {
  static const char name[] = "MALLOC_CONF=";
  for (; variables != NULL && *variables != NULL; variables++)
    if (strncmp(*variables, name, sizeof name - 1) == 0) return *variables + sizeof name - 1;
  return NULL;
}

static const char *text_of(int source) { return source_texts[source] != NULL ? source_texts[source] : ""; }

/* These two hold for sources before theirs too. */
static void look_for_flags(const char *text) {
  const char *fault;
  bool unused;
  for (pair p; next_pair(&text, &p, &fault);) {
    const row *r = find(p.name, (size_t)p.name_length);
    if (r == NULL || (r->value != &hak_je_conf.abort_conf && r->value != &hak_je_conf.confirm_conf) ||
        p.value_length > 5)
      continue;
    char value[6];
    snprintf(value, sizeof value, "%.*s", p.value_length, p.value);
    set(r, value, &unused);
  }
}

static void read_source(const char *text) {
  const char *fault;
  pair p;
  bool more;
  do {
    more = next_pair(&text, &p, &fault);
    if (fault != NULL) hak_je_say("<jemalloc>: %s\n", fault);
    wrong |= fault != NULL;
    if (more) apply(&p);
  } while (more);
}

void hak_je_set_decay_option(ssize_t ms) {
  hakmem_option_set("DECAY_MS", ms < 0 || ms > LONGEST_DECAY_MS ? LONGEST_DECAY_MS : ms);
}

void hak_je_set_rate_option(size_t lg) {
  hakmem_option_set("HEAP_PROFILE_RATE", (int64_t)1 << hak_min_size(lg, LG_RATE_MOST));
}

/* What they mean here. */
static void set_options(void) {
  const struct hak_je_conf *c = &hak_je_conf;
  if (c->dirty_decay_ms != 1000) hak_je_set_decay_option(c->dirty_decay_ms);
  if (c->background_thread) hakmem_option_set("BACKGROUND", 1);
  if (!c->tcache) hakmem_option_set("TINY_HOT_RING_ENABLE", 0);
  if (strcmp(c->thp, "default") != 0) hakmem_option_set("THP", c->thp[0] == 'a' ? 2 : 0);
  hak_fill_bits = (c->zero ? HAK_FILL_ZERO : 0) | (c->junk[0] == 't' || c->junk[0] == 'a' ? HAK_FILL_NEW : 0) |
             (c->junk[0] == 't' || strcmp(c->junk, "free") == 0 ? HAK_FILL_FREED : 0);
  if (!c->prof) return;
  hak_je_set_rate_option(c->lg_prof_sample);
  hakmem_option_set("HEAP_PROFILE_FORMAT", 1);
  if (c->prof_active) hakmem_option_set("HEAP_PROFILE", 1);
}

void hak_je_conf_read(char **variables) {
  static const char *const names[SOURCES] = {
      "string specified via --with-malloc-conf",
      "string pointed to by the global variable malloc_conf",
      "\"name\" of the file referenced by the symbolic link named /etc/malloc.conf",
      "value of the environment variable MALLOC_CONF",
      "string pointed to by the global variable malloc_conf_2_conf_harder",
  };
  static char target[4096];
  int saved = errno;
  const char **from = source_texts;
  const char *link = hak_os_read_link("/etc/malloc.conf", target, sizeof target);
  from[PROGRAM] = malloc_conf;
  from[LINK] = *link != '\0' ? link : NULL;
  from[ENVIRONMENT] = hak_os_has_more_rights() ? NULL : variable(variables);
  from[PROGRAM_HARDER] = malloc_conf_2_conf_harder;
  for (int i = 0; i < SOURCES; i++) look_for_flags(text_of(i));
  for (int i = 0; i < SOURCES; i++) {
    if (hak_je_conf.confirm_conf) hak_je_say("<jemalloc>: malloc_conf #%d (%s): \"%s\"\n", i + 1, names[i], text_of(i));
    read_source(text_of(i));
  }
  if (wrong && hak_je_conf.abort_conf) {
    hak_je_say("<jemalloc>: Abort (abort_conf:true) on invalid conf value (see above).\n");
    abort();
  }
  if (hak_je_conf.prof_leak_error) {
    hak_je_conf.prof_leak = true;
    if (hak_je_conf.prof && !hak_je_conf.prof_final) hak_je_say("<jemalloc>: prof_leak_error is set w/o prof_final.\n");
  }
  set_options();
  errno = saved;
}

/* --- what holds --- */

int64_t hak_je_option(const char *name) {
  int64_t value = 0;
  hakmem_option_get(name, &value);
  return value;
}

size_t hak_je_prof_lg_sample(void) {
  return hak_je_conf.prof ? hak_log2((uint64_t)hak_je_option("HEAP_PROFILE_RATE")) : 0;
}

void hak_je_conf_settle(void) {
  static const char *const thp[] = {"never", "default", "always"};
  struct hak_je_conf *c = &hak_je_conf;
  int64_t decay_ms = hak_je_option("DECAY_MS");
  if (decay_ms != LONGEST_DECAY_MS || (c->dirty_decay_ms >= 0 && c->dirty_decay_ms < decay_ms))
    c->dirty_decay_ms = decay_ms;
  c->background_thread = hak_je_option("BACKGROUND") != 0;
  c->tcache = hak_je_option("TINY_HOT_RING_ENABLE") != 0;
  c->thp = thp[hak_je_option("THP")];
  if (!c->prof && hak_je_option("HEAP_PROFILE") != 0) {
    c->prof = true;
    c->lg_prof_sample = hak_je_prof_lg_sample();
  }
}
