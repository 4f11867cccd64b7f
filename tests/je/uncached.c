/* uncached PAIRS: blocks that are allocated and freed without a thread's cache. */
#include <stdlib.h>

void *mallocx(size_t size, int flags);
void dallocx(void *p, int flags);

#define NO_CACHE (1 << 8)

int main(int argc, char **argv) {
  if (argc != 2) return 2;
  void *kept[64]; /* their slab stays, and has others */
  for (unsigned i = 0; i < 64; i++) kept[i] = mallocx(96, NO_CACHE);
  for (long n = strtol(argv[1], NULL, 10); n > 0; n--) dallocx(mallocx(96, NO_CACHE), NO_CACHE);
  for (unsigned i = 0; i < 64; i++) dallocx(kept[i], NO_CACHE);
  return 0;
}
