/* Environment parser and option access. Owns hak_config; writes it before any other thread can run. */
#include "config/config.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>

#include "base/assert.h"
#include "base/atomic.h"
#include "base/policy.h"
#include "hakmem/hakmem.h"
#include "os/os.h"
#include "os/print.h"

extern char **environ;

#define PREFIX "HAKMEM_"
#define REPEAT_PER_CLASS(v) {0, v, v, v, v, v, v, v, v, v, v, v, v}
hak_config_t hak_config = {
#define OPTION(field, name, kind, def, lo, hi, when, text) .field = (def),
#define PER_CLASS(field, prefix, def, lo, hi, when, text) .field = REPEAT_PER_CLASS(def),
#define TEXT(field, name, def, text) .field = def,
#include "config/options.def"
};

static bool loaded;

/* HAKMEM_ORIGIN_… of the option whose value is the word of hak_config with that number. Relaxed: LIVE options change at any time. */
static uint8_t origins[sizeof(hak_config_t) / sizeof(int64_t)];

static uint8_t *origin_of(const void *field) {
  return &origins[((uintptr_t)field - (uintptr_t)&hak_config) / sizeof(int64_t)];
}

/* Another option's doing. */
static void imply(int64_t *field, int64_t value) {
  *field = value;
  *origin_of(field) = HAKMEM_ORIGIN_IMPLIED;
}

/* The words of each CHOICE option, in the order of its values. */
static const struct {
  const char *option;
  const char *const *words;
} choices[] = {
    {"HAKMEM_PROFILE", (const char *const[]){"balanced", "speed", "lean", "hardened"}},
    {"HAKMEM_THP", (const char *const[]){"off", "auto", "on"}},
    {"HAKMEM_SS_MEM_LEAN_DECOMMIT", (const char *const[]){"FREE", "DONTNEED", "OFF"}},
    {"HAKMEM_DEEPBIND", (const char *const[]){"mask", "quiet", "keep"}},
    {"HAKMEM_HEAP_PROFILE_FORMAT", (const char *const[]){"pprof", "jemalloc", "json", "proto"}},
    {"HAKMEM_FORBID", (const char *const[]){"report", "abort"}},
    {"HAKMEM_STATS", (const char *const[]){"off", "text", "json"}},
};

bool hak_config_loaded(void) { return loaded; }

static bool visit_per_class(const char *prefix, int64_t *values, hak_option_row row,
                            bool (*visit)(const hak_option_row *, void *), void *context) {
  for (int n = 1; n < HAK_CLASS_GROUPS; n++) {
    snprintf(row.name, sizeof row.name, "%s%d", prefix, n);
    row.value = &values[n];
    if (!visit(&row, context)) return false;
  }
  return true;
}

