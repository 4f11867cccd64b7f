/* Under preload: what a limited address space, or limited data, leaves to the program.
 * usage: shares scan | data MIB | as MIB | later MIB | decay MIB | further
 * scan: limits of 64 MiB to 32 GiB, each in a process of its own: a quarter at most is reserved at the start, a mapping may have half, one
 * block 60 %, and twenty threads a quarter. data, as: what was live, freed and trimmed serves otherwise. later: the limit comes
 * when the program runs. decay: nobody trims. further: blocks beyond the first region go through thread caches. */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <dlfcn.h>
#include <hakmem/stats.h>

#include "../support/proc_status.h"

#define MIB ((size_t)1 << 20)
#define GIB ((size_t)1 << 30)

static int faults;

static void expect(int right, const char *what, size_t limit) {
  if (right) return;
  printf("limit %zu MiB: %s\n", limit / MIB, what);
  faults++;
}

static void check_heap(size_t limit) {
  size_t (*check)(void) = (size_t(*)(void))dlsym(RTLD_DEFAULT, "hakmem_heap_check");
  expect(check != NULL && check() == 0, "the heap, or there is none of hakmem", limit);
}

static void set_limit(int resource, size_t limit) {
  struct rlimit r = {limit, limit};
  if (setrlimit(resource, &r) != 0) {
    perror("setrlimit");
    exit(77);
  }
}

static void again_with(int resource, size_t limit, const char *mode) {
  char text[32];
  snprintf(text, sizeof text, "%zu", limit / MIB);
  set_limit(resource, limit);
  execl("/proc/self/exe", "shares", mode, text, (char *)NULL);
  perror("exec");
  exit(5);
}

static int can_map(size_t bytes) {
  void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p != MAP_FAILED) munmap(p, bytes);
  return p != MAP_FAILED;
}

static void trim(void) {
  int (*hakmem_trim)(size_t) = (int (*)(size_t))dlsym(RTLD_DEFAULT, "hakmem_malloc_trim");
  if (hakmem_trim != NULL) hakmem_trim(0);
}

static void *idle(void *p) { return p; }

/* The program itself has some 4 MiB. */
static int have_shares(size_t limit) {
  size_t start = proc_status_kib("VmSize:") * 1024;
  expect(start <= limit / 4 + 4 * MIB, "more than a quarter is taken at the start", limit);
  expect(can_map(limit / 2), "a mapping of half", limit);
  void *p = malloc(limit / 10 * 6);
  expect(p != NULL, "a block of 60 %", limit);
  free(p);
  trim();
  /* Together a quarter. */
  pthread_attr_t small;
  pthread_t threads[20];
  pthread_attr_init(&small);
  pthread_attr_setstacksize(&small, limit / 80 & ~(size_t)4095);
  int n = 0;
  while (n < 20 && pthread_create(&threads[n], &small, idle, NULL) == 0) n++;
  expect(n == 20, "twenty threads", limit);
  while (n > 0) pthread_join(threads[--n], NULL);
  return faults != 0;
}

static int scan(void) {
  for (size_t limit = 64 * MIB; limit <= 32 * GIB; limit += limit / 9 & ~(MIB - 1)) {
    pid_t child = fork();
    if (child == 0) again_with(RLIMIT_AS, limit, "have");
    int status = -1;
    waitpid(child, &status, 0);
    expect(status == 0, "see above", limit);
  }
  return faults != 0;
}

