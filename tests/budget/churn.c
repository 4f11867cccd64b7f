/* churn LIVE_MIB TURNS: LIVE_MIB of blocks from 64 bytes to 256 KiB, of which one drawn at random is replaced by one of
 * another size again and again; after TURNS times LIVE_MIB it ends. Prints the largest resident memory, in MiB. */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BLOCKS_MAX 200000

static struct {
  char *p;
  size_t size;
} blocks[BLOCKS_MAX];
static size_t block_count, live_bytes, peak_pages;
static uint64_t state = 1;

static uint64_t draw(uint64_t below) {
  state = state * 6364136223846793005u + 1442695040888963407u;
  return (state >> 33) % below;
}

/* As many of each order of magnitude. */
static size_t draw_size(void) {
  size_t base = (size_t)64 << draw(12);
  return base + draw(base);
}

static void look(void) {
  char text[128] = "";
  int fd = open("/proc/self/statm", O_RDONLY);
  if (fd < 0 || read(fd, text, sizeof text - 1) <= 0) abort();
  close(fd);
  size_t pages = strtoull(strchr(text, ' ') + 1, NULL, 10);
  if (pages > peak_pages) peak_pages = pages;
}

static void add(void) {
  size_t size = draw_size();
  char *p = malloc(size);
  if (p == NULL || block_count == BLOCKS_MAX) abort();
  memset(p, (int)(size & 0x7f), size);
  blocks[block_count].p = p;
  blocks[block_count++].size = size;
  live_bytes += size;
}

static void remove_one(void) {
  size_t i = draw(block_count), size = blocks[i].size;
  if (blocks[i].p[0] != (char)(size & 0x7f) || blocks[i].p[size - 1] != (char)(size & 0x7f)) abort();
  free(blocks[i].p);
  blocks[i] = blocks[--block_count];
  live_bytes -= size;
}

int main(int argc, char **argv) {
  if (argc != 3) return 2;
  size_t wanted = strtoull(argv[1], NULL, 10) << 20, total = 0;
  size_t end = wanted * strtoull(argv[2], NULL, 10), next_look = 0;
  while (total < end) {
    while (live_bytes >= wanted) remove_one();
    size_t before = live_bytes;
    add();
    total += live_bytes - before;
    if (total < next_look) continue;
    look();
    next_look = total + ((size_t)8 << 20);
  }
  printf("peak_mib=%zu\n", peak_pages * (size_t)sysconf(_SC_PAGESIZE) >> 20);
  return 0;
}