void hak_config_visit(bool (*visit)(const hak_option_row *row, void *context), void *context) {
#define OPTION(field_, name_, kind_, def, lo, hi, when_, text_)                                                      \
  {                                                                                                                  \
    hak_option_row row = {name_, &hak_config.field_, def, lo, hi, HAK_KIND_##kind_, HAK_WHEN_##when_, text_};        \
    if (!visit(&row, context)) return;                                                                               \
  }
#define PER_CLASS(field_, prefix_, def, lo, hi, when_, text_)                                                        \
  {                                                                                                                  \
    hak_option_row row = {"", NULL, def, lo, hi, HAK_KIND_COUNT, HAK_WHEN_##when_, text_};                           \
    if (!visit_per_class(prefix_, hak_config.field_, row, visit, context)) return;                                   \
  }
#include "config/options.def"
}

const char *hak_config_choice_name(const hak_option_row *row, int64_t value) {
  if (row->kind != HAK_KIND_CHOICE) return NULL;
  size_t i = 0;
  while (strcmp(choices[i].option, row->name) != 0) i++;
  return choices[i].words[value];
}

static const char size_letters[] = "KMGT";

void hak_config_size_text(int64_t value, char out[HAK_SIZE_TEXT]) {
  unsigned letters = 0;
  if (value > 0)
    while (letters < 4 && value % 1024 == 0) value /= 1024, letters++;
  if (value == HAK_SIZE_AUTO)
    snprintf(out, HAK_SIZE_TEXT, "auto");
  else if (value < 0)
    snprintf(out, HAK_SIZE_TEXT, "%lld%%", -(long long)value);
  else if (letters == 0)
    snprintf(out, HAK_SIZE_TEXT, "%lld", (long long)value);
  else
    snprintf(out, HAK_SIZE_TEXT, "%lld%c", (long long)value, size_letters[letters - 1]);
}

/* What stands behind the digits of a SIZE option. */
static bool apply_unit(const hak_option_row *row, const char *unit, int64_t *value) {
  HAK_ASSERT(*value >= 0);
  if (*unit == '\0') return true;
  if (unit[1] != '\0') return false;
  if (*unit == '%') {
    if (*value == 0 || *value > 100 || row->lowest >= 0) return false;
    *value = -*value;
    return true;
  }
  unsigned shift = 0;
  for (unsigned i = 0; size_letters[i] != '\0'; i++) {
    if (*unit == size_letters[i] || *unit == (size_letters[i] | 0x20)) shift = 10 * (i + 1);
  }
  if (shift == 0) return false;
  if (*value > INT64_MAX >> shift) return false;
  *value <<= shift;
  return true;
}

/* True and *out on success. */
static bool parse_value(const hak_option_row *row, const char *text, int64_t *out) {
  HAK_ASSERT(row->lowest <= row->initial && row->initial <= row->highest);
  if (row->kind == HAK_KIND_CHOICE) {
    for (int64_t i = row->lowest; i <= row->highest; i++) {
      if (strcmp(text, hak_config_choice_name(row, i)) == 0) return *out = i, true;
    }
    if (row->value != &hak_config.profile) return false;
    if (strcmp(text, "MIXED_TINYV3_C7_BALANCED") == 0) return *out = HAK_PROFILE_BALANCED, true;
    if (strcmp(text, "MIXED_TINYV3_C7_SAFE") == 0) return *out = HAK_PROFILE_SPEED, true;
    return false;
  }
  int64_t lowest = row->lowest;
  if (row->kind == HAK_KIND_RATE && strncmp(text, "1/", 2) == 0)
    text += 2, lowest = 1;
  else if (row->kind == HAK_KIND_RATE && strcmp(text, "0") != 0 && strcmp(text, "1") != 0)
    return false;
  if (row->kind == HAK_KIND_SIZE && row->lowest == HAK_SIZE_AUTO) {
    if (strcmp(text, "auto") == 0) return *out = HAK_SIZE_AUTO, true;
    if (strcmp(text, "off") == 0) return *out = 0, true;
  }
  /* Digits only: strtoll would also take blanks, signs and an empty string. */
  int64_t value = 0;
  const char *c = text;
  for (; *c >= '0' && *c <= '9'; c++) {
    if (value > INT64_MAX / 10 - 1) return false;
    value = value * 10 + (*c - '0');
  }
  if (c == text || (*c != '\0' && row->kind != HAK_KIND_SIZE) || !apply_unit(row, c, &value)) return false;
  if (value < lowest || value > row->highest) return false;
  *out = value;
  return true;
}

/* Its words with commas between them. */
static void list_choices(const hak_option_row *row, char *out, size_t capacity) {
  size_t length = 0;
  for (int64_t i = row->lowest; i <= row->highest && length < capacity; i++)
    length += (size_t)snprintf(out + length, capacity - length, "%s%s", i == row->lowest ? "" : ", ",
                               hak_config_choice_name(row, i));
}

struct assignment {
  const char *name;
  size_t name_length;
  const char *value;
  bool found;
};

/* A name or value in a message: whole, or its first bytes up to the end of a character and "…". The reader of these
 * messages knows the rule (python/hakmem/allocators/settings.py). */
#define SHOWN_BYTES 64
struct shown {
  char text[SHOWN_BYTES + sizeof "…"];
};

static const char *shorten(const char *text, size_t length, struct shown *out) {
  size_t kept = length > SHOWN_BYTES ? SHOWN_BYTES : length;
  while (kept < length && kept > 0 && ((unsigned char)text[kept] & 0xC0) == 0x80) kept--;
  HAK_ASSERT(kept <= SHOWN_BYTES && kept <= length);
  memcpy(out->text, text, kept);
  strcpy(out->text + kept, kept < length ? "…" : "");
  return out->text;
}

/* Says what is wrong with a value, and what is used in its place. */
static void refuse_value(const hak_option_row *row, const char *given) {
  struct shown shown;
  const char *value = shorten(given, strlen(given), &shown);
  if (row->kind == HAK_KIND_CHOICE) {
    char words[64];
    list_choices(row, words, sizeof words);
    hak_print("hakmem: %s=%s is not one of %s: using %s\n", row->name, value, words,
              hak_config_choice_name(row, row->initial));
  } else if (row->kind == HAK_KIND_RATE) {
    hak_print("hakmem: %s=%s is neither 0 nor 1/N with N up to %lld: using 0\n", row->name, value,
              (long long)row->highest);
  } else if (row->kind == HAK_KIND_SIZE) {
    char used[HAK_SIZE_TEXT];
    hak_config_size_text(*row->value, used);
    hak_print("hakmem: %s=%s is not a size such as 65536, 64K, 512M or 2G%s: using %s\n", row->name, value,
              row->lowest < 0 ? ", 1% to 100%, auto or off" : "", used);
  } else {
    hak_print("hakmem: %s=%s is not a number from %lld to %lld: using %lld\n", row->name, value,
              (long long)row->lowest, (long long)row->highest, (long long)*row->value);
  }
}

static bool assign_if_named(const hak_option_row *row, void *context) {
  struct assignment *a = context;
  if (strlen(row->name) != a->name_length || memcmp(row->name, a->name, a->name_length) != 0) return true;
  a->found = true;
  int64_t value;
  if (parse_value(row, a->value, &value)) {
    HAK_ASSERT(value >= row->lowest && value <= row->highest);
    *row->value = value;
    *origin_of(row->value) = HAKMEM_ORIGIN_ENVIRONMENT;
  } else {
    refuse_value(row, a->value);
  }
  return false;
}

static bool retired(const char *name, size_t length) {
  static const struct {
    const char *name, *successor;
  } table[] = {
#define RETIRED(name, text) {name, text},
#include "config/options.def"
  };
  for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
    size_t prefix = strlen(table[i].name);
    bool numbered = strncmp(name, table[i].name, prefix) == 0 && length > prefix &&
                    strspn(name + prefix, "0123456789") == length - prefix && table[i].name[prefix - 1] == 'C';
    if (numbered || (length == prefix && memcmp(name, table[i].name, length) == 0)) {
      struct shown shown;
      hak_print("hakmem: %s is retired; in its place: %s\n", shorten(name, length, &shown), table[i].successor);
      return true;
    }
  }
  return false;
}

/* Profile values first, so that a variable of its own overrides them. */
static void apply_profile(void) {
  if (hak_config.profile == HAK_PROFILE_HARDENED && !HAK_HARDENED)
    hak_print("hakmem: HAKMEM_PROFILE=hardened needs libhakmem-hardened.so: this library behaves as balanced\n");
  if (hak_config.profile == HAK_PROFILE_SPEED) {
    for (int n = 1; n <= 5; n++) imply(&hak_config.prewarm[n], n <= 3 ? 128 : 64);
    imply(&hak_config.decay_ms, 10000);
  } else if (hak_config.profile == HAK_PROFILE_LEAN) {
    imply(&hak_config.mem_lean, 1);
    imply(&hak_config.mem_lean_decommit, HAK_LEAN_DONTNEED);
  }
}

static const struct {
  const char *name;
  char *value;
  const char *initial, *text;
} texts[] = {
#define TEXT(field_, name_, def, text_) {name_, hak_config.field_, def, text_},
#include "config/options.def"
};
#define TEXTS (sizeof texts / sizeof texts[0])

static void assign_text(struct assignment *a) {
  for (size_t i = 0; i < TEXTS; i++) {
    if (strlen(texts[i].name) != a->name_length || memcmp(texts[i].name, a->name, a->name_length) != 0) continue;
    a->found = true;
    if (*a->value == '\0' || strlen(a->value) >= HAK_TEXT_MAX)
      hak_print("hakmem: %s has no or more than %d bytes: using %s\n", texts[i].name, HAK_TEXT_MAX - 1, texts[i].value);
    else {
      strcpy(texts[i].value, a->value);
      *origin_of(texts[i].value) = HAKMEM_ORIGIN_ENVIRONMENT;
    }
  }
}

static void apply_variable(const char *entry) {
  const char *equals = strchr(entry, '=');
  if (equals == NULL) return;
  struct assignment a = {entry, (size_t)(equals - entry), equals + 1, false};
  HAK_ASSERT(loaded && a.name_length >= strlen(PREFIX));
  hak_config_visit(assign_if_named, &a);
  if (!a.found) assign_text(&a);
  struct shown name;
  if (!a.found && !retired(a.name, a.name_length))
    hak_print("hakmem: %s is not an option of this version: ignored\n", shorten(a.name, a.name_length, &name));
}

/* The entry "NAME=value" of a variable, or NULL when it is not set. Not libc's getenv: programs have their own. */
static const char *find_entry(char **variables, const char *name) {
  size_t length = strlen(name);
  for (char **e = variables; *e != NULL; e++) {
    if (strncmp(*e, name, length) == 0 && (*e)[length] == '=') return *e;
  }
  return NULL;
}

/* Names that set several options at once are applied before all others, so that an option's own variable wins. */
static const char *const applied_first[] = {"HAKMEM_PROFILE", "HAKMEM_TINY_PREWARM_ALL"};

static bool is_applied_first(const char *entry) {
  for (size_t i = 0; i < sizeof applied_first / sizeof applied_first[0]; i++) {
    size_t length = strlen(applied_first[i]);
    if (strncmp(entry, applied_first[i], length) == 0 && entry[length] == '=') return true;
  }
  return false;
}

static void apply_group_variables(char **variables) {
  const char *profile = find_entry(variables, applied_first[0]), *prewarm_all = find_entry(variables, applied_first[1]);
  if (profile != NULL) apply_variable(profile);
  apply_profile();
  if (prewarm_all == NULL) return;
  apply_variable(prewarm_all);
  for (int n = 1; n < HAK_CLASS_GROUPS; n++) imply(&hak_config.prewarm[n], hak_config.prewarm_all);
}

bool hak_config_load_environment(void) { return hak_config_load(environ); }

bool hak_config_load(char **variables) {
  if (loaded) return true;
  if (variables == NULL) return false;
  loaded = true;
  if (getauxval(AT_SECURE) != 0) return true; /* as secure_getenv: a setuid program must not see it */
  apply_group_variables(variables);
  for (char **e = variables; *e != NULL; e++) {
    if (strncmp(*e, PREFIX, strlen(PREFIX)) == 0 && !is_applied_first(*e)) apply_variable(*e);
  }
  if (hak_config.front_dump && !hak_config.front_metrics) imply(&hak_config.front_metrics, 1);
  if (hak_config.map_names == 0) hak_os_leave_unnamed();
  if (hak_config.mem_lean) {
    if (hak_config.prewarm_all != 0) imply(&hak_config.prewarm_all, 0);
    for (int n = 1; n < HAK_CLASS_GROUPS; n++)
      if (hak_config.prewarm[n] != 0) imply(&hak_config.prewarm[n], 0);
  }
  return true;
}

struct access {
  const char *name;
  int64_t value;
  bool write;
  int result;
};

static bool access_if_named(const hak_option_row *row, void *context) {
  struct access *a = context;
  if (strcmp(row->name, a->name) != 0 && strcmp(row->name + strlen(PREFIX), a->name) != 0) return true;
  if (!a->write) {
    a->value = hak_load_relaxed(row->value);
    a->result = 0;
  } else if (a->value < row->lowest || a->value > row->highest) {
    a->result = EINVAL;
  } else if (row->when == HAK_WHEN_START && loaded) {
    a->result = EBUSY;
  } else {
    hak_store_relaxed(row->value, a->value);
    hak_store_relaxed(origin_of(row->value), HAKMEM_ORIGIN_API);
    a->result = 0;
  }
  return false;
}

int hak_config_set(const char *name, int64_t value) {
  struct access a = {name, value, true, EINVAL};
  if (name != NULL) hak_config_visit(access_if_named, &a);
  return a.result;
}

int hak_config_get(const char *name, int64_t *value) {
  struct access a = {name, 0, false, EINVAL};
  if (name != NULL && value != NULL) hak_config_visit(access_if_named, &a);
  if (a.result == 0) *value = a.value;
  return a.result;
}

/* As the variable would be written. */
static const char *value_text(const hak_option_row *row, int64_t value, char buffer[HAK_SIZE_TEXT]) {
  if (row->kind == HAK_KIND_CHOICE) return hak_config_choice_name(row, value);
  if (row->kind == HAK_KIND_SIZE)
    hak_config_size_text(value, buffer);
  else
    snprintf(buffer, HAK_SIZE_TEXT, "%s%lld", row->kind == HAK_KIND_RATE && value != 0 ? "1/" : "", (long long)value);
  return buffer;
}

struct listing {
  bool (*visit)(const hakmem_option *option, void *context);
  void *context;
  size_t count;
  bool stopped;
};

static bool list_option(struct listing *l, const hakmem_option *option) {
  l->count++;
  l->stopped = l->visit != NULL && !l->visit(option, l->context);
  return !l->stopped;
}

static bool list_row(const hak_option_row *row, void *context) {
  char value[HAK_SIZE_TEXT], initial[HAK_SIZE_TEXT];
  int64_t number = hak_load_relaxed(row->value);
  HAK_ASSERT(number >= row->lowest && number <= row->highest);
  hakmem_option option = {
      .name = row->name,
      .value = value_text(row, number, value),
      .initial = value_text(row, row->initial, initial),
      .meaning = row->text,
      .number = number,
      .origin = hak_load_relaxed(origin_of(row->value)),
      .live = row->when == HAK_WHEN_LIVE,
  };
  return list_option(context, &option);
}

size_t hak_config_list(bool (*visit)(const hakmem_option *option, void *context), void *context) {
  struct listing l = {visit, context, 0, false};
  hak_config_visit(list_row, &l);
  for (size_t i = 0; i < TEXTS && !l.stopped; i++) {
    hakmem_option option = {
        .name = texts[i].name,
        .value = texts[i].value,
        .initial = texts[i].initial,
        .meaning = texts[i].text,
        .origin = *origin_of(texts[i].value),
        .text = true,
    };
    list_option(&l, &option);
  }
  return l.count;
}

static bool print_option(const hakmem_option *option, void *context) {
  (void)context;
  hak_print("hakmem: %s=%s\n", option->name, option->value);
  return true;
}

void hak_config_print(void) { hak_config_list(print_option, NULL); }
