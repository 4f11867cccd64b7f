/* malloc_stats_print: what mallctl's names say, as text or JSON, in jemalloc's order and form. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "je/ctl.h"

HAK_EXPORT void malloc_stats_print(void (*write_cb)(void *, const char *), void *context, const char *options);

typedef struct out {
  void (*write)(void *context, const char *text);
  void *context;
  bool json, comma; /* comma: something stands before in the object */
  size_t used;
  char text[4096];
} out;

static void write_stderr(void *context, const char *text) {
  (void)context;
  hak_os_write_stderr(text, strlen(text));
}

static void flush(out *o) {
  o->text[o->used] = '\0';
  if (o->used != 0) o->write(o->context, o->text);
  o->used = 0;
}

#define LONGEST 1200 /* of one call */

HAK_PRINTF(2, 3) static void put(out *o, const char *format, ...) {
  va_list values;
  if (o->used + LONGEST > sizeof o->text) flush(o);
  va_start(values, format);
  int n = vsnprintf(o->text + o->used, LONGEST, format, values);
  va_end(values);
  if (n > 0) o->used += hak_min_size((size_t)n, LONGEST - 1);
}

/* --- JSON --- */

static void name(out *o, const char *text) {
  put(o, "%s", o->comma ? "," : "");
  if (text != NULL) put(o, "\"%s\":", text);
  o->comma = true;
}

/* Objects and lists, nothing in text; the name may be NULL in a list. */
static void begin(out *o, const char *text, char bracket) {
  if (!o->json) return;
  name(o, text);
  put(o, "%c", bracket);
  o->comma = false;
}

static void end(out *o, char bracket) {
  if (!o->json) return;
  put(o, "%c", bracket);
  o->comma = true;
}

/* Of what no figures are kept, for readers that expect it. */
static void put_empty(out *o, const char *text, const char *brackets) {
  begin(o, text, brackets[0]);
  end(o, brackets[1]);
}

static void put_quoted(out *o, const char *text) {
  put(o, "\"");
  for (; *text != '\0'; text++) {
    if ((unsigned char)*text < 0x20)
      put(o, "\\u%04x", (unsigned)*text);
    else
      put(o, *text == '"' || *text == '\\' ? "\\%c" : "%c", *text);
  }
  put(o, "\"");
}

/* --- values --- */

/* Lower bytes hold it. False: the name has none. */
static bool value_of(const char *full, uint64_t *value) {
  static const uint8_t lengths[] = {8, 4, 1};
  for (unsigned i = 0; i < sizeof lengths; i++) {
    size_t length = lengths[i];
    *value = 0;
    if (hak_ctl_call_name(full, value, &length, NULL, 0) == 0) return true;
  }
  return false;
}

static unsigned long long number(const char *full) {
  uint64_t value;
  return value_of(full, &value) ? value : 0;
}

static void put_value(out *o, unsigned type, uint64_t value) {
  if (type == HAK_CTL_BOOL)
    put(o, "%s", value != 0 ? "true" : "false");
  else if (type == HAK_CTL_STRING)
    put_quoted(o, (const char *)(uintptr_t)value);
  else if (type == HAK_CTL_SSIZE || type == HAK_CTL_I64)
    put(o, "%lld", (long long)value);
  else
    put(o, "%llu", (unsigned long long)value);
}

/* Every value of the table whose name is `pattern` and one component more; `prefix`: the same with its numbers. label:
 * of a line of text. */
static void put_values(out *o, const char *pattern, const char *prefix, const char *label) {
  unsigned type;
  const char *full;
  for (size_t row = 0; (full = hak_ctl_name(row, &type)) != NULL; row++) {
    size_t length = strlen(pattern);
    char asked[160];
    uint64_t value;
    if (strncmp(full, pattern, length) != 0 || strpbrk(full + length, ".<") != NULL || type == HAK_CTL_NOTHING ||
        type == HAK_CTL_POINTER)
      continue;
    snprintf(asked, sizeof asked, "%s%s", prefix, full + length);
    if (strcmp(asked, "arenas.create") == 0 || strcmp(asked, "arenas.lookup") == 0 || !value_of(asked, &value))
      continue;
    if (o->json)
      name(o, strcmp(full + length, "uptime") == 0 ? "uptime_ns" : full + length);
    else
      put(o, "%s%s: ", label, full + length);
    put_value(o, type, value);
    if (!o->json) put(o, "\n");
  }
}

static void put_group(out *o, const char *title, const char *group) {
  char prefix[32], label[40];
  snprintf(prefix, sizeof prefix, "%s.", group);
  snprintf(label, sizeof label, "  %s.", group);
  begin(o, group, '{');
  if (!o->json) put(o, "%s\n", title);
  put_values(o, prefix, prefix, label);
  if (strcmp(group, "arenas") != 0) end(o, '}');
}

/* --- parts --- */

/* Classes by number, whose names begin as `before`. In text, where a class is a row of `kind`: those that are, or were,
 * in use. */
static void put_classes(out *o, const char *list, const char *pattern, const char *before, const char *kind,
                        unsigned count) {
  begin(o, list, '[');
  for (unsigned i = 0; i < count; i++) {
    char prefix[96], asked[128];
    snprintf(prefix, sizeof prefix, "%s%u.", before, i);
    snprintf(asked, sizeof asked, "%snmalloc", prefix);
    if (!o->json && number(asked) == 0) continue;
    begin(o, NULL, '{');
    if (!o->json) put(o, "  %s[%u]: size %zu\n", kind, i, *kind == 'b' ? hak_je_bin_size(i) : hak_je_lextent_size(i));
    put_values(o, pattern, prefix, "    ");
    end(o, '}');
  }
  end(o, ']');
}

