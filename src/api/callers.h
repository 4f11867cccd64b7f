/* Hardened build: who calls malloc and free, as far as that tells whether operator new or delete stands between.
 *
 * A library may have an operator new of its own that nobody else sees (-Bsymbolic, a C++ runtime linked statically): to us its blocks are
 * malloc's, and the program's delete is ours. The program itself has none if it takes operator new and delete from outside, and libc has
 * none: what these two call is judged, and what any other calls is not. */
#ifndef HAK_API_CALLERS_H
#define HAK_API_CALLERS_H

#include <stdbool.h>
#include <stdint.h>

#include "api/harden.h"
#include "base/compiler.h"
#include "base/policy.h"

typedef struct hak_callers {
  uintptr_t start;
  size_t bytes; /* 0: not known yet */
} hak_callers;
/* Of the program, which is most often the caller, and what it is; of libc. Written once, before main. */
extern HAK_HIDDEN hak_callers hak_program_code, hak_libc_code;
extern HAK_HIDDEN hak_family hak_program_family;

/* The family of malloc or free, called from there. */
HAK_INLINE hak_family hak_caller_family(const void *caller) {
  if (!HAK_HARD(CANARY)) return HAK_FAMILY_MALLOC;
  if (HAK_LIKELY((uintptr_t)caller - hak_program_code.start < hak_program_code.bytes)) return hak_program_family;
  return (uintptr_t)caller - hak_libc_code.start < hak_libc_code.bytes ? HAK_FAMILY_MALLOC : HAK_FAMILY_ANY;
}

/* Looks for the two among what is loaded. Until then nobody is known. */
void hak_callers_start(void);

#endif