/* Blocks of `size` up to `bytes`, one of each hundred kept until the end. */
static size_t swell(size_t bytes, size_t size) {
  size_t most = bytes / size, n = 0;
  void **blocks = mmap(NULL, most * sizeof *blocks, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (blocks == MAP_FAILED) return 0;
  while (n < most && (blocks[n] = malloc(size)) != NULL) n++;
  for (size_t i = 0; i < n; i++)
    if (i < n - 1 && i > n / 50) free(blocks[i]); /* the last one pins the end of the heap */
  munmap(blocks, most * sizeof *blocks);
  return n * size;
}

static int swell_and_trim(size_t limit, const char *field) {
  size_t had = swell(limit / 10 * 7, 1300);
  expect(had >= limit / 2, "half in small blocks", limit);
  trim();
  size_t left = proc_status_kib(field) * 1024;
  if (left > limit / 5) printf("%s %zu MiB\n", field, left / MIB);
  expect(left <= limit / 4, "what was freed and trimmed counts", limit);
  expect(can_map(limit / 2), "a mapping of half after the trim", limit);
  void *p = malloc(limit / 10 * 6);
  expect(p != NULL, "a block of 60 % after the trim", limit);
  free(p);
  check_heap(limit);
  expect(swell(limit / 10 * 7, 1300) >= had / 10 * 9, "as many small blocks again", limit);
  p = malloc(limit / 10 * 6); /* nobody trims */
  expect(p != NULL, "a block of 60 % when all was free", limit);
  check_heap(limit);
  return faults != 0;
}

static int limit_later(size_t limit) {
  swell(limit / 4, 900);
  set_limit(RLIMIT_AS, limit);
  void *p = malloc(limit / 10 * 6);
  expect(p != NULL, "a block of 60 % under a limit that was set later", limit);
  free(p);
  expect(can_map(limit / 2), "a mapping then", limit);
  expect(swell(limit / 10 * 7, 5000) >= limit / 10 * 6, "60 % in small blocks then", limit);
  check_heap(limit);
  return faults != 0;
}

/* The library's decay time is 250 ms here; slow paths come by. */
static int wait_for_decay(size_t limit) {
  swell(limit / 10 * 7, 2000);
  size_t left = limit;
  void *blocks[40];
  for (int i = 0; i < 400 && left > limit / 4; i++) {
    usleep(10000);
    for (size_t k = 0; k < 40; k++) blocks[k] = malloc(30000); /* more than a magazine holds */
    for (size_t k = 0; k < 40; k++) free(blocks[k]);
    left = proc_status_kib("VmSize:") * 1024;
  }
  expect(left <= limit / 4, "what is free counts after many decay times", limit);
  check_heap(limit);
  return faults != 0;
}

#define FAR_BLOCKS ((size_t)300 * 1000)
static int further_regions(void) {
  static void *blocks[FAR_BLOCKS];
  hakmem_stats before, after;
  int (*read_stats)(hakmem_stats *, size_t) = (int (*)(hakmem_stats *, size_t))dlsym(RTLD_DEFAULT, "hakmem_stats_get");
  if (read_stats == NULL) return 3;
  for (size_t i = 0; i < FAR_BLOCKS; i++) blocks[i] = malloc(700);
  read_stats(&before, sizeof before);
  for (size_t i = 0; i < 200000; i++) {
    size_t k = i * 7919 % FAR_BLOCKS;
    free(blocks[k]);
    blocks[k] = malloc(700);
  }
  read_stats(&after, sizeof after);
  unsigned slow = (unsigned)(after.slow_paths - before.slow_paths);
  printf("%u regions, %u slow paths\n", (unsigned)after.regions, slow);
  expect(after.regions > 1 && after.regions < 12, "regions", 0);
  expect(slow < 2000, "frees beyond the first region are slow paths", 0);
  return faults != 0;
}

int main(int argc, char **argv) {
  size_t limit = argc == 3 ? strtoull(argv[2], NULL, 10) * MIB : 0;
  const char *mode = argc < 2 ? "" : argv[1];
  if (strcmp(mode, "scan") == 0) return scan();
  if (strcmp(mode, "further") == 0) return further_regions();
  if (strcmp(mode, "data") == 0) again_with(RLIMIT_DATA, limit, "data-run");
  if (strcmp(mode, "as") == 0) again_with(RLIMIT_AS, limit, "as-run");
  if (strcmp(mode, "decay") == 0) again_with(RLIMIT_AS, limit, "decay-run");
  if (strcmp(mode, "have") == 0) return have_shares(limit);
  if (strcmp(mode, "data-run") == 0) return swell_and_trim(limit, "VmData:");
  if (strcmp(mode, "as-run") == 0) return swell_and_trim(limit, "VmSize:");
  if (strcmp(mode, "decay-run") == 0) return wait_for_decay(limit);
  if (strcmp(mode, "later") == 0) return limit_later(limit);
  fprintf(stderr, "usage: shares scan | further | data MIB | as MIB | later MIB | decay MIB\n");
  return 2;
}