static void put_general(out *o) {
  if (o->json)
    name(o, "version");
  else
    put(o, "Version: ");
  put_quoted(o, (const char *)(uintptr_t)number("version"));
  if (!o->json) put(o, "\n");
  put_group(o, "Build-time option settings", "config");
  put_group(o, "Run-time option settings", "opt");
  put_group(o, "Profiling settings", "prof");
  if (!o->json) {
    put(o, "Arenas: %u\nQuantum size: %zu\nPage size: %zu\n", hak_je_arena_count(), (size_t)HAK_GRANULE, HAK_JE_PAGE);
    put(o, "Maximum thread-cached size class: %llu\n", number("arenas.tcache_max"));
    return;
  }
  put_group(o, "", "arenas");
  put_classes(o, "bin", "arenas.bin.<b>.", "arenas.bin.", "", HAK_JE_BINS);
  put_classes(o, "lextent", "arenas.lextent.<l>.", "arenas.lextent.", "", HAK_JE_LEXTENTS);
  end(o, '}');
}

static void put_sums(out *o) {
  if (o->json) {
    begin(o, "stats", '{');
    put_values(o, "stats.", "stats.", "");
    begin(o, "background_thread", '{');
    put_values(o, "stats.background_thread.", "stats.background_thread.", "");
    end(o, '}');
    put_empty(o, "mutexes", "{}");
    end(o, '}');
    return;
  }
  put(o, "Allocated: %llu, active: %llu, metadata: %llu (n_thp 0), resident: %llu, mapped: %llu, retained: %llu\n",
      number("stats.allocated"), number("stats.active"), number("stats.metadata"), number("stats.resident"),
      number("stats.mapped"), number("stats.retained"));
  put(o, "Count of realloc(non-null-ptr, 0) calls: %llu\nBackground threads: %llu\n", number("stats.zero_reallocs"),
      number("stats.background_thread.num_threads"));
}

static bool leaves_out(const char *options, char letter) { return options != NULL && strchr(options, letter) != NULL; }

static void put_arena(out *o, const char *title, unsigned arena, const char *options) {
  bool bins = !leaves_out(options, 'b'), large = !leaves_out(options, 'l'), extents = !leaves_out(options, 'e'),
       mutexes = !leaves_out(options, 'x');
  char prefix[64], key[16];
  snprintf(key, sizeof key, "%u", arena);
  snprintf(prefix, sizeof prefix, "stats.arenas.%u.", arena);
  begin(o, *title != '\0' ? title : key, '{');
  if (!o->json)
    put(o, *title != '\0' ? "%s arenas stats:\n" : "%sarenas[%u]:\n",
        *title == 'm'   ? "Merged"
        : *title == 'd' ? "Destroyed"
                        : "",
        arena);
  put_values(o, "stats.arenas.<s>.", prefix, "  ");
  static const char *const parts[] = {"small", "large"};
  for (unsigned i = 0; i < 2; i++) {
    char pattern[64], label[16];
    snprintf(pattern, sizeof pattern, "stats.arenas.<s>.%s.", parts[i]);
    snprintf(prefix, sizeof prefix, "stats.arenas.%u.%s.", arena, parts[i]);
    snprintf(label, sizeof label, "  %s.", parts[i]);
    begin(o, parts[i], '{');
    put_values(o, pattern, prefix, label);
    end(o, '}');
  }
  snprintf(prefix, sizeof prefix, "stats.arenas.%u.bins.", arena);
  if (bins) put_classes(o, "bins", "stats.arenas.<s>.bins.<b>.", prefix, "bin", HAK_JE_BINS);
  snprintf(prefix, sizeof prefix, "stats.arenas.%u.lextents.", arena);
  if (large) put_classes(o, "lextents", "stats.arenas.<s>.lextents.<l>.", prefix, "large", HAK_JE_LEXTENTS);
  if (extents) put_empty(o, "extents", "[]");
  if (mutexes) put_empty(o, "mutexes", "{}");
  end(o, '}');
}

static void put_arenas(out *o, const char *options) {
  bool several = hak_je_arena_count() > 1;
  begin(o, "stats.arenas", '{');
  if (!leaves_out(options, 'm') && (several || leaves_out(options, 'a'))) put_arena(o, "merged", HAK_JE_ALL, options);
  if (!leaves_out(options, 'd') && hak_je_has_figures(HAK_JE_DESTROYED))
    put_arena(o, "destroyed", HAK_JE_DESTROYED, options);
  for (unsigned i = 0; !leaves_out(options, 'a') && i < hak_je_arena_count(); i++) {
    if (hak_je_arena_at(i) != NULL && (i == 0 || !hak_je_arena_is_main(i))) put_arena(o, "", i, options);
  }
  end(o, '}');
}

void malloc_stats_print(void (*write_cb)(void *, const char *), void *context, const char *options) {
  out o = {.write = write_cb != NULL         ? write_cb
                    : malloc_message != NULL ? malloc_message
                                             : write_stderr,
           .context = context};
  uint64_t epoch = 1;
  size_t length = sizeof epoch;
  if (hak_ctl_call_name("epoch", &epoch, &length, &epoch, sizeof epoch) != 0) return;
  o.json = leaves_out(options, 'J');
  put(&o, "%s", o.json ? "{\"jemalloc\":{" : "___ Begin jemalloc statistics ___\n");
  if (!leaves_out(options, 'g')) put_general(&o);
  put_sums(&o);
  put_arenas(&o, options);
  put(&o, "%s", o.json ? "}}\n" : "--- End jemalloc statistics ---\n");
  flush(&o);
}
