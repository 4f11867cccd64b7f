#include "harden/sweep.h"

#include "guard/sample.h"
#include "harden/held.h"
#include "harden/trailer.h"
#include "large/huge.h"
#include "os/os.h"

#define STEP_MS 10
#define STEP_BYTES (128 * HAK_KIB)
#define STEP_SPANS 1024 /* and no more: most spans may hold no block */
#define EXIT_MS 100

/* A slab as the walk found it. `bumped` is 0 from its end until its blocks are zeroed again, in its next life: then
 * there is nothing to look at, however long the thread that makes it is kept from going on. What was read in part
 * before and in part after that differs from what is_still reads; the bound keeps it within the spans of the class, all
 * accessible: a guard may lie behind them. */
typedef struct view {
  const hak_region *region; /* NULL: what is looked at is certain to be there */
  const hak_span *span;
  uintptr_t start;
  unsigned code, bumped;
} view;

HAK_RACY static view view_of(const hak_region *r, size_t index) {
  const hak_span *s = hak_region_span_at(r, index);
  const view nothing = {r, s, 0, HAK_CODE_NONE, 0};
  if (hak_load_relaxed(&s->head) != s) return nothing;
  unsigned code = hak_region_slab_code(r, index);
  if (!hak_code_is_class(code)) return nothing;
  view v = {r, s, hak_load_relaxed(&s->start), code, hak_load_relaxed(&s->bumped)};
  const hak_class_info *info = &hak_class_table[code - 1];
  size_t bytes = (size_t)info->spans << HAK_SPAN_SHIFT, offset = v.start - (uintptr_t)hak_region_address(r, index);
  return offset < HAK_SPAN_SIZE && offset + (size_t)v.bumped * info->size <= bytes ? v : nothing;
}

static bool is_still(const view *v) {
  if (v->region == NULL) return true;
  view now = view_of(v->region, hak_region_span_index(v->region, v->span));
  return now.code == v->code && now.start == v->start && now.bumped >= v->bumped;
}

/* Whether the block's last 8 bytes are what a free block's may be. */
HAK_RACY static bool ends_as_free(const void *p, size_t block_size) {
  if (!HAK_HARD(CANARY) || block_size <= HAK_ZEROED_BYTES) return true;
  uint64_t word = hak_trailer_word(p, block_size);
  return word == 0 || hak_trailer_fits(p, block_size, word);
}

/* Another thread may have the block, or be at it: harden/held.h. */
HAK_RACY static hak_verdict look_at(const hak_region *r, const void *p, size_t block_size) {
  hak_verdict verdict = HAK_VERDICT_OK;
  uint8_t *byte = hak_held_byte(r, hak_held_offset(r, p)), held = hak_load_acquire(byte);
  size_t size;
  hak_family family;
  uint64_t word = HAK_HARD(CANARY) && held == HAK_HELD ? hak_trailer_word(p, block_size) : 0;
  if (HAK_HARD(CANARY) && held == HAK_HELD &&
      (!hak_trailer_read(p, block_size, &size, &family) ||
       ((family & HAK_TRAILER_RESIZED) != 0 && !hak_trailer_rest_is_whole(p, block_size, size))))
    verdict = HAK_VERDICT_OVERFLOW;
  if (HAK_HARD(ZERO) && held == HAK_NOT_HELD && !(hak_is_zero(p, block_size) && ends_as_free(p, block_size)))
    verdict = HAK_VERDICT_WRITTEN_AFTER_FREE;
  __atomic_thread_fence(__ATOMIC_ACQUIRE);
  /* Another thread resized the block meanwhile. */
  if (verdict == HAK_VERDICT_OVERFLOW && hak_trailer_word(p, block_size) != word) return HAK_VERDICT_OK;
  return held == hak_load_relaxed(byte) ? verdict : HAK_VERDICT_OK;
}

/* p: a slab's first block. What its colour leaves before it stays zero; blocks of whole spans have none. */
HAK_RACY static hak_verdict look_before(const hak_region *r, const void *p, size_t block_size) {
  (void)r, (void)block_size;
  if (!HAK_HARD(ZERO) || (uintptr_t)p % HAK_SPAN_SIZE == 0) return HAK_VERDICT_OK;
  return hak_is_zero((const char *)p - HAK_COLOUR_BYTES, HAK_COLOUR_BYTES) ? HAK_VERDICT_OK : HAK_VERDICT_UNDERFLOW;
}

/* --- pages that a child does not have --- */

/* Whether [p, p + bytes) may be read. Programs keep pages from their children (MADV_DONTFORK), or protect them there,
 * and round out to what lies beside a block. So a child asks of each page that it has no business with. */
static bool is_readable(const void *p, size_t bytes) {
  if (HAK_LIKELY(!hak_load_relaxed(&hak_forked))) return true;
  uintptr_t at = hak_align_down((uintptr_t)p, hak_os_page_size()), end = (uintptr_t)p + bytes;
  while (at < end && hak_os_is_readable((const uint32_t *)at)) at += hak_os_page_size();
  return at >= end;
}

typedef hak_verdict looker(const hak_region *r, const void *p, size_t block_size);

#define LOOKS 20 /* a millisecond apart */

static HAK_COLD void look_again(looker *look, const hak_region *r, const void *p, size_t block_size, const view *v,
                                const char *where) {
  hak_verdict verdict = HAK_VERDICT_OK;
  for (int n = 0; n < LOOKS; n++) {
    verdict = look(r, p, block_size);
    if (verdict == HAK_VERDICT_OK || !is_still(v)) return;
    hak_os_sleep_ms(1);
  }
  hak_misuse_abort(verdict, p, block_size, where);
}

