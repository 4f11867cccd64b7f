/* An extent's byte in the page map: of two frees that come at the same time one wins. One extent, its byte, a user, the pool,
 * a second user who gets it from the pool, and one thread that may free it twice. A double free is reported, or comes after
 * the extent was handed out again, when nobody can tell it from a right one; the pool's books are right all the same, and no
 * right free is reported.
 *
 * mirrors src/large/extent.h: bool won = hak_region_change_code(r, hak_region_index(r, p), HAK_CODE_EXTENT, HAK_CODE_EXTENT_FREED);
 * mirrors src/large/extent.h: hak_pool_give_large(r, hak_region_span(r, p), HAK_EXTENT_TAG, purge_due);
 * mirrors src/pool/quick.h: if (HAK_UNLIKELY(span->tag != tag || span->head != span || span->span_count <= keep)) {
 * mirrors src/pool/quick.h: hak_quick_put(r, span);
 * mirrors src/pool/quick.h: hak_region_set_code(r, index, HAK_CODE_EXTENT_FREED);
 * mirrors src/pool/quick.c: hak_pool_set_codes(r, index, spans, HAK_CODE_NONE);
 * mirrors src/pool/quick.h: hak_region_set_code(r, index, tags.head_code);
 *
 * mutant CLAIM_IS_NO_CAS: assertion | the byte is read and then stored
 * mutant CLAIM_UNCHECKED: assertion | the free looks at the byte once, before it takes the extent
 * mutant GIVE_LEAVES_CODE: assertion | the pool does not clear the byte of an extent that comes back
 * mutant TAKE_LEAVES_FREED: assertion | an extent is handed out without its byte
 * mutant GIVE_WITHOUT_POOL_LOCK: assertion | an extent comes back without the pool's lock */
#include "common.inc"

#define THREADS 2
#define OPERATIONS 4

mtype = { NOTHING, EXTENT, FREED };

mtype code = EXTENT;
bool span_tagged = true; /* span->tag is HAK_EXTENT_TAG */
byte pool, in_books;
bool in_pool;
byte generation;         /* which time the extent is handed out */
byte frees[8];           /* accepted for a generation */
bool misused;            /* a second free has begun */
byte ended;

/* hak_pool_give, which the winner calls with no lock held. */
inline give() {
#ifndef GIVE_WITHOUT_POOL_LOCK
  TAKE(pool);
#endif
  in_books++;
  assert(in_books == 1);
  if
  :: span_tagged ->
#ifndef GIVE_LEAVES_CODE
     if
     :: code = FREED /* on a quick list */
     :: code = NOTHING
     fi;
#else
     code = EXTENT;
#endif
     span_tagged = false;
     assert(!in_pool);
     in_pool = true
  :: else -> assert(false) /* the winner's extent has gone */
  fi;
  in_books--
#ifndef GIVE_WITHOUT_POOL_LOCK
  ; DROP(pool)
#endif
}

/* hak_free of the pointer that was handed out as generation `given`. */
inline free_extent(given) {
  seen = code;
  won = false;
  if
  :: seen == EXTENT ->
#ifdef CLAIM_IS_NO_CAS
     if
     :: code == EXTENT -> code = FREED; won = true
     :: else
     fi;
#elif defined(CLAIM_UNCHECKED)
     code = FREED;
     won = true;
#else
     atomic {
       if
       :: code == EXTENT -> code = FREED; won = true
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
       :: else /* taken for the free of a later generation */
       fi
     };
     give()
  :: else ->
     assert(misused); /* it is reported: never without a reason */
     reported = true
  fi
}

/* hak_pool_take. */
inline take_from_pool() {
  TAKE(pool);
  in_books++;
  assert(in_books == 1);
  if
  :: in_pool ->
     in_pool = false;
     span_tagged = true;
     atomic {
#ifndef TAKE_LEAVES_FREED
       code = EXTENT;
#endif
       generation++;
       mine = generation;
       holds = true
     }
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
  ended == THREADS
}
