/* Everything that is not allocation: trimming, statistics in glibc's forms, options, version. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "entry/entry.h"
#include "entry/reclaim_turn.h"
#include "entry/slow_exit.h"
#include "entry/usage.h"
#include "guard/sample.h"
#include "harden/quarantine.h"
#include "heap/heap.h"
#include "life/init.h"
#include "life/thread.h"
#include "os/glibc_malloc.h"
#include "os/os.h"
#include "profile/profile.h"
#include "reclaim/decay.h"
#include "report/figures.h"
#include "report/heap_profile.h"
#include "report/report.h"
#include "report/serve.h"
#include "tcache/counted.h"
#include "watch/background.h"
#include "watch/profiler.h"
#include "watch/samplers.h"

HAK_LINK_INIT;

static size_t purge(size_t keep_bytes) {
  if (!hak_started()) return 0;
  hak_deferred d = {0};
  if (HAK_HARDENED) hak_quarantine_flush();
  hak_flush_caches(&d);
  size_t purged = hak_decay_all(keep_bytes, &d);
  d.purge_due = false;
  hak_slow_exit(&d);
  return purged;
}

/* The hardened build's quarantine stays: a thread that calls this after each task would have none. */
HAK_EXPORT void hakmem_thread_idle(void) {
  hak_tcache *t = hak_tls.cache;
  if (t == NULL) return;
  hak_deferred d = {0};
  hak_heap_flush(NULL, &d);
  hak_tcache_flush(t, &d);
  hak_slow_exit(&d);
}

HAK_EXPORT uint64_t hakmem_thread_allocated(void) { return hak_count_asked(); }

HAK_EXPORT bool hakmem_forbid(bool forbidden) {
  bool before = hak_tls.phase == HAK_THREAD_FORBIDDEN;
  if (forbidden && !before)
    hak_tcache_put_aside();
  else if (!forbidden && before)
    hak_tcache_take_back();
  return before;
}

HAK_EXPORT int hakmem_malloc_trim(size_t pad) { return purge(pad) > 0; }

HAK_EXPORT size_t hakmem_purge(void) { return purge(0); }

void hak_usage_release(size_t bytes) {
  size_t dirty = hak_load_relaxed(&hak_span_pool.dirty_spans),
         spans = bytes / HAK_SPAN_SIZE + (bytes % HAK_SPAN_SIZE != 0);
  if (spans <= dirty)
    hak_purge_spans(dirty - spans, false);
  else
    purge(0);
}

/* glibc's numbers are all of -8 to -1, and 1. */
HAK_EXPORT int hakmem_mallopt(int param, int value) {
  if (param == M_TRIM_THRESHOLD && value == -1) hak_usage_set("HAKMEM_DECAY_MS", INT64_MAX);
  return param == M_MXFAST || (M_ARENA_MAX <= param && param <= M_TRIM_THRESHOLD);
}

/* arena = uordblks + fordblks, heaps included, their mappings too. glibc's arena does not shrink when malloc_trim
 * returns memory; here purged memory, metadata, guards and ends of slabs are in no field. Blocks in thread caches count
 * as in use, those in depots do not. */
static struct mallinfo2 mallinfo_now(size_t *accessible) {
  hak_figures f = {0};
  hak_figures_take(&f);
  const hakmem_stats *t = &f.stats;
  size_t kept = t->free_dirty + t->claimed + t->extents_cached + t->huge_kept;
  size_t live = t->live - t->huge_live,
         free_bytes = t->slab_free + t->slab_never_allocated + t->slab_depots + t->heaps_free + kept;
  *accessible = t->accessible;
  return (struct mallinfo2){
      .arena = live + free_bytes,
      .ordblks = f.free_blocks + t->huge_kept_count,
      .hblks = t->huge_count,
      .hblkhd = t->huge_live,
      .uordblks = live,
      .fordblks = free_bytes,
      .keepcost = kept,
  };
}

HAK_EXPORT struct mallinfo2 hakmem_mallinfo2(void) {
  size_t accessible;
  return mallinfo_now(&accessible);
}

/* The same fields, no larger than they can be. */
HAK_EXPORT struct mallinfo hakmem_mallinfo(void) {
  struct mallinfo2 m = hakmem_mallinfo2();
  struct mallinfo as_ints;
  _Static_assert(sizeof m / sizeof(size_t) == sizeof as_ints / sizeof(int), "field by field");
  for (size_t i = 0; i < sizeof m / sizeof(size_t); i++)
    ((int *)&as_ints)[i] = (int)hak_min_size(((size_t *)&m)[i], __INT_MAX__);
  return as_ints;
}

HAK_EXPORT void hakmem_malloc_stats(void) { hak_report_figures(false); }

/* glibc manual: options must be 0; the format is XML of no fixed schema. As in glibc's, mmap is apart from the others,
 * and `rest` and `live` are what the arena has free and in use; `system` is all that is accessible, these and the
 * allocator's own. */
HAK_EXPORT int hakmem_malloc_info(int options, FILE *stream) {
  if (options != 0) return EINVAL;
  size_t accessible;
  struct mallinfo2 m = mallinfo_now(&accessible);
  int n = fprintf(stream,
                  "<malloc version=\"hakmem-%s\">\n<heap nr=\"0\">\n"
                  "<total type=\"live\" size=\"%zu\"/>\n<total type=\"rest\" count=\"%zu\" size=\"%zu\"/>\n"
                  "<total type=\"mmap\" count=\"%zu\" size=\"%zu\"/>\n<system type=\"current\" size=\"%zu\"/>\n"
                  "</heap>\n</malloc>\n",
                  HAKMEM_VERSION_STRING, m.uordblks, m.ordblks, m.fordblks, m.hblks, m.hblkhd, accessible);
  return n < 0 ? -1 : 0;
}

