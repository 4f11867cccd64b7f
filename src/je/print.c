#include "je/je.h"

HAK_EXPORT void (*malloc_message)(void *, const char *);
HAK_EXPORT const char *malloc_conf __attribute__((weak));
HAK_EXPORT void malloc_stats_print(void (*write_cb)(void *, const char *), void *context, const char *options);

void malloc_stats_print(void (*write_cb)(void *, const char *), void *context, const char *options) {
  (void)write_cb, (void)context, (void)options;
}
