/* Under preload: holds so much memory at a time, all of it written, as blocks of one size after another, in one thread
 * and in several; what has been freed must serve the next size, or a system that has no more ends the program.
 *
 * usage: resident MIB */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "load.h"

#define MIB ((size_t)1 << 20)
#define THREADS 4

static const size_t sizes[] = {100, 3000, 30000, 100000, MIB, 5 * MIB, 20 * MIB};
#define SIZES (sizeof sizes / sizeof sizes[0])

typedef struct node {
  struct node *next;
  size_t check;
} node;

/* Blocks of `size` bytes until `bytes` are in use; each is written to its end. Returns faults. */
static int fill_and_free(size_t size, size_t bytes) {
  node *chain = NULL;
  int faults = 0;
  for (size_t used = 0; used + size <= bytes; used += size) {
    errno = 0;
    node *n = malloc(size);
    if (n == NULL) {
      if (errno != ENOMEM) faults++;
      break;
    }
    memset(n, (int)(used / size), size);
    *n = (node){chain, ~(size_t)chain};
    chain = n;
  }
  while (chain != NULL) {
    node *n = chain;
    chain = n->next;
    if (n->check != ~(size_t)n->next) faults++;
    free(n);
  }
  return faults;
}

static void *in_thread(void *bytes) {
  size_t faults = 0;
  for (size_t i = 0; i < SIZES; i++) faults += (size_t)fill_and_free(sizes[i], *(size_t *)bytes);
  return (void *)faults;
}

int main(int argc, char **argv) {
  char *rest = NULL;
  size_t bytes = argc == 2 ? strtoull(argv[1], &rest, 10) * MIB : 0;
  if (bytes == 0 || *rest != '\0') {
    fprintf(stderr, "usage: %s MIB\n", argv[0]);
    return 2;
  }
  const faults_api *api = faults_api_of_libc_names();
  int faults = 0;
  for (int round = 0; round < 2; round++) {
    for (size_t i = 0; i < SIZES; i++) faults += fill_and_free(sizes[i], bytes);
    faults += fill_and_free(34 * MIB, bytes);
  }
  size_t share = bytes / THREADS;
  pthread_t threads[THREADS];
  for (int t = 0; t < THREADS; t++) pthread_create(&threads[t], NULL, in_thread, &share);
  for (int t = 0; t < THREADS; t++) {
    void *found;
    pthread_join(threads[t], &found);
    faults += (int)(size_t)found;
  }
  faults += (int)api->heap_check();
  if (faults != 0) printf("%d faults\n", faults);
  return faults == 0 ? 0 : 1;
}
