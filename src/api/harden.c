#include "api/harden.h"

#include <errno.h>
#include <string.h>

#include "api/api.h"
#include "base/policy.h"
#include "guard/foreign.h"
#include "heap/heap.h"
#include "large/huge.h"
#include "large/run.h"
#include "os/os.h"
#include "pool/release.h"

#define TRAILER_BYTES (HAK_HARD(CANARY) ? sizeof(uint64_t) : 0)

/* --- secrets --- */

static uint64_t secret[2]; /* never 0 once drawn; the second is set last (release) and read first (acquire) */

HAK_INLINE uint64_t mix(uint64_t x) {
  x ^= x >> 32;
  x *= 0xd6e8feb86659fd93u; /* any odd constant with well spread bits */
  x ^= x >> 32;
  x *= 0xd6e8feb86659fd93u;
  return x ^ x >> 32;
}

static HAK_COLD void draw_secrets(void) {
  uint64_t drawn[2] = {0};
  hak_os_random(drawn, sizeof drawn);
  for (unsigned i = 0; i < 2; i++) {
    uint64_t none = 0;
    uint64_t value = drawn[i] | 1;
    /* Two first calls at once: one of the values stays. */
    __atomic_compare_exchange_n(&secret[i], &none, value, 0, __ATOMIC_RELEASE, __ATOMIC_RELAXED);
  }
}

HAK_INLINE uint64_t key_of(const void *p) {
  if (HAK_UNLIKELY(hak_load_acquire(&secret[1]) == 0)) draw_secrets();
  return mix((uintptr_t)p ^ hak_load_relaxed(&secret[0]));
}

/* --- the trailer: slack (bytes between request and trailer) << 8 | family in the low 40 bits, a check of both above --- */

#define CONTENT_BITS 40
#define CONTENT_MASK (((uint64_t)1 << CONTENT_BITS) - 1)

HAK_INLINE uint64_t seal(uint64_t content, uint64_t key) {
  uint64_t check = mix(content ^ key ^ hak_load_relaxed(&secret[1])) << CONTENT_BITS;
  return (check | content) ^ key;
}

/* What lies behind the request, as far as there is room before the trailer; what is further behind is not looked at. */
typedef struct fill {
  uint64_t words[4];
} fill;

static fill fill_of(uint64_t key) {
  uint64_t word = key | 0x0101010101010101u; /* no byte is 0: that is what a string's end writes */
  return (fill){{word, word, word, word}};
}

/* Of a sampled block it is not aligned. */
static char *trailer_of(const void *p, size_t block_size) {
  return (char *)((uintptr_t)p + block_size - sizeof(uint64_t));
}

static void write_trailer(void *p, size_t block_size, size_t size, hak_family family) {
  if (!HAK_HARD(CANARY)) return;
  uint64_t key = key_of(p);
  size_t slack = block_size - sizeof(uint64_t) - size;
  const fill pattern = fill_of(key);
  memcpy((char *)p + size, &pattern, hak_min_size(slack, sizeof pattern));
  uint64_t word = seal((uint64_t)slack << 8 | (uint64_t)family, key);
  memcpy(trailer_of(p, block_size), &word, sizeof word);
}

/* What was asked for when the block was made; a damaged trailer or fill ends the program. */
static size_t read_trailer(const void *p, size_t block_size, const char *where, hak_family *family) {
  uint64_t key = key_of(p), word;
  memcpy(&word, trailer_of(p, block_size), sizeof word);
  uint64_t content = (word ^ key) & CONTENT_MASK;
  size_t slack = (size_t)(content >> 8);
  if (HAK_UNLIKELY(seal(content, key) != word || slack > block_size - sizeof(uint64_t)))
    hak_misuse_abort(HAK_VERDICT_OVERFLOW, p, block_size, where);
  size_t size = block_size - sizeof(uint64_t) - slack;
  const fill pattern = fill_of(key);
  if (HAK_UNLIKELY(memcmp((const char *)p + size, &pattern, hak_min_size(slack, sizeof pattern)) != 0))
    hak_misuse_abort(HAK_VERDICT_OVERFLOW, p, size, where);
  *family = (hak_family)(content & 0xff);
  return size;
}

