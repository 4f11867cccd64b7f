/* Borrowing: a heap that has no free block of a class takes one of another heap, with its own slow lock held and the
 * lender's tried. Three heaps, owners that borrow and send back, and a fork that takes every lock: nobody waits in a ring, a
 * block is handed out once, and a class that has free blocks is known to have some.
 *
 * mirrors src/heap/refill.c: if ((spare & bit) == 0 || lender == h || !hak_lock_try(&lender->lock)) continue;
 * mirrors src/heap/refill.c: if (n < wanted) hak_store_relaxed(&lender->spare_classes, hak_load_relaxed(&lender->spare_classes) & ~bit);
 * mirrors src/heap/refill.c: unsigned borrowed = borrow(h, c, out + taken, wanted - taken);
 * mirrors src/heap/heap.h: if ((spare & bit) == 0) hak_store_relaxed(&h->spare_classes, spare | bit);
 * mirrors src/heap/heap.c: for (uint32_t id = HAK_EMERGENCY_ID; id < id_limit; id++) hak_lock_take(&hak_heap_by_id(id)->lock);
 *
 * mutant BORROW_WAITS: stuck | the borrower waits for the lender's lock
 * mutant BORROW_WITHOUT_LOCK: assertion | it does not take the lender's lock
 * mutant SENDS_WITH_OWN_LOCK: stuck | blocks go back to the lender with the own slow lock held
 * mutant SPARE_CLEARED_AFTER_DROP: assertion | the hint is cleared when the lender's lock is no longer held */
#include "common.inc"

#define HEAPS 3

byte registry, slow[HEAPS], in_slabs[HEAPS];
byte free[HEAPS];         /* blocks in the heap's slabs: there is one a heap, with its own thread at first */
bool spare[HEAPS] = true; /* the hint */
bool lent[HEAPS] = true;  /* the block is with some thread */
byte ended;

inline enter(eh) { atomic { in_slabs[eh]++; assert(in_slabs[eh] == 1) } }

inline take_block(th) { atomic { assert(free[th] > 0 && !lent[th]); free[th]--; lent[th] = true } }

inline put_block(ph) {
  enter(ph);
  atomic { assert(lent[ph]); free[ph]++; lent[ph] = false; spare[ph] = true };
  in_slabs[ph]--
}

/* hak_slab_set_take_free: two are wanted, there is one at most, so all is taken and the hint cleared. */
inline borrow_from(l) {
  if
  :: spare[l] && got == NONE && l != h ->
#ifdef BORROW_WAITS
     TAKE(slow[l]);
     locked = true;
#elif defined(BORROW_WITHOUT_LOCK)
     locked = true;
#else
     TRY(slow[l], locked);
#endif
     if
     :: locked ->
        enter(l);
        if
        :: free[l] > 0 -> take_block(l); got = l
        :: else
        fi;
#ifndef SPARE_CLEARED_AFTER_DROP
        spare[l] = false;
#endif
        in_slabs[l]--;
#ifndef BORROW_WITHOUT_LOCK
        DROP(slow[l]);
#endif
#ifdef SPARE_CLEARED_AFTER_DROP
        spare[l] = false;
#endif
        locked = false
     :: else
     fi
  :: else
  fi
}

inline refill() {
  TAKE(slow[h]);
  enter(h);
  if
  :: free[h] > 0 -> take_block(h); got = h
  :: else
  fi;
  in_slabs[h]--;
  other = (h + 1) % HEAPS;
  borrow_from(other);
  other = (h + 2) % HEAPS;
  borrow_from(other);
  atomic { other = 0; DROP(slow[h]) }
}

/* A block goes back, in a packet that is drained by whoever sends it, or from the own front. */
inline send_back(block) {
#ifdef SENDS_WITH_OWN_LOCK
  if
  :: block != h -> TAKE(slow[h])
  :: else
  fi;
#endif
  TAKE(slow[block]);
  put_block(block);
  DROP(slow[block]);
#ifdef SENDS_WITH_OWN_LOCK
  if
  :: block != h -> DROP(slow[h])
  :: else
  fi;
#endif
  block = NONE
}

proctype owner(byte h; byte rounds) {
  byte own = h, got = NONE, other, n;
  bool locked;
  for (n : 1 .. rounds) {
    if
    :: own != NONE -> send_back(own)
    :: true
    fi;
    refill();
    if
    :: got != NONE -> send_back(got)
    :: else
    fi
  }
  if
  :: own != NONE -> send_back(own)
  :: else
  fi;
  ended++
}

proctype forker() {
  byte i;
  TAKE(registry);
  for (i : 0 .. HEAPS - 1) { TAKE(slow[i]) }
  atomic {
    for (i : 0 .. HEAPS - 1) {
      assert(in_slabs[i] == 0);
      assert(free[i] == 0 || spare[i]) /* no lock is held but ours: the hint is right */
    }
    i = 0
  };
  for (i : 0 .. HEAPS - 1) { DROP(slow[i]) }
  atomic { DROP(registry); i = 0 };
  ended++
}

init {
  byte i;
  atomic { run owner(0, 1); run owner(1, 1); run owner(2, 1); run forker() };
  ended == HEAPS + 1;
  for (i : 0 .. HEAPS - 1) { assert(free[i] == 1 && !lent[i] && spare[i]) }
}
