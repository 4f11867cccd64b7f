/* first_blocks SIZES: a program that begins: a few blocks of each of so many sizes, the first of their classes. */
#include <stdlib.h>

int main(int argc, char **argv) {
  int sizes = argc > 1 ? atoi(argv[1]) : 0;
  for (int i = 1; i <= sizes; i++) {
    for (int block = 0; block < 8; block++) {
      void *volatile p = malloc((size_t)i * 48);
      if (p == NULL) return 1;
    }
  }
  return 0;
}