/* --- the byte a block: 1 while the program has it. Bytes of different blocks are written by different threads without
 * disturbing each other. Of two frees of one block at the same instant both may find 1; the slab's bitmap tells then. --- */

static uint8_t *held_byte(const hak_region *r, const void *p) {
  return &r->held[((uintptr_t)p - r->base) / HAK_GRANULE];
}

static bool is_held(const hak_region *r, const void *p) {
  return !HAK_HARD(CHECKED_FREE) || ((uintptr_t)p % HAK_GRANULE == 0 && hak_load_relaxed(held_byte(r, p)) == 1);
}

__attribute__((noreturn)) static HAK_COLD void report_not_held(const hak_region *r, const void *p, const char *where) {
  const hak_span *s = hak_region_span(r, p);
  bool start = hak_slab_block_index(s, p) < s->blocks;
  hak_misuse_abort(start ? HAK_VERDICT_DOUBLE_FREE : HAK_VERDICT_NO_BLOCK_START, p, hak_class_size(s->class_code), where);
}

/* --- zero --- */

static void check_zero(const void *p, size_t block_size) {
  const uint64_t *word = p;
  /* Each word equals the one before it, and the first is 0: libc compares faster than a loop here would. */
  if (HAK_LIKELY(word[0] == 0 && memcmp(word, word + 1, block_size - sizeof *word) == 0)) return;
  const char *byte = p;
  while (*byte == 0) byte++;
  hak_misuse_abort(HAK_VERDICT_WRITTEN_AFTER_FREE, p, block_size, "when the block was to be used again");
}

/* --- random choice --- */

/* Swaps the block that would be popped with any other of the loaded magazine. */
static void choose_any(hak_heap *h, unsigned class_code) {
  void **first, **top = hak_heap_loaded(h, class_code, &first);
  if (top <= first) return;
  void **other = first + (hak_heap_random(h) >> 32) % (size_t)(top - first + 1), *kept = *other;
  *other = *top;
  *top = kept;
}

/* --- quarantine: a ring of blocks a heap, the oldest leaves --- */

#define RING_BLOCKS 256
#define RING_BYTES_MAX ((size_t)1 << 20)

struct hak_quarantine {
  size_t first, count, bytes;
  void *blocks[RING_BLOCKS];
};

static struct hak_quarantine *quarantine_of(hak_heap *h) {
  if (h->quarantine == NULL)
    h->quarantine = hak_cell_take_block((sizeof(struct hak_quarantine) + HAK_CELL_SIZE - 1) / HAK_CELL_SIZE);
  return h->quarantine;
}

static void release_oldest(struct hak_quarantine *q) {
  void *p = q->blocks[q->first];
  q->first = (q->first + 1) % RING_BLOCKS;
  q->count--;
  q->bytes -= hak_block_size(p);
  hak_raw_free(p);
}

static void free_small(void *p, size_t block_size) {
  hak_heap *h = HAK_HARD(QUARANTINE) ? hak_heap_current() : NULL;
  struct hak_quarantine *q = h == NULL ? NULL : quarantine_of(h);
  if (q == NULL) {
    hak_raw_free(p);
    return;
  }
  while (q->count == RING_BLOCKS || (q->count > 0 && q->bytes + block_size > RING_BYTES_MAX)) release_oldest(q);
  q->blocks[(q->first + q->count++) % RING_BLOCKS] = p;
  q->bytes += block_size;
}

bool hak_hard_flush(void) {
  hak_heap *h = hak_tls_front.heap;
  if (!HAK_HARD(QUARANTINE) || h == NULL || h->quarantine == NULL || h->quarantine->count == 0) return false;
  while (h->quarantine->count > 0) release_oldest(h->quarantine);
  return true;
}

/* --- entry points --- */

