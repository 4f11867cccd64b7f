/* Life of heaps: two threads that each park their heap (WARM), may adopt one again and park that, a trimmer, and a sender
 * without a part in it. One heap may be warm, so a second park makes the first one surplus and cold (PARKED). Who takes a
 * heap off the list is the only one to use its owner's fields; in the end no packet waits in a heap and no block is gone.
 *
 * mirrors src/heap/heap.c: hak_store_seq(&h->state, state);
 * mirrors src/heap/heap.c: list_heap(warm_count == 0 ? &parked : &(*oldest_warm())->next_parked, h, HAK_HEAP_PARKED);
 * mirrors src/heap/heap.c: h = unlist_heap(&parked);
 * mirrors src/heap/heap.c: hak_store_seq(&h->state, HAK_HEAP_ACTIVE);
 * mirrors src/heap/heap.c: if (warm_count > WARM_MAX) surplus = unlist_heap(oldest_warm());
 * mirrors src/heap/heap.c: HAK_SCHEDULE_POINT("park: parked, inbox not read");
 * mirrors src/heap/heap.c: if (surplus != NULL) make_cold(surplus);
 * mirrors src/heap/remote.c: if (hak_load_seq(&owner->state) != HAK_HEAP_ACTIVE)
 * mirrors src/heap/refill.c: if (hak_remote_pending(h)) hak_remote_drain(h);
 *
 * mutant PARK_WITHOUT_DRAIN: assertion | the parker does not look into its inbox after it stored the state
 * mutant PARK_DRAINS_TOO_EARLY: assertion | it looks, but before
 * mutant SEND_READS_STATE_FIRST: assertion | the sender reads the state before it pushes
 * mutant SEND_LEAVES_WARM_ALONE: assertion | the sender drains for PARKED owners only
 * mutant ADOPT_LEAVES_ON_LIST: assertion | the adopted heap stays on the list
 * mutant ADOPT_WITHOUT_LOCK: assertion | adoption does not take the registry lock
 * mutant ADOPT_STAYS_PARKED: assertion | adoption does not store ACTIVE
 * mutant TRIM_LEAVES_ON_LIST: assertion | the trimmer works on a heap that can be adopted
 * mutant SURPLUS_NOT_LISTED: assertion | a heap made cold is not listed again
 * mutant SURPLUS_LISTED_BEFORE_TRIM: assertion | it is listed before its front is empty
 * mutant DRAIN_WITHOUT_LOCK: assertion | a drainer does not take the slow lock */
#include "common.inc"

#define HEAPS 2
#define WARM_MAX 1
#define ACTIVE 0
#define WARM 1
#define PARKED 2
#define THREADS 4

byte state[HEAPS] = ACTIVE;
bool listed[HEAPS];
byte list[HEAPS] = NONE; /* the warm ones first, the latest of each kind first */
byte warm_count;
byte registry;
byte slow[HEAPS], in_slabs[HEAPS];
byte user[HEAPS]; /* who may touch the owner's fields: nobody, or 1 + a process */
byte inbox[HEAPS];
/* Where a heap's blocks are, beside packets: two of each, and a third one of heap 0. */
byte own_front[HEAPS] = 1;     /* in its own front */
byte foreign_front[HEAPS] = 1; /* blocks of the other heap in this one's front */
byte slab[HEAPS];
byte ended;

/* A section under the registry lock as one step, which nobody can tell from many: all that others may read in the middle is
 * a heap's state, and that is stored once. Adoption goes step by step. */
#define REGISTRY_FREE registry == 0
#define TOUCH(h) assert(user[h] == 1 + _pid)

inline into_slabs(of_heap, back) {
  atomic { in_slabs[of_heap]++; assert(in_slabs[of_heap] == 1); slab[of_heap] = slab[of_heap] + back };
  in_slabs[of_heap]--
}

inline drain(from) {
#ifndef DRAIN_WITHOUT_LOCK
  TAKE(slow[from]);
#endif
  atomic { waiting = inbox[from]; inbox[from] = 0 };
  into_slabs(from, waiting);
#ifndef DRAIN_WITHOUT_LOCK
  atomic { DROP(slow[from]); waiting = 0 }
#else
  waiting = 0
#endif
}

inline send(to) {
#ifdef SEND_READS_STATE_FIRST
  seen = state[to];
  inbox[to]++;
#else
  inbox[to]++;
  seen = state[to];
#endif
  if
#ifdef SEND_LEAVES_WARM_ALONE
  :: seen == PARKED -> drain(to)
#else
  :: seen != ACTIVE -> drain(to)
#endif
  :: else
  fi;
  seen = 0
}

