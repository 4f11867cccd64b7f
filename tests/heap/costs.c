/* costs WORD N: what valgrind counts the instructions of, or prints how many system calls were made.
 *
 * brief N: N heaps, each with 100 blocks of 16 to 400 bytes, one after the other.
 * destroy N [SIZE]: one heap of N MiB in blocks of SIZE bytes (64) that goes at once; hakmem_heap_destroy alone is looked at.
 * pair N SIZE: N blocks of a heap replaced, one of 16 at a time; calloc, aligned: the same of these functions (to 256).
 * resized N SIZE: N times one of 16 blocks is resized, to twice the size and back.
 * turns N APART: the same of 100 bytes by turns in two heaps, the second made so many heaps after the first.
 * near N SIZE: the same where a request was refused before, and the limit is near.
 * refused N SIZE: the same of a heap at its limit, with one request more each time, which is refused.
 * handed N SIZE: N blocks are allocated and freed, 1,000 at a time, by a thread that does nothing else. */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hakmem/heap.h"
#include "hakmem/stats.h"

static uint64_t system_calls(void) {
  hakmem_stats s;
  if (hakmem_stats_get(&s, sizeof s) != 0) exit(3);
  return s.madvise + s.mmap + s.munmap + s.mprotect + s.mremap;
}

static void brief(void) {
  hakmem_heap *heap = hakmem_heap_new(NULL);
  for (size_t i = 0; i < 100; i++)
    if (hakmem_heap_malloc(heap, 16 + i * 37 % 385) == NULL) exit(3);
  hakmem_heap_destroy(heap);
}

static void *by_calloc(hakmem_heap *heap, size_t size) { return hakmem_heap_calloc(heap, 1, size); }
static void *by_aligned(hakmem_heap *heap, size_t size) { return hakmem_heap_aligned_alloc(heap, 256, size); }

static void others(size_t n, size_t size, void *(*take)(hakmem_heap *heap, size_t size)) {
  hakmem_heap *heap = hakmem_heap_new(NULL);
  void *blocks[16] = {0};
  for (size_t i = 0; i < n; i++) {
    free(blocks[i % 16]);
    if ((blocks[i % 16] = take(heap, size)) == NULL) exit(3);
  }
}

static void resizes(size_t n, size_t size) {
  hakmem_heap *heap = hakmem_heap_new(NULL);
  void *blocks[16] = {0};
  for (size_t i = 0; i < n; i++)
    if ((blocks[i % 16] = hakmem_heap_realloc(heap, blocks[i % 16], i / 16 % 2 == 0 ? 2 * size : size)) == NULL) exit(3);
}

static void pairs(size_t n, size_t size, size_t limit) {
  hakmem_heap_options options = {.size = sizeof options, .limit = limit};
  hakmem_heap *heap = hakmem_heap_new(&options);
  void *blocks[16] = {0};
  while (limit != 0 && hakmem_heap_malloc(heap, size) != NULL) {}
  if (limit != 0) hakmem_heap_set_limit(heap, limit + 20 * size);
  if (limit != 0 && hakmem_heap_malloc(heap, 100 * size) != NULL) exit(3);
  for (size_t i = 0; i < n; i++) {
    free(blocks[i % 16]);
    if ((blocks[i % 16] = hakmem_heap_malloc(heap, size)) == NULL) exit(3);
  }
}

static void refusals(size_t n, size_t size) {
  hakmem_heap_options options = {.size = sizeof options, .limit = 1 << 20};
  hakmem_heap *heap = hakmem_heap_new(&options);
  void *blocks[16];
  for (size_t i = 0; i < 16; i++) blocks[i] = hakmem_heap_malloc(heap, size);
  while (hakmem_heap_malloc(heap, size) != NULL) {}
  for (size_t i = 0; i < n; i++) {
    free(blocks[i % 16]);
    blocks[i % 16] = hakmem_heap_malloc(heap, size);
    if (blocks[i % 16] == NULL || hakmem_heap_malloc(heap, size) != NULL) exit(3);
  }
}

static void turns(size_t n, size_t apart) {
  hakmem_heap *heaps[2] = {hakmem_heap_new(NULL), NULL};
  void *blocks[16] = {0};
  for (size_t i = 0; i < apart; i++) heaps[1] = hakmem_heap_new(NULL);
  for (size_t i = 0; i < n; i++) {
    free(blocks[i % 16]);
    if ((blocks[i % 16] = hakmem_heap_malloc(heaps[i % 2], 100)) == NULL) exit(3);
  }
}

#define HANDED 1000
static void *handed[HANDED];
static pthread_barrier_t turn;
static size_t rounds;

static void *free_handed(void *unused) {
  (void)unused;
  for (size_t round = 0; round < rounds; round++) {
    pthread_barrier_wait(&turn);
    for (size_t i = 0; i < HANDED; i++) free(handed[i]);
    pthread_barrier_wait(&turn);
  }
  return NULL;
}

static void hand_over(size_t n, size_t size) {
  hakmem_heap *heap = hakmem_heap_new(NULL);
  pthread_t freer;
  rounds = n / HANDED;
  pthread_barrier_init(&turn, NULL, 2);
  if (pthread_create(&freer, NULL, free_handed, NULL) != 0) exit(3);
  for (size_t round = 0; round < rounds; round++) {
    for (size_t i = 0; i < HANDED; i++)
      if ((handed[i] = hakmem_heap_malloc(heap, size)) == NULL) exit(3);
    pthread_barrier_wait(&turn);
    pthread_barrier_wait(&turn);
  }
  pthread_join(freer, NULL);
}

int main(int argc, char **argv) {
  if (argc < 3) return 2;
  size_t n = strtoul(argv[2], NULL, 10), size = argc > 3 ? strtoul(argv[3], NULL, 10) : 64;
  uint64_t before, calls;
  if (strcmp(argv[1], "brief") == 0) {
    for (int i = 0; i < 10; i++) brief();
    before = system_calls();
    for (; n > 0; n--) brief();
    calls = system_calls() - before;
  } else if (strcmp(argv[1], "destroy") != 0) {
    before = system_calls();
    if (strcmp(argv[1], "handed") == 0)
      hand_over(n, size);
    else if (strcmp(argv[1], "turns") == 0)
      turns(n, size);
    else if (strcmp(argv[1], "refused") == 0)
      refusals(n, size);
    else if (strcmp(argv[1], "resized") == 0)
      resizes(n, size);
    else if (strcmp(argv[1], "calloc") == 0)
      others(n, size, by_calloc);
    else if (strcmp(argv[1], "aligned") == 0)
      others(n, size, by_aligned);
    else
      pairs(n, size, strcmp(argv[1], "near") == 0 ? 1 << 20 : 0);
    calls = system_calls() - before;
  } else {
    hakmem_heap *heap = hakmem_heap_new(NULL);
    for (size_t taken = 0; taken < n << 20; taken += size)
      if (hakmem_heap_malloc(heap, size) == NULL) return 3;
    before = system_calls();
    hakmem_heap_destroy(heap);
    calls = system_calls() - before;
  }
  printf("%llu\n", (unsigned long long)calls);
  return 0;
}
