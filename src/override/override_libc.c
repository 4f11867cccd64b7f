/* The malloc family under its C names. Each entry has the fast path in its own body (entry/entry.h).
 *
 * A program may bring a malloc of its own: malloc, calloc, realloc and free are all of one by glibc's manual
 * ("Replacing malloc"). The loader then binds these four to the program's and the rest to ours, so an entry below that
 * takes a block which the four may have made calls them by name, through the PLT: reallocarray, as glibc's does, cfree,
 * free_sized and free_aligned_sized. The aligned forms make blocks of their own, as glibc's do in such a program, which
 * has to bring them too if it frees what they return; malloc_usable_size knows our blocks only and says 0 of others.
 * __libc_… are an allocator's own in glibc too. */
#include <stdio.h>
#include <stdlib.h>

#include "entry/entry.h"
#include "os/glibc_malloc.h"
#include "os/os.h"
#include "override/serves.h"

/* <stdlib.h> declares some of these with attributes of its own; the definitions agree with it. */
HAK_EXPORT void *malloc(size_t size) { return hak_malloc(size); }
HAK_EXPORT void free(void *p) { hak_free(p); }
HAK_EXPORT void *calloc(size_t count, size_t size) { return hak_calloc(count, size); }
HAK_EXPORT void *realloc(void *p, size_t size) { return hak_realloc(p, size, HAK_CALLER()); }
HAK_EXPORT void *reallocarray(void *p, size_t count, size_t size) {
  size_t bytes;
  return HAK_UNLIKELY(__builtin_mul_overflow(count, size, &bytes)) ? hak_no_memory() : realloc(p, bytes);
}
HAK_EXPORT void cfree(void *p) { free(p); }

static __typeof__(free) own_free __attribute__((alias("free"), nothrow));
bool hak_override_serves(void) { return free == own_free; }

HAK_EXPORT void free_sized(void *p, size_t size) {
  if (HAK_UNLIKELY(!hak_override_serves()))
    free(p);
  else
    hak_free_sized(p, size);
}
HAK_EXPORT void free_aligned_sized(void *p, size_t alignment, size_t size) {
  (void)alignment;
  free_sized(p, size);
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

/* tcmalloc's names (gperftools/tcmalloc.h): the same functions. Weak, so that tools that name an address after a symbol
 * find malloc. Whatever malloc the program brings, these are ours: so cfree and free_sized, which ask for that, are not
 * among them. */
#if defined(__has_attribute) && __has_attribute(copy)
#define COPY(own) __attribute__((copy(own))) /* else gcc warns of attributes that the header gives the one alone */
#else
#define COPY(own)
#endif
#define ALIAS(name, own) \
  extern __typeof__(own) name COPY(own) __attribute__((weak, alias(#own), visibility("default"), nothrow))
ALIAS(tc_malloc, malloc);
ALIAS(tc_malloc_skip_new_handler, malloc);
ALIAS(tc_free, free);
ALIAS(tc_cfree, free);
ALIAS(tc_calloc, calloc);
ALIAS(tc_realloc, realloc);
ALIAS(tc_memalign, memalign);
ALIAS(tc_posix_memalign, posix_memalign);
ALIAS(tc_valloc, valloc);
ALIAS(tc_pvalloc, pvalloc);
ALIAS(tc_malloc_size, malloc_usable_size);
ALIAS(tc_mallopt, mallopt);
/* Deprecated */
extern __typeof__(hakmem_mallinfo) tc_mallinfo __attribute__((weak, alias("mallinfo"), visibility("default")));
ALIAS(tc_mallinfo2, mallinfo2);
ALIAS(tc_malloc_stats, malloc_stats);

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
