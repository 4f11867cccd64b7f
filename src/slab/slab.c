/* Bitmap arithmetic and fullness lists. Runs under the lock of the bin that has the set. */
#include "slab/slab.h"

#include <string.h>

#include "pool/budget.h"

_Static_assert(HAK_SPAN_SIZE / HAK_GRANULE == HAK_BITMAP_WORDS * 64,
               "a span's bitmap has a bit for each of its smallest blocks");
_Static_assert(HAK_PURGED_LIST == HAK_FULLNESS_LISTS - 1, "refills come to it last");

static unsigned next_colour; /* relaxed; any value will do, neighbours should differ */

/* A purged slab that leaves its list counts as resident. */
static void leave_purged(hak_span *s) {
  size_t pages = s->scan.gone_pages;
  HAK_ASSERT(hak_load_relaxed(&hak_span_pool.purged_slab_pages) >= pages);
  hak_sub_relaxed(&hak_span_pool.purged_slab_pages, pages);
  s->scan = (hak_slab_scan){0};
}

/* What has come free since is worth another call when half of what was live has: a few calls for a slab in all. */
static bool stays_purged(const hak_span *s, unsigned free_count) {
  HAK_ASSERT(free_count <= s->bumped);
  return s->list == HAK_PURGED_LIST && (s->bumped - free_count) * 2 > s->scan.live_then;
}

/* A slab joins the list, or leaves it (`sign` -1). Those of one block, which the set keeps, are not sparse; nor are
 * those whose blocks no cache has: heaps', and sampled ones. */
HAK_INLINE void count_listed(hak_slab_set *set, const hak_span *s, unsigned list, ptrdiff_t sign) {
  if (s->blocks == 1)
    hak_store_relaxed(&set->kept, (uint8_t)(set->kept + sign)); /* it is empty */
  else if (HAK_UNLIKELY(list == HAK_SPARSE_LIST) && !set->sampled)
    hak_add_relaxed(&hak_span_pool.sparse_spans, (size_t)(sign * (ptrdiff_t)hak_class_table[s->class_code].spans));
}

HAK_INLINE void unlink_slab(hak_slab_set *set, hak_span *s) {
  HAK_ASSERT(s->list < HAK_FULLNESS_LISTS);
  if (s->list == HAK_PURGED_LIST) leave_purged(s);
  count_listed(set, s, s->list, -1);
  if (s->prev != NULL)
    s->prev->next = s->next;
  else
    set->lists[s->list] = s->next;
  if (s->next != NULL) s->next->prev = s->prev;
  if (HAK_UNLIKELY(set->look_next == s)) set->look_next = s->next;
  s->list = HAK_NO_LIST;
}

HAK_INLINE void link_slab(hak_slab_set *set, hak_span *s, unsigned list) {
  HAK_ASSERT(s->list == HAK_NO_LIST && list < HAK_FULLNESS_LISTS);
  s->list = (uint8_t)list;
  count_listed(set, s, list, 1);
  s->prev = NULL;
  s->next = set->lists[list];
  if (s->next != NULL) s->next->prev = s;
  set->lists[list] = s;
}

void hak_slab_unlink(hak_slab_set *set, hak_span *s) { unlink_slab(set, s); }
void hak_slab_link(hak_slab_set *set, hak_span *s, unsigned list) { link_slab(set, s, list); }

/* The list that a slab with so many free blocks belongs to, while it is not on the last one. */
HAK_INLINE unsigned list_for(const hak_span *s, unsigned n) {
  unsigned quarter = s->blocks >> 2;
  return n == 0 ? HAK_NO_LIST : n < quarter ? 0 : n < 2 * quarter ? 1 : n < 3 * quarter ? 2 : HAK_SPARSE_LIST;
}

/* Frees of so many blocks need no look: until the slab belongs on the next list, or all that it ever handed out has
 * come back. */
