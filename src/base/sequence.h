/* A sequence: one writer at a time changes words that others read meanwhile, without a lock. An odd number: they are
 * being changed; an even one: they are whole; 0: there are none yet.
 *
 *   writer, in its turn                         reader
 *   1. sequence = odd           (relaxed)       a. sequence (acquire): even and not 0, else again
 *   2. release fence                            b. the words
 *   3. the words                                c. acquire fence
 *   4. sequence = even          (release)       d. sequence: the same as in a, else again
 *
 * Release 4 pairs with acquire a: b sees the words of that number, or later ones. If b sees a word of a later 3, fence
 * 2 pairs with fence c: d sees the odd number of that 1, or one behind it. ABA: a reader that sleeps through 2^31
 * changes. In a fork's child whose parent's writer was another thread the number may be odd: the child's next change
 * ends that. */
#ifndef HAK_BASE_SEQUENCE_H
#define HAK_BASE_SEQUENCE_H

#include <stdint.h>

#include "base/atomic.h"
#include "base/compiler.h"

/* The change after that of the even number `last`. */
HAK_INLINE void hak_sequence_begin_after(uint32_t *sequence, uint32_t last) {
  hak_store_relaxed(sequence, last | 1);
  HAK_RELEASE_OWN();
}
HAK_INLINE void hak_sequence_begin(uint32_t *sequence) {
  hak_sequence_begin_after(sequence, hak_load_relaxed(sequence));
}

/* Returns the even number. */
HAK_INLINE uint32_t hak_sequence_end(uint32_t *sequence) {
  uint32_t even = (hak_load_relaxed(sequence) | 1) + 1;
  if (even == 0) even = 2;
  hak_store_release(sequence, even);
  return even;
}

#endif
