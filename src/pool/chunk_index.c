#include "pool/chunk_index.h"

#include <string.h>

#include "pool/counters.h"
#include "pool/meta.h"

#define FAN 32
#define LEVELS 3 /* 32,768 chunks: 2 TiB */

/* `less`: by how much the bound is below HAK_CHUNK_SPANS, so that what is zero bounds nothing. Of a node below, the
 * least of its. */
typedef struct hak_chunk_node {
  uint16_t less[HAK_SEARCHES][FAN];
  struct hak_chunk_node *below[FAN];
} node;
_Static_assert(sizeof(node) <= HAK_META_SIZE, "a node is a metadata block");
_Static_assert((1u << (HAK_CHUNK_ORDERS - 1)) == HAK_CHUNK_SPANS, "there is a tree for each alignment up to a chunk's");
_Static_assert(FAN == 1 << 5, "as chunks_below and find_below shift");

static size_t chunks_below(unsigned level) { return (size_t)1 << (5 * level); }

/* Chunks are counted from the region's first: the tables before it may take many. */
static size_t first_chunk(const hak_region *r) { return r->first_span / HAK_CHUNK_SPANS; }

#define APART HAK_CHUNK_ORDERS /* as alignment 1 */

static node **root(hak_region *r, bool huge, unsigned order) { return &r->index[huge][order]; }

/* Larger alignments than a chunk's are bounded as that one. */
static unsigned order_of(const hak_chunk_search *s) {
  HAK_ASSERT(hak_is_pow2(s->align) && (!s->apart || s->align == 1));
  return s->apart ? APART : hak_log2(hak_min_size(s->align, HAK_CHUNK_SPANS));
}

static uint16_t least_of(const uint16_t *less) {
  uint16_t least = HAK_CHUNK_SPANS;
  for (unsigned i = 0; i < FAN; i++) least = less[i] < least ? less[i] : least;
  return least;
}

/* Of the chunks [from, end) below `n`, which describes those from `first` on. A node that was looked through in vain
 * lowers its parent's bound. */
static size_t find_below(node *n, unsigned level, size_t first, const hak_chunk_search *s, size_t from, size_t end,
                         bool highest) {
  size_t each = chunks_below(level), least = from > first ? from - first : 0,
         most = hak_min_size(end - first, FAN * each);
  HAK_ASSERT(first < end && from < first + FAN * each);
  if (n == NULL) return first + (highest ? most - 1 : least);
  uint16_t *less = n->less[s->search];
  size_t low = least >> 5 * level, high = (most - 1) >> 5 * level;
  for (size_t i = low; i <= high; i++) {
    size_t at = highest ? low + high - i : i, start = first + at * each;
    if (less[at] + s->spans > HAK_CHUNK_SPANS) continue;
    if (level == 0) return start;
    node *below = n->below[at];
    size_t found = find_below(below, level - 1, start, s, from, end, highest);
    if (found < end) return found;
    if (below != NULL) less[at] = least_of(below->less[s->search]);
  }
  return end;
}

size_t hak_chunk_index_find(const hak_chunk_search *s, size_t from, size_t end, bool highest) {
  hak_assert_held(&hak_span_pool.lock);
  size_t base = first_chunk(s->region);
  from = hak_max_size(from, base);
  if (from >= end) return end;
  HAK_ASSERT(end <= base + chunks_below(LEVELS));
  return base + find_below(*root(s->region, s->huge, order_of(s)), LEVELS - 1, 0, s, from - base, end - base, highest);
}

static bool lacks_memory; /* relaxed; for the next call without the lock, under which no system call is made */

static node *make(node **at) {
  hak_assert_held(&hak_span_pool.lock);
  if (*at == NULL) {
    *at = (node *)hak_meta_take_mapped();
    if (*at != NULL)
      memset(*at, 0, sizeof **at);
    else
      hak_store_relaxed(&lacks_memory, true);
  }
  return *at;
}

void hak_chunk_index_prepare(void) {
  if (HAK_LIKELY(!hak_load_relaxed(&lacks_memory))) return;
  hak_store_relaxed(&lacks_memory, false);
  hak_meta *meta = hak_meta_take();
  if (meta != NULL) hak_meta_give_one(meta);
}

void hak_chunk_index_lower(const hak_chunk_search *s, size_t chunk, size_t longest) {
  hak_assert_held(&hak_span_pool.lock);
  HAK_ASSERT(longest <= HAK_CHUNK_SPANS);
  if (s->align > HAK_CHUNK_SPANS) return; /* of smaller alignments nothing has been seen */
  size_t at = chunk - first_chunk(s->region);
  node **n = root(s->region, s->huge, order_of(s));
  for (unsigned level = LEVELS; level-- > 0;) {
    if (make(n) == NULL) return;
    size_t i = at / chunks_below(level) % FAN;
    if (level == 0) (*n)->less[s->search][i] = (uint16_t)(HAK_CHUNK_SPANS - longest);
    n = &(*n)->below[i];
  }
}

