/* A query engine with caps: a query beyond its own cap, or that would take the engine beyond the engine's, fails alone. */
#include <hakmem/heap.h>
#include <stdio.h>

static int run_query(hakmem_heap *engine, const char *name, size_t rows) {
  hakmem_heap_options options = {.size = sizeof options, .name = name, .limit = 16 << 20, .parent = engine};
  hakmem_heap *query = hakmem_heap_new(&options);
  if (query == NULL) return -1;
  int result = 0;
  for (size_t i = 0; i < rows && result == 0; i++)
    if (hakmem_heap_malloc(query, 1000) == NULL) result = -1;
  hakmem_heap_stats stats;
  hakmem_heap_get_stats(query, &stats, sizeof stats);
  printf("%s: %zu bytes, %d\n", name, stats.peak, result);
  hakmem_heap_destroy(query); /* each row, in one call */
  return result;
}

int main(void) {
  hakmem_heap_options options = {.size = sizeof options, .name = "engine", .limit = 256 << 20};
  hakmem_heap *engine = hakmem_heap_new(&options);
  int small = run_query(engine, "small", 1000), large = run_query(engine, "large", 1000000);
  hakmem_heap_stats stats;
  hakmem_heap_get_stats(engine, &stats, sizeof stats);
  hakmem_heap_destroy(engine);
  return small == 0 && large == -1 && stats.total == 0 ? 0 : 1;
}
