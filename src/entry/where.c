#include "entry/where.h"

#include "guard/empty.h"
#include "guard/sample.h"
#include "large/extent.h"
#include "large/huge.h"

#define NO_CLASS ((uint8_t)HAK_CLASS_COUNT)

/* owner: of a heap; 0: an arena has it. */
HAK_INLINE hak_where in_slab(hak_region *r, hak_span *s, unsigned c, bool sampled, uint32_t owner) {
  return (hak_where){HAK_BLOCK, HAK_KIND_SLAB, (uint8_t)c, sampled, owner, hak_class_size(c), r, s};
}

HAK_INLINE hak_where in_extent(hak_region *r, hak_span *s, const void *p, size_t size, bool sampled, uint32_t owner) {
  return (hak_where){
      s->start == (uintptr_t)p ? HAK_BLOCK : HAK_INSIDE, HAK_KIND_EXTENT, NO_CLASS, sampled, owner, size, r, s};
}

HAK_INLINE hak_where nothing(hak_region *r) {
  return (hak_where){HAK_FREE_MEMORY, HAK_KIND_NONE, NO_CLASS, false, 0, 0, r, NULL};
}

/* A span that the fast path leaves alone: of a heap, or of the profile's blocks. */
HAK_INLINE hak_where set_apart(hak_region *r, hak_span *s, const void *p) {
  uint32_t tag = hak_load_relaxed(&s->tag), owner = HAK_TAG_OWNER(tag);
  if (tag == HAK_TAG_NONE) return nothing(r);
  if (owner == HAK_OWNER_PIECES) {
    uint32_t heap = hak_piece_owner(s, p);
    return (hak_where){heap == 0 ? HAK_FREE_MEMORY : HAK_BLOCK, HAK_KIND_PIECE, NO_CLASS, false, heap, 0, r, s};
  }
  bool sampled = owner < HAK_OWNER_HEAPS;
  if (sampled) owner = 0;
  if (hak_code_is_class(HAK_TAG_CODE(tag))) return in_slab(r, s, HAK_TAG_CODE(tag) - 1, sampled, owner);
  return in_extent(r, s, p, (size_t)s->span_count << HAK_SPAN_SHIFT, sampled, owner);
}

HAK_INLINE hak_where in_region(hak_region *r, const void *p) {
  unsigned code = hak_load_acquire(&r->map[hak_region_index(r, p)]); /* any address may be asked about */
  if (code == HAK_CODE_NONE || code == HAK_CODE_EXTENT_FREED) return nothing(r);
  hak_span *s = hak_region_span(r, p);
  if (HAK_LIKELY(hak_code_is_class(code))) return in_slab(r, s, code - 1, false, 0);
  if (code == HAK_CODE_EXTENT_BODY && HAK_UNLIKELY(hak_extent_is_quick(s))) return nothing(r);
  return code == HAK_CODE_SAMPLED ? set_apart(r, s, p) : in_extent(r, s, p, hak_extent_size(r, p), false, 0);
}

static hak_where guarded(const void *p) {
  size_t size = hak_sample_size(p);
  return (hak_where){
      .what = size != 0 ? HAK_BLOCK : HAK_FREE_MEMORY, .kind = HAK_KIND_GUARDED, .class_code = NO_CLASS, .size = size};
}

static hak_where outside(const void *p) {
  hak_where w = {.class_code = NO_CLASS};
  if (hak_sample_contains(p)) return guarded(p);
  if (HAK_HARD(GUARDS) && hak_empty_contains(p)) {
    w.what = HAK_BLOCK;
    w.kind = HAK_KIND_EMPTY;
    return w;
  }
  hak_huge_at at = hak_huge_ask(p);
  w.owner = at.owner;
  w.size = at.bytes;
  w.what = at.bytes != 0                              ? HAK_BLOCK
           : at.verdict == HAK_VERDICT_NO_BLOCK_START ? HAK_INSIDE
           : at.verdict != HAK_VERDICT_OK             ? HAK_FREE_MEMORY
                                                      : HAK_FOREIGN;
  if (w.what != HAK_FOREIGN) w.kind = HAK_KIND_HUGE;
  return w;
}

hak_where hak_where_is(const void *p) {
  hak_region *r = hak_region_find(p);
  return HAK_LIKELY(r != NULL) ? in_region(r, p) : outside(p);
}

size_t hak_where_size(const hak_where *w, const void *p) {
  if (HAK_LIKELY(w->kind != HAK_KIND_PIECE)) return w->what == HAK_BLOCK ? w->size : 0;
  hak_heap *h = hak_where_heap(w);
  if (h == NULL) return 0;
  hak_lock_take(hak_heap_lock(h));
  size_t bytes = hak_piece_block_size(w->head, p);
  hak_lock_drop(hak_heap_lock(h));
  return bytes;
}

const void *hak_where_slab_start(const hak_where *w, const void *p) {
  HAK_ASSERT(w->kind == HAK_KIND_SLAB);
  uintptr_t start = hak_load_relaxed(&w->head->start), offset = (uintptr_t)p - start;
  if ((uintptr_t)p < start || offset / w->size >= hak_load_relaxed(&w->head->bumped)) return NULL;
  return (const void *)(start + offset / w->size * w->size);
}
