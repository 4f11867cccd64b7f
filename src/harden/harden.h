/* What the hardened build puts between the entry points and the allocator.
 *
 * Every block ends in a trailer that says what was asked for (exact size, and by which family) and proves that it was
 * not written to; the bytes between the request and the trailer are filled with a pattern. A byte a block says whether
 * the program has it. All are checked at free and at realloc, by any thread, before the allocator sees the block;
 * every finding ends in a misuse report. The functions have the contracts of their plain namesakes in entry/entry.h. */
#ifndef HAK_HARDEN_HARDEN_H
#define HAK_HARDEN_HARDEN_H

#include <stdbool.h>
#include <stddef.h>

/* Who allocated a block, and who may free it. */
typedef enum hak_family {
  HAK_FAMILY_MALLOC = 1,
  HAK_FAMILY_NEW,
  HAK_FAMILY_NEW_ARRAY,
} hak_family;

#define HAK_SIZE_UNKNOWN ((size_t)-1)

#define HAK_ANY_ALIGN ((size_t)0)

/* Whether all operators new and delete of the process are known. A library may have some that nobody else sees
 * (-Bsymbolic, a C++ runtime linked statically): to us their blocks are malloc's, and the program deletes them by ours.
 * Looks at all that is loaded, until something is found that may have its own: a library that takes malloc from outside
 * but no operator, one that defines an operator, or one that was unloaded. Allocates nothing. */
bool hak_operators_known(void);

#endif