void hak_slab_settle_count(hak_span *s, unsigned n) {
  unsigned next = s->list < HAK_SPARSE_LIST    ? (s->list + 1u) * (s->blocks >> 2)
                  : s->list == HAK_SPARSE_LIST ? s->blocks
                                               : 0;
  HAK_ASSERT(n <= s->bumped && s->bumped <= s->blocks);
  if (next > s->bumped) next = s->bumped;
  if (next <= n) next = n + 1;
  s->settled = (uint16_t)next;
  s->frees_left = (uint16_t)(next - n);
  HAK_ASSERT(s->frees_left > 0 && hak_slab_free_count(s) == n);
}

/* Puts the slab, which has n free blocks, on the list it asks for; on none when it has none. */
HAK_INLINE void settle(hak_slab_set *set, hak_span *s, unsigned n) {
  unsigned list = list_for(s, n);
  if (list != s->list && !stays_purged(s, n)) {
    if (s->list != HAK_NO_LIST) hak_slab_unlink(set, s);
    if (list != HAK_NO_LIST) hak_slab_link(set, s, list);
  }
  hak_slab_settle_count(s, n);
}

/* The same when blocks have been taken. A slab that stays on its list, of the first three, is settled for as many free
 * blocks as before, unless that was for more than come back. */
HAK_INLINE void settle_after_take(hak_slab_set *set, hak_span *s, unsigned n) {
  unsigned quarter = s->blocks >> 2, least = s->list * quarter;
  if (HAK_LIKELY(s->list < HAK_SPARSE_LIST) && HAK_LIKELY(n > 0) && n - least < quarter &&
      HAK_LIKELY(s->settled <= s->bumped)) {
    s->frees_left = (uint16_t)(s->settled - n);
    HAK_ASSERT(list_for(s, n) == s->list && hak_slab_free_count(s) == n);
  } else {
    settle(set, s, n);
  }
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
  /* What is written before the first block is seen where there is a colour. */
  uint32_t least = HAK_HARD(ZERO) ? 1 : 0;
  size_t colour =
      info->colours > 1 ? (least + hak_add_relaxed(&next_colour, 1) % (info->colours - least)) * HAK_COLOUR_BYTES : 0;
  s->start += colour;
  s->bits = hak_region_bits(r, s);
  s->next = s->prev = NULL;
  s->bumped = 0;
  s->blocks = (uint16_t)(((size_t)info->spans * HAK_SPAN_SIZE - colour) / info->size);
  HAK_ASSERT(s->blocks > 0 && s->blocks <= HAK_BITMAP_WORDS * 64 &&
             (size_t)info->spans * HAK_BITMAP_WORDS * 64 >= s->blocks);
  s->class_code = (uint8_t)class_code;
  s->list = HAK_NO_LIST;
  s->scan = (hak_slab_scan){0};
  hak_slab_settle_count(s, 0);
  memset(s->bits, 0, ((size_t)s->blocks + 63) / 64 * sizeof *s->bits);
  if (HAK_HARD(ZERO) && !zeroed) zero_blocks(s, info->size);
  return s;
}

static void destroy(hak_slab_set *set, hak_span *s, bool *purge_due) {
  HAK_ASSERT(s->head == s && s != set->bump_slab);
  HAK_ASSERT(hak_slab_free_count(s) == s->bumped && set->slabs > 0);
  if (s->list != HAK_NO_LIST) hak_slab_unlink(set, s);
  hak_sub_single(&set->slabs, 1);
  if (HAK_HARD_SWEEP) hak_store_relaxed(&s->bumped, 0); /* harden/sweep.c */
  hak_pool_give(s, 0, s->tag, purge_due);
}

/* Writes blocks below `end`, downwards, the lowest address first. Returns how many of at most `wanted`, which is not
 * 0. */
