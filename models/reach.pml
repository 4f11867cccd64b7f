/* A drainer at a sleeping thread's loaded magazine, and the owner, who may wake at any step. The owner pops and pushes in the fast path, and goes through a
 * slow path where the magazine is empty or full, OPS calls in all; the drainer comes by DRAINS times. The owner's stores go into buffers, one a word, or
 * ORDERED, as x86 does; its loads see its own stores. A barrier of the drainer (membarrier) waits until these buffers are empty. Slow paths write past
 * the buffers, once they are empty: nobody reads what they write before the release of `busy`.
 *
 * A block is the program's from the load that finds it; the cache's from the store that puts it into a slot. What is taken goes to slabs, from which the
 * owner may have it again. Nothing may be handed out twice; after each settling each block of the cache is in the magazine once.
 *
 * mirrors src/tcache/cache.h: if (HAK_LIKELY(p != 0)) hak_tls.top[code] = top - 1;
 * mirrors src/tcache/cache.h: *top = p;
 * mirrors src/tcache/tcache.h: hak_add_own(&t->busy, 1);
 * mirrors src/tcache/tcache.h: hak_add_own(&t->busy, 0u - 1);
 * mirrors src/tcache/tcache.h: return (hak_load_acquire(&t->claimed) | hak_load_relaxed(&t->has_sentinel)) != 0;
 * mirrors src/tcache/reach.c: hak_tcache_reach_lock.state = 0;
 * mirrors src/tcache/reach.c: while (hak_load_acquire(&t->claimed) != 0) {
 * mirrors src/tcache/reach.c: memmove(empty + 1, slot + 1, (size_t)(top - slot) * sizeof *slot);
 * mirrors src/tcache/reach.c: if (b->displaced == NULL && (*slot != NULL || top < slot)) {
 * mirrors src/tcache/reach.c: } else if (*slot == NULL
 * mirrors src/tcache/reach.c: if (hak_load_acquire(&t->busy) == 0 && is_readable(t))
 * mirrors src/tcache/reach.c: b->loaded == NULL || b->sentinel != 0) return 0;
 * mirrors src/tcache/reach.c: return top == NULL || top <= empty + 1 ? 0 : (unsigned)(top - empty - 1);
 * mirrors src/tcache/reach.c: b->displaced = __atomic_exchange_n(slot, NULL, __ATOMIC_ACQ_REL);
 * mirrors src/tcache/reach.c: if (top == NULL || top <= sentinel_slot(i)) sentinels[i].count = 0;
 * mirrors src/tcache/reach.c: if (hak_os_barrier()) copy_blocks(h);
 * mirrors src/tcache/reach.c: if (n == 0 || hak_load_acquire(slot) != NULL) continue;
 *
 * variant ORDERED | one buffer: stores reach memory in their order
 * variant ALONE | the owner forks without locks: in the child the drainer ends at any step, and what it was at may be lost
 *
 * mutant NO_FIRST_BARRIER: assertion | both are in the stacks: `busy` is still in the owner's buffer
 * mutant NO_SECOND_BARRIER: assertion | the top that the drainer reads is older than a pop beyond the slot
 * mutant NO_THIRD_BARRIER: assertion | a top comes before the push that it tells of
 * mutant TAKE_AT_TOP: assertion | the owner has the block of the sentinel's slot in hand
 * mutant SLOT_NOT_READ: assertion | the owner went below the slot, and came back
 * mutant SENTINEL_UNSETTLED: assertion | the block in doubt is forgotten
 * mutant SETTLE_BY_TOP: assertion | settling overwrites what was pushed
 * mutant SETTLE_NOT: assertion | what the drainer took out is lost
 * mutant NOTE_LATE: assertion | the child does not find out that a block was taken out
 * mutant LOCK_STAYS: stuck | the owner waits for a drainer that the child has not
 * mutant CHILD_TRUSTS_NOTE: assertion | the child takes for the drainer's what the drainer had not placed yet */
#define ROOM 4 /* slots; slot 0 holds the NULL below them */
#define TOP 0
#define BUSY 1
#define SLOT(i) (2 + (i))
#define WORDS (SLOT(ROOM) + 1)
#include "common.inc"
#include "store_buffer.inc"

#if defined(NOTE_LATE) || defined(CHILD_TRUSTS_NOTE) || defined(LOCK_STAYS)
#define ALONE
#endif
#define OPS 5
#ifdef ALONE
#define DRAINS 1
#else
#define DRAINS 2
#endif
#define BLOCKS 4
#define FREE 0 /* in slabs */
#define CACHED 1
#define PROGRAM 2
#define TAKEN 3

