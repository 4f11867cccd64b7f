/* A heap's empty packets come home: drainers push them by compare-and-swap, the heap's owner takes all by one exchange,
 * uses them again and sends them out. Every cell is in one place at any time and none is lost.
 *
 * mirrors src/heap/remote.c: hak_packet *old = hak_load_relaxed(&home->homecoming);
 * mirrors src/heap/remote.c: do packet->next = old;
 * mirrors src/heap/remote.c: while (!hak_cas_weak_release(&home->homecoming, &old, packet));
 * mirrors src/heap/refill.c: if (h->cells == NULL && hak_load_relaxed(&h->homecoming) != NULL)
 * mirrors src/heap/refill.c: h->cells = (hak_cell *)hak_exchange_acquire(&h->homecoming, NULL);
 *
 * mutant PUSH_IS_NO_CAS: assertion | the head is stored, not compared and swapped
 * mutant LINKS_ONCE: assertion | a failed compare-and-swap does not link the cell anew
 * mutant TAKE_IS_NO_EXCHANGE: assertion | the owner reads the head and then clears it
 * mutant PUSH_RELAXED: assertion | the link becomes visible after the head
 * mutant POP_ONE: assertion | two threads take single cells off by compare-and-swap: the ABA that taking all avoids */
#include "common.inc"

#define CELLS 3
#define TAKES 4
#define DRAINERS 2

mtype = { HOME, HELD, SENT, EMPTIED };

byte homecoming = NONE, next[CELLS];
byte cells = NONE; /* the owner's own list */
mtype place[CELLS] = HELD; /* where a cell ought to be */
byte ended;

inline push(cell) {
  old = homecoming;
#ifdef LINKS_ONCE
  next[cell] = old;
#endif
  do
  :: true ->
#if !defined(LINKS_ONCE) && !defined(PUSH_RELAXED)
     next[cell] = old;
#endif
#ifdef PUSH_IS_NO_CAS
     atomic { homecoming = cell; place[cell] = HOME };
     break
#else
     atomic {
       if
       :: homecoming == old -> homecoming = cell; place[cell] = HOME; break
       :: old = homecoming
       fi
     }
#endif
  od
#ifdef PUSH_RELAXED
  ; next[cell] = old
#endif
}

/* Takes one cell, NONE when there is none. */
inline take_cell(cell) {
#ifdef POP_ONE
  do
  :: true ->
     old = homecoming;
     if
     :: old == NONE -> cell = NONE; break
     :: else
     fi;
     following = next[old];
     atomic {
       if
       :: homecoming == old -> homecoming = following; cell = old; break
       :: else
       fi
     }
  od;
#else
  if
  :: cells == NONE && homecoming != NONE ->
#ifdef TAKE_IS_NO_EXCHANGE
     cells = homecoming;
     homecoming = NONE
#else
     atomic { cells = homecoming; homecoming = NONE }
#endif
  :: else
  fi;
  cell = cells;
  if
  :: cell != NONE -> cells = next[cell]
  :: else
  fi;
#endif
  atomic {
    if
    :: cell != NONE -> assert(place[cell] == HOME); place[cell] = HELD
    :: else
    fi
  }
}

proctype owner() {
  byte cell, old, following, n;
  for (n : 1 .. TAKES) {
    take_cell(cell);
    if
    :: cell != NONE -> next[cell] = NONE; place[cell] = SENT /* filled, and pushed on somebody's inbox */
    :: else /* a cell from the system: none of these */
    fi
  }
  ended++
}

proctype drainer() {
  byte cell, old;
end:
  do
  :: atomic {
       if
       :: place[0] == SENT -> cell = 0
       :: place[1] == SENT -> cell = 1
       :: place[2] == SENT -> cell = 2
       fi;
       place[cell] = EMPTIED
     };
     push(cell)
  od
}

#ifdef POP_ONE
/* A second thread that takes single cells, for its own use, and gives them back, one after the other. */
proctype taker() {
  byte first, second, old, following;
  take_cell(first);
  take_cell(second);
  if
  :: first != NONE -> place[first] = EMPTIED; push(first)
  :: else
  fi;
  if
  :: second != NONE -> place[second] = EMPTIED; push(second)
  :: else
  fi
}
#endif

init {
  byte at, seen, i;
  /* All are out at first: in packets that somebody drains. */
  atomic {
    for (i : 0 .. CELLS - 1) { place[i] = SENT }
    run owner();
    for (i : 1 .. DRAINERS) { run drainer() }
#ifdef POP_ONE
    run taker()
#endif
  };
  ended == 1;
  (place[0] == HOME && place[1] == HOME && place[2] == HOME);
#ifdef POP_ONE
  assert(cells == NONE);
#endif
  /* Each is on one of the two lists, once. */
  at = cells;
  do
  :: at != NONE -> seen++; assert(seen <= CELLS); at = next[at]
  :: else -> break
  od;
  at = homecoming;
  do
  :: at != NONE -> seen++; assert(seen <= CELLS); at = next[at]
  :: else -> break
  od;
  assert(seen == CELLS)
}
