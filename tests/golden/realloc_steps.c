/* realloc_steps ELEMENTS: an array that grows by realloc, an element at a time. */
#include <stdlib.h>

#include "hakmem/hakmem.h"

int main(int argc, char **argv) {
  if (argc != 2) return 2;
  size_t elements = strtoul(argv[1], NULL, 10), *all = NULL;
  for (size_t i = 0; i < elements; i++) {
    all = realloc(all, (i + 1) * sizeof *all);
    all[i] = i;
  }
  free(all);
  return hakmem_served() > 0 ? 0 : 1;
}
