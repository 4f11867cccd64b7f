/* fork: the forking thread takes every lock in rank order, passes through them while it holds them (handlers of others run
 * in that window and allocate), and drops them in the parent and in the child. Two threads may fork; a third
 * one refills, gives its cache back, takes one again and purges meanwhile. In the child the others stop where they are: nothing it
 * can reach is half changed, every cache without a thread is on the list of unused ones once, and it can use all of them, and fork
 * again. One bin a cache stands for all of them, the registry's lock for the arenas' too.
 *
 * mirrors src/life/thread.c: {NULL, hak_tcache_fork_lock, hak_tcache_fork_unlock},
 * mirrors src/life/thread.c: hak_store_relaxed(&hak_fork_holder, hak_thread_mark());
 * mirrors src/life/thread.c: hak_pool_fork_child();
 * mirrors src/tcache/tcache.c: if (!t->used || t == hak_tls.cache || t == hak_tls.aside) continue;
 * mirrors src/arena/arena.c: for (unsigned c = 0; c < HAK_CLASS_COUNT; c++) hak_lock_take(&arenas[i]->bins[c].lock);
 * mirrors src/os/lock.c: if (hak_inside_own_fork()) return;
 * mirrors src/os/lock.h: if (HAK_UNLIKELY(hak_load_relaxed(&hak_fork_holder) != 0) && hak_inside_own_fork()) return;
 *
 * pan -DNOREDUCE
 * flags -E
 *
 * finding SKIPS_SAMPLERS_LOCK: assertion | a lock before all others is not taken (the heap walk's then, which is gone): in the window it is taken free, its drop is skipped, and who takes it next in the parent waits for ever
 * mended SKIPS_SAMPLERS_LOCK src/life/thread.c: {&hak_sampling_lock},
 *
 * mutant LOCKS_REVERSED: assertion | the locks are taken against their ranks
 * mutant SKIPS_BIN_LOCKS: assertion | the bins' locks are not taken
 * mutant SKIPS_POOL_LOCK: assertion | the pool's lock is not taken
 * mutant SKIPS_REGISTRY_LOCK: assertion | the registry lock is not taken
 * mutant HOLDER_TOO_EARLY: assertion | the thread passes through locks before it holds them
 * mutant HOLDER_CLEARED_TOO_LATE: assertion | the parent still passes through the locks when it drops them
 * mutant DROPS_IN_WINDOW: assertion | a lock that a handler of others takes and drops in the window is free then
 * mutant WAITS_IN_WINDOW: assertion | a handler of others waits for a lock its own thread holds
 * mutant CHILD_KEEPS_LOCKS: assertion | the child begins with the locks of the fork
 * mutant CHILD_KEEPS_USED: assertion | caches of threads that are not in the child stay in use
 * mutant CHILD_LISTS_ALL: assertion | caches that are on the list are listed again
 * mutant PURGE_LEAVES_FREE: assertion | a purger's spans are free while it tells the system */
#include "common.inc"

#define CACHES 3 /* of the two that fork, and of the third */
#define OTHER 2
#define NOBODY 0

byte start, registry, bin[CACHES], pool, metadata, samplers;
byte holder;  /* hak_fork_holder: 1 + process */
byte child;   /* 1 + process that is the child's only one */
/* Under the registry lock, a bin's, the pool's: true in the middle of a change. */
bool list_torn, bin_torn[CACHES], pool_torn, cells_torn;
bool used[CACHES] = true;
bool listed[CACHES];
bool span_free = true, span_advised; /* advised: the system call is under way */
byte ended;
bool child_done;

#define SELF    (1 + _pid)
#define RUNNING (child == 0 || child == SELF)

/* hak_lock_take, hak_lock_drop; common.inc has them without the fork's rule. */
inline take(lock) {
  if
  :: atomic { lock == 0 -> lock = SELF }
#ifndef WAITS_IN_WINDOW
  :: lock != 0 && holder == SELF
#endif
  fi
}

inline drop(lock) {
  if
#ifndef DROPS_IN_WINDOW
  :: holder == SELF
#else
  :: false
#endif
  :: else -> lock = 0
  fi
}

inline change(torn) {
  assert(!torn);
  torn = true;
  torn = false
}

