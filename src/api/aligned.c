/* Aligned allocation in its five historical forms, on hak_aligned (alloc.c). */
#include <errno.h>

#include "api/api.h"
#include "os/os.h"

int hak_posix_memalign(void **out, size_t alignment, size_t size) {
  if (!hak_is_pow2(alignment) || alignment % sizeof(void *) != 0) return EINVAL;
  int saved = errno;
  void *p = hak_aligned(alignment, size);
  errno = saved;
  if (p == NULL) return ENOMEM;
  *out = p;
  return 0;
}

void *hak_memalign(size_t alignment, size_t size) {
  if (alignment > SIZE_MAX / 2 + 1) { /* no power of two is as large; up to that one it is memory that is lacking */
    errno = EINVAL;
    return NULL;
  }
  return hak_aligned(hak_pow2_ceil(hak_max_size(alignment, HAK_GRANULE)), size);
}

void *hak_pvalloc(size_t size) {
  size_t page = hak_os_page_size();
  if (size > PTRDIFF_MAX) {
    errno = ENOMEM;
    return NULL;
  }
  return hak_aligned(page, hak_align_up(hak_max_size(size, 1), page));
}

HAK_EXPORT void *hakmem_aligned_alloc(size_t alignment, size_t size) { return hak_aligned(alignment, size); }
HAK_EXPORT int hakmem_posix_memalign(void **out, size_t alignment, size_t size) {
  return hak_posix_memalign(out, alignment, size);
}
HAK_EXPORT void *hakmem_memalign(size_t alignment, size_t size) { return hak_memalign(alignment, size); }
HAK_EXPORT void *hakmem_valloc(size_t size) { return hak_aligned(hak_os_page_size(), size); }
HAK_EXPORT void *hakmem_pvalloc(size_t size) { return hak_pvalloc(size); }
