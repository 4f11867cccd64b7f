#include "report/heap_profile.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "hakmem/hakmem.h"
#include "os/mappings.h"
#include "os/os.h"
#include "os/place.h"
#include "profile/profile.h"
#include "tcache/draw.h"

#define PATH_BYTES 4096
#define RENDERED_BYTES (64 * HAK_MIB) /* of address space */

/* --- pprof's text, and jemalloc's --- */

static void plain_mapping(void *sink, char *line) {
  hak_sink *s = sink;
  hak_sink_text(s, line);
  hak_sink_text(s, "\n");
}

/* pprof's are estimates, which no reader scales again. jemalloc's readers take counts for those of samples, and divide
 * by the probability that blocks of the mean size have at the file's rate: what is written is what they make the
 * estimate of. */
static void counts(hak_sink *s, bool jemalloc, const hak_profile_sums *held, const hak_profile_sums *total) {
  const hak_profile_sums *both[] = {held, total};
  for (unsigned i = 0; i < 2; i++) {
    double mean = both[i]->count > 0 ? both[i]->bytes / both[i]->count : 0;
    double share = jemalloc && mean > 0 ? hak_one_minus_exp(mean / (double)hak_profile.distance) : 1;
    hak_sink_number(s, hak_profile_rounded(both[i]->count * share));
    hak_sink_text(s, ": ");
    hak_sink_number(s, hak_profile_rounded(both[i]->bytes * share));
    hak_sink_text(s, i == 0 ? " [" : "]");
  }
}

/* These formats have a place for what is held, and one for what was allocated in all. Readers take the line with # for
 * a comment. */
static void render_text(hak_sink *s, bool jemalloc, unsigned what) {
  const hak_profile_state *h = &hak_profile;
  hak_assert_held(&hak_profile_lock);
  HAK_ASSERT(h->distance > 0);
  bool peak = (what & HAKMEM_PROFILE_LIVE) == 0 && (what & HAKMEM_PROFILE_PEAK) != 0;
  char since[HAK_SINCE_BYTES];
  hak_pprof_since("# ", since);
  if (jemalloc)
    hak_sink_print(s, "heap_v2/%zu\n  t*: ", h->distance);
  else
    hak_sink_text(s, "heap profile: ");
  counts(s, jemalloc, peak ? &h->peak : &h->live, &h->total);
  hak_sink_print(s, "%s\n%s\n", jemalloc ? "" : " @ heapprofile", since);
  const hak_profile_stack *stack;
  for (size_t place = 0; (stack = hak_profile_next(&place)) != NULL;) {
    const hak_profile_sums *held = peak ? &stack->peak : &stack->live;
    if (hak_profile_rounded(stack->total.count) == 0) continue;
    if (!jemalloc) counts(s, false, held, &stack->total);
    hak_sink_text(s, jemalloc ? "@" : " @");
    for (uint32_t i = 0; i < stack->depth; i++) {
      hak_sink_text(s, " 0x");
      hak_sink_hex(s, stack->pcs[i]);
    }
    if (jemalloc) hak_sink_text(s, "\n  t*: ");
    if (jemalloc) counts(s, true, held, &stack->total);
    hak_sink_text(s, "\n");
  }
}

/* --- JSON --- */

static void json_mapping(void *s, char *line) {
  if (strchr(line, '/') != NULL || strstr(line, "[vdso]") != NULL || strstr(line, " r-xp ") != NULL ||
      strstr(line, " rwxp ") != NULL)
    hak_sink_string(s, NULL, line);
}

static void json_list(hak_sink *s, const char *name, const double *values, unsigned count) {
  hak_sink_open(s, name, '[');
  for (unsigned i = 0; i < count; i++) hak_sink_member(s, NULL, hak_profile_rounded(values[i]));
  hak_sink_close(s, ']');
}

static void json_sums(hak_sink *s, const char *name, const hak_profile_sums *sums) {
  json_list(s, name, (const double[]){sums->bytes, sums->count, sums->bytes_variance, sums->count_variance}, 4);
}

