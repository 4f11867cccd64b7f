/* Purge against take and give: a purger claims a dirty span under the pool's lock, tells the system without it, and puts
 * it back clean, or dirty where the system refused. Two spans, two threads that take, write and give, two purgers. No
 * byte of a held span is lost, a span said to read as zero does, and the pool's figures fit its bitmaps.
 *
 * mirrors src/pool/claim.c: hak_pool_mark_taken(r, *first, *count);
 * mirrors src/pool/claim.c: hak_add_single(&hak_span_pool.claimed_spans, *count);
 * mirrors src/pool/claim.c: hak_sub_single(&hak_span_pool.claimed_spans, count);
 * mirrors src/pool/chunk_index.c: size_t dirty = hak_bits_change(c->dirty, bit, spans, false), muzzy = hak_bits_change(c->muzzy, bit, spans, false);
 * mirrors src/pool/chunk_index.c: return dirty + muzzy;
 * mirrors src/pool/span_pool.c: *zeroed = kept == 0;
 * mirrors src/reclaim/purge.c: hak_pages pages = purge_range(hak_region_address(r, first), n << HAK_SPAN_SHIFT, lazily);
 * mirrors src/reclaim/purge.c: hak_pool_unclaim(r, first, n, pages);
 *
 * mutant PURGE_WITHOUT_CLAIM: assertion | the spans stay free while the system is told
 * mutant UNCLAIM_TOO_EARLY: assertion | they are put back before the system is told
 * mutant REFUSED_IS_CLEAN: assertion | what the system refused is put back clean
 * mutant GIVE_IS_CLEAN: assertion | a span that comes back is not marked dirty
 * mutant TAKE_KEEPS_DIRTY: assertion | a span that is taken stays marked dirty
 * mutant CLAIM_WITHOUT_LOCK: assertion | the claim changes the bitmaps without the pool's lock
 * mutant UNCLAIM_WITHOUT_LOCK: assertion | so does the way back */
#include "common.inc"

#define SPANS 2
#define ALL 3
#define THREADS 4

byte pool;
byte free_bits = ALL, dirty_bits; /* words: read, changed and stored */
byte live, claimed;
bool not_zero[SPANS];     /* what the memory holds */
byte written_by[SPANS];   /* 0: nothing; a purge clears it */
byte ended;

#define BIT(s)     (1 << (s))
#define HAS(w, s)  (((w) >> (s)) & 1)
#define COUNT(w)   (HAS(w, 0) + HAS(w, 1))
#define FIGURES    assert((dirty_bits & ~free_bits & ALL) == 0 && live == SPANS - COUNT(free_bits) && claimed <= live)

/* A word is changed in two steps, so that a change without the lock can be lost. */
inline change_word(bits, value) {
  word = bits;
  bits = value
}

inline take_bits(s) {
  change_word(free_bits, word & ~BIT(s) & ALL);
  zeroed = !HAS(dirty_bits, s);
#ifndef TAKE_KEEPS_DIRTY
  change_word(dirty_bits, word & ~BIT(s) & ALL);
#endif
  live++
}

inline choose(bits, s) {
  if
  :: HAS(bits, 0) -> s = 0
  :: HAS(bits, 1) -> s = 1
  :: else -> s = NONE
  fi
}

proctype user(byte rounds) {
  byte s, word, n;
  bool zeroed;
  for (n : 1 .. rounds) {
    TAKE(pool);
    choose(free_bits, s);
    if
    :: s != NONE -> take_bits(s)
    :: else
    fi;
    FIGURES;
    DROP(pool);
    if
    :: s != NONE ->
       assert(!zeroed || !not_zero[s]);
       atomic { not_zero[s] = true; written_by[s] = _pid };
       assert(written_by[s] == _pid); /* read back, at any time later */
       TAKE(pool);
       change_word(free_bits, word | BIT(s));
#ifndef GIVE_IS_CLEAN
       change_word(dirty_bits, word | BIT(s));
#endif
       live--;
       FIGURES;
       DROP(pool)
    :: else
    fi
  }
  ended++
}

inline decommit(s, gone) {
  if
  :: s == NONE
  :: s != NONE -> atomic { not_zero[s] = false; written_by[s] = 0; gone = true }
  :: s != NONE -> gone = false /* refused */
  fi
}

inline unclaim(s, gone) {
  if
  :: s != NONE ->
#ifndef UNCLAIM_WITHOUT_LOCK
     TAKE(pool);
#endif
     change_word(free_bits, word | BIT(s));
     live--;
     claimed--;
     if
#ifdef REFUSED_IS_CLEAN
     :: false
#else
     :: !gone -> change_word(dirty_bits, word | BIT(s))
#endif
     :: else
     fi
#ifndef UNCLAIM_WITHOUT_LOCK
     ; FIGURES;
     DROP(pool)
#endif
  :: else
  fi
}

inline claim(s) {
#ifndef CLAIM_WITHOUT_LOCK
  TAKE(pool);
#endif
  choose(dirty_bits, s);
#ifndef PURGE_WITHOUT_CLAIM
  if
  :: s != NONE -> take_bits(s); claimed++
  :: else
  fi;
#endif
#ifndef CLAIM_WITHOUT_LOCK
  FIGURES;
  DROP(pool);
#endif
}

proctype purger() {
  byte s, word;
  bool zeroed, gone;
  claim(s);
#ifdef UNCLAIM_TOO_EARLY
  gone = true;
  unclaim(s, gone);
  decommit(s, gone);
#else
  decommit(s, gone);
#ifndef PURGE_WITHOUT_CLAIM
  unclaim(s, gone);
#endif
#endif
  ended++
}

init {
  byte s;
  atomic { run user(1); run user(1); run purger(); run purger() };
  ended == THREADS;
  FIGURES;
  assert(free_bits == ALL && live == 0 && claimed == 0);
  for (s : 0 .. SPANS - 1) { assert(HAS(dirty_bits, s) || !not_zero[s]) }
}