static unsigned take_free(hak_slab_set *set, hak_span *s, size_t block_size, void **end, unsigned wanted) {
  unsigned n = hak_slab_free_count(s), taken = (unsigned)hak_min_size(n, wanted);
  HAK_ASSERT(taken > 0 && n <= s->bumped);
  void **out = end - taken;
  size_t left = taken;
  uintptr_t at = s->start;
  for (uint64_t *bits = s->bits;; bits++, at += 64 * block_size) {
    HAK_ASSERT(bits < s->bits + ((size_t)s->blocks + 63) / 64);
    uint64_t word = *bits;
    if (word == 0) continue;
    do {
      out[left - 1] = (void *)(at + hak_lowest_bit(word) * block_size);
      word &= word - 1;
      if (--left == 0) {
        *bits = word;
        settle_after_take(set, s, n - taken);
        return taken;
      }
    } while (word != 0);
    *bits = 0;
  }
}

/* The same of blocks that were never used. */
static unsigned take_unused(hak_slab_set *set, unsigned class_code, void **end, unsigned wanted) {
  hak_span *s = set->bump_slab;
  HAK_ASSERT(s != NULL && s->bumped < s->blocks && s->class_code == class_code && wanted > 0);
  size_t block_size = hak_class_table[class_code].size;
  unsigned n = (unsigned)hak_min_size(wanted, (size_t)(s->blocks - s->bumped)), free_count = hak_slab_free_count(s);
  uintptr_t at = s->start + (size_t)s->bumped * block_size;
  for (unsigned i = n; i > 0; i--, at += block_size) *--end = (void *)at;
  s->bumped = (uint16_t)(s->bumped + n);
  hak_slab_settle_count(s, free_count);
  if (s->bumped == s->blocks) set->bump_slab = NULL;
  return n;
}

void hak_slab_settle(hak_slab_set *set, hak_span *s, unsigned free_count) { settle(set, s, free_count); }

/* Its free count may come to be what it was: that is no rest. */
void hak_slab_taken_again(hak_slab_set *set, hak_span *s) {
  if (s->list == HAK_PURGED_LIST) hak_slab_unlink(set, s);
  s->scan = (hak_slab_scan){0};
}

static unsigned take_all_free(hak_slab_set *set, unsigned class_code, void **end, unsigned wanted) {
  HAK_ASSERT(class_code < HAK_CLASS_COUNT && wanted > 0);
  size_t block_size = hak_class_table[class_code].size;
  unsigned taken = 0;
  for (unsigned list = 0; list < HAK_FULLNESS_LISTS; list++) {
    while (set->lists[list] != NULL) {
      hak_span *s = set->lists[list];
      if (list >= HAK_PURGED_LIST - 1) hak_slab_taken_again(set, s);
      taken += take_free(set, s, block_size, end - taken, wanted - taken);
      if (taken == wanted) return taken;
    }
  }
  return taken;
}

/* Blocks lie at the end of out[wanted]. */
static unsigned moved_to_begin(void **out, unsigned taken, unsigned wanted) {
  if (HAK_UNLIKELY(taken < wanted)) memmove(out, out + (wanted - taken), taken * sizeof *out);
  return taken;
}

unsigned hak_slab_set_take_free(hak_slab_set *set, unsigned class_code, void **out, unsigned wanted) {
  return moved_to_begin(out, take_all_free(set, class_code, out + wanted, wanted), wanted);
}

unsigned hak_slab_set_take_ready(hak_slab_set *set, unsigned class_code, void **out, unsigned wanted) {
  unsigned taken = take_all_free(set, class_code, out + wanted, wanted);
  if (taken < wanted && set->bump_slab != NULL)
    taken += take_unused(set, class_code, out + wanted - taken, wanted - taken);
  return moved_to_begin(out, taken, wanted);
}

