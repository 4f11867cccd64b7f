/* Parser of the environment and of hakmem_conf, and option access. Owns hak_config; writes it before any other thread
 * can run. */
#include "config/config.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hakmem/hakmem.h"
#include "os/os.h"
#include "os/print.h"

#define PREFIX "HAKMEM_"
#define REPEAT_PER_CLASS(v) {0, v, v, v, v, v, v, v, v, v, v, v, v}
hak_config_t hak_config = {
#define OPTION(field, name, kind, def, lo, hi, when, text) .field = (def),
#define CHOICE(field, name, words, def, when, text) .field = (def),
#define PER_CLASS(field, prefix, def, lo, hi, when, text) .field = REPEAT_PER_CLASS(def),
#define TEXT(field, name, def, text) .field = def,
#include "config/options.def"
};

extern const char *hakmem_conf __attribute__((weak)); /* at NULL where the program has none */
#define CONF "hakmem_conf: "

static bool loaded;

/* HAKMEM_ORIGIN_… of the option whose value is the word of hak_config with that number. Relaxed: LIVE options change at
 * any time. */
static uint8_t origins[sizeof(hak_config_t) / sizeof(int64_t)];

static uint8_t *origin_of(const void *field) {
  return &origins[((uintptr_t)field - (uintptr_t)&hak_config) / sizeof(int64_t)];
}

/* Another option's doing. */
static void imply(int64_t *field, int64_t value) {
  *field = value;
  *origin_of(field) = HAKMEM_ORIGIN_IMPLIED;
}

bool hak_config_loaded(void) { return loaded; }

static int64_t count_words(const char *words) {
  int64_t n = 0;
  while (hak_config_word(words, n) != NULL) n++;
  return n;
}

