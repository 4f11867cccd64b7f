/* Work that a lower layer found and did not do: its caller does it once no lock is held, at the end of a slow path
 * (entry/slow_exit.c). Zeroed at first. */
#ifndef HAK_MISUSE_DEFERRED_H
#define HAK_MISUSE_DEFERRED_H

#include <stdbool.h>

#include "misuse/misuse.h"

/* How a request stands with memory, one step after the other. */
typedef enum hak_memory {
  HAK_MEMORY_ENOUGH,
  HAK_MEMORY_OUT,       /* a lower layer found none */
  HAK_MEMORY_RECLAIMED, /* the exit has taken back what was free */
  HAK_MEMORY_LAST_TRY,  /* the entry asks once more: out is out */
} hak_memory;

typedef struct hak_deferred {
  bool purge_due;      /* more is dirty than the mark, or a request found no memory */
  uint8_t memory;      /* hak_memory */
  hak_verdict verdict; /* of the first bad block, or HAK_VERDICT_OK */
  void *bad;
  unsigned bad_code; /* page map code; 0: unknown */
  const char *where;  /* it was found, for the report */
  bool slow;          /* a heap's slow path was taken: the entry owes the exit */
  /* Bytes of a request that its thread's cache served, and only the countdown led to a slow path; 0: there was more to
   * do */
  size_t from_cache;
} hak_deferred;

HAK_INLINE void hak_deferred_note_out(hak_deferred *d) {
  if (d->memory != HAK_MEMORY_ENOUGH) return;
  d->memory = HAK_MEMORY_OUT;
  d->purge_due = true;
}

HAK_INLINE void hak_deferred_note(hak_deferred *d, hak_verdict verdict, void *p, unsigned class_code,
                                  const char *where) {
  if (d->verdict != HAK_VERDICT_OK) return;
  d->verdict = verdict;
  d->bad = p;
  d->bad_code = class_code + 1;
  d->where = where;
}

#endif
