/* The malloc family under its C names. Each entry has the fast path in its own body (api/api.h). */
#include <stdio.h>
#include <stdlib.h>

#include "api/api.h"
#include "base/glibc_malloc.h"
#include "os/os.h"

/* <stdlib.h> declares some of these with attributes of its own; the definitions agree with it. */
HAK_EXPORT void *malloc(size_t size) { return hak_malloc(size); }
HAK_EXPORT void free(void *p) { hak_free(p); }
HAK_EXPORT void *calloc(size_t count, size_t size) { return hak_calloc(count, size); }
HAK_EXPORT void *realloc(void *p, size_t size) { return hak_realloc(p, size, HAK_CALLER()); }
HAK_EXPORT void *reallocarray(void *p, size_t count, size_t size) {
  return hak_reallocarray(p, count, size, HAK_CALLER());
}
HAK_EXPORT void cfree(void *p) { hak_free(p); }
HAK_EXPORT void free_sized(void *p, size_t size) { hak_free_sized(p, size); }
HAK_EXPORT void free_aligned_sized(void *p, size_t alignment, size_t size) {
  (void)alignment;
  hak_free_sized(p, size);
}

HAK_EXPORT void *aligned_alloc(size_t alignment, size_t size) { return hak_aligned(alignment, size); }
HAK_EXPORT int posix_memalign(void **out, size_t alignment, size_t size) {
  return hak_posix_memalign(out, alignment, size);
}
HAK_EXPORT void *memalign(size_t alignment, size_t size) { return hak_memalign(alignment, size); }
HAK_EXPORT void *valloc(size_t size) { return hak_aligned(hak_os_page_size(), size); }
HAK_EXPORT void *pvalloc(size_t size) { return hak_pvalloc(size); }

HAK_EXPORT size_t malloc_usable_size(void *p) { return hak_usable_size(p, HAK_CALLER()); }
HAK_EXPORT int malloc_trim(size_t pad) { return hakmem_malloc_trim(pad); }
HAK_EXPORT int mallopt(int param, int value) { return hakmem_mallopt(param, value); }
HAK_EXPORT struct mallinfo2 mallinfo2(void) { return hakmem_mallinfo2(); }
HAK_EXPORT struct mallinfo mallinfo(void) { return hakmem_mallinfo(); }
HAK_EXPORT void malloc_stats(void) { hakmem_malloc_stats(); }
HAK_EXPORT int malloc_info(int options, FILE *stream) { return hakmem_malloc_info(options, stream); }

/* glibc's internal names, which some programs and old libraries call directly. */
HAK_EXPORT void *__libc_malloc(size_t size) { return hak_malloc(size); }
HAK_EXPORT void __libc_free(void *p) { hak_free(p); }
HAK_EXPORT void __libc_cfree(void *p) { hak_free(p); }
HAK_EXPORT void *__libc_calloc(size_t count, size_t size) { return hak_calloc(count, size); }
HAK_EXPORT void *__libc_realloc(void *p, size_t size) { return hak_realloc(p, size, HAK_CALLER()); }
HAK_EXPORT void *__libc_memalign(size_t alignment, size_t size) { return hak_memalign(alignment, size); }
HAK_EXPORT void *__libc_valloc(size_t size) { return hak_aligned(hak_os_page_size(), size); }
HAK_EXPORT void *__libc_pvalloc(size_t size) { return hak_pvalloc(size); }
HAK_EXPORT int __posix_memalign(void **out, size_t alignment, size_t size) {
  return hak_posix_memalign(out, alignment, size);
}