static void *obtain_small(size_t total, size_t align) {
  hak_heap *h = hak_tls_front.heap;
  if (HAK_HARD(RANDOM) && h != NULL) {
    int class_code = align == 0 ? (int)hak_class_for(total) : hak_class_for_aligned(total, align);
    if (class_code >= 0) choose_any(h, (unsigned)class_code);
  }
  return align == 0 ? hak_raw_malloc(total) : hak_raw_aligned(align, total);
}

static void *obtain_large(size_t total, size_t align, bool *zeroed) {
  return hak_raw_large(total, hak_max_size(align, hak_os_page_size()), zeroed);
}

/* A block for `size` bytes, trailer written. *zeroed: the request reads as zero. */
HAK_INLINE void *obtain(size_t size, size_t align, hak_family family, bool *zeroed) {
  *zeroed = false;
  if (HAK_UNLIKELY(size > PTRDIFF_MAX - TRAILER_BYTES)) {
    errno = ENOMEM;
    return NULL;
  }
  size_t total = size + TRAILER_BYTES;
  bool large = total > HAK_SMALL_MAX;
  void *p = large ? obtain_large(total, align, zeroed) : obtain_small(total, align);
  if (HAK_UNLIKELY(p == NULL) && hak_hard_flush()) p = large ? obtain_large(total, align, zeroed) : obtain_small(total, align);
  if (HAK_UNLIKELY(p == NULL)) {
    errno = ENOMEM;
    return NULL;
  }
  hak_region *r = hak_region_find(p);
  /* A small request may be a run, if it is aligned, or a sampled block. */
  bool slab = !large && r != NULL && (align == 0 || HAK_TAG_OWNER(hak_region_tag(r, p)) != 0);
  if (slab && HAK_HARD(CHECKED_FREE)) hak_store_relaxed(held_byte(r, p), 1);
  if (!HAK_HARD(CANARY) && !HAK_HARD(ZERO)) return p;
  size_t block_size = hak_block_size(p);
  if (slab && HAK_HARD(ZERO)) check_zero(p, block_size);
  *zeroed |= slab && HAK_HARD(ZERO);
  write_trailer(p, block_size, size, family);
  return p;
}

void *hak_hard_alloc(size_t size, size_t align, hak_family family) {
  bool zeroed;
  return obtain(size, align, family, &zeroed);
}

void *hak_hard_calloc(size_t count, size_t size) {
  size_t bytes;
  bool zeroed;
  if (HAK_UNLIKELY(__builtin_mul_overflow(count, size, &bytes))) {
    errno = ENOMEM;
    return NULL;
  }
  void *p = obtain(bytes, 0, HAK_FAMILY_MALLOC, &zeroed);
  if (p != NULL && !zeroed) memset(p, 0, bytes);
  return p;
}

/* Ends the program unless the block at p, of block_size bytes, may be freed so. */
static void check_block(const void *p, size_t block_size, size_t said, hak_family freed_as, const char *where) {
  if (!HAK_HARD(CANARY)) return;
  hak_family family;
  size_t size = read_trailer(p, block_size, where, &family);
  if (HAK_UNLIKELY(family != freed_as)) hak_misuse_abort(HAK_VERDICT_KIND_MISMATCH, p, size, where);
  if (HAK_UNLIKELY(said != HAK_SIZE_UNKNOWN && said != size)) hak_misuse_abort(HAK_VERDICT_SIZE_MISMATCH, p, size, where);
}

static void free_run(hak_region *r, void *p, size_t said, hak_family family) {
  size_t block_size = hak_run_size(r, p);
  hak_verdict verdict = hak_run_keep(r, p);
  if (HAK_UNLIKELY(verdict != HAK_VERDICT_OK)) hak_misuse_abort(verdict, p, block_size, "at the call");
  check_block(p, block_size, said, family, "at the call");
  if (HAK_HARD(ZERO)) memset(p, 0, block_size); /* its spans may become slabs, whose blocks are expected to be zero */
  bool release_due = false;
  hak_run_give_kept(p, &release_due);
  if (release_due) hak_release_excess();
}

