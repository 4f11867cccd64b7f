/* Prints docs/options.md, from the tables that the library itself is made of.
 *
 * With the argument --changed it prints the options whose value is not the default: how it asks itself, under each
 * HAKMEM_PROFILE, what a profile changes. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "config/config.h"
#include "os/os.h"

/* As hak_option_row, but one for all classes. */
static const struct entry {
  const char *name;
  int per_class;
  int kind, when;
  int64_t initial, lowest, highest;
  const char *text;
  const char *words; /* of a choice; default of a text; else NULL */
} entries[] = {
#define OPTION(field, name, kind, def, lo, hi, when, text) {name, 0, HAK_KIND_##kind, HAK_WHEN_##when, def, lo, hi, text, NULL},
#define CHOICE(field, name, words, def, when, text) {name, 0, HAK_KIND_CHOICE, HAK_WHEN_##when, def, 0, 0, text, words "\0"},
#define PER_CLASS(field, prefix, def, lo, hi, when, text) {prefix, 1, HAK_KIND_COUNT, HAK_WHEN_##when, def, lo, hi, text, NULL},
#define TEXT(field, name, def, text) {name, 0, HAK_KIND_TEXT, HAK_WHEN_START, 0, 0, 0, text, def},
#include "config/options.def"
};

static const struct {
  const char *name, *text;
} reasons[] = {
#define REASON(name, text) {name, text},
#include "config/options.def"
};

static const struct {
  const char *name, *successor;
} retired[] = {
#define RETIRED(name, text) {name, text},
#include "config/options.def"
};

#define LENGTH(array) (sizeof(array) / sizeof(array)[0])

static bool print_changed(const hak_option_row *row, void *context) {
  (void)context;
  if (row->kind == HAK_KIND_TEXT || *row->value == row->initial || strcmp(row->name, "HAKMEM_PROFILE") == 0) return true;
  if (row->kind == HAK_KIND_CHOICE)
    printf("`%s=%s` ", row->name, hak_config_word(row->words, *row->value));
  else
    printf("`%s=%" PRId64 "` ", row->name, *row->value);
  return true;
}

static void print_values(const struct entry *e) {
  const char *word;
  if (e->kind == HAK_KIND_TEXT) {
    printf("text | %s", e->words);
  } else if (e->kind == HAK_KIND_CHOICE) {
    for (int64_t i = 0; (word = hak_config_word(e->words, i)) != NULL; i++) printf("%s%s", i > 0 ? ", " : "", word);
    printf(" | %s", hak_config_word(e->words, e->initial));
  } else if (e->kind == HAK_KIND_SIZE) {
    hak_option_row row = {.kind = HAK_KIND_SIZE};
    char initial[HAK_VALUE_TEXT];
    printf("bytes, 64K, 512M, 2G%s | %s", e->lowest < 0 ? ", 80%, auto, off" : "", hak_config_value_text(&row, e->initial, initial));
  } else if (e->kind == HAK_KIND_BOOL) {
    printf("0, 1 | %" PRId64, e->initial);
  } else {
    printf("%" PRId64 " to %" PRId64 " | %" PRId64, e->lowest, e->highest, e->initial);
  }
}

/* Where < would begin a tag, and in a table | the next cell. */
static void print_text(const char *text) {
  for (const char *c = text; *c != '\0'; c++) {
    if (*c == '<')
      fputs("&lt;", stdout);
    else if (*c == '|')
      fputs("\\|", stdout);
    else
      putchar(*c);
  }
}

static const char *placeholder(const struct entry *e) { return e->per_class ? "<n>" : ""; }

static const char *when(const struct entry *e) { return e->when == HAK_WHEN_START ? "start" : "live"; }

/* Of the heading that is the name, as forges and the site's generator make it. */
static void print_anchor(const struct entry *e) {
  for (const char *c = e->name; *c != '\0'; c++) putchar(*c >= 'A' && *c <= 'Z' ? *c - 'A' + 'a' : *c);
  if (e->per_class) putchar('n');
}

static void print_reason(const char *name) {
  for (size_t i = 0; i < LENGTH(reasons); i++) {
    if (strcmp(reasons[i].name, name) != 0) continue;
    printf("\n*Why*: ");
    print_text(reasons[i].text);
    printf("\n");
  }
}

