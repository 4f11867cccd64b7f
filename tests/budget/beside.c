/* beside KIND MIB: MIB that are not malloc's are resident, KIND anon or file (a file mapped and read); beside them the program
 * replaces blocks of up to 220 KB and takes and frees 12 MB at once, again and again. After two seconds, in which the
 * allocator has seen it, prints what 300,000 blocks more cost: calls of madvise. */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "hakmem/stats.h"

#define BLOCKS 2000
#define BURST 200
#define BURST_SIZE 60000
#define WARM_MS 2000
#define COUNTED_BLOCKS 300000

static char *blocks[BLOCKS];
static uint64_t state = 1;

static uint64_t draw(uint64_t below) {
  state = state * 6364136223846793005u + 1442695040888963407u;
  return (state >> 33) % below;
}

static char *take(size_t size) {
  char *p = malloc(size);
  if (p == NULL) abort();
  memset(p, 1, size);
  return p;
}

static void one_round(void) {
  char *burst[BURST];
  for (int i = 0; i < BLOCKS; i++) {
    size_t at = draw(BLOCKS);
    free(blocks[at]);
    blocks[at] = take(draw(8) == 0 ? 20000 + draw(200000) : 100 + draw(4000));
  }
  for (int i = 0; i < BURST; i++) burst[i] = take(BURST_SIZE);
  for (int i = 0; i < BURST; i++) free(burst[i]);
}

static void *map(size_t bytes, int flags, int fd) {
  void *p = mmap(NULL, bytes, PROT_READ | (fd < 0 ? PROT_WRITE : 0), flags, fd, 0);
  if (p == MAP_FAILED) abort();
  return p;
}

static void fill_anonymous(size_t bytes) { memset(map(bytes, MAP_PRIVATE | MAP_ANONYMOUS, -1), 1, bytes); }

static void read_file(size_t bytes) {
  char name[] = "/tmp/hakmem-beside-XXXXXX";
  int fd = mkstemp(name);
  if (fd < 0 || unlink(name) != 0 || ftruncate(fd, (off_t)bytes) != 0) abort();
  const volatile char *p = map(bytes, MAP_SHARED, fd);
  for (size_t i = 0; i < bytes; i += 4096) (void)p[i];
}

static uint64_t now_ms(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

static uint64_t calls(void) {
  hakmem_stats stats;
  if (hakmem_stats_get(&stats, sizeof stats) != 0) abort();
  return stats.madvise;
}

int main(int argc, char **argv) {
  if (argc != 3) return 2;
  size_t bytes = strtoull(argv[2], NULL, 10) << 20;
  if (strcmp(argv[1], "file") == 0)
    read_file(bytes);
  else
    fill_anonymous(bytes);
  for (uint64_t begun = now_ms(); now_ms() - begun < WARM_MS;) one_round();
  uint64_t before = calls();
  for (int i = 0; i < COUNTED_BLOCKS / BLOCKS; i++) one_round();
  printf("calls=%llu\n", (unsigned long long)(calls() - before));
  return 0;
}
