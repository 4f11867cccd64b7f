/* Bitmap arithmetic and fullness lists. Runs under the lock of the bin that has the set. */
#include "slab/slab.h"

#include <string.h>

#include "pool/span_pool.h"

static unsigned next_colour; /* relaxed; any value will do, neighbours should differ */

void hak_slab_unlink(hak_slab_set *set, hak_span *s) {
  HAK_ASSERT(s->list < HAK_FULLNESS_LISTS);
  if (s->list >= 3) hak_slab_left_sparse(set, s);
  if (s->prev != NULL)
    s->prev->next = s->next;
  else
    set->lists[s->list] = s->next;
  if (s->next != NULL) s->next->prev = s->prev;
  if (HAK_UNLIKELY(set->look_next == s)) set->look_next = s->next;
  s->list = HAK_NO_LIST;
}

void hak_slab_link(hak_slab_set *set, hak_span *s, unsigned list) {
  HAK_ASSERT(s->list == HAK_NO_LIST && list < HAK_FULLNESS_LISTS && s->free_count > 0);
  if (list == 3) hak_add_single(&set->sparse, 1);
  s->list = (uint8_t)(list & 7);
  s->prev = NULL;
  s->next = set->lists[list];
  if (s->next != NULL) s->next->prev = s;
  set->lists[list] = s;
}

HAK_INLINE unsigned fullness_list(const hak_span *s) {
  unsigned quarter = s->blocks >> 2, n = s->free_count;
  return n < quarter ? 0 : n < 2 * quarter ? 1 : n < 3 * quarter ? 2 : 3;
}

/* Puts the slab on the list its free count asks for; on none when it has no free block. */
HAK_INLINE void settle(hak_slab_set *set, hak_span *s) {
  unsigned list = s->free_count == 0 ? HAK_NO_LIST : fullness_list(s);
  if (HAK_LIKELY(list == s->list) || (s->list == HAK_PURGED_LIST && hak_slab_stays_purged(s))) return;
  if (s->list != HAK_NO_LIST) hak_slab_unlink(set, s);
  if (list != HAK_NO_LIST) hak_slab_link(set, s, list);
}

/* A heap's first slabs of a class may never be bumped to the end; after these many, it is a class the program uses. */
#define SPARSE_SLABS 2
/* Programs touch the ends of large blocks rather than all of them: a huge page there is resident for nothing. */
#define DENSE_BLOCK_MAX 8192

static bool is_dense(const hak_slab_set *set, unsigned class_code) {
  return set->slabs >= SPARSE_SLABS && hak_class_table[class_code].size <= DENSE_BLOCK_MAX;
}

/* Blocks' first bytes and last 8, and what the colour leaves before the first block. */
static void zero_blocks(const hak_span *s, size_t block_size) {
  uintptr_t first_span = hak_align_down(s->start, HAK_SPAN_SIZE), block = s->start;
  memset((void *)first_span, 0, s->start - first_span);
  for (size_t i = 0; i < s->blocks; i++, block += block_size) {
    memset((void *)block, 0, hak_min_size(block_size, HAK_ZEROED_BYTES));
    memset((void *)(block + block_size - sizeof(uint64_t)), 0, sizeof(uint64_t));
  }
}

static hak_span *create(const hak_slab_set *set, unsigned class_code, uint32_t owner) {
  const hak_class_info *info = &hak_class_table[class_code];
  uint32_t tag = HAK_TAG(owner, class_code + 1);
  unsigned code = set->sampled ? HAK_CODE_SAMPLED : class_code + 1;
  bool zeroed;
  hak_span *s = hak_pool_take(info->spans, 1, (hak_pool_tags){tag, code, code}, is_dense(set, class_code), &zeroed);
  if (s == NULL) return NULL;
  hak_region *r = hak_pool_region_of(s);
  size_t colour = info->colours > 1 ? (hak_add_relaxed(&next_colour, 1) % info->colours) * HAK_COLOUR_BYTES : 0;
  s->start += colour;
  s->bits = &r->bitmaps[(size_t)(s - r->spans) * HAK_BITMAP_WORDS];
  s->next = s->prev = NULL;
  s->summary = 0;
  s->free_count = s->bumped = 0;
  s->blocks = (uint16_t)(((size_t)info->spans * HAK_SPAN_SIZE - colour) / info->size);
  s->class_code = (uint8_t)class_code;
  s->list = HAK_NO_LIST;
  s->scan_state = 0;
  memset(s->bits, 0, ((size_t)s->blocks + 63) / 64 * sizeof *s->bits);
  if (HAK_HARD(ZERO) && !zeroed) zero_blocks(s, info->size);
  return s;
}

