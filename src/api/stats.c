/* Figures for the program itself. */
#include "hakmem/stats.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>

#include "api/init.h"
#include "os/os.h"
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
