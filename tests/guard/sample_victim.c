/* A program with one fault in one block, under HAKMEM_GUARD_SAMPLE. Prints the block's address first. Usage:
 * sample_victim overflow|overflow-in-page|underflow|read-after-free|write-after-free|double-free|inside|realloc-freed|none */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hakmem/hakmem.h"

#define SIZE 1000

static volatile char *block;

/* Functions of their own, so that the stacks have something to name. */
__attribute__((noinline)) static void make_it(void) {
  block = hakmem_malloc(SIZE);
  memset((char *)block, 1, SIZE);
  fprintf(stderr, "victim %p\n", (void *)block);
}
__attribute__((noinline)) static void free_it(void) { hakmem_free((char *)block); }

static int run_clean(void) {
  enum { BLOCKS = 300 };
  char *blocks[BLOCKS] = {NULL};
  for (unsigned i = 0; i < 20000; i++) {
    char **slot = &blocks[i * 7919 % BLOCKS];
    size_t size = i * 31 % 5000;
    hakmem_free(*slot);
    *slot = i % 3 == 0   ? hakmem_calloc(1, size)
            : i % 3 == 1 ? hakmem_malloc(size)
                         : hakmem_aligned_alloc(64, size);
    if (*slot == NULL || hakmem_malloc_usable_size(*slot) < size || !hakmem_is_ours(*slot)) return 3;
    if (i % 3 == 0) {
      for (size_t at = 0; at < size; at++)
        if ((*slot)[at] != 0) return 4;
    }
    memset(*slot, 1, size);
    if (i % 5 == 0) *slot = hakmem_realloc(*slot, size + 100);
    if (*slot == NULL || (size > 0 && (*slot)[size - 1] != 1)) return 5;
  }
  for (unsigned i = 0; i < BLOCKS; i++) hakmem_free(blocks[i]);
  return hakmem_heap_check() == 0 ? 0 : 6;
}

int main(int argc, char **argv) {
  const char *fault = argc > 1 ? argv[1] : "none";
  if (strcmp(fault, "none") == 0) return run_clean();
  make_it();
  if (strcmp(fault, "overflow") == 0) {
    block[SIZE + 16] = 2; /* beyond what alignment leaves */
  } else if (strcmp(fault, "overflow-in-page") == 0) {
    block[SIZE] = 2;
    free_it();
  } else if (strcmp(fault, "underflow") == 0) {
    block[-8000] = 2; /* beyond the page the block begins in */
  } else if (strcmp(fault, "read-after-free") == 0) {
    free_it();
    return block[5];
  } else if (strcmp(fault, "write-after-free") == 0) {
    free_it();
    block[5] = 2;
  } else if (strcmp(fault, "double-free") == 0) {
    free_it();
    free_it();
  } else if (strcmp(fault, "inside") == 0) {
    hakmem_free((char *)block + 16);
  } else if (strcmp(fault, "realloc-freed") == 0) {
    free_it();
    block = hakmem_realloc((char *)block, 2 * SIZE);
  } else {
    fprintf(stderr, "sample_victim: no fault '%s'\n", fault);
    return 2;
  }
  return 0;
}
