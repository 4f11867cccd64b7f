/* A heap that has refused a request: what a thread's cache has of it is set aside, while the thread may be at its cache, and counts no more. The owner's stores of `busy` go into a
 * buffer; its loads do not wait for them. A barrier (membarrier) waits until the buffer is empty. Blocks are of one byte: `out` is what is charged, `live` what the program has,
 * `pending` what is charged and on its way to the program, or back.
 *
 * Once the heap is drained, what is charged is what the program has: so what is refused then is refused rightly.
 *
 * mirrors src/heap/cache.h: if (HAK_LIKELY(!hak_heap_is_met(k))) {
 * mirrors src/heap/cache.h: hak_store_relaxed(&k->busy, busy + 1);
 * mirrors src/heap/cache.c: while (HAK_UNLIKELY(waits(k))) {
 * mirrors src/heap/cache.c: of->works = hak_os_barrier();
 * mirrors src/heap/cache.c: bool has = of->works && hak_load_acquire(&k->busy) == 0;
 * mirrors src/heap/cache.c: hak_store_release(&k->thief, k->thief & ~HAK_HEAP_THIEF);
 * mirrors src/heap/cache.c: } while (before != draining && !hak_cas_acquire(&h->near_limit, &before, draining));
 * mirrors src/heap/cache.c: if (hak_heap_is_aside(k)) r.refuser = hak_heap_charge(h, bytes_of(c));
 *
 * mutant NO_BARRIER: assertion | the owner is at its cache, and `busy` is still in its buffer
 * mutant BUSY_IGNORED: assertion | the owner pops a block that counts no more
 * mutant ASKED_BEFORE: assertion | the owner asks whether the cache is set aside before it enters
 * mutant FLAG_LATE: assertion | an owner that sees no limit near counts its cache again behind the thief
 * mutant THIEF_WAITS: stuck | the thief waits with the lock for an owner that waits for the lock */
#define WORDS 1
#define BUSY 0
#include "common.inc"
#include "store_buffer.inc"

#define OPS 4
#define NEAR 1
#define DRAINED 2
#define THIEF 1
#define ASIDE 2

chan buffer = [2] of { byte, byte };
byte registry, thief, near, cached = 2, out = 3, live = 1, pending;

#define IS_ASIDE ((thief & ASIDE) != 0)
#define RIGHT assert(near != DRAINED || out == live + pending)

inline set_aside() {
  atomic {
    if
    :: !IS_ASIDE -> out = out - cached; thief = thief | ASIDE
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

inline long_way() {
  do
  :: (thief & THIEF) != 0 -> TAKE(registry); DROP(registry)
  :: else -> break
  od;
  if
  :: near != 0 && !IS_ASIDE -> TAKE(registry); set_aside(); DROP(registry)
  :: near == 0 && IS_ASIDE -> TAKE(registry); atomic { out = out + cached; thief = thief & THIEF }; DROP(registry)
  :: else
  fi;
  if
  :: atomic { IS_ASIDE && cached > 0 -> out++; pending++ };
    atomic { cached--; live++; pending--; RIGHT }
  :: atomic { !IS_ASIDE && cached > 0 -> cached--; live++; RIGHT }
  :: atomic { cached == 0 && live < 3 -> out = out + (IS_ASIDE -> 1 : 2); cached++; live++; RIGHT }
  :: atomic { IS_ASIDE && live > 0 -> live--; cached++; pending++ };
    atomic { out--; pending--; RIGHT }
  :: atomic { !IS_ASIDE && live > 0 -> live--; cached++; RIGHT }
  :: cached == 0 && live >= 3
  fi
}

proctype owner() {
  byte calls;
  bool open;
  do
  :: calls == OPS -> break
  :: calls < OPS ->
    calls++;
#ifdef ASKED_BEFORE
    open = (thief == 0);
    STORE(buffer, BUSY, 1);
#else
    STORE(buffer, BUSY, 1);
    open = (thief == 0);
#endif
    if
    :: open -> short_way()
    :: long_way() /* also where the cache is empty or full */
    fi;
    STORE(buffer, BUSY, 0)
  od
}

proctype refused() {
  bool done;
#ifndef FLAG_LATE
  near = NEAR;
#endif
  do
  :: done -> break
  :: !done ->
    TAKE(registry);
    thief = thief | THIEF;
#ifndef NO_BARRIER
    FENCE(buffer);
#endif
#ifdef THIEF_WAITS
    mem[BUSY] == 0;
#endif
    if
#ifdef BUSY_IGNORED
    :: true -> set_aside(); done = true
#else
    :: mem[BUSY] == 0 -> set_aside(); done = true
    :: mem[BUSY] != 0
#endif
    fi;
    thief = thief & ASIDE;
    DROP(registry)
  od;
#ifdef FLAG_LATE
  near = NEAR;
#endif
  atomic { near = DRAINED; RIGHT }
}

init {
  atomic {
    run memory(buffer);
    run owner();
    run refused()
  }
}
