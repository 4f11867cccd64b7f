#include "large/dense.h"

#include "pool/budget.h"
#include "region/region.h"

#define GRANT_TIMES 4
#define SPARSE_TIMES 4
#define PROVED_MOST ((int64_t)(64 * HAK_GIB))
#define SAMPLES 16
#define EMPTY_MOST 2 /* of the samples: a dense block has pages that hold zeros */

static int64_t proved; /* bytes */
static size_t unseen;  /* bytes of new memory that came since a look */

/* Of what a cgroup may use nothing is granted, once that is near. */
bool hak_dense_grants(size_t bytes) {
  if (bytes < HAK_HUGE_PAGE || hak_config.thp == HAK_THP_OFF) return false;
  if (hak_config.thp == HAK_THP_ON) return true;
  return hak_load_relaxed(&proved) >= (int64_t)(bytes / GRANT_TIMES) && !hak_budget_of_group();
}

bool hak_dense_is_sparse(size_t bytes) { return bytes >= HAK_HUGE_PAGE && hak_load_relaxed(&proved) < 0; }

void hak_dense_note(size_t bytes, bool granted) {
  if (bytes < HAK_HUGE_PAGE) return;
  if (granted) hak_add_relaxed(&proved, -(int64_t)(bytes / GRANT_TIMES));
  hak_add_relaxed(&unseen, bytes);
}

/* Two words of the page are looked at: numbers that a program computes with are zero in the lower half. */
static bool is_written(const char *page) {
  const uint32_t *words = (const uint32_t *)(const void *)(page + hak_os_page_size() / 2);
  return hak_os_is_not_zero(&words[0]) || hak_os_is_not_zero(&words[1]);
}

void hak_dense_look(const void *p, size_t bytes) {
  size_t came = hak_load_relaxed(&unseen);
  if (HAK_LIKELY(came == 0) || bytes < HAK_HUGE_PAGE) return;
  hak_sub_relaxed(&unseen, hak_min_size(came, bytes));
  size_t page = hak_os_page_size(), part = bytes / SAMPLES, empty = 0;
  uint64_t any = (uintptr_t)p;
  for (size_t i = 0; i < SAMPLES && empty <= EMPTY_MOST; i++) {
    any = any * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    size_t offset = i * part + (size_t)(any >> 33) % (part - page);
    empty += !is_written((const char *)hak_align_down((uintptr_t)p + offset, page));
  }
  int64_t more = empty <= EMPTY_MOST ? (int64_t)bytes : -SPARSE_TIMES * (int64_t)bytes, sum = hak_load_relaxed(&proved) + more;
  hak_store_relaxed(&proved, sum > PROVED_MOST ? PROVED_MOST : sum < -PROVED_MOST ? -PROVED_MOST : sum);
}
