/* Fibers with stacks of a few kilobytes call malloc, free and realloc: how deep do their slow paths go? Each load runs on a
 * stack that is filled with a pattern before; what has been overwritten below a load that does nothing is the allocator's.
 * Prints a line a load, and fails where one took more than DEPTH_MAX bytes, or so many more as the argument says. */
#include <malloc.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

enum { STACK_BYTES = 256 << 10, DEPTH_MAX = 2048, PATTERN = 0x5a, BLOCKS = 1 << 16, SLICES = 8, PAUSE_US = 200000 };

static char *blocks[BLOCKS];
static unsigned seed = 1;

static unsigned next(void) { return (seed = seed * 1103515245 + 12345) >> 8; }

static void nothing(void) {}

static void touch(char *p, size_t n) {
  if (p == NULL) _exit(10);
  p[0] = p[n - 1] = 1;
}

/* Slot by slot, at random: refills, flushes, runs, huge blocks now and then. */
static void churn(void) {
  for (int i = 0; i < 40000; i++) {
    char **slot = &blocks[next() % 8192];
    size_t n = next() % 2000 == 0 ? next() % (50 << 20) + 1 : next() % 100 == 0 ? next() % 400000 + 1 : next() % 3000 + 1;
    free(*slot);
    touch(*slot = malloc(n), n);
  }
}

static void grow(void) {
  for (int i = 0; i < 200; i++) {
    char **slot = &blocks[next() % 8192];
    size_t n = next() % 1000000 + 1;
    touch(*slot = realloc(*slot, n), n);
  }
}

static void fill(void) {
  for (int i = 8192; i < BLOCKS; i++) {
    if (blocks[i] == NULL) touch(blocks[i] = malloc(1000), 1000);
  }
}

/* Most of what fill took: slabs with few blocks live. */
static void thin(void) {
  for (int i = 8192; i < BLOCKS; i++) {
    if (i % 64 == 0) continue;
    free(blocks[i]);
    blocks[i] = NULL;
  }
}

static void free_all(void) {
  for (int i = 0; i < BLOCKS; i++) {
    free(blocks[i]);
    blocks[i] = NULL;
  }
}

static ucontext_t caller, fiber;

/* Bytes of the stack that were written to. */
static size_t used_by(void (*load)(void)) {
  static char *stack;
  if (stack == NULL) stack = mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  memset(stack, PATTERN, STACK_BYTES);
  getcontext(&fiber);
  fiber.uc_stack.ss_sp = stack;
  fiber.uc_stack.ss_size = STACK_BYTES;
  fiber.uc_link = &caller;
  makecontext(&fiber, load, 0);
  swapcontext(&caller, &fiber);
  size_t untouched = 0;
  while (untouched < STACK_BYTES && stack[untouched] == PATTERN) untouched++;
  return STACK_BYTES - untouched;
}

static int failed;
static size_t most = DEPTH_MAX;

static void check(const char *who, const char *name, void (*load)(void)) {
  size_t least = used_by(nothing), used = used_by(load), depth = used - least;
  if (depth > most) failed = 1;
  printf("%s, %s: %zu bytes\n", who, name, depth);
}

static void run_loads(const char *who) {
  for (int slice = 0; slice < SLICES; slice++) {
    check(who, "churn", churn);
    check(who, "grow", grow);
    check(who, "fill", fill);
    check(who, "thin", thin);
    usleep(PAUSE_US);
    check(who, "churn after a pause", churn);
  }
  check(who, "free of all", free_all);
}

/* The first call, and then the blocks of the main thread. */
static void *other_thread(void *unused) {
  (void)unused;
  check("a thread", "first calls", grow);
  check("a thread", "others' blocks", free_all);
  check("a thread", "fill", fill);
  return NULL;
}

int main(int argc, char **argv) {
  if (argc > 1) most += (size_t)atoi(argv[1]);
  run_loads("main");
  used_by(fill);
  used_by(churn);
  pthread_t thread;
  pthread_create(&thread, NULL, other_thread, NULL);
  pthread_join(thread, NULL);
  check("main", "a dead thread's blocks", free_all);
  return failed;
}