static void destroy(hak_slab_set *set, hak_span *s, bool *purge_due) {
  HAK_ASSERT(s->free_count == s->bumped && set->slabs > 0);
  if (s->list != HAK_NO_LIST) hak_slab_unlink(set, s);
  hak_sub_single(&set->slabs, 1);
  if (HAK_HARD_SWEEP) hak_store_relaxed(&s->bumped, 0); /* api/sweep.c */
  hak_pool_give(s, 0, s->tag, purge_due);
}

static unsigned take_free(hak_span *s, size_t block_size, void **out, unsigned wanted) {
  unsigned taken = 0;
  while (taken < wanted && s->summary != 0) {
    unsigned w = hak_ctz64(s->summary);
    uint64_t word = s->bits[w];
    while (word != 0 && taken < wanted) {
      unsigned bit = hak_ctz64(word);
      word &= word - 1;
      out[taken++] = (void *)(s->start + (size_t)(w * 64 + bit) * block_size);
    }
    s->bits[w] = word;
    if (word == 0) s->summary &= s->summary - 1;
  }
  HAK_ASSERT(taken <= s->free_count);
  s->free_count = (uint16_t)(s->free_count - taken);
  HAK_ASSERT((s->free_count == 0) == (s->summary == 0));
  return taken;
}

static unsigned bump_allocate(hak_span *s, size_t block_size, void **out, unsigned wanted) {
  unsigned n = (unsigned)hak_min_size(wanted, (size_t)(s->blocks - s->bumped));
  uintptr_t at = s->start + (size_t)s->bumped * block_size;
  for (unsigned i = 0; i < n; i++, at += block_size) out[i] = (void *)at;
  s->bumped = (uint16_t)(s->bumped + n);
  return n;
}

void hak_slab_settle(hak_slab_set *set, hak_span *s) { settle(set, s); }

unsigned hak_slab_set_take_free(hak_slab_set *set, unsigned class_code, void **out, unsigned wanted) {
  size_t block_size = hak_class_table[class_code].size;
  unsigned taken = 0;
  for (unsigned list = 0; list < HAK_FULLNESS_LISTS; list++) {
    while (taken < wanted && set->lists[list] != NULL) {
      hak_span *s = set->lists[list];
      if (list >= HAK_PURGED_LIST - 1) hak_slab_taken_again(set, s);
      taken += take_free(s, block_size, out + taken, wanted - taken);
      settle(set, s);
    }
  }
  return taken;
}

static unsigned take_unused(hak_slab_set *set, unsigned class_code, void **out, unsigned wanted) {
  hak_span *s = set->bump_slab;
  unsigned taken = bump_allocate(s, hak_class_table[class_code].size, out, wanted);
  if (s->bumped == s->blocks) set->bump_slab = NULL;
  return taken;
}

unsigned hak_slab_set_take_ready(hak_slab_set *set, unsigned class_code, void **out, unsigned wanted) {
  unsigned taken = hak_slab_set_take_free(set, class_code, out, wanted);
  if (taken < wanted && set->bump_slab != NULL) taken += take_unused(set, class_code, out + taken, wanted - taken);
  return taken;
}

unsigned hak_slab_set_take(hak_slab_set *set, unsigned class_code, uint32_t owner, void **out, unsigned wanted) {
  unsigned taken = hak_slab_set_take_ready(set, class_code, out, wanted);
  /* A short batch is better than a new slab that the caller did not need. */
  if (taken > 0) return taken;
  set->bump_slab = create(set, class_code, owner);
  if (set->bump_slab == NULL) return 0;
  hak_add_single(&set->slabs, 1);
  return take_unused(set, class_code, out, wanted);
}

/* Index of the block that starts at p, or blocks when none does. */
HAK_INLINE size_t block_index(const hak_span *s, const void *p) {
  const hak_class_info *info = &hak_class_table[s->class_code];
  uint64_t offset = (uintptr_t)p - s->start; /* an address below start becomes huge and fails the next test */
  if (offset >= (uint64_t)4 * HAK_SPAN_SIZE) return s->blocks;
  uint64_t index = (offset * info->reciprocal) >> 40;
  return index * info->size == offset ? (size_t)index : s->blocks;
}

size_t hak_slab_block_index(const hak_span *s, const void *p) { return block_index(s, p); }

hak_verdict hak_slab_examine(const hak_span *s, const void *p) {
  size_t index = block_index(s, p);
  if (index >= s->bumped) return HAK_VERDICT_NO_BLOCK_START;
  return (s->bits[index / 64] >> (index % 64) & 1) != 0 ? HAK_VERDICT_DOUBLE_FREE : HAK_VERDICT_OK;
}

