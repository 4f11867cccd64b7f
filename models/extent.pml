/* An extent's page map entry: of two frees that come at the same time one wins. One extent, its entry, its place (a user, one of
 * two threads on the way to the pool, the pool), a second user who gets it from the pool, and one thread that may free it
 * twice. A double free is reported, or comes after the extent was handed out again, when nobody can tell it from a right
 * one; the pool's books are right all the same, and no right free is reported.
 *
 * mirrors src/large/run.c: bool won = hak_cas_acquire(&r->map[hak_region_index(r, p)], &expected, HAK_CODE_EXTENT_FREED);
 * mirrors src/large/run.c: hak_pool_give(hak_region_span(hak_region_find(p), p), 0, RUN_TAG, purge_due);
 * mirrors src/api/free.c: hak_verdict verdict = hak_run_claim(region, p);
 * mirrors src/pool/span_pool.c: if (HAK_UNLIKELY(span->tag != tag || span->head != span || span->span_count <= keep)) {
 * mirrors src/pool/span_pool.c: set_codes(r, index, spans, HAK_CODE_NONE);
 *
 * mutant CLAIM_IS_NO_CAS: assertion | the entry is read and then stored
 * mutant CLAIM_UNCHECKED: assertion | the free looks at the entry once, before it takes the extent
 * mutant GIVE_LEAVES_ENTRY: assertion | the pool does not clear the entry of an extent that comes back
 * mutant GIVE_CLEARS_LATE: assertion | it clears it when the extent can be taken again
 * mutant GIVE_WITHOUT_POOL_LOCK: assertion | an extent comes back without the pool's lock */
#include "common.inc"

#define THREADS 2
#define OPERATIONS 4

mtype = { NOTHING, EXTENT, FREED };

mtype entry = EXTENT;
bool span_tagged = true; /* span->tag is RUN_TAG */
byte pool, in_books;
bool in_pool;
bool on_the_way[THREADS];
byte generation; /* which time the extent is handed out */
byte frees[8];   /* accepted for a generation */
bool misused;    /* a second free has begun */
byte ended;

#define BOOKS_RIGHT assert(on_the_way[0] + on_the_way[1] + in_pool <= 1)

/* hak_free of the pointer that was handed out as generation `given`. */
inline free_extent(given) {
  seen = entry;
  won = false;
  if
  :: seen == EXTENT ->
#ifdef CLAIM_IS_NO_CAS
     if
     :: entry == EXTENT -> entry = FREED; won = true
     :: else
     fi
#elif defined(CLAIM_UNCHECKED)
     entry = FREED;
     won = true
#else
     atomic {
       if
       :: entry == EXTENT -> entry = FREED; won = true
       :: else
       fi
     }
#endif
  :: else
  fi;
  if
  :: won ->
     d_step {
       if
       :: given == generation -> frees[given]++; assert(frees[given] == 1)
       :: else /* taken for the free of a later generation */
       fi
     };
     atomic { on_the_way[me] = true; BOOKS_RIGHT };
     give()
  :: else ->
     assert(misused); /* it is reported: never without a reason */
     reported = true
  fi
}

inline give() {
#ifndef GIVE_WITHOUT_POOL_LOCK
  TAKE(pool);
#endif
  in_books++;
  assert(in_books == 1);
  on_the_way[me] = false;
  if
  :: span_tagged ->
#if !defined(GIVE_LEAVES_ENTRY) && !defined(GIVE_CLEARS_LATE)
     entry = NOTHING;
#endif
     span_tagged = false;
     atomic { in_pool = true; BOOKS_RIGHT }
  :: else
  fi;
  in_books--
#ifndef GIVE_WITHOUT_POOL_LOCK
  ; DROP(pool)
#endif
#ifdef GIVE_CLEARS_LATE
  ; entry = NOTHING
#endif
}

/* hak_pool_take. */
inline take_from_pool() {
  TAKE(pool);
  in_books++;
  assert(in_books == 1);
  if
  :: in_pool ->
     assert(entry == NOTHING); /* free spans have no code */
     in_pool = false;
     span_tagged = true;
     atomic { entry = EXTENT; generation++; mine = generation; holds = true }
  :: else
  fi;
  in_books--;
  DROP(pool)
}

proctype thread(byte me; bool holds; bool may_misuse) {
  byte mine, old, n;
  mtype seen;
  bool won, reported;
  for (n : 1 .. OPERATIONS) {
    if
    :: holds && !reported -> holds = false; free_extent(mine)
    :: may_misuse && !reported -> may_misuse = false; misused = true; free_extent(old)
    :: !holds && in_pool && !reported -> take_from_pool()
    :: true /* something else; a report ends the program */
    fi
  }
  ended++
}

/* The extent is handed out to the first thread; the second has a copy of the pointer and may free it once. */
init {
  atomic { run thread(0, true, false); run thread(1, false, true) };
  ended == THREADS;
  BOOKS_RIGHT
}