void hak_config_visit(bool (*visit)(const hak_option_row *row, void *context), void *context) {
#define VISIT(...) \
  if (!visit(&(hak_option_row){__VA_ARGS__}, context)) return;
#define OPTION(field, name, kind, def, lo, hi, when, text) \
  VISIT(name, &hak_config.field, def, lo, hi, HAK_KIND_##kind, HAK_WHEN_##when, text, NULL)
#define CHOICE(field, name, words, def, when, text) \
  VISIT(name, &hak_config.field, def, 0, count_words(words "\0") - 1, HAK_KIND_CHOICE, HAK_WHEN_##when, text, \
        words "\0")
#define PER_CLASS(field_, prefix, def, lo, hi, when, text)                                                            \
  for (int n = 1; n < HAK_CLASS_GROUPS; n++) {                                                                        \
    hak_option_row row = {"", &hak_config.field_[n], def, lo, hi, HAK_KIND_COUNT, HAK_WHEN_##when, text, NULL};       \
    snprintf(row.name, sizeof row.name, "%s%d", prefix, n);                                                           \
    if (!visit(&row, context)) return;                                                                                \
  }
#define TEXT(field, name, def, text) \
  VISIT(name, (int64_t *)(void *)hak_config.field, 0, 0, 0, HAK_KIND_TEXT, HAK_WHEN_START, text, def)
#include "config/options.def"
}

static bool compare(const hak_option_row *row, void *context) {
  hak_option_row *wanted = context;
  bool found = strcmp(row->name, wanted->name) == 0 || strcmp(row->name + strlen(PREFIX), wanted->name) == 0;
  if (found) *wanted = *row;
  return !found;
}

bool hak_config_find(const char *name, size_t length, hak_option_row *row) {
  if (length >= sizeof row->name) return false;
  memcpy(row->name, name, length);
  row->name[length] = '\0';
  row->value = NULL;
  hak_config_visit(compare, row);
  return row->value != NULL;
}

/* --- values --- */

const char *hak_config_word(const char *words, int64_t place) {
  for (; place > 0 && *words != '\0'; place--) words += strlen(words) + 1;
  return *words == '\0' ? NULL : words;
}

static const char size_letters[] = "KMGT";

const char *hak_config_value_text(const hak_option_row *row, int64_t value, char buffer[HAK_VALUE_TEXT]) {
  unsigned letters = 0;
  bool size = row->kind == HAK_KIND_SIZE;
  if (row->kind == HAK_KIND_CHOICE) return hak_config_word(row->words, value);
  if (row->kind == HAK_KIND_TEXT) return (const char *)row->value;
  if (size && value == HAK_SIZE_AUTO) return "auto";
  if (size && value > 0)
    while (letters < 4 && value % 1024 == 0) value /= 1024, letters++;
  char unit = size && value < 0 ? '%' : letters == 0 ? '\0' : size_letters[letters - 1];
  snprintf(buffer, HAK_VALUE_TEXT, "%s%lld%.1s", row->kind == HAK_KIND_RATE && value != 0 ? "1/" : "",
           (long long)(size && value < 0 ? -value : value), &unit);
  return buffer;
}

/* What stands behind the digits of a SIZE option. */
static bool apply_unit(const hak_option_row *row, const char *unit, int64_t *value) {
  HAK_ASSERT(*value >= 0);
  if (*unit == '\0') return true;
  if (row->kind != HAK_KIND_SIZE || unit[1] != '\0') return false;
  if (*unit == '%') {
    if (*value == 0 || *value > 100 || row->lowest >= 0) return false;
    *value = -*value;
    return true;
  }
  unsigned shift = 0;
  for (unsigned i = 0; size_letters[i] != '\0'; i++) {
    if (*unit == size_letters[i] || *unit == (size_letters[i] | 0x20)) shift = 10 * (i + 1);
  }
  if (shift == 0 || *value > INT64_MAX >> shift) return false;
  *value <<= shift;
  return true;
}

static bool parse_word(const hak_option_row *row, const char *text, int64_t *out) {
  for (int64_t i = 0; row->kind == HAK_KIND_CHOICE && i <= row->highest; i++) {
    if (strcmp(text, hak_config_word(row->words, i)) == 0) return *out = i, true;
  }
  if (row->value == &hak_config.profile) {
    if (strcmp(text, "MIXED_TINYV3_C7_BALANCED") == 0) return *out = HAK_PROFILE_BALANCED, true;
    if (strcmp(text, "MIXED_TINYV3_C7_SAFE") == 0) return *out = HAK_PROFILE_SPEED, true;
  }
  if (row->lowest == HAK_SIZE_AUTO) {
    if (strcmp(text, "auto") == 0) return *out = HAK_SIZE_AUTO, true;
    if (strcmp(text, "off") == 0) return *out = 0, true;
  }
  return false;
}

/* True and *out on success. Digits only: strtoll would also take blanks, signs and an empty string. */
static bool parse_value(const hak_option_row *row, const char *text, int64_t *out) {
  HAK_ASSERT(row->lowest <= row->initial && row->initial <= row->highest);
  if (parse_word(row, text, out)) return true;
  bool rate = row->kind == HAK_KIND_RATE && strncmp(text, "1/", 2) == 0;
  if (row->kind == HAK_KIND_CHOICE ||
      (row->kind == HAK_KIND_RATE && !rate && strcmp(text, "0") != 0 && strcmp(text, "1") != 0))
    return false;
  if (rate) text += 2;
  size_t digits;
  const char *unit = hak_os_take_number(text, 10, &digits);
  int64_t value = (int64_t)digits;
  if (unit == text || digits > INT64_MAX || !apply_unit(row, unit, &value) || value < (rate ? 1 : row->lowest) ||
      value > row->highest)
    return false;
  *out = value;
  return true;
}

/* --- the environment --- */

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

/* Its words with commas between them. */
static void list_words(const hak_option_row *row, char *out, size_t capacity) {
  size_t length = 0;
  for (int64_t i = 0; i <= row->highest && length < capacity; i++)
    length +=
        (size_t)snprintf(out + length, capacity - length, "%s%s", i == 0 ? "" : ", ", hak_config_word(row->words, i));
}

/* Says what is wrong with a value, and what is used in its place. from: "" or CONF. */
static void refuse_value(const char *from, const hak_option_row *row, const char *given) {
  struct shown shown;
  char used[HAK_VALUE_TEXT], words[64], wrong[96];
  if (row->kind == HAK_KIND_TEXT) {
    hak_print("hakmem: %s%s has no or more than %d bytes: using %s\n", from, row->name, HAK_TEXT_MAX - 1,
              (const char *)row->value);
    return;
  }
  if (row->kind == HAK_KIND_CHOICE) {
    list_words(row, words, sizeof words);
    snprintf(wrong, sizeof wrong, "not one of %s", words);
  } else if (row->kind == HAK_KIND_RATE) {
    snprintf(wrong, sizeof wrong, "neither 0 nor 1/N with N up to %lld", (long long)row->highest);
  } else if (row->kind == HAK_KIND_SIZE) {
    snprintf(wrong, sizeof wrong, "not a size such as 65536, 64K, 512M or 2G%s",
             row->lowest < 0 ? ", 1% to 100%, auto or off" : "");
  } else {
    snprintf(wrong, sizeof wrong, "not a number from %lld to %lld", (long long)row->lowest, (long long)row->highest);
  }
  hak_print("hakmem: %s%s=%s is %s: using %s\n", from, row->name, shorten(given, strlen(given), &shown), wrong,
            hak_config_value_text(row, *row->value, used));
}

static bool assign(const hak_option_row *row, const char *given) {
  if (row->kind != HAK_KIND_TEXT) return parse_value(row, given, row->value);
  if (*given == '\0' || strlen(given) >= HAK_TEXT_MAX) return false;
  strcpy((char *)row->value, given);
  return true;
}

static bool retired(const char *from, const char *name, size_t length) {
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
      hak_print("hakmem: %s%s is retired; in its place: %s\n", from, shorten(name, length, &shown), table[i].successor);
      return true;
    }
  }
  return false;
}