/* A refill: bin, then pool, then metadata. */
inline use(h) {
  take(bin[h]);
  assert(!bin_torn[h]);
  bin_torn[h] = true;
  take(pool);
  assert(!pool_torn);
  pool_torn = true;
  assert(!span_free || !span_advised); /* a span that can be taken is not being purged */
  pool_torn = false;
  drop(pool);
  take(metadata);
  change(cells_torn);
  drop(metadata);
  bin_torn[h] = false;
  drop(bin[h])
}

inline list_cache(h) {
  assert(!list_torn && !listed[h]);
  list_torn = true;
  listed[h] = true;
  used[h] = false;
  list_torn = false
}

inline lock_all() {
#ifdef LOCKS_REVERSED
  take(metadata);
  take(pool);
  take(bin[2]);
  take(bin[1]);
  take(bin[0]);
  take(registry);
  take(start);
  take(samplers);
#else
#ifndef SKIPS_SAMPLERS_LOCK
  take(samplers);
#endif
  take(start);
#ifndef SKIPS_REGISTRY_LOCK
  take(registry);
#endif
#ifndef SKIPS_BIN_LOCKS
  take(bin[0]);
  take(bin[1]);
  take(bin[2]);
#endif
#ifndef SKIPS_POOL_LOCK
  take(pool);
#endif
  take(metadata);
#endif
#ifndef HOLDER_TOO_EARLY
  holder = SELF
#endif
}

inline unlock_all() {
#ifndef HOLDER_CLEARED_TOO_LATE
  holder = NOBODY;
#endif
  drop(metadata);
#ifndef SKIPS_POOL_LOCK
  drop(pool);
#endif
#ifndef SKIPS_BIN_LOCKS
  drop(bin[0]);
  drop(bin[1]);
  drop(bin[2]);
#endif
#ifndef SKIPS_REGISTRY_LOCK
  drop(registry);
#endif
  drop(start);
#ifndef SKIPS_SAMPLERS_LOCK
  drop(samplers)
#endif
#ifdef HOLDER_CLEARED_TOO_LATE
  ; holder = NOBODY
#endif
}

/* What handlers that were registered before ours may do between ours. */
inline window(h) {
  take(samplers); /* an option that switches samplers */
  use(h);
  drop(samplers)
}

inline forget(h) {
  if
#ifndef CHILD_LISTS_ALL
  :: h != mine && !listed[h] -> list_cache(h)
#else
  :: h != mine -> list_cache(h)
#endif
  :: else
  fi
}

inline be_the_child() {
  window(mine);
  holder = NOBODY;
#ifndef CHILD_KEEPS_LOCKS
  atomic { start = 0; registry = 0; bin[0] = 0; bin[1] = 0; bin[2] = 0; pool = 0; metadata = 0; samplers = 0 };
#endif
#ifndef CHILD_KEEPS_USED
  forget(0);
  forget(1);
  forget(2);
#endif
  /* Every other cache can be taken, and every bin used. */
  for (h : 0 .. CACHES - 1) {
    if
    :: h != mine ->
       take(registry);
       assert(!list_torn && listed[h] && !used[h]);
       listed[h] = false;
       used[h] = true;
       drop(registry)
    :: else
    fi;
    use(h)
  }
  /* And it can fork. */
  lock_all();
  window(mine);
  unlock_all();
  use(mine)
}

proctype forker(byte mine) provided (RUNNING) {
  byte h;
#ifdef HOLDER_TOO_EARLY
  holder = SELF;
#endif
  lock_all();
  window(mine);
  /* fork() */
  if
  :: child = SELF; be_the_child(); child_done = true
  :: window(mine); unlock_all()
  fi;
  take(samplers);
  use(mine);
  drop(samplers);
  ended++
}

proctype other() provided (RUNNING) {
  use(OTHER);
  /* It ends, and a thread takes its cache again. */
  take(registry);
  list_cache(OTHER);
  drop(registry);
  take(registry);
  assert(!list_torn);
  list_torn = true;
  listed[OTHER] = false;
  used[OTHER] = true;
  list_torn = false;
  drop(registry);
  use(OTHER);
  /* A purge. */
  take(pool);
  change(pool_torn);
#ifndef PURGE_LEAVES_FREE
  span_free = false;
#endif
  drop(pool);
  span_advised = true;
  span_advised = false;
  take(pool);
  change(pool_torn);
  span_free = true;
  drop(pool);
  ended++
}

/* No invalid end state here: in a child the others have stopped. Where nothing can go on, all is done. */
active proctype monitor() {
  timeout -> assert(holder == NOBODY && (child != 0 -> child_done : ended == 3))
}

init { atomic { run forker(0); run forker(1); run other() } }
