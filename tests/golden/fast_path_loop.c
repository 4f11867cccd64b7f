/* fast_path_loop BYTES TIMES: TIMES pairs of malloc and free of one size, all of them hits of the front cache after the
 * first few. The loop is the one whose cost the golden file records. */
#include <stdlib.h>

#include "hakmem/hakmem.h"

__attribute__((noinline)) static void loop(size_t size, long times) {
  for (long i = 0; i < times; i++) {
    void *p = malloc(size);
    __asm__ volatile("" ::"r"(p) : "memory");
    free(p);
  }
}

int main(int argc, char **argv) {
  if (argc != 3) return 2;
  size_t size = strtoul(argv[1], NULL, 10);
  loop(size, 100);
  loop(size, atol(argv[2]));
  return hakmem_served() > 0 ? 0 : 1;
}