#ifdef ORDERED
#define BUFFERS 1
#define BUFFER(w) buffers[0]
chan buffers[BUFFERS] = [3] of { byte, byte };
#else
#define BUFFERS WORDS
#define BUFFER(w) buffers[w]
chan buffers[BUFFERS] = [1] of { byte, byte };
#endif

byte own[WORDS]; /* what the owner stored last */
byte where[BLOCKS + 1];
byte lock, sentinel, displaced;
bool drainer_there, owner_inside, drainer_inside, forked;
bool unseen; /* the top was there, the block below it not yet: the drainer found an older NULL */

inline store(w, value) {
  atomic { BUFFER(w) ! w, value; own[w] = value }
}
#define LOAD(w) (BUFFER(w) ?? [eval(w), _] -> own[w] : mem[w])

#ifdef ORDERED
#define DRAINED empty(buffers[0])
#else
#define DRAINED \
  (empty(buffers[TOP]) && empty(buffers[BUSY]) && empty(buffers[SLOT(1)]) && empty(buffers[SLOT(2)]) && empty(buffers[SLOT(3)]) && empty(buffers[SLOT(4)]))
#endif

inline hand_out(p) {
  assert(where[p] == CACHED);
  where[p] = PROGRAM
}

inline settle() {
  if
  :: sentinel != 0 ->
#ifndef SETTLE_NOT
     if
#ifdef CHILD_TRUSTS_NOTE
     :: displaced == 0 ->
        assert(mem[TOP] >= sentinel);
#else
     :: displaced == 0 && (mem[SLOT(sentinel)] != 0 || mem[TOP] < sentinel) -> assert(unseen || forked)
     :: displaced == 0 && mem[SLOT(sentinel)] == 0 && mem[TOP] >= sentinel ->
#endif
        i = 1;
        do
        :: sentinel + i <= mem[TOP] -> mem[SLOT(i)] = mem[SLOT(sentinel + i)]; i++
        :: else -> break
        od;
        mem[TOP] = mem[TOP] - sentinel
#ifdef SETTLE_BY_TOP
     :: displaced != 0 && mem[TOP] >= sentinel ->
#else
     :: displaced != 0 && mem[SLOT(sentinel)] == 0 && mem[TOP] >= sentinel ->
#endif
        mem[SLOT(sentinel)] = displaced
     :: else
     fi;
#endif
     displaced = 0;
     unseen = false;
     sentinel = 0
  :: else
  fi;
  i = 0
}

/* Each block of the cache is in it once, and nothing else. */
inline check() {
  i = 1;
  do
  :: i <= mem[TOP] ->
     assert(where[mem[SLOT(i)]] == CACHED && !(seen & (1 << mem[SLOT(i)])));
     seen = seen | (1 << mem[SLOT(i)]);
     i++
  :: else -> break
  od;
  i = 1;
  do
  :: i <= BLOCKS ->
     assert(where[i] != CACHED || (seen & (1 << i)) || forked);
     i++
  :: else -> break
  od;
  i = 0;
  seen = 0
}

inline enter() {
  store(BUSY, 1);
  do
  :: drainer_there -> TAKE(lock); atomic { assert(forked || lock == 1 + _pid); lock = 0 }
  :: else -> break
  od;
  atomic {
    DRAINED;
    assert(!drainer_inside);
    owner_inside = true;
    settle();
    check()
  }
}

inline leave() {
  owner_inside = false; /* before the store, which may come late */
  store(BUSY, 0)
}

inline refill() {
  i = 1;
  do
  :: i <= BLOCKS && mem[TOP] < 2 ->
     if
     :: where[i] == FREE -> where[i] = CACHED; mem[TOP] = mem[TOP] + 1; mem[SLOT(mem[TOP])] = i
     :: else
     fi;
     i++
  :: else -> break
  od;
  i = 0
}

inline flush_half() {
  where[mem[SLOT(1)]] = FREE;
  where[mem[SLOT(2)]] = FREE;
  mem[SLOT(1)] = mem[SLOT(3)];
  mem[SLOT(2)] = mem[SLOT(4)];
  mem[TOP] = 2
}

inline malloc() {
  top = LOAD(TOP);
  atomic {
    p = LOAD(SLOT(top));
    if
    :: p != 0 -> hand_out(p)
    :: else
    fi
  };
  if
  :: p != 0 -> store(TOP, top - 1)
  :: else ->
     enter();
     atomic {
       if
       :: mem[TOP] == 0 -> refill()
       :: else
       fi;
       if
       :: mem[TOP] != 0 -> hand_out(mem[SLOT(mem[TOP])]); mem[TOP] = mem[TOP] - 1
       :: else
       fi
     };
     leave()
  fi
}

