/* malloc and its kin, from one heap for all threads: to be preloaded, with the library whose heap it is linked in. ONE_HEAP_OF: 1 hakmem, 2 mimalloc 3; each with ONE_HEAP_MAIN
 * as well: the same calls of its main heap, as what to compare with. See one_heap.sh. */
#include <errno.h>
#include <stddef.h>

#if ONE_HEAP_OF == 1
#include "hakmem/hakmem.h"
#include "hakmem/heap.h"
typedef hakmem_heap heap;
#define HEAP_NEW() hakmem_heap_new(NULL)
#define IN_HEAP(name) hakmem_heap_##name
#define IN_MAIN(name) hakmem_##name
#else
typedef struct mi_heap_s heap;
heap *mi_heap_new(void);
void *mi_heap_malloc(heap *h, size_t size);
void *mi_heap_calloc(heap *h, size_t count, size_t size);
void *mi_heap_realloc(heap *h, void *p, size_t size);
void *mi_malloc(size_t size);
void *mi_calloc(size_t count, size_t size);
void *mi_realloc(void *p, size_t size);
void *mi_aligned_alloc(size_t alignment, size_t size);
void mi_free(void *p);
size_t mi_malloc_usable_size(const void *p);
void *mi_heap_malloc_aligned(heap *h, size_t size, size_t alignment);
#define mi_heap_aligned_alloc(h, alignment, size) mi_heap_malloc_aligned(h, size, alignment)
#define HEAP_NEW() mi_heap_new()
#define IN_HEAP(name) mi_heap_##name
#define IN_MAIN(name) mi_##name
#endif

#ifndef ONE_HEAP_MAIN
static heap *the_heap; /* NULL: what runs before the constructor is served by the main heap */
__attribute__((constructor)) static void start(void) { the_heap = HEAP_NEW(); }
#define SERVE(name, ...) (__builtin_expect(the_heap != NULL, 1) ? IN_HEAP(name)(the_heap, __VA_ARGS__) : IN_MAIN(name)(__VA_ARGS__))
#else
#define SERVE(name, ...) IN_MAIN(name)(__VA_ARGS__)
#endif

void *malloc(size_t size) { return SERVE(malloc, size); }
void *calloc(size_t count, size_t size) { return SERVE(calloc, count, size); }
void *aligned_alloc(size_t alignment, size_t size) { return SERVE(aligned_alloc, alignment, size); }
void free(void *p) { IN_MAIN(free)(p); }
void *realloc(void *p, size_t size) {
  if (p != NULL && size == 0) {
    free(p);
    return NULL;
  }
  return SERVE(realloc, p, size);
}
void *memalign(size_t alignment, size_t size) { return aligned_alloc(alignment, size); }
int posix_memalign(void **out, size_t alignment, size_t size) {
  void *p = aligned_alloc(alignment, size);
  if (p == NULL) return ENOMEM;
  *out = p;
  return 0;
}
size_t malloc_usable_size(void *p) { return IN_MAIN(malloc_usable_size)(p); }