inline list_heap(at, lh, how) {
  d_step {
    assert(!listed[lh]);
    if
    :: at == 0 -> list[1] = list[0]; list[0] = lh
    :: else -> list[1] = lh
    fi;
    listed[lh] = true;
    if
    :: how == WARM -> warm_count++
    :: else
    fi;
    user[lh] = 0
  };
  state[lh] = how
}

inline unlist(at, uh) {
  uh = list[at];
  d_step {
    list[at] = list[1];
    list[1] = NONE;
    listed[uh] = false;
    if
    :: state[uh] == WARM -> warm_count--
    :: else
    fi;
    assert(user[uh] == 0);
    user[uh] = 1 + _pid
  }
}

/* A warm heap that the caller has taken off the list becomes a parked one. */
inline make_cold(ch) {
  TOUCH(ch);
#ifdef SURPLUS_LISTED_BEFORE_TRIM
  atomic { REGISTRY_FREE; list_heap(warm_count, ch, PARKED) };
  TOUCH(ch);
#endif
  TAKE(slow[ch]);
  into_slabs(ch, own_front[ch]);
  DROP(slow[ch]);
  own_front[ch] = 0;
  if
  :: foreign_front[ch] > 0 -> foreign_front[ch]--; other = 1 - ch; send(other); other = 0
  :: else
  fi;
  if
  :: inbox[ch] > 0 -> drain(ch)
  :: else
  fi;
  TOUCH(ch);
#if !defined(SURPLUS_NOT_LISTED) && !defined(SURPLUS_LISTED_BEFORE_TRIM)
  atomic { REGISTRY_FREE; list_heap(warm_count, ch, PARKED) }
#endif
}

inline park(h) {
  TOUCH(h);
  surplus = NONE;
#ifdef PARK_DRAINS_TOO_EARLY
  drain(h);
#endif
  atomic { REGISTRY_FREE;
    list_heap(0, h, WARM);
    if
    :: warm_count > WARM_MAX -> unlist(warm_count - 1, surplus)
    :: else
    fi
  };
#if !defined(PARK_WITHOUT_DRAIN) && !defined(PARK_DRAINS_TOO_EARLY)
  drain(h);
#endif
  if
  :: surplus != NONE -> make_cold(surplus)
  :: else
  fi;
  surplus = NONE
}

inline adopt(h) {
#ifndef ADOPT_WITHOUT_LOCK
  TAKE(registry);
#endif
  if
  :: list[0] != NONE ->
#ifdef ADOPT_LEAVES_ON_LIST
     h = list[0];
     atomic { assert(user[h] == 0); user[h] = 1 + _pid };
#else
     unlist(0, h);
#endif
#ifndef ADOPT_STAYS_PARKED
     state[h] = ACTIVE
#endif
  :: else -> h = NONE
  fi
#ifndef ADOPT_WITHOUT_LOCK
  ; DROP(registry)
#endif
}

/* What a thread does with its heap. */
inline use(h) {
  TOUCH(h);
  assert(state[h] == ACTIVE);
  if
  :: inbox[h] > 0 -> drain(h) /* a refill */
  :: true
  fi
}

proctype worker(byte h; bool comes_back) {
  byte seen, waiting, other, surplus = NONE;
  user[h] = 1 + _pid;
  use(h);
  park(h);
  if
  :: comes_back ->
     adopt(h);
     if
     :: h != NONE -> use(h); park(h)
     :: else
     fi
  :: else
  fi;
  ended++
}

/* hak_heap_trim_warm */
proctype trimmer() {
  byte seen, waiting, other, h = NONE;
  if
  :: warm_count > 0 ->
     atomic { REGISTRY_FREE;
     if
#ifdef TRIM_LEAVES_ON_LIST
     :: warm_count > 0 -> h = list[warm_count - 1]; user[h] = 1 + _pid
#else
     :: warm_count > 0 -> unlist(warm_count - 1, h)
#endif
     :: else
     fi };
     if
     :: h != NONE -> make_cold(h)
     :: else
     fi
  :: true
  fi;
  ended++
}

/* It holds a block of the heap whose thread comes back. */
proctype sender() {
  byte seen, waiting;
  send(0);
  ended++
}

init {
  byte i;
  atomic {
    run worker(0, true);
    run worker(1, false);
    run trimmer();
    run sender()
  };
  ended == THREADS;
  for (i : 0 .. HEAPS - 1) {
    assert(listed[i] && user[i] == 0 && state[i] != ACTIVE);
    assert(inbox[i] == 0);
    assert(own_front[i] + foreign_front[1 - i] + slab[i] == (i == 0 -> 3 : 2));
    assert(state[i] == WARM || own_front[i] == 0)
  }
}
