// What stats.* say beside what is so: lines "PHASE FIGURE SAID TRUE", bytes, for three phases of one program.
//
// True allocated is the sum of the usable sizes of live blocks; true active the pages that hold a part of one; true resident
// what smaps counts as anonymous and resident, less what was there before the first block: each figure is a difference to its
// start. After blocks are freed at random, whole free pages of a slab are active too, so there active is a lower bound.
#include <malloc.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int mallctl(const char *, void *, size_t *, void *, size_t);

enum { SMALL = 200000, LARGE = 300, BLOCKS = SMALL + LARGE, PAGE = 4096, FIGURES = 3 };
static const char *const names[FIGURES] = {"allocated", "active", "resident"};
static char *blocks[BLOCKS];
static uintptr_t pages[1 << 20];

static size_t anonymous(void) {
  size_t found = 0, kilobytes;
  char line[200];
  FILE *file = fopen("/proc/self/smaps_rollup", "r");
  if (file == NULL) exit(2);
  static char buffer[8192];
  setvbuf(file, buffer, _IOFBF, sizeof buffer);
  while (fgets(line, sizeof line, file))
    if (sscanf(line, "Anonymous: %zu kB", &kilobytes) == 1) found = kilobytes << 10;
  fclose(file);
  return found;
}

// Whether a page is counted for the first time: a hash table, since qsort would allocate.
static bool is_new(uintptr_t page) {
  size_t at = (page * 0x9e3779b97f4a7c15u) >> 44;
  while (pages[at] != 0 && pages[at] != page) at = (at + 1) % (sizeof pages / sizeof *pages);
  bool found = pages[at] == page;
  pages[at] = page;
  return !found;
}

static void read_true(size_t *values) {
  memset(pages, 0, sizeof pages);
  values[0] = values[1] = 0;
  for (int i = 0; i < BLOCKS; i++) {
    if (blocks[i] == NULL) continue;
    size_t bytes = malloc_usable_size(blocks[i]);
    values[0] += bytes;
    for (uintptr_t page = (uintptr_t)blocks[i] / PAGE; page <= ((uintptr_t)blocks[i] + bytes - 1) / PAGE; page++)
      if (is_new(page)) values[1] += PAGE;
  }
  values[2] = anonymous();
}

static void read_said(size_t *values) {
  uint64_t epoch = 1;
  mallctl("thread.tcache.flush", NULL, NULL, NULL, 0);
  mallctl("epoch", NULL, NULL, &epoch, sizeof epoch);
  for (int i = 0; i < FIGURES; i++) {
    char name[40];
    size_t length = sizeof *values;
    snprintf(name, sizeof name, "stats.%s", names[i]);
    if (mallctl(name, &values[i], &length, NULL, 0) != 0) printf("start %s 0 1\n", name);
  }
}

static size_t said_first[FIGURES], true_first[FIGURES];

static void tell(const char *phase) {
  size_t said[FIGURES], is[FIGURES];
  read_said(said);
  read_true(is);
  for (int i = 0; i < FIGURES; i++)
    printf("%s %s %zd %zd\n", phase, names[i], said[i] - said_first[i], is[i] - true_first[i]);
}

int main(void) {
  static char output[BUFSIZ];
  setvbuf(stdout, output, _IOFBF, sizeof output);
  // What is ours is resident before the start.
  memset(blocks, 0, sizeof blocks);
  memset(pages, 0, sizeof pages);
  free(malloc(1));
  read_said(said_first);
  read_true(true_first);
  srand(1);
  for (int i = 0; i < BLOCKS; i++) {
    size_t bytes = i < SMALL ? (size_t)(16 + rand() % 2000) : (size_t)(100000 + rand() % 900000);
    blocks[i] = malloc(bytes);
    memset(blocks[i], 1, malloc_usable_size(blocks[i]));
  }
  tell("filled");
  for (int i = 0; i < BLOCKS; i++)
    if (rand() % 4) free(blocks[i]), blocks[i] = NULL;
  mallctl("arena.4096.purge", NULL, NULL, NULL, 0);
  tell("sparse");
  return 0;
}
