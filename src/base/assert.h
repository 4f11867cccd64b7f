/* What must hold. On in debug, sanitizer, fuzz and schedule builds (CMake's HAKMEM_ASSERTS), nothing in others: a
 * condition is not evaluated there, so it may cost what it likes, and must have no effect. */
#ifndef HAK_BASE_ASSERT_H
#define HAK_BASE_ASSERT_H

#include "base/compiler.h"

#ifndef HAK_ASSERTS
#define HAK_ASSERTS 0
#endif

/* Prints the condition and its place, and aborts. Defined in os/print.c. */
__attribute__((noreturn)) HAK_COLD void hak_assert_failed(const char *condition, const char *file, int line);

#define HAK_ASSERT(condition) \
  ((void)(HAK_ASSERTS && !(condition) ? (hak_assert_failed(#condition, __FILE__, __LINE__), 0) : 0))

#endif
