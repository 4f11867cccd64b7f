/* What a heap counts, and has charged, beside a thief and a fork. What a thread's cache has is told by where its tops stand; the thread enters the cache, and a thief takes
 * it (heap_limit.pml has their protocol, here a lock). What leaves slabs into the cache, or comes back, moves the top under a lock of the heap, and so does what is charged for
 * a credit. A mapping is made, resized or given back by functions that may be the program's, with no lock held. At any
 * moment a fork takes the heap's lock, and its child, where no other thread goes on, adds up what is left. Bytes are 1 to 3.
 *
 * mirrors src/heap/cache.c: hak_store_relaxed(&k->top[c + 1], k->top[c + 1] + n);
 * mirrors src/heap/cache.c: k->credit_base -= (int64_t)(n * size);
 * mirrors src/heap/cache.c: k->credit_base += (int64_t)(count * hak_heap_cached_size(c));
 * mirrors src/heap/cache.c: add_charged(k, (int64_t)(needed + more));
 * mirrors src/heap/blocks.c: t.refuser = hak_heap_charge(h, bytes);
 * mirrors src/heap/blocks.c: hak_huge_node *n = hak_huge_lift(p);
 * mirrors src/heap/blocks.c: size_t bytes = hak_huge_take(p, &pages);
 * mirrors src/heap/blocks.c: while (hak_huge_take_lost(&set, &bytes)) {
 *
 * mutant EMPTIED_BESIDE: assertion | a thief empties a cache that its owner is at
 * mutant TAKEN_WITHOUT_LOCK: assertion | a fork comes between what left the slabs and the top
 * mutant PUT_WITHOUT_LOCK: assertion | a fork comes between the top and what comes back
 * mutant CHARGED_WITHOUT_LOCK: assertion | a fork comes between what is charged and the credit
 * mutant CHARGED_BEFORE: assertion | a mapping is charged before it is made
 * mutant TAKEN_BEFORE: assertion | a mapping leaves the index before it is charged no more
 * mutant LOST_STAYS: assertion | the child keeps the charge for what another thread was resizing */
#include "common.inc"

byte cache_lock, heap_lock;
byte taken, charged;         /* of the heap: what has left slabs, and what is charged for it */
byte top, base;              /* of the cache: what it has; and what is charged beyond that, modulo 256 */
byte truth;                  /* bytes that the program has through the cache */
byte out, indexed, moving;   /* charged for mappings; of those in the index; and being resized */

#define CREDIT ((base + top) % 256)

inline take(bytes) {
#ifndef TAKEN_WITHOUT_LOCK
  TAKE(heap_lock);
#endif
  taken = taken + bytes;
  base = base - bytes;
  top = top + bytes;
#ifndef TAKEN_WITHOUT_LOCK
  DROP(heap_lock)
#endif
}

inline put(bytes) {
#ifndef PUT_WITHOUT_LOCK
  TAKE(heap_lock);
#endif
  put_top = top;
  top = put_top - bytes;
  base = base + bytes;
  taken = taken - bytes;
#ifndef PUT_WITHOUT_LOCK
  DROP(heap_lock)
#endif
}

inline charge(bytes) {
#ifndef CHARGED_WITHOUT_LOCK
  TAKE(heap_lock);
#endif
  charged = charged + bytes;
  base = base + bytes;
#ifndef CHARGED_WITHOUT_LOCK
  DROP(heap_lock)
#endif
}

/* A block is the program's, or the cache's: one store. */
inline pop() {
  pop_top = top;
  if
  :: pop_top > 0 && CREDIT > 0 -> d_step { top = pop_top - 1; truth = truth + 1 }
  :: else
  fi
}
inline push() {
  if
  :: truth > 0 -> pop_top = top; d_step { top = pop_top + 1; truth = truth - 1 }
  :: else
  fi
}

proctype owner() {
  byte calls = 0, pop_top, put_top;
  do
  :: calls == 4 -> break
  :: calls < 4 ->
    calls++;
    TAKE(cache_lock);
    if
    :: top == 0 -> take(2)
    :: CREDIT == 0 -> charge(2)
    :: top > 1 -> put(1)
    :: pop()
    :: push()
    fi;
    DROP(cache_lock)
  od
}

proctype thief() {
  byte put_top, has;
#ifndef EMPTIED_BESIDE
  TAKE(cache_lock);
#endif
  if
  :: top > 0 -> has = top; put(has)
  :: else
  fi;
#ifndef EMPTIED_BESIDE
  DROP(cache_lock)
#endif
}

/* One mapping: made of 1 byte, grown to 3, which the system may refuse, or shrunk from 3 to 2, and given back. */
proctype mapper() {
  byte asked, has = 1;
#ifdef CHARGED_BEFORE
  out = out + 1;
  TAKE(heap_lock); indexed = indexed + 1; DROP(heap_lock);
#else
  TAKE(heap_lock); out = out + 1; indexed = indexed + 1; DROP(heap_lock);
#endif
  TAKE(heap_lock); indexed = indexed - 1; out = out + 2; asked = 3; moving = asked; DROP(heap_lock);
  if :: has = 3 :: skip fi;
  TAKE(heap_lock); moving = 0; indexed = indexed + has; out = out - (asked - has); DROP(heap_lock);
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
    assert((taken - top) % 256 == truth && (charged - CREDIT) % 256 == truth);
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
  _nr_pr == 1 -> assert((taken - top) % 256 == truth && (charged - CREDIT) % 256 == truth && out == 0 && indexed == 0)
}
