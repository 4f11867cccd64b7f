/* Uses the library by name and through malloc, and frees by either what the other gave; prints what proves it. */
#define HAKMEM_MIXED_FAMILIES
#include <hakmem/hakmem.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(void) {
  char *p = malloc(100), *q = hakmem_malloc(5000);
  memset(p, 1, 100);
  printf("version %s ours %d %d served %d\n", hakmem_version(), hakmem_is_ours(p), hakmem_is_ours(q), hakmem_served() > 0);
  free(q);
  hakmem_free(p);
  return 0;
}
