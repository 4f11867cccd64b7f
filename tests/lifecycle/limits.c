/* Under preload, with little address space, data or lockable memory: starts, allocates until NULL with ENOMEM, frees all,
 * and gets about as much again.
 * usage: limits as|data BYTES; limits lock|lock-all */
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <dlfcn.h>

#include "../support/proc_status.h"

#define MIB ((size_t)1 << 20)

static size_t heap_faults(void) {
  size_t (*check)(void) = (size_t(*)(void))dlsym(RTLD_DEFAULT, "hakmem_heap_check");
  if (check == NULL) {
    puts("the allocator under test is not loaded");
    exit(3);
  }
  return check();
}

/* Blocks linked through their first word; returns how many there were before NULL. */
static size_t exhaust(size_t size, void **chain, size_t most) {
  size_t n = 0;
  *chain = NULL;
  for (; n < most; n++) {
    errno = 0;
    void **p = malloc(size);
    if (p == NULL) {
      if (errno != ENOMEM) {
        printf("NULL with errno %d\n", errno);
        exit(4);
      }
      break;
    }
    memset(p, 1, size < 4096 ? size : 4096);
    *p = *chain;
    *chain = p;
  }
  return n;
}

static void free_chain(void *chain) {
  while (chain != NULL) {
    void *next = *(void **)chain;
    free(chain);
    chain = next;
  }
}

/* Enough of every size to meet the limit, but not more work than a test may take. */
static int fill_and_refill(size_t limit) {
  static const size_t sizes[] = {5000, 100000, 2 * MIB, 40 * MIB, 200, 33 * MIB, 30000};
  int faults = 0;
  size_t first[sizeof sizes / sizeof sizes[0]];
  for (int round = 0; round < 2; round++) {
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
      void *chain;
      size_t most = limit / sizes[i] + 1;
      int bounded = most > 40000;
      if (bounded) most = 40000;
      size_t n = exhaust(sizes[i], &chain, most);
      free_chain(chain);
      if (round == 0)
        first[i] = n;
      else if (n < first[i] / 2) {
        /* Half, because what a size left behind (regions, slabs) may not suit another. */
        printf("%zu bytes: %zu blocks at first, %zu after everything was freed\n", sizes[i], first[i], n);
        faults++;
      }
      if (n == most && !bounded) {
        printf("%zu bytes: %zu blocks fit a limit of %zu\n", sizes[i], n, limit);
        faults++;
      }
      if (round == 0 && i < 2 && n == 0) {
        printf("%zu bytes: not one block\n", sizes[i]);
        faults++;
      }
    }
  }
  size_t heap = heap_faults();
  if (heap != 0) printf("%zu faults in the heap\n", heap);
  return faults == 0 && heap == 0 ? 0 : 1;
}

/* The limit must hold from the first instruction on: set it and start this program once more. */
static int again_with(int resource, size_t limit, char **argv, const char *mode) {
  struct rlimit r = {limit, limit};
  if (setrlimit(resource, &r) != 0) {
    perror("setrlimit");
    return 77;
  }
  argv[1] = (char *)(uintptr_t)mode;
  execv("/proc/self/exe", argv);
  perror("exec");
  return 5;
}

static int with_everything_locked(void) {
  if (mlockall(MCL_CURRENT | MCL_FUTURE) != 0) {
    perror("mlockall: skipped");
    return 77;
  }
  for (size_t size = 1; size < 3 * MIB; size = size * 3 + 1) {
    void *p = malloc(size);
    if (p == NULL) {
      printf("no memory for %zu bytes\n", size);
      return 6;
    }
    memset(p, 1, size);
    free(p);
  }
  /* What is locked is resident: growing in large steps would show here. */
  size_t resident = proc_status_kib("VmRSS:");
  printf("resident: %zu KiB\n", resident);
  return resident <= 32 * 1024 && heap_faults() == 0 ? 0 : 7;
}

int main(int argc, char **argv) {
  if (argc == 3 && strcmp(argv[1], "as") == 0) return again_with(RLIMIT_AS, strtoull(argv[2], NULL, 10) * MIB, argv, "run");
  if (argc == 3 && strcmp(argv[1], "data") == 0)
    return again_with(RLIMIT_DATA, strtoull(argv[2], NULL, 10) * MIB, argv, "run");
  if (argc == 3 && strcmp(argv[1], "memlock") == 0)
    return again_with(RLIMIT_MEMLOCK, strtoull(argv[2], NULL, 10) * MIB, argv, "bounded");
  if (argc == 3 && strcmp(argv[1], "run") == 0) return fill_and_refill(strtoull(argv[2], NULL, 10) * MIB);
  if (argc == 3 && strcmp(argv[1], "bounded") == 0) {
    for (size_t i = 0; i < 10000; i++) free(malloc(i * 10));
    return heap_faults() == 0 ? 0 : 1;
  }
  if (argc == 2 && strcmp(argv[1], "lock-all") == 0) return with_everything_locked();
  fprintf(stderr, "usage: %s as|data|memlock MIB | lock-all\n", argv[0]);
  return 2;
}
