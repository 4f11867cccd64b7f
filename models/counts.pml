/* What a heap counts, and has charged for its mappings, beside a thief and a fork. A thread counts in its cache, which it enters and a thief takes (reach.pml has their protocol, here a
 * lock); either folds the cache's counts into the heap's. A mapping is made, resized or given back by functions that may be the program's, with no lock held. At any
 * moment a fork takes the heap's lock, and its child, where no other thread goes on, adds up what is left. Bytes are 1 to 3.
 *
 * mirrors src/heap/cache.h: hak_store_relaxed(&k->most, most | HAK_HEAP_RISES);
 * mirrors src/heap/cache.c: hak_add_relaxed(&h->live, (size_t)hak_heap_live(k));
 * mirrors src/heap/blocks.c: t.refuser = hak_heap_charge(h, bytes);
 * mirrors src/heap/blocks.c: hak_huge_node *n = hak_huge_lift(p);
 * mirrors src/heap/blocks.c: size_t bytes = hak_huge_take(p, &pages);
 * mirrors src/heap/blocks.c: while (hak_huge_take_lost(&set, &bytes)) {
 *
 * mutant FOLDED_BESIDE: assertion | a thief folds a cache that its owner is at
 * mutant FOLDED_WITHOUT_LOCK: assertion | a fork comes between the two halves of a fold
 * mutant RISES_IN_TWO: assertion | a new most, and what is below it, change one after the other
 * mutant CHARGED_BEFORE: assertion | a mapping is charged before it is made
 * mutant TAKEN_BEFORE: assertion | a mapping leaves the index before it is charged no more
 * mutant LOST_STAYS: assertion | the child keeps the charge for what another thread was resizing */
#include "common.inc"

byte cache_lock, heap_lock;
byte most, below; /* of the cache; RISES in most: `below` does not count */
byte live;                   /* of the heap, without the cache's, which may be below 0: modulo 256 */
byte truth;                  /* bytes that the program has through the cache */
byte out, indexed, moving;   /* charged for mappings; of those in the index; and being resized */

#define RISES 128
#define CACHED (most >= RISES -> most - RISES : most - below)

inline count_alloc(bytes) {
  if
  :: below >= bytes -> d_step { below = below - bytes; truth = truth + bytes }
  :: else ->
#ifdef RISES_IN_TWO
    d_step { most = most + bytes - below; truth = truth + bytes };
    below = 0
#else
    d_step { most = (most + bytes - below) | RISES; truth = truth + bytes };
    below = 0;
    most = most - RISES
#endif
  fi
}

inline count_free(bytes) { d_step { below = below + bytes; truth = truth - bytes } }

inline fold() {
#ifndef FOLDED_WITHOUT_LOCK
  TAKE(heap_lock);
#endif
  live = live + CACHED;
  most = 0;
  below = 0;
#ifndef FOLDED_WITHOUT_LOCK
  DROP(heap_lock)
#endif
}

proctype owner() {
  byte calls = 0;
  do
  :: calls == 4 -> break
  :: calls < 4 ->
    calls++;
    if
    :: TAKE(cache_lock); count_alloc(2); DROP(cache_lock)
    :: TAKE(cache_lock); if :: truth > 0 -> count_free(1) :: else fi; DROP(cache_lock)
    :: TAKE(cache_lock); fold(); DROP(cache_lock)
    fi
  od
}

proctype thief() {
  byte takes = 0;
  do
  :: takes == 2 -> break
#ifdef FOLDED_BESIDE
  :: takes < 2 -> takes++; fold()
#else
  :: takes < 2 -> takes++; TAKE(cache_lock); fold(); DROP(cache_lock)
#endif
  od
}

/* One mapping: made of 1 byte, grown to 3, which the system may refuse, or shrunk from 3 to 2, and given back. */
proctype mapper() {
  byte charged, has = 1;
#ifdef CHARGED_BEFORE
  out = out + 1;
  TAKE(heap_lock); indexed = indexed + 1; DROP(heap_lock);
#else
  TAKE(heap_lock); out = out + 1; indexed = indexed + 1; DROP(heap_lock);
#endif
  TAKE(heap_lock); indexed = indexed - 1; out = out + 2; charged = 3; moving = charged; DROP(heap_lock);
  if :: has = 3 :: skip fi;
  TAKE(heap_lock); moving = 0; indexed = indexed + has; out = out - (charged - has); DROP(heap_lock);
  if
  :: has == 3 ->
    TAKE(heap_lock); indexed = indexed - 3; moving = 3; DROP(heap_lock);
    TAKE(heap_lock); moving = 0; indexed = indexed + 2; out = out - 1; has = 2; DROP(heap_lock)
  :: else
  fi;
#ifdef TAKEN_BEFORE
  indexed = indexed - has;
  TAKE(heap_lock); out = out - has; DROP(heap_lock)
#else
  TAKE(heap_lock); indexed = indexed - has; out = out - has; DROP(heap_lock)
#endif
}

/* The child's look, of the moment at which the fork has the lock. */
proctype forker() {
  TAKE(heap_lock);
  atomic {
    assert((live + CACHED) % 256 == truth);
#ifdef LOST_STAYS
    assert(out == indexed);
#else
    assert(out - moving == indexed);
#endif
  }
  DROP(heap_lock)
}

init {
  atomic {
    run owner();
    run thief();
    run mapper();
    run forker()
  }
  _nr_pr == 1 -> assert((live + CACHED) % 256 == truth && out == 0 && indexed == 0)
}
