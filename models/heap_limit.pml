/* A heap that has refused a request: what a thread's cache has of it is set aside, while the thread may be at its cache, and counts no more. The owner's stores of `busy` go into a
 * buffer; its loads do not wait for them. (Short ways have a word of their own, `quick`: one of the two is set at a time, and the
 * thief looks at both.) A barrier (membarrier) waits until the buffer is empty. Blocks are of one byte: `out` is what is charged, `live` what the program has,
 * `pending` what is charged and on its way to the program, or back; `credit` what the cache has charged for its next
 * blocks.
 *
 * Once the heap is drained, what is charged is what the program has: so what is refused then is refused rightly. Some
 * time later the owner may begin a credit, or count its cache again, until a request is refused again.
 *
 * mirrors src/heap/cache.h: if (HAK_UNLIKELY(hak_load_folded(&k->open) != owner)) return false;
 * mirrors src/heap/cache.h: hak_store_folded(&k->quick, 1);
 * mirrors src/heap/cache.c: while (HAK_UNLIKELY(waits(k))) {
 * mirrors src/heap/cache.c: of->works = hak_os_barrier();
 * mirrors src/heap/cache.c: bool has = of->works && !hak_heap_is_at(k);
 * mirrors src/heap/cache.c: set_thief(k, k->thief & ~HAK_HEAP_THIEF);
 * mirrors src/heap/cache.c: } while (before != draining && !hak_cas_acquire(&h->near_limit, &before, draining));
 * mirrors src/heap/cache.c: if (of->aside && hak_heap_is_aside(k) && !hak_heap_has_credit(k)) return;
 * mirrors src/heap/cache.c: r = pop_aside(k, h, c);
 * mirrors src/heap/cache.c: if (!near && !is_near(h))
 * mirrors src/heap/cache.c: if (!hak_heap_begin_credit_locked(h)) return;
 *
 * mutant NO_BARRIER: assertion | the owner is at its cache, and `busy` is still in its buffer
 * mutant BUSY_IGNORED: assertion | the owner pops a block that counts no more
 * mutant ASKED_BEFORE: assertion | the owner asks whether the cache is set aside before it enters
 * mutant FLAG_LATE: assertion | an owner that sees no limit near counts its cache again behind the thief
 * mutant BACK_STALE: assertion | the owner counts its cache again by what it saw before it had the registry's lock
 * mutant CREDIT_PASSED: assertion | a thief leaves alone what is aside, though it has a credit
 * mutant CREDIT_STALE: assertion | the owner begins a credit by what it saw before it had the registry's lock
 * mutant CREDIT_FIRST: assertion | the owner looks for its credit before it enters
 * mutant THIEF_WAITS: stuck | the thief waits with the lock for an owner that waits for the lock */
#define WORDS 1
#define BUSY 0
#include "common.inc"
#include "store_buffer.inc"

#define OPS 5
#define DRAINS 2
#define LIMIT 4
#define NEAR 1
#define DRAINED 2
#define CREDITS 3
#define THIEF 1
#define ASIDE 2
#define CREDIT 4

chan buffer = [2] of { byte, byte };
byte registry, thief, near, cached = 2, out = 3, live = 1, pending, credit;
bool open = true; /* what `thief` says, for the short ways */

#define IS_ASIDE ((thief & ASIDE) != 0)
#define HAS_CREDIT ((thief & CREDIT) != 0)
#define RIGHT assert(out <= LIMIT && live <= out && (near != DRAINED || out == live + pending))

inline set_aside() {
  atomic {
    if
    :: !IS_ASIDE -> out = out - cached; thief = thief | ASIDE; open = false
    :: else
    fi
  }
}

/* What the short ways do, which charge nothing. */
inline short_way() {
  if
  :: atomic { cached > 0 -> cached--; live++; RIGHT }
  :: atomic { live > 0 -> live--; cached++; RIGHT }
  :: cached == 0 && live == 0
  fi
}

inline give_credit() {
  atomic { if :: HAS_CREDIT -> out = out - credit; credit = 0; thief = thief - CREDIT :: else fi }
}