unsigned hak_slab_set_take(hak_slab_set *set, unsigned class_code, uint32_t owner, void **out, unsigned wanted) {
  unsigned taken = hak_slab_set_take_ready(set, class_code, out, wanted);
  /* A short batch is better than a new slab that the caller did not need. */
  if (taken > 0) return taken;
  HAK_ASSERT(set->bump_slab == NULL); /* what it had would have been taken */
  set->bump_slab = create(set, class_code, owner);
  if (set->bump_slab == NULL) return 0;
  hak_add_single(&set->slabs, 1);
  return moved_to_begin(out, take_unused(set, class_code, out + wanted, wanted), wanted);
}

/* Index of the block that starts at p, or a larger number than any. */
size_t hak_slab_block_index(const hak_span *s, const void *p) {
  uint64_t reciprocal = hak_class_table[s->class_code].reciprocal, index,
           rest = hak_multiply((uintptr_t)p - s->start, reciprocal, &index);
  return HAK_LIKELY(rest < reciprocal) ? index : SIZE_MAX;
}

hak_verdict hak_slab_examine(const hak_span *s, const void *p) {
  size_t index = hak_slab_block_index(s, p);
  if (index >= s->bumped) return HAK_VERDICT_NO_BLOCK_START;
  return (s->bits[index / 64] >> (index % 64) & 1) != 0 ? HAK_VERDICT_DOUBLE_FREE : HAK_VERDICT_OK;
}

/* --- slabs of one block --- */

#define KEPT_LIST HAK_SPARSE_LIST /* all of their blocks are free */

HAK_INLINE bool keeps(const hak_slab_set *set) { return set->kept < set->kept_most && !hak_budget_near_now(); }

HAK_INLINE void link_kept(hak_slab_set *set, hak_span *s) {
  link_slab(set, s, KEPT_LIST);
  s->settled = 2;
  s->frees_left = 1;
  HAK_ASSERT(hak_slab_free_count(s) == 1);
}

void *hak_slab_set_take_kept(hak_slab_set *set) {
  hak_span *s = set->lists[KEPT_LIST];
  if (s == NULL) return NULL;
  HAK_ASSERT(s->blocks == 1 && s->bits[0] == 1);
  unlink_slab(set, s);
  s->bits[0] = 0;
  s->scan = (hak_slab_scan){0};
  s->settled = s->frees_left = 1;
  return (void *)s->start;
}

bool hak_slab_set_keep(hak_slab_set *set, hak_span *s, uint32_t tag, const void *p) {
  if (hak_load_relaxed(&s->tag) != tag || s->start != (uintptr_t)p || s->bits[0] != 0 || !keeps(set)) return false;
  HAK_ASSERT(s->blocks == 1);
  s->bits[0] = 1;
  link_kept(set, s);
  return true;
}

void hak_slab_settle_after_put(hak_slab_set *set, hak_span *s, unsigned n, bool *purge_due) {
  HAK_ASSERT(n > 0 && n <= s->bumped);
  if (HAK_LIKELY(n != s->bumped)) {
    settle(set, s, n);
    if (HAK_UNLIKELY(s->list == HAK_SPARSE_LIST) && hak_pool_is_over_mark_now()) *purge_due = true;
    return;
  }
  if (s->blocks == 1 && keeps(set)) {
    link_kept(set, s);
    return;
  }
  hak_slab_settle_count(s, n);
  if (s != set->bump_slab) {
    destroy(set, s, purge_due);
    return;
  }
  /* The slab being bumped stays as the class's one hot slab; bump_slab starts over from its first block. */
  if (s->list != HAK_NO_LIST) hak_slab_unlink(set, s);
  memset(s->bits, 0, ((size_t)s->bumped + 63) / 64 * sizeof *s->bits);
  s->bumped = 0;
  hak_slab_settle_count(s, 0);
}

