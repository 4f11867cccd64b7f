/* Fills some memory and prints statistics: print OPTIONS. */
#include <stdio.h>
#include <stdlib.h>

void malloc_stats_print(void (*write_cb)(void *, const char *), void *context, const char *options);
int mallctl(const char *name, void *oldp, size_t *oldlenp, void *newp, size_t newlen);

static void write_out(void *context, const char *text) { fputs(text, context); }

int main(int argc, char **argv) {
  unsigned arena;
  size_t bytes = sizeof arena;
  if (argc != 2 || mallctl("arenas.create", &arena, &bytes, NULL, 0) != 0) return 2;
  for (int i = 0; i < 1000; i++) {
    if (malloc(100 + (size_t)i * 50) == NULL) return 1;
  }
  malloc_stats_print(write_out, stdout, argv[1]);
  return 0;
}
