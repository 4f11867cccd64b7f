/* What the hardened build does beyond the default one. HAK_HARDENED is a mask of these, 0 in the default build: plain
 * constants, so what is not built in costs nothing. */
#ifndef HAK_BASE_POLICY_H
#define HAK_BASE_POLICY_H

#ifndef HAK_HARDENED
#define HAK_HARDENED 0
#endif

#define HAK_HARD_CHECKED_FREE 1 /* a byte a block says whether the program has it */
#define HAK_HARD_CANARY 2       /* the request's exact size and kind, and bytes behind it that must not change */
/* Blocks are zeroed when freed, from their start, and must still be zero when they are used again */
#define HAK_HARD_ZERO 4
#define HAK_HARD_QUARANTINE 8   /* freed blocks wait before they are used again */
#define HAK_HARD_RANDOM 16      /* which free block is used next cannot be predicted */
#define HAK_HARD_GUARDS 32      /* every 16th span is inaccessible, and so is what is around huge blocks */

/* Of a free block of a slab so many bytes are zero; its last 8 are too, or they are the trailer of who had it last.
 * harden/trailer.h is written for this number: two runs of 8 pairs. */
#define HAK_ZEROED_BYTES 256

#define HAK_HARD(feature) ((HAK_HARDENED & HAK_HARD_##feature) != 0)

/* Whether there is something to see in blocks that nobody frees or takes (harden/sweep.h). */
#define HAK_HARD_SWEEP (HAK_HARD(CHECKED_FREE) && (HAK_HARD(CANARY) || HAK_HARD(ZERO)))

/* A build whose blocks need no preparation: the fast paths of malloc and free stay in the entry points' bodies, with
 * the byte a block. */
#define HAK_HARD_FAST (HAK_HARD(CHECKED_FREE) && (HAK_HARDENED & ~(HAK_HARD_CHECKED_FREE | HAK_HARD_GUARDS)) == 0)

#endif
