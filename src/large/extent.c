#include "large/extent.h"

#include "large/dense.h"
#include "pool/budget.h"

/* Gives the pages of a dirty extent for `size` bytes back that such a block does not reach: they hold memory for
 * nothing. */
static void drop_tail(hak_span *s, size_t size) {
  size_t used = hak_align_up(s->start % HAK_SPAN_SIZE + size, hak_os_page_size()),
         bytes = ((size_t)s->span_count << HAK_SPAN_SHIFT) - used;
  HAK_ASSERT(used <= (size_t)s->span_count << HAK_SPAN_SHIFT);
  if (bytes == 0) return;
  char *tail = (char *)hak_align_down(s->start, HAK_SPAN_SIZE) + used;
  if (hak_budget_of_group()) hak_os_split_huge(tail, bytes);
  if (hak_os_decommit_piece(tail, bytes)) hak_budget_note_purged(bytes);
}

bool hak_requests_noted;

HAK_INLINE void note_request(hak_span *s, size_t size) {
  if (HAK_UNLIKELY(hak_load_relaxed(&hak_requests_noted))) hak_store_relaxed(&s->asked, size);
}

static size_t draw_colour(const hak_span *s, size_t size, size_t align) {
  static uint32_t next; /* relaxed; neighbours should differ */
  if (align > HAK_COLOUR_BYTES || size > HAK_EXTENT_MAX || size > hak_extent_usable(s, true)) return 0;
  return (hak_add_relaxed(&next, 1) % (HAK_EXTENT_COLOURED / HAK_COLOUR_BYTES - 1) + 1) * HAK_COLOUR_BYTES;
}

void *hak_extent_take_quick(size_t size) {
  HAK_ASSERT(size > 0);
  hak_span *s = hak_pool_take_quick(hak_spans_of(size), 1, HAK_EXTENT_TAGS);
  if (s == NULL) return NULL;
  if (!hak_extent_is_coloured(s) || size > hak_extent_usable(s, true))
    s->start = hak_align_down(s->start, HAK_SPAN_SIZE) + draw_colour(s, size, 1);
  note_request(s, size);
  return (void *)s->start;
}

void *hak_extent_alloc(size_t size, size_t align, bool zeros, bool *zeroed) {
  hak_dense_grant dense = hak_dense_grants(size, zeros); /* all of it: an extent is less than what is trusted */
  hak_span *s =
      hak_pool_take(hak_extent_spans(size), hak_extent_spans(align), HAK_EXTENT_TAGS, dense.bytes != 0, zeroed);
  if (s == NULL || !*zeroed) hak_dense_note(NULL, size, dense);
  if (s == NULL) return NULL;
  s->start += draw_colour(s, size, align);
  if (*zeroed) hak_dense_note((void *)s->start, size, dense);
  if (!*zeroed && hak_budget_full_now()) drop_tail(s, size);
  note_request(s, size);
  return (void *)s->start;
}

bool hak_extent_resize(hak_region *r, void *p, size_t size, bool *purge_due) {
  hak_span *s = hak_region_span(r, p);
  HAK_ASSERT(s->start == (uintptr_t)p && HAK_TAG_CODE(s->tag) == HAK_CODE_EXTENT);
  size_t least = size > HAK_EXTENT_MAX ? hak_align_up(size, hak_os_page_size()) : size; /* as a mapping has */
  size_t wanted = hak_extent_spans(least + (hak_extent_is_coloured(s) ? HAK_EXTENT_COLOURED : 0)), have = s->span_count;
  bool done = wanted == have;
  if (wanted > have)
    done = wanted <= HAK_EXTENT_LONGEST_SPANS && hak_pool_extend(s, wanted - have, HAK_CODE_EXTENT_BODY);
  else if (wanted < have)
    done = hak_pool_give(s, wanted, HAK_EXTENT_TAG, purge_due);
  if (done) note_request(s, size);
  return done;
}