static void json_stack(hak_sink *s, const hak_profile_stack *stack) {
  hak_sink_open(s, NULL, '{');
  hak_sink_open(s, "pcs", '[');
  for (uint32_t i = 0; i < stack->depth; i++) hak_sink_member(s, NULL, stack->pcs[i]);
  hak_sink_close(s, ']');
  json_sums(s, "live", &stack->live);
  json_sums(s, "total", &stack->total);
  json_list(s, "peak", (const double[]){stack->peak.bytes, stack->peak.count}, 2);
  hak_sink_member(s, "pinned", hak_profile_rounded(stack->pinned_bytes));
  double mean_ms = stack->live.count > 0 ? stack->age_ms_sum / stack->live.count : 0;
  json_list(s, "age_ms", (const double[]){mean_ms, stack->oldest_ms}, 2);
  json_list(s, "freed", stack->freed, HAK_PROFILE_LIFETIMES);
  if (stack->label != 0) hak_sink_member(s, "label", stack->label);
  if (hak_profile_heap(stack) != NULL) hak_sink_string(s, "heap", hak_profile_heap(stack));
  hak_sink_close(s, '}');
}

#define ROUNDED(object, field) {#field, hak_profile_rounded((object)->field)}
static void json_total(hak_sink *s, const char *name, const hak_profile_sums *sums) {
  hak_sink_object(s, name,
                  HAK_MEMBERS(ROUNDED(sums, bytes), ROUNDED(sums, count), ROUNDED(sums, bytes_variance),
                              ROUNDED(sums, count_variance)));
}

static void json_timeline(hak_sink *s) {
  const hak_profile_state *h = &hak_profile;
  hak_sink_open(s, "timeline", '[');
  for (unsigned i = 0; i < HAK_PROFILE_POINTS; i++) {
    if (h->points[i] < 0) continue;
    hak_sink_open(s, NULL, '[');
    hak_sink_member(s, NULL, i * h->interval_ms);
    hak_sink_member(s, NULL, hak_profile_rounded(h->points[i]));
    hak_sink_close(s, ']');
  }
  hak_sink_close(s, ']');
}

/* Apart: who comes by and answers somebody outside may have a small stack. */
static HAK_NOINLINE void json_program(hak_sink *s) {
  char program[PATH_BYTES];
  hak_sink_string(s, "program", hak_os_program(program, sizeof program));
}

static void json_head(hak_sink *s, bool files) {
  const hak_profile_state *h = &hak_profile;
  hak_sink_member(s, "hakmem_heap_profile", 1);
  hak_sink_string(s, "version", HAKMEM_VERSION_STRING);
  hak_sink_member(s, "pid", (uint64_t)hak_os_pid());
  if (files)
    json_program(s);
  else
    hak_sink_string(s, "program", "");
  hak_sink_members(s, HAK_MEMBERS({"rate", h->distance}, {"started_ms", h->start_unix_ms},
                                  {"stopped_ms", h->sampling ? 0 : h->stop_unix_ms}, {"taken_ms", hak_os_unix_ms()}));
  hak_sink_object(
      s, "samples",
      HAK_MEMBERS(HAK_FIELD(h, taken), {"live", h->live_samples}, HAK_FIELD(h, dropped), HAK_FIELD(h, stacks_dropped),
                  {"own_bytes", hak_profile_bytes_locked()}, HAK_FIELD(h, labels_evicted)));
  json_total(s, "live", &h->live);
  json_total(s, "total", &h->total);
  hak_sink_object(s, "peak", HAK_MEMBERS(ROUNDED(&h->peak, bytes), ROUNDED(&h->peak, count),
                                         {"at_ms", h->peak_number == 0 ? 0 : h->peak_ms - h->start_ms}));
}