inline long_way() {
  do
  :: (thief & THIEF) != 0 -> TAKE(registry); DROP(registry)
  :: else -> break
  od;
  if
  :: near != 0 && !IS_ASIDE -> TAKE(registry); set_aside(); DROP(registry)
  :: near == 0 && IS_ASIDE ->
    TAKE(registry);
    atomic {
      if
#ifdef BACK_STALE
      :: out + cached <= LIMIT
#else
      :: near == 0 && out + cached <= LIMIT
#endif
        -> give_credit(); out = out + cached; thief = thief & THIEF; open = (thief == 0); RIGHT
      :: else
      fi
    };
    DROP(registry)
  :: IS_ASIDE && !HAS_CREDIT && (near == CREDITS || near == DRAINED) ->
    TAKE(registry);
    atomic {
      if
#ifdef CREDIT_STALE
      :: true -> near = (near == DRAINED -> CREDITS : near); thief = thief | CREDIT
#else
      :: near == CREDITS || near == DRAINED -> near = CREDITS; thief = thief | CREDIT
      :: else
#endif
      fi
    };
    DROP(registry)
  :: else
  fi;
#ifndef CREDIT_FIRST
  has = HAS_CREDIT;
#endif
  if
  :: IS_ASIDE && !has ->
    if
    :: atomic { cached > 0 && out < LIMIT -> out++; pending++ };
      atomic { cached--; live++; pending--; RIGHT }
    :: atomic { live > 0 -> live--; cached++; pending++ };
      atomic { out--; pending--; RIGHT }
    :: else
    fi
  :: IS_ASIDE && has ->
    if
    :: atomic { cached > 0 && credit > 0 -> cached--; live++; credit--; RIGHT } /* one store: the top */
    :: atomic { cached > 0 && credit == 0 && out + 1 < LIMIT -> out = out + 2; credit = 2 };
      atomic { cached--; live++; credit--; RIGHT }
    :: atomic { live > 0 -> live--; cached++; credit++; RIGHT };
      atomic { if :: credit > 1 -> credit--; out-- :: else fi; RIGHT }
    :: else
    fi
  :: else ->
    if
    :: atomic { cached > 0 -> cached--; live++; RIGHT }
    :: atomic { cached == 0 && out + 1 < LIMIT -> out = out + 2; cached++; live++; RIGHT }
    :: atomic { live > 0 -> live--; cached++; RIGHT }
    :: else
    fi
  fi
}

proctype owner() {
  byte calls;
  bool is_open, has;
  do
  :: calls == OPS -> break
  :: calls < OPS ->
    calls++;
    has = HAS_CREDIT;
#ifdef ASKED_BEFORE
    is_open = open;
    STORE(buffer, BUSY, 1);
#else
    STORE(buffer, BUSY, 1);
    is_open = open;
#endif
    if
    :: is_open -> short_way()
    :: long_way() /* also where the cache is empty or full */
    fi;
    STORE(buffer, BUSY, 0)
  od
}

proctype refused() {
  byte drains;
  bool done;
again:
  done = false;
#ifndef FLAG_LATE
  near = NEAR;
#endif
  do
  :: done -> break
#ifdef CREDIT_PASSED
  :: atomic { !done && registry == 0 && IS_ASIDE -> done = true }
#else
  :: atomic { !done && registry == 0 && IS_ASIDE && !HAS_CREDIT -> done = true }
#endif
  :: !done ->
    TAKE(registry);
    thief = thief | THIEF;
    open = false;
#ifndef NO_BARRIER
    FENCE(buffer);
#endif
#ifdef THIEF_WAITS
    mem[BUSY] == 0;
#endif
    if
#ifdef BUSY_IGNORED
    :: true -> set_aside(); give_credit(); done = true
#else
    :: mem[BUSY] == 0 -> set_aside(); give_credit(); done = true
    :: mem[BUSY] != 0
#endif
    fi;
    thief = thief - THIEF;
    open = (thief == 0);
    DROP(registry)
  od;
#ifdef FLAG_LATE
  near = NEAR;
#endif
  atomic { near = DRAINED; RIGHT };
  drains++;
  if
  :: drains < DRAINS -> TAKE(registry); near = CREDITS; DROP(registry); goto again /* by the owner of another cache */
  :: drains < DRAINS -> near = 0; goto again /* by a free that finds the sum fallen */
  :: true
  fi
}

init {
  atomic {
    run memory(buffer);
    run owner();
    run refused()
  }
}
