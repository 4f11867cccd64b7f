/* The end of a program that misused its heap: one report on stderr, then abort(). Callers hold no lock, so that a
 * SIGABRT handler may still allocate. */
#ifndef HAK_MISUSE_MISUSE_H
#define HAK_MISUSE_MISUSE_H

#include <stddef.h>

#include "os/os.h"

/* What a free of a block can find. OK comes first so that a verdict can be tested as a truth value. */
typedef enum hak_verdict {
  HAK_VERDICT_OK,
  HAK_VERDICT_DOUBLE_FREE,
  HAK_VERDICT_NO_BLOCK_START,
  HAK_VERDICT_FREE_MEMORY,
  HAK_VERDICT_SIZE_MISMATCH,
  HAK_VERDICT_NO_HEAP,
  /* found by the hardened build only */
  HAK_VERDICT_KIND_MISMATCH,
  HAK_VERDICT_FOREIGN,
  HAK_VERDICT_OVERFLOW,
  HAK_VERDICT_UNDERFLOW,
  HAK_VERDICT_WRITTEN_AFTER_FREE,
} hak_verdict;

/* block_size 0: unknown. */
__attribute__((noreturn)) HAK_COLD void hak_misuse_abort(hak_verdict verdict, const void *p, size_t block_size,
                                                         const char *where);
__attribute__((noreturn)) HAK_COLD void hak_fatal(const char *what);

#endif
