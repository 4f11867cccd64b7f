/* A run's tag: of two frees that come at the same time one wins. One run, its tag, its place (a user, the stock of one of
 * two threads, the pool), a second user who gets it from the pool, and one thread that may free it twice. A double free is
 * reported, or comes after the run was handed out again, when nobody can tell it from a right one; the books of stock and
 * pool are right all the same, and no right free is reported.
 *
 * mirrors src/large/run.c: bool won = hak_cas_acquire(&r->tags[hak_region_index(r, p)], &expected, HAK_TAG(0, HAK_CODE_RUN_KEPT));
 * mirrors src/large/run.c: hak_store_relaxed(&r->tags[hak_region_index(r, p)], RUN_TAG);
 * mirrors src/large/run.c: hak_pool_give(hak_region_span(hak_region_find(p), p), 0, RUN_TAG, release_due);
 * mirrors src/heap/run_stock.c: hak_verdict verdict = hak_run_keep(r, p);
 * mirrors src/pool/span_pool.c: if (HAK_UNLIKELY(span->tag != tag || span->head != span || span->span_count <= keep)) {
 * mirrors src/pool/span_pool.c: set_tags(r, index, spans, 0);
 *
 * finding STALE_SIZE: assertion | the size is read before the run is won: a late second free, of a run that has gone and come back with another size, puts it into the stock with the old one, and it is handed out with that
 * mended STALE_SIZE src/heap/run_stock.c: hak_run_give_kept(p, release_due);
 *
 * mutant KEEP_IS_NO_CAS: assertion | the tag is read and then stored
 * mutant KEEP_UNCHECKED: assertion | the free looks at the tag once, before it takes the run
 * mutant REUSE_LEAVES_KEPT: assertion | a run from the stock keeps the tag of a kept one
 * mutant GIVE_LEAVES_TAG: assertion | the pool does not clear the tag of a run that comes back
 * mutant KEEP_TOO_LATE: assertion | the run is in the stock before its tag says so
 * mutant GIVE_WITHOUT_POOL_LOCK: assertion | a run comes back without the pool's lock */
#include "common.inc"

#define THREADS 2
#define OPERATIONS 4

mtype = { NOTHING, RUN, KEPT };

mtype tag = RUN;
bool span_tagged = true; /* span->tag is RUN_TAG */
byte size = 1;           /* span_count */
byte pool, in_books;
bool in_pool;
bool in_stock[THREADS];
byte stock_size[THREADS];
byte generation;         /* which time the run is handed out */
byte frees[8];           /* accepted for a generation */
bool misused;            /* a second free has begun */
bool stolen;             /* one was taken for the free of a later generation */
byte ended;

#define BOOKS_RIGHT assert(in_stock[0] + in_stock[1] + in_pool <= 1)

/* The new handing-out begins with the store of the tag. */
inline hand_out(new_tag) {
  atomic { tag = new_tag; generation++; mine = generation; holds = true }
}

/* hak_free of the pointer that was handed out as generation `given`. */
inline free_run(given) {
  seen = tag;
  won = false;
#ifdef STALE_SIZE
  freed_size = size;
#endif
  if
  :: seen == RUN ->
#ifdef KEEP_IS_NO_CAS
     if
     :: tag == RUN -> tag = KEPT; won = true
     :: else
     fi;
#elif defined(KEEP_UNCHECKED)
     tag = KEPT;
     won = true;
#elif defined(KEEP_TOO_LATE)
     won = true;
#else
     atomic {
       if
       :: tag == RUN -> tag = KEPT; won = true
       :: else
       fi
     };
#endif
  :: else
  fi;
  if
  :: won ->
     d_step {
       if
       :: given == generation -> frees[given]++; assert(frees[given] == 1)
       :: else -> stolen = true
       fi
     };
#ifndef STALE_SIZE
     freed_size = size;
#endif
     atomic { in_stock[me] = true; stock_size[me] = freed_size; BOOKS_RIGHT };
#ifdef KEEP_TOO_LATE
     tag = KEPT
#endif
  :: else ->
     assert(misused); /* it is reported: never without a reason */
     reported = true
  fi
}

inline reuse() {
  atomic { in_stock[me] = false; assert(stock_size[me] == size) };
#ifdef REUSE_LEAVES_KEPT
  hand_out(KEPT)
#else
  hand_out(RUN)
#endif
}

inline give() {
  in_stock[me] = false;
#ifndef GIVE_WITHOUT_POOL_LOCK
  TAKE(pool);
#endif
  in_books++;
  assert(in_books == 1);
  if
  :: span_tagged ->
#ifndef GIVE_LEAVES_TAG
     tag = NOTHING;
#else
     tag = RUN;
#endif
     span_tagged = false;
     atomic { in_pool = true; BOOKS_RIGHT }
  :: else
  fi;
  in_books--
#ifndef GIVE_WITHOUT_POOL_LOCK
  ; DROP(pool)
#endif
}

/* hak_pool_take: one or two spans. */
inline take_from_pool() {
  TAKE(pool);
  in_books++;
  assert(in_books == 1);
  if
  :: in_pool ->
     in_pool = false;
     if
     :: size = 1
     :: size = 2
     fi;
     span_tagged = true;
     hand_out(RUN)
  :: else
  fi;
  in_books--;
  DROP(pool)
}

proctype thread(byte me; bool holds; bool may_misuse) {
  byte mine, old, n, freed_size;
  mtype seen;
  bool won, reported;
  for (n : 1 .. OPERATIONS) {
    if
    :: holds && !reported -> holds = false; free_run(mine)
    :: may_misuse && !reported -> may_misuse = false; misused = true; free_run(old)
    :: in_stock[me] && !reported -> reuse()
    :: in_stock[me] && !reported -> give()
    :: !holds && in_pool && !reported -> take_from_pool()
    :: true /* something else; a report ends the program */
    fi
  }
  ended++
}

/* The run is handed out to the first thread; the second has a copy of the pointer and may free it once. */
init {
  atomic { run thread(0, true, false); run thread(1, false, true) };
  ended == THREADS;
  BOOKS_RIGHT
}