/* Marks the blocks at the head of the list that lie in s as free; returns how many. A bad one ends it too. */
static unsigned mark_free(hak_span *s, void *const *blocks, unsigned count, hak_verdict *verdict) {
  const hak_class_info *info = &hak_class_table[s->class_code];
  uint64_t size = info->size, reciprocal = info->reciprocal, bumped_bytes = s->bumped * size, summary = s->summary;
  uint64_t *bits = s->bits;
  uintptr_t start = s->start;
  unsigned n = 0;
  for (; n < count; n++) {
    uint64_t offset = (uintptr_t)blocks[n] - start;
    if (offset >= bumped_bytes) break;
    uint64_t index = (offset * reciprocal) >> 40, mask = (uint64_t)1 << (index % 64), word = bits[index / 64];
    if (HAK_UNLIKELY(index * size != offset || (word & mask) != 0)) {
      *verdict = index * size != offset ? HAK_VERDICT_NO_BLOCK_START : HAK_VERDICT_DOUBLE_FREE;
      break;
    }
    bits[index / 64] = word | mask;
    summary |= (uint64_t)1 << (index / 64);
  }
  s->summary = summary;
  s->free_count = (uint16_t)(s->free_count + n);
  HAK_ASSERT(s->free_count <= s->bumped && s->bumped <= s->blocks);
  return n;
}

/* After blocks came back: the slab's list, or its end. */
HAK_INLINE void settle_after_put(hak_slab_set *set, hak_span *s, bool *purge_due) {
  if (HAK_LIKELY(s->free_count != s->bumped)) {
    settle(set, s);
    return;
  }
  if (s != set->bump_slab) {
    destroy(set, s, purge_due);
    return;
  }
  /* The slab being bumped stays as the class's one hot slab; bump_slab starts over from its first block. */
  if (s->list != HAK_NO_LIST) hak_slab_unlink(set, s);
  memset(s->bits, 0, ((size_t)s->bumped + 63) / 64 * sizeof *s->bits);
  s->summary = 0;
  s->free_count = s->bumped = 0;
}

void hak_slab_settle_after_put(hak_slab_set *set, hak_span *s, bool *purge_due) { settle_after_put(set, s, purge_due); }

hak_verdict hak_slab_set_put_one(hak_slab_set *set, uint32_t tag, const void *p, bool *purge_due) {
  hak_span *s = hak_region_span(hak_region_find(p), p);
  if (HAK_UNLIKELY(s->tag != tag)) return HAK_VERDICT_FREE_MEMORY;
  size_t index = block_index(s, p);
  if (HAK_UNLIKELY(index >= s->bumped)) /* of a slab that has started over, a block that was freed before */
    return s->bumped == 0 && index < s->blocks ? HAK_VERDICT_DOUBLE_FREE : HAK_VERDICT_NO_BLOCK_START;
  uint64_t mask = (uint64_t)1 << (index % 64), word = s->bits[index / 64];
  if (HAK_UNLIKELY((word & mask) != 0)) return HAK_VERDICT_DOUBLE_FREE;
  s->bits[index / 64] = word | mask;
  s->summary |= (uint64_t)1 << (index / 64);
  s->free_count++;
  settle_after_put(set, s, purge_due);
  return HAK_VERDICT_OK;
}

unsigned hak_slab_set_put(hak_slab_set *set, uint32_t tag, void *const *blocks, unsigned count, hak_verdict *verdict,
                          bool *purge_due) {
  *verdict = HAK_VERDICT_OK;
  unsigned done = 0;
  while (done < count) {
    void *p = blocks[done];
    hak_span *s = hak_region_span(hak_region_find(p), p);
    /* Of another set; or a block that comes twice, which emptied its slab the first time. */
    if (HAK_UNLIKELY(hak_load_relaxed(&s->tag) != tag)) {
      if (done == 0) *verdict = HAK_VERDICT_FREE_MEMORY;
      break;
    }
    unsigned n = mark_free(s, blocks + done, count - done, verdict);
    if (HAK_UNLIKELY(n == 0)) {
      if (*verdict == HAK_VERDICT_OK) *verdict = HAK_VERDICT_NO_BLOCK_START;
      break;
    }
    settle_after_put(set, s, purge_due);
    done += n;
    if (HAK_UNLIKELY(*verdict != HAK_VERDICT_OK)) break;
  }
  return done;
}

void hak_slab_set_release(hak_slab_set *set, hak_span *s) {
  HAK_ASSERT(s->blocks == 1 && s->free_count == 0 && s->list == HAK_NO_LIST && s != set->bump_slab && set->slabs > 0);
  hak_sub_single(&set->slabs, 1);
}

void hak_slab_set_trim(hak_slab_set *set, bool *purge_due) {
  hak_span *s = set->bump_slab;
  if (s == NULL || s->bumped != 0) return;
  set->bump_slab = NULL;
  destroy(set, s, purge_due);
}
