/* What the programs that use heaps under a library have in common. */
#ifndef HAKMEM_TESTS_HEAP_PROGRAMS_H
#define HAKMEM_TESTS_HEAP_PROGRAMS_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "hakmem/heap.h"

#define EXPECT(condition)                                                    \
  do {                                                                       \
    if (!(condition)) {                                                      \
      fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
      exit(1);                                                               \
    }                                                                        \
  } while (0)

/* Where a program was refused for the first time. */
typedef struct refusal {
  unsigned long long served; /* requests before it */
  size_t size, live;
} refusal;

/* Ends the program unless it was refused as the first time, which the first run notes. */
static inline void expect_refusal(int run, const refusal *now, refusal *first) {
  if (run == 0) *first = *now;
  if (now->served == first->served && now->size == first->size && now->live == first->live) return;
  fprintf(stderr, "run %d: refused %zu bytes after %llu requests, %zu bytes live; at first %zu after %llu, %zu live\n", run, now->size, now->served, now->live,
          first->size, first->served, first->live);
  exit(1);
}

static inline hakmem_heap *program_heap(const char *name, size_t limit, hakmem_heap *parent) {
  hakmem_heap_options options = {sizeof(hakmem_heap_options), name, limit, parent, 0};
  hakmem_heap *heap = hakmem_heap_new(&options);
  EXPECT(heap != NULL);
  return heap;
}

static inline hakmem_heap_stats program_stats(hakmem_heap *heap) {
  hakmem_heap_stats stats;
  hakmem_heap_get_stats(heap, &stats, sizeof stats);
  return stats;
}

static inline void note_refusal(refusal *first, hakmem_heap *heap, size_t size) {
  if (first->size != 0) return;
  hakmem_heap_stats stats = program_stats(heap);
  first->served = stats.requests;
  first->size = size;
  first->live = stats.live;
}

#endif
