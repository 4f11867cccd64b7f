/* A request from outside the process: rate and beat, a lease that ends, and answers of whoever comes by. The asker asks twice, with two rates, reads
 * each answer, and then ends its request or is killed; from its first answer on another one asks, too. Two threads look whenever there is news for
 * them. Each word has a store buffer of its own.
 *
 * mirrors src/watch/outside.c: return is_renewed(beat) || (beat != 0 && now_ms < hak_load_relaxed(&until_ms));
 * mirrors src/watch/outside.c: if (!is_news(now_ms) || hak_inside_own_fork()) return;
 * mirrors src/watch/outside.c: if (hak_cas_acquire(&turn, &expected, 1)) {
 * mirrors src/watch/outside.c: if (error == EAGAIN) return;
 * mirrors src/watch/outside.c: hak_sequence_begin(&hak_outside.sequence);
 * mirrors src/watch/outside.c: hak_sequence_end(&hak_outside.sequence);
 * mirrors src/base/sequence.h: HAK_RELEASE_OWN();
 * mirrors src/base/sequence.h: hak_store_release(sequence, even);
 *
 * mutant BEAT_BEFORE_RATE: assertion | the beat is written before its rate
 * mutant ODD_WITHOUT_FENCE: assertion | the answer's bytes may be seen before the odd number
 * mutant EVEN_RELAXED: assertion | the even number may be seen before the answer's bytes
 * mutant NUMBER_READ_ONCE: assertion | the reader does not read the number again behind the answer
 * mutant WITHOUT_TURN: stuck | two threads answer at once, and the number stays odd
 * mutant SEEN_TOO_EARLY: stuck | a beat is noted as seen before the switch has succeeded
 * mutant SEEN_OUTSIDE_TURN: stuck | a beat is noted as seen by a thread that does not get the turn
 * mutant END_IS_NO_NEWS: assertion | threads look at new beats alone
 * mutant LEASE_FOR_EVER: assertion | a beat asks for sampling without an end */
#define WORDS 5
#define RATE 0
#define BEAT 1
#define SEQUENCE 2
#define TEXT_A 3
#define TEXT_B 4
#include "common.inc"
#include "store_buffer.inc"

chan rate_store = [1] of { byte, byte };
chan beat_store = [1] of { byte, byte };
chan sequence_store = [1] of { byte, byte };
chan text_a_store = [1] of { byte, byte };
chan text_b_store = [1] of { byte, byte };

byte seen, until, now = 1, force; /* force: the rate that samples are taken with; 0: off */
bool turn, over, first, other_ended;
byte ended;

#define RENEWED(b) (b != 0 && b != seen)
#ifdef LEASE_FOR_EVER
#define LEASED(b) (b != 0)
#else
#define LEASED(b) (RENEWED(b) || (b != 0 && now < until))
#endif
#ifdef END_IS_NO_NEWS
#define NEWS RENEWED(mem[BEAT])
#else
#define NEWS (RENEWED(mem[BEAT]) || LEASED(mem[BEAT]) != (force != 0))
#endif

/* Two halves of a text, which tells the rate. */
inline answer() {
  odd = mem[SEQUENCE] + 1;
  STORE(sequence_store, SEQUENCE, odd);
#ifndef ODD_WITHOUT_FENCE
  FENCE(sequence_store);
#endif
  STORE(text_a_store, TEXT_A, force);
  STORE(text_b_store, TEXT_B, force);
#ifndef EVEN_RELAXED
  FENCE(text_a_store) && FENCE(text_b_store);
#endif
  STORE(sequence_store, SEQUENCE, odd + 1)
}

#define ALL_BEFORE FENCE(sequence_store) && FENCE(text_a_store) && FENCE(text_b_store)

inline serve() {
  beat = mem[BEAT]; /* acquire */
  renewed = RENEWED(beat);
  leased = LEASED(beat);
#ifdef SEEN_TOO_EARLY
  if :: renewed -> seen = beat :: else fi;
#endif
  if
  :: renewed -> goto again /* another thread switches samplers */
  :: true
  fi;
  if :: leased -> force = mem[RATE] :: else -> force = 0 fi;
  if :: renewed -> seen = beat; until = now + 1 :: else fi;
  if :: renewed && beat % 2 != 0 -> answer() :: else fi;
again:
  skip
}

proctype thread() {
  byte beat, odd;
  bool renewed, leased, got;
  do
  :: NEWS ->
#ifdef SEEN_OUTSIDE_TURN
     atomic { beat = mem[BEAT]; renewed = RENEWED(beat) };
     if :: renewed -> seen = beat :: else fi;
#endif
#ifdef WITHOUT_TURN
     got = true;
#else
     atomic { got = !turn; turn = true };
#endif
     if
     :: got -> serve(); ALL_BEFORE; turn = false
     :: else
     fi
  :: over && !NEWS -> break
  od;
  ended++
}

inline ask(rate, number) {
  begun = mem[SEQUENCE];
#ifdef BEAT_BEFORE_RATE
  STORE(beat_store, BEAT, number);
  FENCE(beat_store);
#endif
  STORE(rate_store, RATE, rate);
  FENCE(rate_store); /* mmap_lock of the target, dropped and taken */
#ifndef BEAT_BEFORE_RATE
  STORE(beat_store, BEAT, number);
  FENCE(beat_store);
#endif
  do
  :: mem[SEQUENCE] != begun && mem[SEQUENCE] % 2 == 0 ->
     sequence = mem[SEQUENCE];
     a = mem[TEXT_A];
     b = mem[TEXT_B];
#ifndef NUMBER_READ_ONCE
     if
     :: sequence % 2 == 0 && sequence == mem[SEQUENCE] -> break
     :: else
     fi
#else
     break
#endif
  od;
  assert(a == b)
}

proctype asker() {
  byte begun, sequence, a, b;
  ask(1, 1);
  assert(a == 1);
  first = true;
  ask(2, 3);
  other_ended;
  if
  :: STORE(beat_store, BEAT, 0); FENCE(beat_store)
  :: atomic { !RENEWED(mem[BEAT]) && !turn -> now = 2 } /* killed; the lease is of when the last beat was seen */
  fi;
  over = true;
  ended++
}

/* Asks with a beat of its own, whose answer may come at any time. */
proctype other() {
  first;
  STORE(beat_store, BEAT, 5);
  FENCE(beat_store);
  other_ended = true
}

init {
  atomic {
    run memory(rate_store);
    run memory(beat_store);
    run memory(sequence_store);
    run memory(text_a_store);
    run memory(text_b_store);
    run thread();
    run thread();
    run asker();
    run other()
  };
  ended == 3;
  assert(force == 0)
}
