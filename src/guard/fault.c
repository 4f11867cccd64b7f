#include "guard/fault.h"

#include "guard/empty.h"
#include "guard/sample.h"
#include "large/huge.h"
#include "os/os.h"
#include "os/print.h"

static void print_block(const char *what, const void *p, const char *place, const void *block, size_t bytes) {
  hak_print("hakmem: %s: %p, %s block %p (class %zu bytes) [process %d, thread %d]\n", what, p, place, block, bytes,
            hak_os_pid(), hak_os_tid());
}

static bool explain_huge(const void *p) {
  hak_huge_place at;
  /* The handler may have interrupted who has the lock. */
  if (!hak_lock_comes_free(&hak_huge_lock) || !hak_huge_locate(p, &at)) return false;
  bool before = (uintptr_t)p < (uintptr_t)at.block;
  if (at.quarantined)
    print_block("use after free", p, "in the freed", at.block, at.bytes);
  else
    print_block("access outside of a block", p, before ? "before the" : "behind the", at.block, at.bytes);
  return true;
}

/* The block of a slab next to a span that is nobody's: the last one of the span before it, the first one behind. */
static const void *block_at(const hak_region *r, size_t index, bool last, size_t *bytes) {
  if (index < r->first_span || index >= r->ready_spans) return NULL;
  unsigned code = hak_region_slab_code(r, index);
  const hak_span *s = hak_region_span_at(r, index)->head;
  if (code == HAK_CODE_IN_HEAP && HAK_TAG_OWNER(s->tag) != HAK_OWNER_PIECES) code = HAK_TAG_CODE(s->tag);
  if (!hak_code_is_class(code)) return NULL;
  HAK_ASSERT(s != NULL && s->start != 0);
  *bytes = hak_class_size(code - 1);
  return (const void *)(s->start + (last && s->blocks > 0 ? (s->blocks - 1u) * *bytes : 0));
}

static bool explain_region(const void *p) {
  for (unsigned i = 0; i < hak_region_count(); i++) {
    const hak_region *r = hak_region_at(i);
    if ((uintptr_t)p - r->base >= r->reserved_bytes) continue;
    size_t index = hak_region_index(r, p), bytes;
    if (index >= r->first_span && index < r->ready_spans && !hak_region_is_guard(index) &&
        hak_region_unless_absent((hak_region *)r, p) != NULL)
      return false; /* such as code run in a block */
    bool before = index < r->first_span; /* in the tables, which reach that far only in the largest of heaps */
    const void *block = before ? NULL : block_at(r, index - 1, true, &bytes);
    const char *place = "behind the";
    if (block == NULL) {
      block = block_at(r, before ? r->first_span : index + 1, false, &bytes);
      place = "before the";
    }
    if (block != NULL) {
      print_block("access outside of a block", p, place, block, bytes);
    } else {
      hak_print("hakmem: access outside of a block: %p, far from any [process %d, thread %d]\n", p, hak_os_pid(),
                hak_os_tid());
    }
    return true;
  }
  return false;
}

static bool explain_empty(const void *p) {
  if (!HAK_HARD(GUARDS) || !hak_empty_contains(p)) return false;
  const void *block = (const void *)hak_align_down((uintptr_t)p, HAK_EMPTY_APART);
  hak_verdict verdict;
  hak_empty_tag(block, &verdict);
  bool freed = verdict == HAK_VERDICT_DOUBLE_FREE;
  print_block(freed ? "use after free" : "access outside of a block", p, freed ? "in the freed" : "in or near the",
              block, 0);
  return true;
}

bool hak_fault_explain(const void *p) {
  if (hak_sample_explain(p)) return true;
  return HAK_HARD(GUARDS) && (explain_empty(p) || explain_region(p) || explain_huge(p));
}
