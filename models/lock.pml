/* The futex mutex: three threads, each takes it twice, one of them by trying. The state is 0 free, 1 held, 2 held with
 * waiters; the kernel puts a thread to sleep only while the state is 2, and a wake-up ends one thread's sleep.
 *
 * mirrors src/os/lock.h: if (HAK_UNLIKELY(!hak_cas_acquire(&lock->state, &expected, 1))) hak_lock_slow(lock);
 * mirrors src/os/lock.h: if (HAK_UNLIKELY(hak_exchange_release(&lock->state, 0) == 2)) hak_lock_wake(lock);
 * mirrors src/os/lock.h: bool taken = hak_cas_acquire(&lock->state, &expected, 1);
 * mirrors src/os/lock.c: if (hak_load_relaxed(&lock->state) == 0 && hak_cas_acquire(&lock->state, &expected, 1)) return;
 * mirrors src/os/lock.c: while (hak_exchange_acquire(&lock->state, 2) != 0) hak_os_futex_wait(&lock->state, 2);
 *
 * variant SPURIOUS_WAKES | sleeps end without a reason
 * ltl everybody_served | under weak fairness every thread gets through
 *
 * mutant TAKE_NOT_ATOMIC: assertion | the lock is read as free and then stored as held
 * mutant TRY_NOT_ATOMIC: assertion | the same where it is tried
 * mutant DROP_WITHOUT_WAKE: stuck | the holder never wakes anybody
 * mutant DROP_READS_THEN_STORES: stuck | the holder reads the state and then clears it
 * mutant WAITS_UNCHECKED: stuck | a waiter goes to sleep whatever the state is
 * mutant WAITS_AS_HELD: stuck | a thread that has to wait stores 1, not 2
 * mutant RETAKES_AS_ONE: stuck | a woken waiter takes the lock as 1, and forgets the others that sleep
 * mutant TAKE_RELAXED: assertion | a load of the section is satisfied before the lock is taken
 * mutant DROP_RELAXED: assertion | a store of the section reaches memory after the lock is dropped */
#define THREADS 3
#define ROUNDS 2

byte state;
bool asleep[THREADS];
byte inside;
byte sections, counted; /* sections that ran, and what they counted under the lock */
byte served;

inline futex_wait(me) {
#ifdef WAITS_UNCHECKED
  asleep[me] = true;
#else
  atomic {
    if
#ifdef WAITS_AS_HELD
    :: state == 1 -> asleep[me] = true
#else
    :: state == 2 -> asleep[me] = true
#endif
    :: else
    fi
  };
#endif
#ifdef SPURIOUS_WAKES
  if
  :: !asleep[me]
  :: asleep[me] = false
  fi
#else
  !asleep[me]
#endif
}

inline futex_wake() {
  atomic {
    if
    :: asleep[0] -> asleep[0] = false
    :: asleep[1] -> asleep[1] = false
    :: asleep[2] -> asleep[2] = false
    :: else
    fi
  }
}

/* hak_cas_acquire from 0 to 1 */
inline compare_and_swap(got) {
  atomic {
    if
    :: state == 0 -> state = 1; got = true
    :: else -> got = false
    fi
  }
}

inline read_then_store(got) {
  if
  :: state == 0 -> state = 1; got = true
  :: else -> got = false
  fi
}

inline take(me) {
#ifdef TAKE_NOT_ATOMIC
  read_then_store(got);
#else
  compare_and_swap(got);
#endif
  if
  :: !got && state == 0 -> compare_and_swap(got) /* a turn of the spin */
  :: true
  fi;
  do
  :: got -> break
  :: else ->
#ifdef WAITS_AS_HELD
     atomic { old = state; state = 1 };
#else
     atomic { old = state; state = 2 };
#endif
     if
     :: old == 0 -> break
     :: else
     fi;
     futex_wait(me);
#ifdef RETAKES_AS_ONE
     compare_and_swap(got)
#endif
  od
}

inline drop() {
#ifdef DROP_READS_THEN_STORES
  old = state;
  state = 0;
#else
  atomic { old = state; state = 0 };
#endif
#ifndef DROP_WITHOUT_WAKE
  if
  :: old == 2 -> futex_wake()
  :: else
  fi
#endif
}

/* Counts under the lock, so that an access outside it shows. */
inline section() {
  inside++;
  assert(inside == 1);
#ifndef TAKE_RELAXED
  value = counted;
#endif
#ifndef DROP_RELAXED
  counted = value + 1;
#endif
  sections++;
  inside--
}

proctype taker(byte me) {
  byte old, value, n;
  bool got;
  for (n : 1 .. ROUNDS) {
#ifdef TAKE_RELAXED
    value = counted;
#endif
    take(me);
    section();
    drop();
#ifdef DROP_RELAXED
    counted = value + 1;
#endif
  }
  served++
}

proctype trier(byte me) {
  byte old, value, n;
  bool got;
  for (n : 1 .. ROUNDS) {
#ifdef TRY_NOT_ATOMIC
    read_then_store(got);
#else
    compare_and_swap(got);
#endif
    if
    :: got ->
#ifdef TAKE_RELAXED
       value = counted;
#endif
       section();
       drop()
#ifdef DROP_RELAXED
       ; counted = value + 1
#endif
    :: else
    fi
  }
  served++
}

init {
  atomic { run taker(0); run taker(1); run trier(2) };
  served == THREADS;
  assert(state == 0 && counted == sections)
}

ltl everybody_served { <> (served == THREADS) }