static void print_profiles(const char *self) {
  hak_option_row row;
  const char *name;
  if (!hak_config_find("PROFILE", strlen("PROFILE"), &row)) exit(1);
  for (int64_t i = 0; (name = hak_config_word(row.words, i)) != NULL; i++) {
    char command[4096], changed[8192];
    snprintf(command, sizeof command, "env HAKMEM_PROFILE=%s '%s' --changed", name, self);
    FILE *pipe = popen(command, "r");
    size_t n = pipe == NULL ? 0 : fread(changed, 1, sizeof changed - 1, pipe);
    if (pipe == NULL || pclose(pipe) != 0) exit(1);
    changed[n] = '\0';
    if (n > 0) changed[n - 1] = '\0'; /* the last blank */
    printf("| `%s` | %s |\n", name, n == 0 ? "nothing" : changed);
  }
}

static void print_document(const char *self) {
  printf("# Options\n\n"
         "<!-- Generated from src/config/options.def and src/os/counters.def: build the target options-doc. -->\n\n"
         "Options are environment variables. An unknown `HAKMEM_…` name or a value out of range prints one warning to\n"
         "stderr and the default stands. In programs with elevated rights (setuid) hakmem ignores them all.\n\n"
         "A program may bring its own: `const char *hakmem_conf = \"thp=off,decay_ms=5000\";`, names in lower case without `HAKMEM_`.\n"
         "An option that has a variable is the variable's.\n\n"
         "*Read* tells when: at *start*, once, before the first block; *live* options can also be changed by\n"
         "`hakmem_option_set(name, value)`, and every option but texts can be read by `hakmem_option_get(name, &value)`. Both take\n"
         "names without `HAKMEM_` too; for a word the value is the word's place in the list below, counted from 0. `hakmem_option_list`\n"
         "tells all options with value, default, meaning and who set them. `HAKMEM_VERBOSE=1` prints the effective settings.\n\n"
         "`C<n>` stands for every size class whose blocks are larger than 4·2^n and at most 8·2^n bytes: `C1` is 16 bytes,\n"
         "`C7` up to 1 KiB, `C12` up to 32 KiB.\n\n"
         "| name | values | default | read |\n|---|---|---|---|\n");
  for (size_t i = 0; i < LENGTH(entries); i++) {
    printf("| [`%s%s`](#", entries[i].name, placeholder(&entries[i]));
    print_anchor(&entries[i]);
    printf(") | ");
    print_values(&entries[i]);
    printf(" | %s |\n", when(&entries[i]));
  }
  printf("\n## What each does\n\n"
         "Thread caches, prewarming, reports and lean mode are part of what hakmem is. Of the other options, each says why it is there.\n");
  for (size_t i = 0; i < LENGTH(entries); i++) {
    printf("\n### `%s%s`\n\n", entries[i].name, placeholder(&entries[i]));
    print_text(entries[i].text);
    printf("\n");
    print_reason(entries[i].name);
  }
  printf("\n## Profiles\n\n"
         "`HAKMEM_PROFILE` sets several options at once. A variable of its own overrides what the profile says.\n\n"
         "| profile | changes |\n|---|---|\n");
  print_profiles(self);
  printf("\n## Counters of `[SS_OS_STATS]`\n\n| name | counts |\n|---|---|\n");
#define COUNTER(name, meaning) "| `" #name "` | " meaning " |\n"
  fputs(HAK_OS_LINE_COUNTERS(COUNTER), stdout);
  printf("\n## Retired names\n\n"
         "Setting one of these prints one line that names what took its place.\n\n"
         "| name | in its place |\n|---|---|\n");
  for (size_t i = 0; i < LENGTH(retired); i++) {
    size_t length = strlen(retired[i].name);
    printf("| `%s%s` | ", retired[i].name, retired[i].name[length - 1] == 'C' ? "<n>" : "");
    print_text(retired[i].successor);
    printf(" |\n");
  }
}

int main(int argc, char **argv) {
  hak_config_load(environ);
  if (argc > 1 && strcmp(argv[1], "--changed") == 0)
    hak_config_visit(print_changed, NULL);
  else
    print_document(argv[0]);
  return ferror(stdout) || fflush(stdout) != 0;
}