static void render_json(hak_sink *s, bool files) {
  hak_assert_held(&hak_profile_lock);
  hak_sink_open(s, NULL, '{');
  json_head(s, files);
  json_timeline(s);
  hak_sink_open(s, "lifetime_bounds_ms", '[');
  for (unsigned i = 0; i < HAK_PROFILE_LIFETIMES - 1; i++) hak_sink_member(s, NULL, hak_profile_lifetime_bounds[i]);
  hak_sink_close(s, ']');
  hak_sink_open(s, "stacks", '[');
  const hak_profile_stack *stack;
  for (size_t place = 0; (stack = hak_profile_next(&place)) != NULL;) {
    if (hak_profile_rounded(stack->total.count) > 0) json_stack(s, stack);
  }
  hak_sink_close(s, ']');
  hak_sink_open(s, "labels", '[');
  const hak_label_name *name;
  for (size_t place = 0; (name = hak_label_next_locked(&place)) != NULL;) {
    hak_sink_open(s, NULL, '[');
    hak_sink_member(s, NULL, name->label);
    hak_sink_string(s, NULL, name->text);
    hak_sink_close(s, ']');
  }
  hak_sink_close(s, ']');
  hak_sink_open(s, "maps", '[');
  if (files) hak_each_mapping(json_mapping, s);
  hak_sink_close(s, ']');
  hak_sink_close(s, '}');
  hak_sink_text(s, "\n");
}

/* --- */

void hak_heap_profile_render(hak_sink *s, hak_profile_format format, unsigned what) {
  if (format == HAK_PROFILE_PROTO) {
    hak_pprof_render(s, what);
    return;
  }
  hak_lock_take(&hak_profile_lock);
  hak_profile_settle(hak_os_now_ms());
  if (format == HAK_PROFILE_JSON)
    render_json(s, (what & HAK_PROFILE_WITHOUT_FILES) == 0);
  else
    render_text(s, format == HAK_PROFILE_JEMALLOC, what);
  hak_lock_drop(&hak_profile_lock);
  if (format == HAK_PROFILE_JSON) return;
  hak_sink_text(s, "\nMAPPED_LIBRARIES:\n");
  hak_each_mapping(plain_mapping, s);
}

int hak_heap_profile_give(hak_profile_format format, unsigned what,
                          int (*give)(void *context, const void *data, size_t bytes), void *context) {
  char *memory = hak_os_reserve(RENDERED_BYTES, hak_os_page_size());
  size_t ready = 0;
  hak_sink sink;
  if (memory == NULL) return ENOMEM;
  hak_sink_to_reservation(&sink, memory, RENDERED_BYTES, &ready);
  hak_heap_profile_render(&sink, format, what);
  int error = hak_sink_finish(&sink) != 0 ? ENOMEM : give(context, memory, (size_t)(sink.at - memory));
  hak_os_unmap_own(memory, RENDERED_BYTES);
  return error;
}

static int write_to_fd(void *fd, const void *data, size_t bytes) { return hak_os_write(*(const int *)fd, data, bytes); }

/* From memory, so that nobody waits for a file; where there is none for it, or too little, straight into the file. */
static int render_to_file(int fd, hak_profile_format format) {
  int error = hak_heap_profile_give(format, HAKMEM_PROFILE_ALL, write_to_fd, &fd);
  if (error != ENOMEM) return error;
  hak_sink sink;
  hak_sink_to_fd(&sink, fd);
  hak_heap_profile_render(&sink, format, HAKMEM_PROFILE_ALL);
  return hak_sink_finish(&sink);
}

static int replace_file(const hak_os_place *place, hak_profile_format format) {
  char temporary[HAK_OS_NAME_BYTES];
  int fd, error = hak_os_create_beside(place, temporary, &fd);
  if (error != 0) return error;
  error = render_to_file(fd, format);
  hak_os_close(fd);
  if (error == 0) error = hak_os_move_into(place, temporary);
  if (error != 0) hak_os_remove_from(place, temporary);
  return error;
}

static int write_there(const hak_os_place *place, hak_profile_format format) {
  int fd, error = hak_os_open_place(place, &fd);
  if (error != 0) return error;
  error = render_to_file(fd, format);
  hak_os_close(fd);
  return error;
}

/* A regular file is replaced at once when the profile is whole, also where a link leads to it; a pipe and a device are
 * written to. */
int hak_heap_profile_write(const char *path, hak_profile_format format) {
  hak_os_place place;
  int error = hak_os_find_place(path, &place);
  if (error != 0) return error;
  error = place.replaceable ? replace_file(&place, format) : write_there(&place, format);
  hak_os_leave(&place);
  return error;
}
