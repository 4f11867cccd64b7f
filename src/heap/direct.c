/* Blocks straight out of slabs and into them, under their heap's slow lock: for threads without a heap of their own, and
 * where a packet would pin more than it saves. No misuse report, release to the system or other heap's lock while it is
 * held. */
#include "heap/remote.h"
#include "os/os.h"
#include "region/size_class.h"

void hak_outcome_report(const hak_outcome *outcome, const char *where) {
  if (HAK_UNLIKELY(outcome->verdict != HAK_VERDICT_OK))
    hak_misuse_abort(outcome->verdict, outcome->bad, outcome->bad_class ? hak_class_size(outcome->bad_class - 1) : 0,
                     where);
}

void hak_outcome_settle(const hak_outcome *outcome, const char *where) {
  hak_outcome_report(outcome, where);
  hak_heap_settle_budget(outcome->release_due);
}

static void note_bad(hak_outcome *outcome, hak_verdict verdict, void *p, unsigned c) {
  if (outcome->verdict != HAK_VERDICT_OK) return;
  outcome->verdict = verdict;
  outcome->bad = p;
  outcome->bad_class = c + 1;
}

void hak_heap_put_locked(hak_heap *h, void *p, unsigned c, hak_outcome *outcome) {
  hak_verdict verdict =
      hak_slab_set_put_one(&h->bins[c].slabs, HAK_TAG(h->id, c), p, &outcome->release_due);
  if (HAK_UNLIKELY(verdict != HAK_VERDICT_OK)) note_bad(outcome, verdict, p, c);
  outcome->classes |= (uint64_t)1 << c;
  hak_heap_note_spare(h, c);
}

void hak_heap_put_all_locked(hak_heap *h, void *const *blocks, unsigned count, unsigned c, hak_outcome *outcome) {
  hak_verdict verdict;
  unsigned n = hak_slab_set_put(&h->bins[c].slabs, HAK_TAG(h->id, c), blocks, count, &verdict, &outcome->release_due);
  if (HAK_UNLIKELY(n < count)) note_bad(outcome, verdict, blocks[n], c);
  outcome->classes |= (uint64_t)1 << c;
  hak_heap_note_spare(h, c);
}

void *hak_heap_alloc_unowned(unsigned c, size_t size) {
  /* Blocks of different threads lie side by side. */
  if ((hak_class_whole_lines >> c & 1) == 0) c = hak_class_for(hak_align_up(hak_class_size(c), HAK_CACHE_LINE));
  void *p = NULL;
  hak_outcome outcome = {0};
  hak_packet *emptied = NULL;
  hak_heap *h = hak_heap_lock_shared();
  if (hak_remote_pending(h)) hak_remote_drain_locked(h, false, &outcome, &emptied);
  if (hak_slab_set_take(&h->bins[c].slabs, c, h->id, &p, 1) > 0) hak_heap_note_request(h, c, size);
  hak_lock_drop(&h->lock);
  if (emptied != NULL) hak_remote_send_home(hak_tls_front.heap, emptied);
  hak_outcome_settle(&outcome, "in a batch freed by another thread");
  return p;
}

/* The owner's lock is held on entry, not on return. */
static void put_and_drop(hak_heap *owner, void *p, unsigned c) {
  hak_outcome outcome = {0};
  /* The tag again, now under the lock: a second free of a block whose slab has gone must not touch the next user. */
  hak_region *r = hak_region_find(p);
  if (HAK_LIKELY(hak_region_tag(r, p) == HAK_TAG(owner->id, c))) {
    hak_heap_put_locked(owner, p, c, &outcome);
    if (hak_load_relaxed(&owner->state) == HAK_HEAP_PARKED) /* it has no use for an empty slab */
      hak_heap_trim_slabs_locked(owner, (uint64_t)1 << c, &outcome);
  } else {
    outcome.verdict = HAK_VERDICT_FREE_MEMORY;
    outcome.bad = p;
  }
  hak_lock_drop(&owner->lock);
  hak_remote_look_again(owner); /* a sender may have found the lock taken */
  hak_outcome_settle(&outcome, "at the call");
}

void hak_heap_free_direct(hak_heap *owner, void *p, unsigned c) {
  hak_lock_take(&owner->lock);
  put_and_drop(owner, p, c);
}

bool hak_heap_try_free_direct(hak_heap *owner, void *p, unsigned c) {
  if (!hak_lock_try(&owner->lock)) return false;
  put_and_drop(owner, p, c);
  return true;
}
