/* realloc of blocks of heaps. */
#include <errno.h>
#include <string.h>

#include "api/api.h"
#include "api/heaps.h"
#include "api/sampling.h"
#include "api/slow_exit.h"
#include "large/huge.h"

static void *resize(hak_heap *h, void *p, size_t before, size_t size, size_t align) {
  if (align == HAK_IN_PLACE) return NULL;
  bool stays = hak_is_in_place(p, align);
  if (stays && hak_resize_stays(before, size, align)) return p;
  bool zeroed;
  void *q = hak_heap_alloc(h, size, align, size > before || !stays, &zeroed);
  if (q == NULL) return size > before || !stays ? NULL : p; /* programs take it that shrinking cannot fail */
  memcpy(q, p, hak_min_size(before, size));
  hak_raw_free(p);
  return q;
}

static void *resize_in_span(hak_heap *h, hak_span *s, void *p, unsigned c, size_t before, size_t size, size_t align) {
  if (c < HAK_CLASS_COUNT || before < HAK_SPAN_SIZE || !hak_is_in_place(p, align)) return resize(h, p, before, size, align);
  if (align == HAK_IN_PLACE) return hak_heap_grow(h, s, p, size);
  hak_deferred d = {0};
  hak_heap_fold(hak_tls.cache, h);
  bool done = hak_heap_resize_large(h, s, p, size, &d).p != NULL;
  if (done) {
    hak_sampled_forget(p);
    hak_heap_count_resized(h, p, size);
  }
  hak_slow_exit(&d);
  return done ? p : resize(h, p, before, size, align);
}

static void *resize_mapping(hak_heap *h, void *p, size_t size, size_t align) {
  hak_deferred d = {0};
  if (align == HAK_IN_PLACE) return hak_heap_grow(h, NULL, p, size);
  hak_profile_sample before = {0};
  if (hak_profile_has_samples()) before = hak_profile_set_aside(p); /* before another thread may be given its address */
  bool by_kernel = size > HAK_SMALL_MAX && hak_is_in_place(p, align);
  void *moved = !by_kernel ? NULL : hak_heap_resize_mapping(h, p, size, align <= hak_os_page_size()).p;
  if (moved == NULL) {
    hak_profile_put_back(&before);
  } else {
    hak_profile_end(&before);
    hak_heap_count_resized(h, moved, size);
  }
  hak_slow_exit(&d);
  return moved != NULL ? moved : resize(h, p, hak_huge_size(p), size, align);
}

void *hak_heap_resize(const hak_region *region, uint32_t owner, void *p, size_t size, size_t align) {
  unsigned c;
  hak_span *s = owner != 0 ? NULL : hak_region_span(region, p);
  hak_heap *h = owner != 0 ? hak_heap_of_owner(owner) : hak_heap_at(s, p, &c);
  size_t before = h == NULL ? 0 : owner != 0 ? hak_huge_size(p) : hak_heap_block_size(h, s, p, c);
  if (before == 0) hak_misuse_abort(h == NULL ? HAK_VERDICT_FREE_MEMORY : HAK_VERDICT_NO_BLOCK_START, p, 0, "by realloc");
  if (align == HAK_IN_PLACE && size <= before) return p;
  int saved = errno;
  void *q = owner != 0 ? resize_mapping(h, p, size, align) : resize_in_span(h, s, p, c, before, size, align);
  errno = q == NULL ? ENOMEM : saved;
  return q;
}
