/* Figures for the program itself. */
#include "hakmem/stats.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>

#include "entry/usage.h"
#include "life/init.h"
#include "profile/profile.h"
#include "report/render.h"

HAK_LINK_INIT;

#define LEAST_BYTES offsetof(hakmem_stats, used_peak) /* of version 2 */

HAK_EXPORT int hakmem_stats_get(hakmem_stats *out, size_t size) {
  if (out == NULL || size < LEAST_BYTES) return EINVAL;
  hak_class_row rows[HAK_CLASS_COUNT];
  hak_figures f = {.rows = rows, .process = true};
  hak_figures_take(&f);
  f.stats.size = (uint32_t)hak_min_size(size, sizeof f.stats);
  memcpy(out, &f.stats, f.stats.size);
  memset((char *)out + f.stats.size, 0, size - f.stats.size);
  return 0;
}

HAK_EXPORT size_t hakmem_stats_classes(hakmem_class_stats *out, size_t count) {
  hak_class_row rows[HAK_CLASS_COUNT];
  hak_figures f = {.rows = rows};
  if (count == 0 || out == NULL) return HAK_CLASS_COUNT;
  hak_figures_take(&f);
  for (unsigned c = 0; c < hak_min_size(count, HAK_CLASS_COUNT); c++) out[c] = hak_figures_class(&f, c);
  return HAK_CLASS_COUNT;
}

HAK_EXPORT int hakmem_stats_print(int fd, int json) {
  hak_sink sink;
  hak_sink_to_fd(&sink, fd);
  return hak_render_snapshot(&sink, json != 0);
}

/* --- for other allocators' interfaces --- */

void hak_usage_read(hakmem_stats *out, hak_usage_class *classes, void (*large)(void *context, size_t bytes),
                    void *context) {
  hak_class_row rows[HAK_CLASS_COUNT];
  hak_figures f = {.rows = rows, .see_large = large, .context = context};
  hak_figures_take(&f);
  for (unsigned c = 0; classes != NULL && c < HAK_CLASS_COUNT; c++)
    classes[c] = (hak_usage_class){hak_row_live(&rows[c]), rows[c].handed_out, rows[c].slabs, rows[c].partial};
  *out = f.stats;
}

void hak_usage_text(char *buffer, size_t bytes) {
  hak_sink sink;
  hak_sink_to_memory(&sink, buffer, bytes - 1);
  hak_render_snapshot(&sink, false);
  *sink.at = '\0';
}

size_t hak_usage_cached(void) {
  const hak_tcache *t = hak_tls.cache;
  size_t bytes = 0;
  hak_tcache_publish();
  for (unsigned c = 0; c < HAK_CLASS_COUNT && t != NULL; c++)
    bytes += hak_load_relaxed(&t->bins[c].published) * hak_class_size(c);
  return bytes;
}

static HAK_COLD void count(hak_usage_sizes *sizes, uint64_t blocks, uint64_t bytes) {
  if (blocks != 0) sizes->of[hak_log2(hak_max_size(bytes / blocks, 1))] += blocks;
}

static void count_large(void *sizes, size_t bytes) { count(sizes, 1, bytes); }

void hak_usage_count(hak_usage_sizes *sizes) {
  hak_usage_class classes[HAK_CLASS_COUNT];
  hakmem_stats t;
  *sizes = (hak_usage_sizes){0};
  hak_usage_read(&t, classes, count_large, sizes);
  sizes->bytes = t.live;
  for (unsigned c = 0; c < HAK_CLASS_COUNT; c++) count(sizes, classes[c].live / hak_class_size(c), classes[c].live);
  count(sizes, t.sampled_count, t.sampled_live);
  count(sizes, t.heaps_blocks, t.heaps_live);
}

hak_usage_samples hak_usage_sampled(void) {
  size_t place = 0;
  hak_lock_take(&hak_profile_lock);
  hak_usage_samples s = {hak_profile_rounded(hak_profile.live.bytes), hak_profile_rounded(hak_profile.live.count), 0};
  for (const hak_profile_stack *stack; (stack = hak_profile_next(&place)) != NULL;)
    s.stacks += hak_profile_rounded(stack->live.count) != 0;
  hak_lock_drop(&hak_profile_lock);
  return s;
}
