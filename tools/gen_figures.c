/* Prints what others have of src/report/figures.def: gen_figures document | python | rust. */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hakmem/stats.h"
#include "report/figures.def"

typedef struct figure {
  const char *object, *member; /* NULL: not in the JSON */
  const char *field;           /* NULL: not in the structure */
  size_t at;                   /* of the field */
  const char *unit, *metric, *text;
} figure;

static const figure figures[] = {
#define FIGURE(object, member, field, label, unit, metric, text, ...) \
  {#object, #member, #field, offsetof(hakmem_stats, field), #unit, metric, text},
#define NOTED(object, member, label, unit, metric, text) {#object, #member, NULL, 0, #unit, metric, text},
#define FIELD(field, text) {NULL, NULL, #field, offsetof(hakmem_stats, field), NULL, "", text},
    HAK_FIGURES(FIGURE, FIGURE, NOTED) HAK_UNSHOWN_FIGURES(FIELD)};

static const struct {
  const char *name, *text;
} families[] = {
#define FAMILY(name, text) {name, text},
    HAK_METRIC_FAMILIES(FAMILY)};

#define LENGTH(array) (sizeof(array) / sizeof(array)[0])

static const char *unit_of(const figure *f) { return strcmp(f->unit, "BYTES") == 0 ? "bytes" : "count"; }

static void print_document(void) {
  printf("| field | unit | what it is | metric |\n|---|---|---|---|\n");
  for (size_t i = 0; i < LENGTH(figures); i++) {
    const figure *f = &figures[i];
    if (f->object == NULL) continue;
    printf("| `%s.%s` | %s | %s |", f->object, f->member, unit_of(f), f->text);
    char metrics[256];
    snprintf(metrics, sizeof metrics, "%s", f->metric);
    for (char *m = strtok(metrics, " "), *comma = ""; m != NULL; m = strtok(NULL, " "), comma = ",") printf("%s `%s`", comma, m);
    printf(" |\n");
  }
}

/* As a string of Python, without the marks of code where `plain`. */
static void print_string(const char *text, int plain) {
  putchar('"');
  for (; *text != '\0'; text++) {
    if (*text == '`' && plain) continue;
    if (*text == '"' || *text == '\\') putchar('\\');
    putchar(*text);
  }
  putchar('"');
}

static void print_python(void) {
  printf("# Written from src/report/figures.def by the target `tables`: do not edit.\n"
         "# ruff: noqa: E501\n"
         "\"\"\"The figures of the JSON, and the metrics made of them alone.\"\"\"\n\n"
         "from __future__ import annotations\n\n"
         "# fmt: off\n"
         "# object, member, metrics, text\n"
         "FIGURES = (\n");
  for (size_t i = 0; i < LENGTH(figures); i++) {
    const figure *f = &figures[i];
    if (f->object == NULL) continue;
    printf("    (\"%s\", \"%s\", ", f->object, f->member);
    print_string(f->metric, 0);
    printf(", ");
    print_string(f->text, 1);
    printf("),\n");
  }
  printf(")\n# Of metrics with labels: name, text.\nFAMILIES = {\n");
  for (size_t i = 0; i < LENGTH(families); i++) {
    printf("    \"%s\": ", families[i].name);
    print_string(families[i].text, 1);
    printf(",\n");
  }
  printf("}\n");
}

/* The field of `object.member` in a text, or NULL. */
static const char *field_named(const char *name, size_t length) {
  for (size_t i = 0; i < LENGTH(figures); i++) {
    const figure *f = &figures[i];
    if (f->object == NULL || f->field == NULL) continue;
    size_t object = strlen(f->object);
    if (object + 1 + strlen(f->member) == length && strncmp(f->object, name, object) == 0 && name[object] == '.' &&
        strncmp(f->member, name + object + 1, length - object - 1) == 0)
      return f->field;
  }
  return NULL;
}

/* Text with names of fields in place of the JSON's. */
static void print_with_fields(const char *text) {
  while (*text != '\0') {
    size_t length = *text == '`' ? strcspn(text + 1, "`") : 0;
    const char *field = length > 0 ? field_named(text + 1, length) : NULL;
    if (field != NULL) {
      printf("`%s`", field);
      text += length + 2;
    } else {
      putchar(*text++);
    }
  }
}

static const figure *figure_at(size_t at) {
  for (size_t i = 0; i < LENGTH(figures); i++)
    if (figures[i].field != NULL && figures[i].at == at) return &figures[i];
  return NULL;
}

static void print_rust(void) {
  printf("/// Version of the structure `hakmem_stats`.\n"
         "pub const HAKMEM_STATS_VERSION: u32 = %d;\n\n"
         "c_struct! {\n"
         "    /// Figures of the allocator at one moment, in bytes unless they are counts. The sums in the fields' descriptions hold\n"
         "    /// exactly.\n"
         "    hakmem_stats {\n"
         "        /// Version of the library's structure.\n"
         "        version: u32,\n"
         "        /// Bytes of the structure that were filled in.\n"
         "        size: u32,\n"
         "        /// When, by CLOCK_MONOTONIC.\n"
         "        time_ms: u64,\n",
         HAKMEM_STATS_VERSION);
  for (size_t at = offsetof(hakmem_stats, time_ms) + sizeof(uint64_t); at < sizeof(hakmem_stats); at += sizeof(uint64_t)) {
    const figure *f = figure_at(at);
    if (f == NULL) {
      fprintf(stderr, "gen_figures: the field of hakmem_stats at offset %zu has no row in figures.def\n", at);
      exit(1);
    }
    printf("        /// ");
    print_with_fields(f->text);
    printf(".\n        %s: u64,\n", f->field);
  }
  printf("    }\n}\n");
}

int main(int argc, char **argv) {
  const char *what = argc == 2 ? argv[1] : "";
  if (strcmp(what, "document") == 0)
    print_document();
  else if (strcmp(what, "python") == 0)
    print_python();
  else if (strcmp(what, "rust") == 0)
    print_rust();
  else
    return 2;
  return fflush(stdout) == 0 ? 0 : 1;
}