void hak_hard_free(void *p, size_t said, hak_family family) {
  if (p == NULL) return;
  hak_region *r = hak_region_find(p);
  if (HAK_UNLIKELY(r == NULL)) {
    size_t block_size = hak_block_size(p);
    if (block_size != 0) check_block(p, block_size, said, family, "at the call");
    hak_raw_free(p);
    return;
  }
  uint32_t tag = hak_region_tag(r, p);
  if (HAK_LIKELY(HAK_TAG_OWNER(tag) != 0)) {
    size_t block_size = hak_class_size(HAK_TAG_CODE(tag));
    if (HAK_UNLIKELY(!is_held(r, p))) report_not_held(r, p, "at the call");
    if (HAK_HARD(CHECKED_FREE)) hak_store_relaxed(held_byte(r, p), 0);
    check_block(p, block_size, said, family, "at the call");
    if (HAK_HARD(ZERO)) memset(p, 0, block_size);
    free_small(p, block_size);
  } else if (HAK_TAG_CODE(tag) == HAK_CODE_RUN) {
    free_run(r, p, said, family);
  } else {
    hak_raw_free(p); /* says what is wrong */
  }
}

/* The size that was asked for; 0: no live block of ours. */
static size_t live_size(const void *p, const char *where, size_t *block_size) {
  hak_region *r = hak_region_find(p);
  *block_size = hak_block_size(p);
  if (*block_size == 0) return 0;
  bool slab = r != NULL && HAK_TAG_OWNER(hak_region_tag(r, p)) != 0;
  if (slab && !is_held(r, p)) {
    *block_size = 0;
    return 0;
  }
  hak_family family;
  return HAK_HARD(CANARY) ? read_trailer(p, *block_size, where, &family) : *block_size;
}

size_t hak_hard_usable_size(const void *p, const void *caller) {
  if (p == NULL) return 0;
  size_t block_size, size = live_size(p, "by malloc_usable_size", &block_size);
  if (block_size == 0) return hak_raw_usable_size(p, caller);
  return size;
}

void *hak_hard_realloc(void *p, size_t size, const void *caller) {
  if (p == NULL) return hak_hard_alloc(size, 0, HAK_FAMILY_MALLOC);
  if (HAK_UNLIKELY(size > PTRDIFF_MAX - TRAILER_BYTES)) {
    errno = ENOMEM;
    return NULL;
  }
  size_t block_size, old_size = live_size(p, "by realloc", &block_size);
  if (HAK_UNLIKELY(block_size == 0)) {
    if (hak_region_find(p) == NULL) return hak_raw_realloc(p, size, caller);
    hak_misuse_abort(HAK_VERDICT_FREE_MEMORY, p, 0, "by realloc");
  }
  if (size == 0) {
    hak_hard_free(p, HAK_SIZE_UNKNOWN, HAK_FAMILY_MALLOC);
    return NULL;
  }
  check_block(p, block_size, HAK_SIZE_UNKNOWN, HAK_FAMILY_MALLOC, "by realloc");
  size_t total = size + TRAILER_BYTES;
  if (total <= block_size && total >= block_size / 2) {
    write_trailer(p, block_size, size, HAK_FAMILY_MALLOC);
    return p;
  }
  if (total > HAK_RUN_MAX / 2 && hak_huge_size(p) != 0) {
    void *moved = hak_huge_resize(p, total);
    if (moved == NULL)
      errno = ENOMEM;
    else
      write_trailer(moved, hak_huge_size(moved), size, HAK_FAMILY_MALLOC);
    return moved;
  }
  void *q = hak_hard_alloc(size, 0, HAK_FAMILY_MALLOC);
  if (q == NULL) return NULL;
  memcpy(q, p, hak_min_size(old_size, size));
  hak_hard_free(p, HAK_SIZE_UNKNOWN, HAK_FAMILY_MALLOC);
  return q;
}
