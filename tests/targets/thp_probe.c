/* Huge pages under a program's blocks, as /proc/self/smaps tells.
 *
 * usage: thp_probe KERNEL, the mode that is in force: always, madvise or never
 *
 * With HAKMEM_THP=off, and wherever the kernel says never, no block may lie in a huge page, small ones, runs and huge
 * blocks alike. Where both allow them the amount is printed and no more is asked: whether a huge page is free at that
 * moment is the kernel's affair. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hakmem/hakmem.h"

#define BLOCKS 160000 /* of 512 bytes: 80 MB, many chunks' worth of huge pages */
#define RUNS 40       /* of 1 MiB */
#define HUGE_BYTES ((size_t)40 << 20) /* a mapping of its own */

static char *blocks[BLOCKS + RUNS], *huge;

static char *touched(size_t size) {
  char *p = malloc(size);
  if (p == NULL) {
    fprintf(stderr, "thp_probe: out of memory\n");
    exit(1);
  }
  memset(p, 1, size);
  return p;
}

static void allocate(void) {
  for (size_t i = 0; i < BLOCKS + RUNS; i++) blocks[i] = touched(i < BLOCKS ? 512 : 1 << 20);
  huge = touched(HUGE_BYTES);
}

static int holds_a_block(uintptr_t lo, uintptr_t hi) {
  for (size_t i = 0; i < BLOCKS + RUNS; i += 16) {
    if ((uintptr_t)blocks[i] >= lo && (uintptr_t)blocks[i] < hi) return 1;
  }
  return (uintptr_t)huge < hi && (uintptr_t)huge + HUGE_BYTES > lo;
}

struct amounts {
  unsigned long resident_kib, huge_kib;
  unsigned mappings;
};

/* Sums over the mappings that blocks lie in. */
static struct amounts measure(void) {
  struct amounts sum = {0, 0, 0};
  FILE *smaps = fopen("/proc/self/smaps", "r");
  char line[512];
  int ours = 0;
  if (smaps == NULL) {
    printf("SKIPPED: /proc/self/smaps cannot be read\n");
    exit(77);
  }
  while (fgets(line, sizeof line, smaps) != NULL) {
    unsigned long lo, hi, kib;
    if (sscanf(line, "%lx-%lx ", &lo, &hi) == 2) {
      ours = holds_a_block(lo, hi);
      sum.mappings += (unsigned)ours;
    } else if (ours && sscanf(line, "Rss: %lu kB", &kib) == 1) {
      sum.resident_kib += kib;
    } else if (ours && sscanf(line, "AnonHugePages: %lu kB", &kib) == 1) {
      sum.huge_kib += kib;
    }
  }
  fclose(smaps);
  return sum;
}

int main(int argc, char **argv) {
  static const char *const modes[] = {"always", "madvise", "never"};
  int known = 0;
  for (int i = 0; i < 3; i++) known |= argc == 2 && strcmp(argv[1], modes[i]) == 0;
  if (!known) {
    fprintf(stderr, "thp_probe: the mode is always, madvise or never, not \"%s\"\n", argc == 2 ? argv[1] : "");
    return 2;
  }
  allocate();
  int64_t setting = -1;
  hakmem_option_get("HAKMEM_THP", &setting);
  struct amounts seen = measure();
  printf("thp_probe: kernel %s, HAKMEM_THP %s: %lu KiB resident in %u mappings, %lu KiB of it in huge pages\n", argv[1],
         setting == 0 ? "off" : setting == 1 ? "auto" : "on", seen.resident_kib, seen.mappings, seen.huge_kib);
  if (seen.resident_kib < BLOCKS / 2) {
    fprintf(stderr, "thp_probe: the blocks were not found in /proc/self/smaps\n");
    return 1;
  }
  if ((setting == 0 || strcmp(argv[1], "never") == 0) && seen.huge_kib != 0) {
    fprintf(stderr, "thp_probe: no huge pages were to be there\n");
    return 1;
  }
  return hakmem_served() == 0;
}
