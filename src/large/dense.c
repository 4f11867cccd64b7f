#include "large/dense.h"

#include "pool/budget.h"
#include "region/region.h"

/* A block may have huge pages that is so many times what is proved; so many times what is sparse counts against it; and one on trust is at most such a
 * part of the memory there is. */
#define TIMES 4
#define SAMPLES 16
#define EMPTY_MOST (SAMPLES / 8) /* of the samples: a dense block has pages that hold zeros */

static int64_t proved; /* bytes */
static size_t unseen;  /* bytes of new memory that came since a look */
/* The block that has huge pages on trust; NULL: none. Another thread's may have its size for a moment. */
static const void *trusted;
static size_t trusted_bytes;

/* Two words of the page are looked at: numbers that a program computes with are zero in the lower half. */
static bool is_written(const char *page) {
  const uint32_t *words = (const uint32_t *)(const void *)(page + hak_os_page_size() / 2);
  return hak_os_is_not_zero(&words[0]) || hak_os_is_not_zero(&words[1]);
}

static bool is_dense(const void *p, size_t bytes) {
  size_t page = hak_os_page_size(), part = bytes / SAMPLES, empty = 0;
  HAK_ASSERT(part > page);
  uint64_t any = (uintptr_t)p;
  for (size_t i = 0; i < SAMPLES && empty <= EMPTY_MOST; i++) {
    any = any * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    size_t offset = i * part + (size_t)(any >> 33) % (part - page);
    empty += !is_written((const char *)hak_align_down((uintptr_t)p + offset, page));
  }
  return empty <= EMPTY_MOST;
}

/* No more is proved, or disproved, than was held at once. */
static void count(int64_t more) {
  int64_t sum = hak_load_relaxed(&proved) + more, most = (int64_t)hak_load_relaxed(&hak_budget_held_peak);
  hak_store_relaxed(&proved, sum > most ? most : sum < -most ? -most : sum);
}

/* It may not be filled yet, or be gone: that tells nothing. */
static void look_at_trusted(void) {
  const void *p = hak_load_relaxed(&trusted);
  size_t bytes = hak_load_relaxed(&trusted_bytes);
  if (p == NULL || !is_dense(p, bytes)) return;
  hak_store_relaxed(&trusted, NULL);
  count((int64_t)bytes);
}

static bool is_proved(size_t bytes) { return hak_load_relaxed(&proved) >= (int64_t)(bytes / TIMES); }

static bool may_trust(size_t bytes) {
  static size_t most; /* relaxed; 0: not read yet */
  if (hak_load_relaxed(&trusted) != NULL || hak_load_relaxed(&proved) < 0) return false;
  if (hak_load_relaxed(&most) == 0) hak_store_relaxed(&most, hak_os_memory_limit() / TIMES);
  return bytes <= hak_load_relaxed(&most);
}

/* Of what a cgroup may use nothing is granted, once that is near. */
bool hak_dense_grants(size_t bytes, bool zeros) {
  if (bytes < HAK_HUGE_PAGE || hak_config.thp == HAK_THP_OFF) return false;
  if (hak_config.thp == HAK_THP_ON) return true;
  if (hak_budget_of_group()) return false;
  if (!is_proved(bytes)) look_at_trusted();
  return is_proved(bytes) || (!zeros && bytes >= HAK_DENSE_BESIDE && may_trust(bytes));
}

bool hak_dense_is_sparse(size_t bytes) { return bytes >= HAK_HUGE_PAGE && hak_load_relaxed(&proved) < 0; }

void hak_dense_note(const void *p, size_t bytes, bool granted) {
  if (bytes < HAK_HUGE_PAGE) return;
  hak_add_relaxed(&unseen, bytes);
  if (!granted) return;
  if (is_proved(bytes)) {
    hak_add_relaxed(&proved, -(int64_t)(bytes / TIMES));
  } else {
    hak_store_relaxed(&trusted_bytes, bytes);
    hak_store_relaxed(&trusted, p);
  }
}

void hak_dense_follow(const void *p, const void *moved, size_t bytes) {
  if (HAK_LIKELY(p != hak_load_relaxed(&trusted))) return;
  hak_store_relaxed(&trusted_bytes, bytes);
  hak_store_relaxed(&trusted, moved);
}

void hak_dense_look(const void *p, size_t bytes) {
  if (HAK_UNLIKELY(p == hak_load_relaxed(&trusted))) hak_store_relaxed(&trusted, NULL);
  size_t came = hak_load_relaxed(&unseen);
  if (HAK_LIKELY(came == 0) || bytes < HAK_HUGE_PAGE) return;
  hak_sub_relaxed(&unseen, hak_min_size(came, bytes));
  count(is_dense(p, bytes) ? (int64_t)bytes : -TIMES * (int64_t)bytes);
}