/* By how much less than a chunk an aligned range can be. */
static uint16_t less_of(const hak_region *r, size_t chunk, size_t first, size_t end, unsigned order) {
  if (end - first >= HAK_CHUNK_SPANS) return 0;
  uintptr_t page = (r->base >> HAK_SPAN_SHIFT) + chunk * HAK_CHUNK_SPANS;
  size_t aligned = hak_align_up(page + first, (size_t)1 << order) - page;
  return (uint16_t)(HAK_CHUNK_SPANS - (aligned < end ? end - aligned : 0));
}

void hak_chunk_index_raise(hak_region *r, size_t chunk, size_t first, size_t end) {
  HAK_ASSERT(first < end && end <= HAK_CHUNK_SPANS && chunk >= first_chunk(r));
  hak_assert_held(&hak_span_pool.lock);
  size_t at = chunk - first_chunk(r);
  for (unsigned order = 0; order <= APART; order++) {
    node *n = *root(r, r->chunks[chunk].huge, order);
    if (n == NULL) continue;
    uint16_t less = less_of(r, chunk, first, end, order == APART ? 0 : order);
    for (unsigned level = LEVELS; level-- > 0 && n != NULL;) {
      size_t i = at / chunks_below(level) % FAN;
      for (unsigned k = 0; k < HAK_SEARCHES; k++) n->less[k][i] = n->less[k][i] < less ? n->less[k][i] : less;
      n = n->below[i];
    }
  }
}

void hak_chunk_index_raise_around(hak_region *r, size_t chunk, size_t bit, size_t count) {
  HAK_ASSERT(count > 0 && bit + count <= HAK_CHUNK_SPANS);
  const uint64_t *words = r->chunks[chunk].free;
  hak_chunk_index_raise(r, chunk, hak_bits_first_of_run(words, bit), hak_bits_next(words, bit + count - 1, false));
}

/* --- marks --- */

void hak_pool_mark_free(hak_region *r, size_t index, size_t spans, hak_pages pages) {
  hak_assert_held(&hak_span_pool.lock);
  HAK_ASSERT(index >= r->first_span && index + spans <= r->ready_spans);
  hak_chunk *c = &r->chunks[index / HAK_CHUNK_SPANS];
  size_t bit = index % HAK_CHUNK_SPANS, were_free = hak_bits_change(c->free, bit, spans, true), were_dirty = 0;
  c->free_spans += (uint32_t)spans;
  if (pages == HAK_PAGES_MUZZY) hak_bits_change(c->muzzy, bit, spans, true);
  if (pages == HAK_PAGES_KEPT) {
    were_dirty = hak_bits_change(c->dirty, bit, spans, true);
    c->dirty_spans += (uint32_t)spans;
    hak_add_single(&hak_span_pool.dirty_spans, spans);
  }
  HAK_ASSERT(were_free == 0 && were_dirty == 0 && c->dirty_spans <= c->free_spans &&
             c->free_spans + c->absent_spans <= HAK_CHUNK_SPANS);
  hak_chunk_index_raise_around(r, index / HAK_CHUNK_SPANS, bit, spans);
}

size_t hak_pool_mark_taken(hak_region *r, size_t index, size_t spans) {
  hak_assert_held(&hak_span_pool.lock);
  HAK_ASSERT(index >= r->first_span && index + spans <= r->ready_spans);
  hak_chunk *c = &r->chunks[index / HAK_CHUNK_SPANS];
  size_t bit = index % HAK_CHUNK_SPANS;
  HAK_ASSERT(spans > 0 && bit + spans <= HAK_CHUNK_SPANS);
  size_t were_free = hak_bits_change(c->free, bit, spans, false);
  HAK_ASSERT(were_free == spans);
  size_t dirty = hak_bits_change(c->dirty, bit, spans, false), muzzy = hak_bits_change(c->muzzy, bit, spans, false);
  HAK_ASSERT(c->free_spans >= spans && c->dirty_spans >= dirty && hak_span_pool.dirty_spans >= dirty);
  c->free_spans -= (uint32_t)spans;
  c->dirty_spans -= (uint32_t)dirty;
  hak_add_single(&hak_span_pool.live_spans, spans);
  hak_sub_single(&hak_span_pool.dirty_spans, dirty);
  return dirty + muzzy;
}

void hak_pool_muzzy_to_dirty(void) {
  hak_lock_take(&hak_span_pool.lock);
  for (unsigned i = 0; i < hak_region_count(); i++) {
    hak_region *r = hak_region_at(i);
    for (size_t chunk = r->first_span / HAK_CHUNK_SPANS; chunk < hak_region_chunks(r); chunk++) {
      hak_chunk *c = &r->chunks[chunk];
      size_t spans = 0;
      for (size_t w = 0; w < HAK_CHUNK_WORDS; w++) {
        HAK_ASSERT((c->muzzy[w] & (c->dirty[w] | ~c->free[w])) == 0);
        spans += hak_popcount64(c->muzzy[w]);
        c->dirty[w] |= c->muzzy[w];
        c->muzzy[w] = 0;
      }
      if (spans == 0) continue;
      c->dirty_spans += (uint32_t)spans;
      hak_add_single(&hak_span_pool.dirty_spans, spans);
      hak_chunk_index_raise(r, chunk, 0, HAK_CHUNK_SPANS);
    }
  }
  hak_lock_drop(&hak_span_pool.lock);
}
