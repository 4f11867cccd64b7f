/* Park against send, with the memory orders: one packet, one parker, one sender, and the stores of each in a buffer. A
 * sequentially consistent operation waits until the earlier such store is in memory; a release store only keeps its place
 * behind earlier stores; a load may come before an earlier store of another word. The packet's contents are a word of
 * their own.
 *
 * mirrors src/heap/heap.c: hak_store_seq(&h->state, state);
 * mirrors src/heap/remote.c: } while (!hak_cas_weak_seq(&owner->inbox, &old, new));
 * mirrors src/heap/remote.c: if (hak_load_seq(&owner->state) != HAK_HEAP_ACTIVE)
 * mirrors src/heap/remote.c: uintptr_t all = hak_exchange_seq(&heap->inbox, 0);
 * mirrors src/base/atomic.h: #define hak_store_seq(p, v) __atomic_store_n((p), (v), __ATOMIC_SEQ_CST)
 * mirrors src/base/atomic.h: #define hak_load_seq(p) __atomic_load_n((p), __ATOMIC_SEQ_CST)
 * mirrors src/base/atomic.h: #define hak_exchange_seq(p, v) __atomic_exchange_n((p), (v), __ATOMIC_SEQ_CST)
 * mirrors src/base/atomic.h: __atomic_compare_exchange_n((p), (expected), (v), 1, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED)
 *
 * mutant STATE_STORE_RELEASE: assertion | the parker's store of the state is a release store
 * mutant EXCHANGE_ACQUIRE: assertion | the drain's exchange is an acquire only
 * mutant PUSH_RELEASE: assertion | the push's compare-and-swap is a release only
 * mutant STATE_LOAD_ACQUIRE: assertion | the sender's load of the state is an acquire only
 * mutant PUSH_RELAXED: assertion | the push does not wait for the packet's contents
 * mutant DRAIN_RELAXED: assertion | the drainer may read a packet's contents before it took the packet */
#define WORDS 4
#define INBOX 0
#define STATE 1
#define REGISTRY 2
#define CONTENTS 3
#include "common.inc"
#include "store_buffer.inc"

#define ACTIVE 0
#define WARM 1

chan parker_stores = [2] of { byte, byte };
chan sender_stores = [1] of { byte, byte };
byte slow;
byte drained, ended;

/* Under the slow lock: taking it is an acquire, which empties no buffer. */
inline drain() {
  TAKE(slow);
#ifdef DRAIN_RELAXED
  contents = mem[CONTENTS];
#endif
  atomic { waiting = mem[INBOX]; mem[INBOX] = 0 };
#ifndef DRAIN_RELAXED
  contents = mem[CONTENTS];
#endif
  if
  :: waiting > 0 -> assert(contents == 1); drained++
  :: else
  fi;
  DROP(slow)
}

proctype parker() {
  byte waiting, contents;
  mem[REGISTRY] == 0;
  mem[REGISTRY] = 1; /* the registry lock; nobody else takes it here */
  STORE(parker_stores, STATE, WARM);
  STORE(parker_stores, REGISTRY, 0); /* dropped: a release */
#if !defined(STATE_STORE_RELEASE) && !defined(EXCHANGE_ACQUIRE)
  mem[STATE] == WARM; /* the store and the exchange are sequentially consistent both: in their order */
#endif
  drain();
  ended++
}

proctype sender() {
  byte state, waiting, contents;
  STORE(sender_stores, CONTENTS, 1);
#ifndef PUSH_RELAXED
  FENCE(sender_stores); /* release */
#endif
#if defined(PUSH_RELEASE) || defined(STATE_LOAD_ACQUIRE)
  if
  :: true -> atomic { mem[INBOX] = mem[INBOX] + 1 }; state = mem[STATE]
  :: true -> state = mem[STATE]; atomic { mem[INBOX] = mem[INBOX] + 1 } /* the load is satisfied first */
  fi;
#else
  atomic { mem[INBOX] = mem[INBOX] + 1 };
  state = mem[STATE];
#endif
  if
  :: state != ACTIVE -> drain()
  :: else
  fi;
  ended++
}

init {
  atomic { run memory(parker_stores); run memory(sender_stores); run parker(); run sender() };
  ended == 2 && empty(parker_stores) && empty(sender_stores);
  assert(mem[STATE] == WARM && mem[INBOX] == 0 && drained == 1)
}
