/* far_loop BLOCKS TIMES: BLOCKS blocks that stay, then TIMES pairs of free and malloc of the latest. */
#include <stdlib.h>

#include "hakmem/hakmem.h"

int main(int argc, char **argv) {
  if (argc != 3) return 2;
  size_t blocks = strtoul(argv[1], NULL, 10), times = strtoul(argv[2], NULL, 10);
  void **all = malloc(blocks * sizeof *all);
  for (size_t i = 0; i < blocks; i++) all[i] = malloc(1500);
  for (size_t i = 0; i < times; i++) {
    size_t k = blocks - 1 - i % 12;
    free(all[k]);
    all[k] = malloc(1500);
  }
  return hakmem_served() > 0 ? 0 : 1;
}
