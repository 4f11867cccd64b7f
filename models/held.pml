/* The byte of a block in the hardened build, its contents, and a thread that looks at blocks that are not its own. A writer hands the
 * block out, resizes it in place, and frees it, ROUNDS times; a reader reports it when LOOKS looks after each other found it damaged.
 * Without damage there must be no report. Each word has a store buffer of its own, so relaxed stores reach memory in any order.
 *
 * Where the fill lies depends on the size: fill and word fit each other only when both are written. A look may be wrong when a whole round
 * passed within it, or a resize: LOOKS is one more than there are such. In the program a round is
 * a wait in quarantine, and looks are a millisecond apart.
 *
 * mirrors src/harden/held.h: hak_store_relaxed(hak_held_byte(r, hak_held_offset(r, p)), HAK_CHANGING);
 * mirrors src/harden/held.h: __atomic_thread_fence(__ATOMIC_RELEASE);
 * mirrors src/harden/held.h: hak_store_release(hak_held_byte(r, hak_held_offset(r, p)), HAK_HELD);
 * mirrors src/harden/held.h: hak_store_release(hak_held_byte(r, hak_held_offset(r, p)), HAK_NOT_HELD);
 * mirrors src/harden/trailer.h: hak_store_release((uint64_t *)(void *)((char *)p + end), key.word ^ content << HAK_TRAILER_CHECK_BITS);
 * mirrors src/harden/entries.c: hak_trailer_write(p, block_size, size, family);
 * mirrors src/harden/sweep.c: return held == hak_load_relaxed(byte) ? verdict : HAK_VERDICT_OK;
 *
 * variant DAMAGED | what the program writes behind a block that it keeps is reported
 * variant WRITTEN_AFTER_FREE | and what it writes into a free one
 *
 * mutant HAND_OUT_UNMARKED: assertion | the byte says free while the trailer is written
 * mutant FREE_UNMARKED: assertion | the byte says held while the block is zeroed
 * mutant HELD_TOO_EARLY: assertion | the byte says held before the trailer is there
 * mutant FREE_TOO_EARLY: assertion | the byte says free before the block is zero
 * mutant MARK_WITHOUT_FENCE: assertion | the contents may be seen before the mark
 * mutant SET_RELAXED: assertion | the byte may be seen before the contents
 * mutant RESIZE_UNMARKED: assertion | the byte says held while fill and trailer change
 * mutant BYTE_READ_ONCE: assertion | what changed while it was read counts as damage
 * mutant BYTE_READ_EARLY: assertion | the byte is read again before the contents are */
#define WORDS 3
#define BYTE 0
#define WORD 1 /* the trailer's: the size that was asked for, 1 or 2 */
#define FILL 2 /* the size that the pattern behind the request is for */
#include "common.inc"
#include "store_buffer.inc"

#if defined(DAMAGED) || defined(WRITTEN_AFTER_FREE)
#define MISUSE
#endif
#define NOT_HELD 0
#define HELD 1
#define CHANGING 2
#define ROUNDS 3
#define LOOKS (ROUNDS - 1 + ROUNDS + 1)

chan byte_store = [1] of { byte, byte };
chan word_store = [1] of { byte, byte };
chan fill_store = [1] of { byte, byte };
bool damaged, reported;
byte ended;

inline mark() {
  STORE(byte_store, BYTE, CHANGING);
#ifndef MARK_WITHOUT_FENCE
  FENCE(byte_store)
#endif
}

inline set(value) {
#ifndef SET_RELAXED
  FENCE(word_store);
  FENCE(fill_store);
#endif
  STORE(byte_store, BYTE, value)
}

inline hand_out(size) {
#ifndef HAND_OUT_UNMARKED
  mark();
#endif
#ifdef HELD_TOO_EARLY
  set(HELD);
#endif
  STORE(fill_store, FILL, size);
  FENCE(fill_store);
  STORE(word_store, WORD, size);
#ifndef HELD_TOO_EARLY
  set(HELD)
#endif
}

inline resize(size) {
#ifndef RESIZE_UNMARKED
  mark();
#endif
  STORE(fill_store, FILL, size);
  FENCE(fill_store);
  STORE(word_store, WORD, size);
#ifndef RESIZE_UNMARKED
  set(HELD)
#endif
}

inline free() {
#ifndef FREE_UNMARKED
  mark();
#endif
#ifdef FREE_TOO_EARLY
  set(NOT_HELD);
#endif
  STORE(word_store, WORD, 0);
  STORE(fill_store, FILL, 0);
#ifndef FREE_TOO_EARLY
  set(NOT_HELD)
#endif
}

proctype writer() {
  byte round;
  do
  :: round < ROUNDS ->
     if
     :: hand_out(1); if :: resize(2) :: true fi
     :: hand_out(2); if :: resize(1) :: true fi
     fi;
     free();
     round++
  :: else -> break
  od;
  round = 0;
  ended++
}

/* Misuse, and then nothing more. */
proctype misuser() {
  hand_out(1);
#ifdef WRITTEN_AFTER_FREE
  free();
#endif
  STORE(word_store, WORD, 9);
  FENCE(byte_store);
  FENCE(word_store);
  damaged = true;
  ended++
}

#define BAD(held, word, fill) ((held == HELD && (word == 0 || word > 2 || fill != word)) || (held == NOT_HELD && (word != 0 || fill != 0)))

proctype reader() {
  byte look, held, word, fill, again;
  bool bad;
#ifdef MISUSE
  damaged;
#endif
  do
  :: look < LOOKS ->
     held = mem[BYTE];
#ifdef BYTE_READ_EARLY
     again = mem[BYTE];
#endif
     word = mem[WORD];
     fill = mem[FILL];
#ifndef BYTE_READ_EARLY
     again = mem[BYTE];
#endif
     bad = BAD(held, word, fill);
#ifndef BYTE_READ_ONCE
     bad = bad && held == again;
#endif
     if
     :: bad -> look++
     :: else -> break
     fi
  :: else -> reported = true; break
  od;
  assert(reported == damaged);
  ended++
}

init {
  atomic {
    run memory(byte_store);
    run memory(word_store);
    run memory(fill_store);
#ifdef MISUSE
    run misuser();
#else
    run writer();
#endif
    run reader()
  };
  ended == 2
}
