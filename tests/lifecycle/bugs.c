/* A use after free, for tools that find one. */
#include <stdio.h>
#include <stdlib.h>

int main(void) {
  char *volatile p = malloc(100);
  p[3] = 'x';
  free(p);
  putchar(p[3]);
  return 0;
}