inline free() {
  top = LOAD(TOP);
  if
  :: top < ROOM ->
     atomic { BUFFER(SLOT(top + 1)) ! SLOT(top + 1), p; own[SLOT(top + 1)] = p; where[p] = CACHED };
     store(TOP, top + 1)
  :: else ->
     enter();
     atomic {
       if
       :: mem[TOP] == ROOM -> flush_half()
       :: else
       fi;
       mem[TOP] = mem[TOP] + 1;
       mem[SLOT(mem[TOP])] = p;
       where[p] = CACHED
     };
     leave()
  fi
}

proctype owner() {
  byte calls, top, p, i, seen;
  do
  :: calls < OPS ->
     calls++;
     if
     :: malloc()
     :: atomic { where[1] == PROGRAM -> p = 1 }; free()
     :: atomic { where[2] == PROGRAM -> p = 2 }; free()
     :: atomic { where[3] == PROGRAM -> p = 3 }; free()
     :: atomic { where[4] == PROGRAM -> p = 4 }; free()
     fi;
     top = 0;
     p = 0
  :: else -> break
  od;
  enter();
  leave()
}

inline take(p) {
  assert(where[p] == CACHED);
  where[p] = TAKEN
}

proctype drainer() {
  byte robs, top, p, i;
  bool found;
  {
  do
  :: robs < DRAINS ->
     robs++;
     TAKE(lock);
     drainer_there = true;
#ifndef NO_FIRST_BARRIER
     DRAINED;
#endif
     if
     :: atomic { mem[BUSY] == 0 -> assert(!owner_inside); drainer_inside = true };
        top = mem[TOP];
        if
#ifdef SENTINEL_UNSETTLED
        :: top >= 2 ->
#else
        :: top >= 2 && sentinel == 0 ->
#endif
#ifndef NOTE_LATE
           sentinel = top - 1;
#endif
           atomic {
             top--;
             p = mem[SLOT(top)];
             mem[SLOT(top)] = 0;
#ifdef ORDERED
             assert(p != 0);
#endif
             unseen = p == 0
           };
#ifdef NOTE_LATE
           sentinel = top;
#endif
           atomic { displaced = p; p = 0 };
#ifndef NO_SECOND_BARRIER
           DRAINED;
#endif
           top = mem[TOP];
#ifndef NO_THIRD_BARRIER
           DRAINED;
#endif
#ifdef TAKE_AT_TOP
           found = top >= sentinel;
#else
           found = top > sentinel;
#endif
#ifndef SLOT_NOT_READ
           found = found && mem[SLOT(sentinel)] == 0;
#endif
           if
           :: found ->
              i = 1;
              do
              :: i < sentinel -> take(mem[SLOT(i)]); i++
              :: else -> break
              od;
              atomic { take(displaced); displaced = 0 }
           :: else
           fi
        :: else
        fi;
        atomic { i = 0; top = 0; found = false; drainer_inside = false }
     :: mem[BUSY] != 0
     fi;
     drainer_there = false;
     DROP(lock);
     atomic {
       i = 1;
       do
       :: i <= BLOCKS -> if :: where[i] == TAKEN -> where[i] = FREE :: else fi; i++
       :: else -> break
       od;
       i = 0
     }
  :: else -> break
  od
  } unless { forked }
}

/* A signal handler of the owner's, anywhere. */
proctype fork() {
  byte i = 1;
  atomic {
    DRAINED -> forked = true;
    drainer_there = false;
#ifndef LOCK_STAYS
    lock = 0;
#endif
    drainer_inside = false;
    do
    :: i <= BLOCKS -> /* copied, but not yet noted as taken: still the cache's */
       if
       :: where[i] == TAKEN && displaced != 0 -> where[i] = CACHED
       :: else
       fi;
       i++
    :: else -> break
    od
  }
}

init {
  atomic {
    byte b;
    /* the magazine holds three, the program one */
    mem[TOP] = 3;
    where[4] = PROGRAM;
    b = 1;
    do
    :: b <= 3 -> mem[SLOT(b)] = b; where[b] = CACHED; b++
    :: else -> break
    od;
    b = 0;
    do
    :: b < BUFFERS -> run memory(buffers[b]); b++
    :: else -> break
    od;
    b = 0;
    run owner();
#ifdef ALONE
    run fork();
#endif
    run drainer()
  }
}
