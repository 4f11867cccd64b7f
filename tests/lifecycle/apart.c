/* Prints, in units of 2 MiB, where a block lies, how far from libc, from the program and from the stack, and the same of a block of a second region (HAKMEM_RESERVE_MB). */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static void print(const char *what, const void *block) {
  uintptr_t at = (uintptr_t)block;
  const uintptr_t others[] = {0, (uintptr_t)&printf, (uintptr_t)&print, (uintptr_t)&at};
  printf("%s", what);
  for (int i = 0; i < 4; i++) printf(" %jx", (uintmax_t)(at - others[i]) >> 21);
  printf("\n");
}

int main(void) {
  char *block = malloc(100);
  if (block == NULL) return 1;
  print("first", block);
  for (int i = 0; i < 120; i++)
    if ((block = malloc(1 << 20)) == NULL) return 1;
  print("last", block);
  return 0;
}