HAK_EXPORT int hakmem_option_get(const char *name, int64_t *value) { return hak_config_get(name, value); }

/* Makes samplers, the helper thread and decay follow the options. False: there is no memory for a profile. */
static bool follow_options(void) {
  if (hak_load_relaxed(&hak_config.background) != 0) hak_start();
  hak_background_follow();
  if (hak_started()) {
    hak_deferred d = {0};
    hak_decay_follow(&d);
    hak_slow_exit(&d);
  }
  if (hak_load_relaxed(&hak_config.heap_profile) != 0) hak_start();
  bool made = hak_sampling_follow();
  hak_profiler_start();
  return made;
}

/* Before the environment is read an option only changes: the start follows it. */
HAK_EXPORT int hakmem_option_set(const char *name, int64_t value) {
  int error = hak_config_set(name, value);
  if (error == 0 && hak_config_loaded() && !follow_options()) error = ENOMEM;
  return error;
}

HAK_EXPORT size_t hakmem_option_list(bool (*visit)(const hakmem_option *option, void *context), void *context) {
  return hak_config_list(visit, context);
}

bool hak_usage_set(const char *name, int64_t value) {
  hak_option_row row;
  if (!hak_config_find(name, strlen(name), &row)) return false;
  int origin = hak_config_origin(&row);
  if (origin == HAKMEM_ORIGIN_ENVIRONMENT || origin == HAKMEM_ORIGIN_PROGRAM) return false;
  if (value == HAK_USUAL) value = row.initial;
  return hakmem_option_set(name, value < row.highest ? value : row.highest) == 0;
}

HAK_EXPORT void hakmem_set_pressure_callback(void (*callback)(size_t, size_t, void *), void *context) {
  hak_budget_set_callback(callback, context);
}

HAK_EXPORT size_t hakmem_heap_check(void) { return hak_heap_check(); }

/* In the hardened build all blocks so far may be guarded first blocks, which take no span. */
HAK_EXPORT uint64_t hakmem_served(void) {
  uint64_t spans = hak_load_relaxed(&hak_os_stats.alloc);
  return spans != 0 ? spans : hak_sample_has_been_used();
}

HAK_EXPORT const char *hakmem_version(void) { return HAKMEM_VERSION_STRING; }

HAK_EXPORT int hakmem_profile_start(size_t rate_bytes) {
  if (rate_bytes > INT64_MAX) return EINVAL;
  int saved = errno, error = rate_bytes == 0 ? 0 : hak_config_set("HAKMEM_HEAP_PROFILE_RATE", (int64_t)rate_bytes);
  if (error == 0) error = hakmem_option_set("HAKMEM_HEAP_PROFILE", 1);
  errno = saved;
  return error;
}

HAK_EXPORT int hakmem_profile_stop(void) {
  return hak_profile_made() ? hakmem_option_set("HAKMEM_HEAP_PROFILE", 0) : ENOTSUP;
}

HAK_EXPORT int hakmem_profile_reset(void) {
  if (!hak_profile_made()) return ENOTSUP;
  hak_profile_reset();
  return 0;
}

HAK_EXPORT int hakmem_profile_dump(const char *path, int kind) {
  if (path == NULL || kind < HAK_PROFILE_PPROF || kind > HAK_PROFILE_PROTO) return EINVAL;
  if (!hak_profile_made()) return ENOTSUP;
  int saved = errno, error = hak_heap_profile_write(path, (hak_profile_format)kind);
  errno = saved;
  return error;
}

HAK_EXPORT int hakmem_profile_write(int what, hakmem_profile_format format,
                                    int (*write)(void *context, const void *data, size_t bytes), void *context) {
  if (write == NULL || what == 0 || (what & ~HAKMEM_PROFILE_ALL) != 0 || (unsigned)format > HAK_PROFILE_PROTO)
    return EINVAL;
  if (!hak_profile_made()) return ENOTSUP;
  int saved = errno, error = hak_heap_profile_give((hak_profile_format)format, (unsigned)what, write, context);
  errno = saved;
  return error;
}

/* --- labels --- */

HAK_EXPORT void hakmem_label_set(uint64_t label) { hak_tls.label = label == UINT64_MAX ? 0 : label; }

HAK_EXPORT uint64_t hakmem_label_get(void) { return hak_tls.label; }

HAK_EXPORT int hakmem_label_name(uint64_t label, const char *text) {
  if (label == 0 || label == UINT64_MAX || text == NULL || strlen(text) > HAK_LABEL_TEXT_MAX) return EINVAL;
  hak_lock_take(&hak_profile_lock);
  bool named = hak_label_set_name_locked(label, text);
  hak_lock_drop(&hak_profile_lock);
  return named ? 0 : ENOMEM;
}

bool hak_asks_for_files(void) {
  int64_t target = hak_load_relaxed(&hak_config.rss_target);
  return (target != 0 && target != HAK_SIZE_AUTO) || hak_load_relaxed(&hak_config.heap_profile) != 0 ||
         hak_load_relaxed(&hak_config.guard_log) != 0;
}