void hak_sweep_neighbour(const hak_region *r, const void *p, size_t block_size, const char *where) {
  view v = {0};
  if (block_size >= HAK_SPAN_SIZE) { /* a slab of its own, which may go, and others come */
    v = view_of(r, hak_region_index(r, p));
    if (v.start != (uintptr_t)p || v.bumped == 0 || hak_class_size(v.code - 1) != block_size) return;
  }
  if (is_readable(p, block_size)) look_again(look_at, r, p, block_size, &v, where);
}

void hak_sweep_before_first(const hak_region *r, const void *p, const char *where) {
  static const view certain;
  if (HAK_UNLIKELY(look_before(r, p, 0) != HAK_VERDICT_OK)) look_again(look_before, r, p, 0, &certain, where);
}

/* Returns the bytes looked at. */
static size_t sweep_slab(const hak_region *r, size_t index, const char *where) {
  view v = view_of(r, index);
  if (v.code == HAK_CODE_NONE) return 0;
  size_t block_size = hak_class_size(v.code - 1);
  const void *first = (const void *)v.start;
  uintptr_t base = hak_align_down(v.start, HAK_SPAN_SIZE), end = v.start + v.bumped * block_size;
  if (v.bumped > 0 && !is_readable((const void *)base, end - base)) return end - base;
  if (v.bumped > 0 && HAK_UNLIKELY(look_before(r, first, block_size) != HAK_VERDICT_OK))
    look_again(look_before, r, first, block_size, &v, where);
  for (unsigned i = 0; i < v.bumped; i++) {
    const void *p = (const void *)(v.start + i * block_size);
    if (HAK_UNLIKELY(look_at(r, p, block_size) != HAK_VERDICT_OK)) look_again(look_at, r, p, block_size, &v, where);
  }
  return v.bumped * block_size;
}

/* Under the lock of huge blocks. One that has just been made has no trailer yet; one that is freed leaves the table
 * first. */
HAK_RACY static bool is_damaged(const void *p, size_t bytes) {
  size_t size, looked_at = HAK_TRAILER_BYTES + HAK_FILL_MAX; /* trailer and fill, which may begin in the page before */
  hak_family family;
  if (!is_readable((const char *)p + bytes - looked_at, looked_at)) return false;
  return HAK_HARD(CANARY) && hak_trailer_word(p, bytes) != 0 && !hak_trailer_read(p, bytes, &size, &family);
}

/* Looks at a few; false: the last are among them. Each look reads a page that the program may not have touched for
 * long. */
static bool sweep_huge(uintptr_t *after, const char *where) {
  size_t bytes;
  const void *p = hak_huge_find(is_damaged, after, &bytes);
  if (HAK_UNLIKELY(p != NULL)) hak_misuse_abort(HAK_VERDICT_OVERFLOW, p, bytes, where);
  return *after != 0;
}

static size_t ready_spans(const hak_region *r) { return hak_load_acquire(&r->limit) >> HAK_SPAN_SHIFT; }

typedef struct walk {
  unsigned region;
  size_t span;
} walk;

/* The next span. False: that was the last, and the walk begins anew. */
static bool sweep_next(walk *at, size_t *bytes, const char *where) {
  if (at->region >= hak_region_count()) {
    *at = (walk){0, 0};
    return false;
  }
  const hak_region *r = hak_region_at(at->region);
  at->span = hak_max_size(at->span, r->first_span);
  if (at->span < ready_spans(r))
    *bytes += sweep_slab(r, at->span++, where);
  else
    *at = (walk){at->region + 1, 0};
  return true;
}

static uint32_t busy; /* 1: a thread walks. Taking is an acquire, dropping a release */
static walk here;     /* of the thread that walks */
static uintptr_t here_huge;

void hak_sweep_some(void) {
  static uint64_t due_ms; /* relaxed */
  if (hak_load_relaxed(&hak_forked)) return;
  uint64_t now_ms = hak_os_now_ms();
  if (now_ms < hak_load_relaxed(&due_ms) || hak_exchange_acquire(&busy, 1) != 0) return;
  hak_store_relaxed(&due_ms, now_ms + STEP_MS);
  static const char where[] = "by the walk over all blocks";
  size_t bytes = 0;
  for (unsigned n = 0; n < STEP_SPANS && bytes < STEP_BYTES && sweep_next(&here, &bytes, where); n++) {
  }
  sweep_huge(&here_huge, where);
  hak_store_release(&busy, 0);
}

void hak_sweep_fork_child(void) { hak_store_relaxed(&busy, 0); }

/* From a random span on: of a large heap another part each time; of many huge blocks too, whose places depend on their
 * addresses. */
static void sweep_all(const char *where) {
  uint64_t until_ms = hak_os_now_ms() + EXIT_MS;
  hak_sample_look_at_all(where, is_readable);
  if (hak_region_count() == 0 || !hak_lock_comes_free(&hak_huge_lock)) return;
  const hak_region *r = hak_region_at(0);
  const walk from = {0, r->first_span + hak_trailer_secret[0] % (ready_spans(r) - r->first_span)};
  walk at = from;
  size_t bytes = 0;
  bool round = false; /* the walk has passed the last span */
  uintptr_t after = 0;
  while (sweep_huge(&after, where) && hak_os_now_ms() + EXIT_MS / 2 < until_ms) {
  }
  while (!(round && at.span >= from.span) && hak_os_now_ms() < until_ms) round |= !sweep_next(&at, &bytes, where);
}

void hak_sweep_at_exit(void) { sweep_all("when the process ended"); }

void hak_sweep_at_crash(void) { sweep_all("after a fault"); }
