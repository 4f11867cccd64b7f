#include "large/large.h"

#include <string.h>

#include "large/dense.h"
#include "large/extent.h"
#include "large/huge.h"
#include "large/kept.h"

static size_t large_least(size_t size, size_t align) {
  return size > HAK_EXTENT_MAX || align > HAK_EXTENT_MAX ? hak_huge_bytes(size) : hak_extent_least(size, align);
}

size_t hak_good_size(size_t size, size_t align) {
  int c = align > HAK_GRANULE     ? hak_class_for_aligned(size, align)
          : size <= HAK_SMALL_MAX ? (int)hak_class_for(size)
                                  : -1;
  return c >= 0 ? hak_class_size((unsigned)c) : large_least(size, align);
}

/* A kept mapping may have any number of pages: it is resized, and pieces are cut from its end. */
void *hak_large_reuse(size_t size, size_t align) {
  HAK_ASSERT(hak_is_pow2(align));
  hak_freed r = hak_kept_take(large_least(size, align), align);
  if (r.p == NULL) return NULL;
  HAK_SCHEDULE_POINT("kept: taken, not the program's yet");
  return hak_huge_adopt(r.p, r.bytes, r.huge_pages ? HAK_HUGE_PAGES_ALL : HAK_HUGE_PAGES_NONE);
}

/* Where regions are full, or none fits, a mapping may still be had. Where the system grants no address space any more,
 * as under an RLIMIT_AS that was set while the program ran, there is what was reserved at the start. */
void *hak_large_alloc(size_t size, size_t align, bool zeros, bool *zeroed) {
  bool extent_first = !HAK_HARD(GUARDS) && size <= HAK_EXTENT_MAX && align <= HAK_EXTENT_MAX;
  *zeroed = false;
  void *p = NULL;
  if (extent_first) p = hak_extent_alloc(size, align, zeros, zeroed);
  if (p == NULL) {
    p = hak_huge_alloc(size, align, zeros);
    *zeroed = true;
  }
  if (p != NULL || extent_first || size > HAK_EXTENT_LONGEST || align > HAK_EXTENT_LONGEST) return p;
  if ((size > HAK_EXTENT_CHUNK || align > HAK_HUGE_PAGE) && !hak_os_has_all_mappings()) return NULL;
  return hak_extent_alloc(size, align, zeros, zeroed);
}

/* Gives whole pages back. False: the system refused; nothing changed that counts. */
static bool clear_by_pages(char *start, char *end, bool is_mapping) {
  size_t page = hak_os_page_size();
  char *first = (char *)hak_align_up((uintptr_t)start, page), *last = (char *)hak_align_down((uintptr_t)end, page);
  if (first >= last) return false;
  size_t bytes = (size_t)(last - first);
  if (!(is_mapping ? hak_os_decommit_mapping(first, bytes) : hak_os_decommit_piece(first, bytes))) return false;
  memset(start, 0, (size_t)(first - start));
  memset(last, 0, (size_t)(end - last));
  return true;
}

void hak_large_clear(void *p, size_t bytes) {
  bool is_mapping = hak_region_find(p) == NULL, by_pages = is_mapping || hak_dense_is_sparse(bytes);
  if (!by_pages || !clear_by_pages(p, (char *)p + bytes, is_mapping)) memset(p, 0, bytes);
}
