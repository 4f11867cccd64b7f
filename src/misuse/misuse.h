/* The end of a program that misused its heap: one report on stderr, then abort(). Callers hold no lock, so that a
 * SIGABRT handler may still allocate. */
#ifndef HAK_MISUSE_MISUSE_H
#define HAK_MISUSE_MISUSE_H

#include <stddef.h>

#include "os/os.h"

/* What a free of a block can find. OK comes first so that a verdict can be tested as a truth value; from KIND_MISMATCH
 * on the hardened build finds them alone. */
#define HAK_VERDICTS(V)                                                                      \
  V(OK, "no misuse")                                                                         \
  V(DOUBLE_FREE, "double free: the block is already free")                                   \
  V(NO_BLOCK_START, "invalid free: the address is not the start of a block")                 \
  V(FREE_MEMORY, "invalid or double free: the address lies in free memory")                  \
  V(SIZE_MISMATCH, "sized free: the size given is not that of the block")                    \
  V(NO_HEAP, "invalid heap: it is none, or it was destroyed or deleted before")              \
  V(KIND_MISMATCH, "mismatched free: malloc, new and new[] each have a free of their own")   \
  V(FOREIGN, "invalid free: no block of hakmem's is there")                                  \
  V(OVERFLOW, "overflow: bytes behind the block were written")                               \
  V(UNDERFLOW, "underflow: bytes before the block were written")                             \
  V(WRITTEN_AFTER_FREE, "use after free: the block was written after it was freed")
#define HAK_VERDICT_NAME(name, text) HAK_VERDICT_##name,
typedef enum hak_verdict { HAK_VERDICTS(HAK_VERDICT_NAME) } hak_verdict;

/* block_size 0: unknown. */
__attribute__((noreturn)) HAK_COLD void hak_misuse_abort(hak_verdict verdict, const void *p, size_t block_size,
                                                         const char *where);
__attribute__((noreturn)) HAK_COLD void hak_fatal(const char *what);

#endif
