/* Allocates some blocks of one size, prints their addresses, and frees them: for probes.py. */
#include <stdio.h>
#include <stdlib.h>

#define BLOCKS 64
#define BYTES 8192

int main(void) {
  static void *blocks[BLOCKS];
  for (int i = 0; i < BLOCKS; i++) blocks[i] = malloc(BYTES);
  for (int i = 0; i < BLOCKS; i++) printf("block %p\n", blocks[i]);
  for (int i = 0; i < BLOCKS; i++) free(blocks[i]);
  return 0;
}
