/* The inbox of a heap whose owner lives: two senders push packets by compare-and-swap, each with its weight; the owner
 * takes all of them in its refills, a sender does when the backlog is heavy and the slow lock free. Cells are fewer than
 * blocks, so a cell that went home is pushed again while somebody may still hold its old address.
 *
 * mirrors src/heap/remote.c: packet->next = (hak_packet *)(old & ~INBOX_WEIGHT_MASK);
 * mirrors src/heap/remote.c: weight = hak_min_size((old & INBOX_WEIGHT_MASK) + own, INBOX_WEIGHT_MASK);
 * mirrors src/heap/remote.c: } while (!hak_cas_weak_seq(&owner->inbox, &old, new));
 * mirrors src/heap/remote.c: while (waiting >= backlog() && hak_lock_try(&owner->lock)) {
 * mirrors src/heap/remote.c: waiting = (unsigned)(hak_or_seq(&owner->inbox, 0) & INBOX_WEIGHT_MASK);
 * mirrors src/heap/remote.c: uintptr_t all = hak_exchange_seq(&heap->inbox, 0);
 * mirrors src/heap/remote.c: hak_packet *next = packet->next;
 * mirrors src/heap/direct.c: hak_remote_look_again(owner);
 * mirrors src/heap/refill.c: if (hak_remote_pending(h)) hak_remote_drain_locked(h, true, &outcome, &emptied);
 *
 * mutant PUSH_IS_NO_CAS: assertion | the head is stored, not compared and swapped
 * mutant LINKS_ONCE: assertion | a failed compare-and-swap does not link the packet anew
 * mutant DRAIN_IS_NO_EXCHANGE: assertion | the drainer reads the inbox and then clears it
 * mutant DRAIN_WITHOUT_LOCK: assertion | a sender drains without the slow lock
 * mutant NEXT_READ_LATE: assertion | the drainer reads a packet's link after it chained the packet with the emptied ones
 * mutant HOME_TOO_EARLY: assertion | a packet goes home before its block is taken from it
 * mutant NO_BACKLOG_DRAIN: assertion | no sender drains
 * mutant NO_SECOND_LOOK: assertion | a sender that has drained does not look again when it has dropped the lock
 * mutant NO_LOOK_AFTER_PUT: assertion | who frees directly does not look at the inbox when it has dropped the lock
 * mutant WEIGHT_WRAPS: assertion | the weight does not saturate */
#include "common.inc"

#define BLOCKS 4 /* two a sender */
#define CELLS 3
#define WEIGHT_MAX 2
#define BACKLOG 2

byte head = NONE, weight; /* the inbox: one word */
byte next[CELLS], content[CELLS];
bool at_home[CELLS] = true;
byte slow, in_slabs;
byte returned[BLOCKS]; /* how often a block went back into its slab */
bool draining;         /* the one with the lock is a sender that drains, or frees directly: it looks once more */
bool refused;          /* a sender with a backlog found that the owner had it */
byte ended;

inline put(block) {
  atomic { in_slabs++; assert(in_slabs == 1); returned[block]++; assert(returned[block] == 1) };
  in_slabs--
}

/* hak_remote_drain_locked. Of the block's number a copy is put: `content` may change only in HOME_TOO_EARLY. */
inline drain_locked() {
#ifdef DRAIN_IS_NO_EXCHANGE
  all = head;
  atomic { head = NONE; weight = 0 };
#else
  atomic { all = head; head = NONE; weight = 0 };
#endif
  do
  :: all != NONE ->
#ifdef HOME_TOO_EARLY
     atomic { following = next[all]; at_home[all] = true };
     put(content[all]);
#else
#ifndef NEXT_READ_LATE
     following = next[all];
#endif
     put(content[all]);
     next[all] = emptied;
     emptied = all;
#ifdef NEXT_READ_LATE
     following = next[all];
#endif
#endif
     all = following
  :: else -> break
  od
}

/* hak_remote_send_home; homecoming.pml has what lies behind `at_home`. */
inline send_home() {
  do
  :: emptied != NONE -> atomic { following = next[emptied]; at_home[emptied] = true; emptied = following }
  :: else -> break
  od
}

/* push. The value read last is compared: pointer and weight are one word. */
inline push() {
  atomic { old = head; old_weight = weight };
#ifdef LINKS_ONCE
  next[cell] = old;
#endif
  do
  :: true ->
#ifndef LINKS_ONCE
     next[cell] = old;
#endif
#ifdef WEIGHT_WRAPS
     heavier = (old_weight + 1) % (WEIGHT_MAX + 1);
#else
     heavier = (old_weight < WEIGHT_MAX -> old_weight + 1 : WEIGHT_MAX);
#endif
     assert(heavier > 0);
#ifdef PUSH_IS_NO_CAS
     atomic { head = cell; weight = heavier };
     break
#else
     atomic {
       if
       :: head == old && weight == old_weight -> head = cell; weight = heavier; break
       :: old = head; old_weight = weight /* it failed, or weakly so for no reason */
       fi
     }
#endif
  od
}

proctype sender(byte first) {
  byte block, cell, old, old_weight, heavier, all, following, emptied = NONE;
  for (block : first .. first + 1) {
    atomic {
      if
      :: at_home[0] -> cell = 0; at_home[0] = false
      :: at_home[1] -> cell = 1; at_home[1] = false
      :: at_home[2] -> cell = 2; at_home[2] = false
      :: else -> cell = NONE
      fi
    };
    if
    :: cell == NONE -> /* put_and_drop */
       atomic { slow == 0 -> slow = 1 + _pid; draining = true };
       put(block);
       atomic { slow = 0; draining = false };
#ifdef NO_LOOK_AFTER_PUT
       heavier = 0
#else
       heavier = weight
#endif
    :: else ->
       content[cell] = block;
       push()
    fi;
#ifndef NO_BACKLOG_DRAIN
    do
    :: heavier >= BACKLOG ->
#ifdef DRAIN_WITHOUT_LOCK
       drain_locked();
       send_home();
       break
#else
       atomic {
         if
         :: slow == 0 -> slow = 1 + _pid; draining = true
         :: else -> refused = refused || !draining; break
         fi
       };
       drain_locked();
       atomic { assert(slow == 1 + _pid); slow = 0; draining = false };
       send_home();
#ifdef NO_SECOND_LOOK
       break
#else
       heavier = weight
#endif
#endif
    :: else -> break
    od
#endif
  }
  ended++
}

proctype owner() {
  byte all, following, emptied = NONE, rounds = 1;
  do
  :: rounds > 0 ->
     rounds--;
     TAKE(slow);
     if
     :: head != NONE -> drain_locked()
     :: true /* a flush: the lock is held for something else */
     fi;
     DROP(slow);
     send_home()
  :: break
  od;
  ended++
}

init {
  byte all, following, emptied = NONE, count, i;
  atomic { run owner(); run sender(0); run sender(2) };
  ended == 3;
  assert(refused || weight < BACKLOG);
  all = head;
  do
  :: all != NONE -> count++; assert(count <= CELLS); all = next[all]
  :: else -> break
  od;
  assert(weight == (count < WEIGHT_MAX -> count : WEIGHT_MAX));
  /* The owner looks once more, and has everything. */
  TAKE(slow);
  drain_locked();
  DROP(slow);
  send_home();
  for (i : 0 .. BLOCKS - 1) { assert(returned[i] == 1) }
  for (i : 0 .. CELLS - 1) { assert(at_home[i]) }
}