/* What is wrong with a block that has no clear bit; the first of its call, or not. */
static HAK_COLD hak_verdict verdict_of(const hak_span *s, uint32_t tag, const void *p, bool first) {
  /* Of another set; or a block that comes twice, which emptied its slab the first time. */
  if (hak_load_relaxed(&s->tag) != tag) return first ? HAK_VERDICT_FREE_MEMORY : HAK_VERDICT_OK;
  uint64_t index = hak_slab_block_index(s, p);
  bool started_over = s->bumped == 0 && index < s->blocks; /* the block was freed before */
  return index < s->bumped || started_over ? HAK_VERDICT_DOUBLE_FREE : HAK_VERDICT_NO_BLOCK_START;
}

/* Some 25 instructions a block, in whatever order they come, and no branch that depends on it. Of the index 16 bits do:
 * in a slab it is below 4 * 4,096, and of an address in its colour, where the rest is 0 for powers of two alone, at
 * least 65,536 - 4,096. */
HAK_INLINE unsigned put_all(hak_slab_set *set, uint32_t tag, void *const *blocks, unsigned count, bool further,
                            hak_verdict *verdict, bool *purge_due) {
  const uintptr_t base = hak_load_relaxed(&hak_main_base);
  const uintptr_t spans = hak_load_relaxed(&hak_main_spans);
  const size_t limit = hak_load_acquire(&hak_main_limit);
  const uint64_t reciprocal = hak_class_table[HAK_TAG_CODE(tag) - 1].reciprocal;
  void *const *const end = blocks + count;
  ptrdiff_t at = -(ptrdiff_t)count;
  for (; at != 0; at++) {
    uintptr_t p = (uintptr_t)end[at];
    hak_span *s = further && HAK_UNLIKELY(p - base >= limit)
                      ? hak_region_span(hak_region_find((void *)p), (void *)p)
                      : hak_region_main_span(spans, p)->head;
    uint64_t index, rest = hak_multiply(p - s->start, reciprocal, &index);
    if (HAK_UNLIKELY(rest >= reciprocal) || HAK_UNLIKELY(hak_load_folded(&s->tag) != tag) ||
        HAK_UNLIKELY((uint16_t)index >= s->bumped))
      break;
    if (HAK_UNLIKELY(hak_test_and_set(s->bits, index))) break;
    if (HAK_UNLIKELY(--s->frees_left == 0)) hak_slab_settle_after_put(set, s, s->settled, purge_due);
  }
  *verdict = HAK_VERDICT_OK;
  if (HAK_UNLIKELY(at != 0))
    *verdict = verdict_of(hak_region_span(hak_region_find(end[at]), end[at]), tag, end[at], end + at == blocks);
  return (unsigned)(end + at - blocks);
}

unsigned hak_slab_set_put(hak_slab_set *set, uint32_t tag, void *const *blocks, unsigned count, hak_verdict *verdict,
                          bool *purge_due) {
  HAK_ASSERT(count > 0 && hak_code_is_class(HAK_TAG_CODE(tag)));
  /* Blocks come from magazines, into which nothing goes that lies in no region. */
  bool further = hak_load_acquire(&hak_latest_region) != NULL;
  return further ? put_all(set, tag, blocks, count, true, verdict, purge_due)
                 : put_all(set, tag, blocks, count, false, verdict, purge_due);
}

void hak_slab_set_release(hak_slab_set *set, hak_span *s) {
  HAK_ASSERT(s->blocks == 1 && hak_slab_free_count(s) == 0 && s->list == HAK_NO_LIST && s != set->bump_slab &&
             set->slabs > 0);
  hak_sub_single(&set->slabs, 1);
}

void hak_slab_set_trim(hak_slab_set *set, bool *purge_due) {
  for (unsigned list = 0; list < HAK_FULLNESS_LISTS && set->kept > 0; list++) {
    while (set->kept > 0 && set->lists[list] != NULL) destroy(set, set->lists[list], purge_due);
  }
  hak_span *s = set->bump_slab;
  if (s == NULL || s->bumped != 0) return;
  set->bump_slab = NULL;
  destroy(set, s, purge_due);
}
