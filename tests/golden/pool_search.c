/* pool_search ALIGN SIZE COUNT: so many blocks of that alignment and size are alive at the end. ALIGN 0: of SIZE alone, each other one
 * is freed, and as many that fit in no hole follow, an eighth larger. ALIGN 1: a sixth of SIZE lies behind each, which is freed: more is
 * dirty than live, and purged in steps. */
#include <stdlib.h>

int main(int argc, char **argv) {
  if (argc != 4) return 2;
  size_t align = strtoul(argv[1], NULL, 0), size = strtoul(argv[2], NULL, 0), count = strtoul(argv[3], NULL, 0);
  for (size_t i = 0; align > 1 && i < count; i++) {
    void *p;
    if (posix_memalign(&p, align, size) != 0) return 1;
  }
  if (align > 1) return 0;
  void **blocks = malloc(count * sizeof *blocks);
  for (size_t i = 0; i < count; i++) blocks[i] = malloc(align == 1 && i % 2 == 1 ? size / 6 : size);
  for (size_t i = 0; i < count; i += 2) free(blocks[i]);
  if (align == 1) return 0;
  for (size_t i = 0; i < count; i++) blocks[i] = malloc(size + size / 8);
  return blocks[count - 1] == NULL;
}