/* Profile values first, so that a variable of its own overrides them. */
static HAK_COLD void apply_profile(void) {
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

static HAK_COLD void apply(const char *from, const char *entry, size_t length, uint8_t origin) {
  hak_option_row row;
  struct shown name;
  HAK_ASSERT(loaded && length >= strlen(PREFIX) && entry[length] == '=');
  if (!hak_config_find(entry, length, &row)) {
    if (!retired(from, entry, length))
      hak_print("hakmem: %s%s is not an option of this version: ignored\n", from, shorten(entry, length, &name));
  } else if (origin == HAKMEM_ORIGIN_PROGRAM && *origin_of(row.value) == HAKMEM_ORIGIN_ENVIRONMENT) {
    return; /* who starts the program knows better */
  } else if (assign(&row, entry + length + 1)) {
    *origin_of(row.value) = origin;
  } else {
    refuse_value(from, &row, entry + length + 1);
  }
}

/* The names that set several options at once come before all others, so that an option's own variable wins. */
enum { PROFILE, PREWARM_ALL, OTHERS, PASSES };

static int pass_of(const char *entry) {
  static const char profile[] = "HAKMEM_PROFILE=", prewarm_all[] = "HAKMEM_TINY_PREWARM_ALL=";
  if (strncmp(entry, profile, sizeof profile - 1) == 0) return PROFILE;
  return strncmp(entry, prewarm_all, sizeof prewarm_all - 1) == 0 ? PREWARM_ALL : OTHERS;
}

static size_t up_to(const char *text, char end) {
  const char *at = strchr(text, end);
  return at == NULL ? strlen(text) : (size_t)(at - text);
}

/* One piece of hakmem_conf. What is cut off is of a name that no option has, or of a value that none takes. */
static HAK_COLD void apply_piece(const char *piece, size_t length, int pass) {
  char entry[sizeof PREFIX + sizeof((hak_option_row *)NULL)->name + HAK_TEXT_MAX];
  bool full = strncmp(piece, PREFIX, strlen(PREFIX)) == 0;
  snprintf(entry, sizeof entry, "%s%.*s", full ? "" : PREFIX, (int)(length < sizeof entry ? length : sizeof entry),
           piece);
  size_t name = up_to(entry, '=');
  for (size_t i = 0; i < name; i++)
    if (entry[i] >= 'a' && entry[i] <= 'z') entry[i] = (char)(entry[i] - 'a' + 'A');
  struct shown shown;
  if (pass_of(entry) != pass) return;
  if (entry[name] == '=')
    apply(CONF, entry, name, HAKMEM_ORIGIN_PROGRAM);
  else
    hak_print("hakmem: " CONF "%s has no value: ignored\n", shorten(piece, length, &shown));
}

/* The program's are read after the environment's, where these have not set the option: so what a message says is used
 * is. */
static HAK_COLD void apply_pass(char **variables, int pass) {
  for (char **e = variables; *e != NULL; e++) {
    if (strncmp(*e, PREFIX, strlen(PREFIX)) != 0 || pass_of(*e) != pass) continue;
    size_t length = up_to(*e, '=');
    if ((*e)[length] == '=') apply("", *e, length, HAKMEM_ORIGIN_ENVIRONMENT);
  }
  const char *piece = &hakmem_conf == NULL || hakmem_conf == NULL ? "" : hakmem_conf;
  for (size_t length; *piece != '\0'; piece += length + (piece[length] == ',')) {
    length = up_to(piece, ',');
    if (length != 0) apply_piece(piece, length, pass);
  }
  if (pass == PROFILE) apply_profile();
  for (int n = 1;
       pass == PREWARM_ALL && n < HAK_CLASS_GROUPS && *origin_of(&hak_config.prewarm_all) != HAKMEM_ORIGIN_DEFAULT; n++)
    imply(&hak_config.prewarm[n], hak_config.prewarm_all);
}

bool hak_config_load(char **variables) {
  if (loaded) return true;
  if (variables == NULL) return false;
  loaded = true;
  static char *none[] = {NULL};
  if (hak_os_has_more_rights()) variables = none; /* as secure_getenv: a setuid program must not see them */
  for (int pass = 0; pass < PASSES; pass++) apply_pass(variables, pass);
  if (hak_config.front_dump && !hak_config.front_metrics) imply(&hak_config.front_metrics, 1);
  if (hak_config.heap_profile_near_limit && *origin_of(&hak_config.heap_profile) == HAKMEM_ORIGIN_DEFAULT)
    imply(&hak_config.heap_profile, 1);
  if (hak_config.map_names == 0) hak_os_leave_unnamed();
  if (hak_config.mem_lean) {
    if (hak_config.prewarm_all != 0) imply(&hak_config.prewarm_all, 0);
    for (int n = 1; n < HAK_CLASS_GROUPS; n++)
      if (hak_config.prewarm[n] != 0) imply(&hak_config.prewarm[n], 0);
  }
  return true;
}

/* --- access --- */

static bool find_number(const char *name, hak_option_row *row) {
  return name != NULL && hak_config_find(name, strlen(name), row) && row->kind != HAK_KIND_TEXT;
}

int hak_config_set(const char *name, int64_t value) {
  hak_option_row row;
  if (!find_number(name, &row) || value < row.lowest || value > row.highest) return EINVAL;
  if (row.when == HAK_WHEN_START && loaded) return EBUSY;
  hak_store_seq(row.value, value); /* what follows from it orders this before its own stores: docs/locking.md */
  hak_store_relaxed(origin_of(row.value), HAKMEM_ORIGIN_API);
  return 0;
}

int hak_config_get(const char *name, int64_t *value) {
  hak_option_row row;
  if (value == NULL || !find_number(name, &row)) return EINVAL;
  *value = hak_load_relaxed(row.value);
  return 0;
}

int hak_config_origin(const hak_option_row *row) { return hak_load_relaxed(origin_of(row->value)); }

struct listing {
  bool (*visit)(const hakmem_option *option, void *context);
  void *context;
  size_t count;
};

static bool list_row(const hak_option_row *row, void *context) {
  struct listing *l = context;
  char value[HAK_VALUE_TEXT], initial[HAK_VALUE_TEXT];
  bool text = row->kind == HAK_KIND_TEXT;
  int64_t number = text ? 0 : hak_load_relaxed(row->value);
  HAK_ASSERT(number >= row->lowest && number <= row->highest);
  hakmem_option option = {
      .name = row->name,
      .value = hak_config_value_text(row, number, value),
      .initial = text ? row->words : hak_config_value_text(row, row->initial, initial),
      .meaning = row->text,
      .number = number,
      .origin = hak_config_origin(row),
      .live = row->when == HAK_WHEN_LIVE,
      .text = text,
  };
  l->count++;
  return l->visit == NULL || l->visit(&option, l->context);
}

size_t hak_config_list(bool (*visit)(const hakmem_option *option, void *context), void *context) {
  struct listing l = {visit, context, 0};
  hak_config_visit(list_row, &l);
  return l.count;
}

static bool print_option(const hakmem_option *option, void *context) {
  (void)context;
  hak_print("hakmem: %s=%s\n", option->name, option->value);
  return true;
}

void hak_config_print(void) { hak_config_list(print_option, NULL); }
