#include "large/dense.h"

#include "pool/budget.h"
#include "region/first_touch.h"
#include "region/region.h"

/* Of what is proved: so large a block may have huge pages, and uses up the proof, so that some are looked at again. */
#define GRANTED_TIMES 4
#define SPARSE_TIMES 4 /* so much more a sparse block counts than a dense one: few among dense ones end huge pages */
#define SAMPLES 16
#define EMPTY_MOST (SAMPLES / 8) /* of the samples: a dense block has pages that hold zeros */

/* What a block that is written to here and there holds for nothing, at most: as much as one extent can, whose chunk has
 * huge pages. */
#define TRUSTED_MOST (HAK_CHUNK_SPANS << HAK_SPAN_SHIFT)
#define TRUSTED_LEAST (8 * HAK_HUGE_PAGE) /* beside so much a huge page of which a corner is used is little */
#define TRUSTED_PART 4                    /* of the memory there is, at most: what is trusted may all be wasted */

static int64_t proved; /* bytes */
size_t hak_dense_unseen;
/* CLAIMED: a thread is about to make it. Another thread's may have its size for a moment. */
#define CLAIMED ((const void *)1)
const void *hak_dense_trusted;
static size_t trusted_bytes;

/* Two words of the page are looked at: numbers that a program computes with are zero in the lower half. */
static bool is_written(const char *page) {
  const uint32_t *words = (const uint32_t *)(const void *)(page + hak_os_page_size() / 2);
  return hak_os_is_not_zero(&words[0]) || hak_os_is_not_zero(&words[1]);
}

bool hak_dense_is_filled(const void *p, size_t bytes) {
  size_t page = hak_os_page_size(), part = bytes / SAMPLES, empty = 0;
  if (part <= page) return false; /* what has shrunk to a few pages tells nothing */
  uint64_t any = (uintptr_t)p;
  for (size_t i = 0; i < SAMPLES && empty <= EMPTY_MOST; i++) {
    any = any * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    size_t offset = i * part + (size_t)(any >> 33) % (part - page);
    empty += !is_written((const char *)hak_align_down((uintptr_t)p + offset, page));
  }
  return empty <= EMPTY_MOST;
}

bool hak_dense_goes_on(const void *p, size_t old_bytes, size_t bytes) {
  return bytes / GRANTED_TIMES <= old_bytes && hak_dense_is_filled(p, old_bytes);
}

/* No more is proved, or disproved, than was held at once. */
static void count(int64_t more) {
  int64_t sum = hak_load_relaxed(&proved) + more, most = (int64_t)hak_load_relaxed(&hak_budget_held_peak);
  hak_store_relaxed(&proved, sum > most ? most : sum < -most ? -most : sum);
}

/* It may not be filled yet, or be gone: that tells nothing. */
static void look_at_trusted(void) {
  const void *p = hak_load_relaxed(&hak_dense_trusted);
  size_t bytes = hak_load_relaxed(&trusted_bytes);
  if (p == NULL || p == CLAIMED || !hak_dense_is_filled(p, bytes)) return;
  hak_store_relaxed(&hak_dense_trusted, NULL);
  count((int64_t)bytes);
}

static bool is_proved(size_t bytes) { return hak_load_relaxed(&proved) >= (int64_t)(bytes / GRANTED_TIMES); }

/* One thread of those that ask at once. */
static bool claim_trust(size_t bytes) {
  static size_t most; /* relaxed; 0: not read yet */
  const void *none = NULL;
  if (hak_load_relaxed(&hak_dense_trusted) != NULL || hak_load_relaxed(&proved) < 0) return false;
  if (hak_load_relaxed(&most) == 0) hak_store_relaxed(&most, hak_os_memory_limit() / TRUSTED_PART);
  return bytes <= hak_load_relaxed(&most) && hak_cas_acquire(&hak_dense_trusted, &none, CLAIMED);
}

/* Of what a cgroup may use nothing is granted, once that is near. */
hak_dense_grant hak_dense_grants(size_t bytes, bool zeros) {
  const hak_dense_grant none = {0, false}, all = {bytes, false}, part = {hak_min_size(bytes, TRUSTED_MOST), true};
  if (bytes < HAK_HUGE_PAGE || hak_config.thp == HAK_THP_OFF) return none;
  if (hak_config.thp == HAK_THP_ON) return all;
  if (hak_budget_of_group() || hak_huge_pages_are_dear()) return none;
  if (!is_proved(bytes)) look_at_trusted();
  if (is_proved(bytes)) return all;
  return !zeros && bytes >= TRUSTED_LEAST && claim_trust(part.bytes) ? part : none;
}

bool hak_dense_is_sparse(size_t bytes) { return bytes >= HAK_HUGE_PAGE && hak_load_relaxed(&proved) < 0; }

void hak_dense_note(const void *p, size_t bytes, hak_dense_grant granted) {
  if (bytes < HAK_HUGE_PAGE) return;
  if (p != NULL) hak_add_relaxed(&hak_dense_unseen, bytes);
  if (granted.on_trust) {
    hak_store_relaxed(&trusted_bytes, granted.bytes);
    hak_store_relaxed(&hak_dense_trusted, p);
  } else if (p != NULL && granted.bytes != 0 && is_proved(bytes)) {
    hak_add_relaxed(&proved, -(int64_t)(bytes / GRANTED_TIMES));
  }
}

void hak_dense_follow(const void *p, const void *moved, size_t bytes) {
  if (HAK_LIKELY(p != hak_load_relaxed(&hak_dense_trusted))) return;
  hak_store_relaxed(&trusted_bytes, hak_min_size(bytes, TRUSTED_MOST));
  hak_store_relaxed(&hak_dense_trusted, moved);
}

void hak_dense_look_closely(const void *p, size_t bytes) {
  if (HAK_UNLIKELY(p == hak_load_relaxed(&hak_dense_trusted))) hak_store_relaxed(&hak_dense_trusted, NULL);
  size_t came = hak_load_relaxed(&hak_dense_unseen);
  if (HAK_LIKELY(came == 0) || bytes < HAK_HUGE_PAGE) return;
  hak_sub_relaxed(&hak_dense_unseen, hak_min_size(came, bytes));
  count(hak_dense_is_filled(p, bytes) ? (int64_t)bytes : -SPARSE_TIMES * (int64_t)bytes);
}
