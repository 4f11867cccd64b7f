/* A program with one fault in one block, under HAKMEM_GUARD_SAMPLE. Prints the block's address first. Usage:
 * sample_victim overflow|overflow-in-page|overread|underflow|read-after-free|write-after-free|double-free|
 *               double-free-by-thread|inside|realloc-freed BYTES
 * sample_victim none|foreign|copies|sent */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "hakmem/hakmem.h"

static size_t size_bytes;
static volatile char *block;

/* Functions of their own, so that the stacks have something to name. */
__attribute__((noinline)) static void make_it(void) {
  block = hakmem_malloc(size_bytes);
  memset((char *)block, 1, size_bytes);
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

static void *free_in_thread(void *unused) {
  (void)unused;
  free_it();
  return NULL;
}

/* The compiler knows that some of these frees are wrong. */
static void *hide(void *p) {
  void *volatile hidden = p;
  return hidden;
}

/* Pointers that are not the allocator's, between blocks that are and stay guarded. */
static int free_foreign(void) {
  static char in_data[100];
  char on_stack[100];
  char *mapped = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  char *unmapped = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  munmap(unmapped, 65536);
  char *const foreign[] = {in_data, on_stack, mapped, mapped + 4096, unmapped, (char *)8, (char *)-16L};
  for (int round = 0; round < 100; round++) {
    char *ours = hakmem_malloc(100);
    memset(ours, round, 100);
    for (size_t i = 0; i < sizeof foreign / sizeof foreign[0]; i++) {
      hakmem_free(hide(foreign[i]));
      if (hakmem_realloc(hide(foreign[i]), 50) != NULL || hakmem_malloc_usable_size(hide(foreign[i])) != 0) return 7;
      if (hakmem_is_ours(foreign[i])) return 8;
    }
    if (ours[99] != round || hakmem_malloc_usable_size(ours) < 100) return 9;
    hakmem_free(ours);
  }
  return 0;
}

/* Blocks are copied whole, with all their bytes that may be used, into others, before they are freed. */
static int copy_bytes(void) {
  enum { BLOCKS = 200 };
  char *blocks[BLOCKS] = {NULL};
  for (unsigned i = 0; i < 20000; i++) {
    char **from = &blocks[i * 7919 % BLOCKS], **to = &blocks[i * 104729 % BLOCKS];
    if (*from != NULL && from != to) {
      size_t size = hakmem_malloc_usable_size(*from);
      hakmem_free(*to);
      *to = hakmem_malloc(size);
      memcpy(*to, *from, size);
    }
    hakmem_free(*from);
    *from = hakmem_malloc(i * 31 % 5000 + 1);
    memset(*from, (int)i, i * 31 % 5000 + 1);
  }
  for (unsigned i = 0; i < BLOCKS; i++) hakmem_free(blocks[i]);
  return hakmem_heap_check() == 0 ? 0 : 6;
}

int main(int argc, char **argv) {
  const char *fault = argc > 1 ? argv[1] : "none";
  if (strcmp(fault, "none") == 0) return run_clean();
  if (strcmp(fault, "foreign") == 0) return free_foreign();
  if (strcmp(fault, "copies") == 0) return copy_bytes();
  if (strcmp(fault, "sent") == 0) {
    make_it();
    raise(SIGSEGV);
    return 0;
  }
  size_bytes = argc > 2 ? strtoul(argv[2], NULL, 10) : 0;
  make_it();
  if (strcmp(fault, "overflow") == 0) {
    block[size_bytes + 16] = 2; /* beyond what alignment leaves */
  } else if (strcmp(fault, "overflow-in-page") == 0) {
    block[size_bytes] = 2;
    free_it();
  } else if (strcmp(fault, "overread") == 0) {
    return block[size_bytes + 16];
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
  } else if (strcmp(fault, "double-free-by-thread") == 0) {
    free_it();
    pthread_t thread;
    if (pthread_create(&thread, NULL, free_in_thread, NULL) != 0) return 10;
    pthread_join(thread, NULL);
  } else if (strcmp(fault, "inside") == 0) {
    hakmem_free((char *)block + size_bytes / 2);
  } else if (strcmp(fault, "realloc-freed") == 0) {
    free_it();
    block = hakmem_realloc((char *)block, 2 * size_bytes);
  } else {
    fprintf(stderr, "sample_victim: no fault '%s'\n", fault);
    return 2;
  }
  return 0;
}
