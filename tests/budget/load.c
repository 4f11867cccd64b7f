/* load ROUNDS LIVE_MIB PASSES: a program that would hold as much dirty free memory as it has in use. In each round it
 * allocates runs of seven sizes, each twice the one before, and frees every second one: what is free between two blocks
 * fits none of the later ones. LIVE_MIB are in use at the end of a round. Each block is written PASSES times, which is the
 * program's work. Prints the largest resident memory it saw, in MiB, and how long a round took at best. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define KIND_COUNT 7
#define SMALLEST ((size_t)64 << 10)
#define BLOCKS_MAX 65536

static char *blocks[BLOCKS_MAX];
static size_t block_count, peak_pages;
static int passes;

/* Without stdio, which would allocate. */
static void look(void) {
  char text[128] = "";
  int fd = open("/proc/self/statm", O_RDONLY);
  if (fd < 0 || read(fd, text, sizeof text - 1) <= 0) abort();
  close(fd);
  size_t pages = strtoull(strchr(text, ' ') + 1, NULL, 10);
  if (pages > peak_pages) peak_pages = pages;
}

static void add_kind(size_t size, size_t bytes) {
  size_t first = block_count, since_look = 0;
  for (size_t taken = 0; taken + 2 * size <= bytes; taken += size) {
    char *p = malloc(size);
    if (p == NULL || block_count == BLOCKS_MAX) abort();
    for (int i = passes; i > 0; i--) {
      memset(p, (int)(block_count + (size_t)i - 1) & 0x7f, size);
      __asm__ volatile("" : : "r"(p) : "memory"); /* each of them counts */
    }
    blocks[block_count++] = p;
    if ((since_look += size) >= (size_t)4 << 20) {
      look();
      since_look = 0;
    }
  }
  for (size_t i = first; i < block_count; i += 2) {
    free(blocks[i]);
    blocks[i] = NULL;
  }
  look();
}

static double seconds(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static double run_round(size_t live_bytes) {
  double start = seconds();
  for (size_t kind = 0; kind < KIND_COUNT; kind++) add_kind(SMALLEST << kind, live_bytes * 2 / KIND_COUNT);
  double used = seconds() - start;
  for (size_t i = 0; i < block_count; i++) {
    if (blocks[i] == NULL) continue;
    if (blocks[i][0] != ((int)i & 0x7f)) abort();
    free(blocks[i]);
  }
  block_count = 0;
  return used;
}

int main(int argc, char **argv) {
  if (argc != 4) return 2;
  passes = atoi(argv[3]);
  double best = 1e9;
  for (int round = atoi(argv[1]); round > 0; round--) {
    double used = run_round(strtoull(argv[2], NULL, 10) << 20);
    if (used < best) best = used;
  }
  printf("peak_mib=%zu best_round_ms=%.1f\n", peak_pages * (size_t)sysconf(_SC_PAGESIZE) >> 20, best * 1000);
  return 0;
}
