/* A plug-in whose leak is dropped: in a scope malloc takes from a heap, and leaks go with the heap. */
#define _POSIX_C_SOURCE 200809L
#include <hakmem/heap.h>
#include <string.h>

static size_t plugin(const char *text) { /* leaks its copy */
  char *copy = strdup(text);
  return copy == NULL ? 0 : strlen(copy);
}

int main(void) {
  size_t length = 0;
  for (int call = 0; call < 100; call++) {
    hakmem_heap *heap = hakmem_heap_new(NULL), *before = hakmem_heap_set_default(heap);
    length += plugin("some text");
    hakmem_heap_set_default(before);
    hakmem_heap_stats stats;
    hakmem_heap_get_stats(heap, &stats, sizeof stats);
    if (stats.blocks != 1) return 1; /* the leak */
    hakmem_heap_destroy(heap);
  }
  return length == 900 ? 0 : 1;
}
