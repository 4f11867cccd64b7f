/* What a program shows that a sanitizer's runtime is linked into: its start, and a malloc of its own. */
#include <stddef.h>

static char heap[1 << 20] __attribute__((aligned(16)));
static size_t used;

void __msan_init(void);
void __msan_init(void) {}

void *malloc(size_t size) {
  void *p = heap + used;
  used += (size + 15) & ~(size_t)15;
  return p;
}

void *calloc(size_t count, size_t size) { return malloc(count * size); }
void *realloc(void *p, size_t size) { return p == NULL ? malloc(size) : NULL; }
void free(void *p) { (void)p; }
