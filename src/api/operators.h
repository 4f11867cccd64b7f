/* Hardened build: whether all operators new and delete of the process are known. A library may have some that nobody else sees (-Bsymbolic,
 * a C++ runtime linked statically): to us their blocks are malloc's, and the program deletes them by ours. */
#ifndef HAK_API_OPERATORS_H
#define HAK_API_OPERATORS_H

#include <stdbool.h>

/* Looks at all that is loaded, until something is found that may have its own: a library that takes malloc from outside but no operator,
 * one that defines an operator, or one that was unloaded. Allocates nothing. */
bool hak_operators_known(void);

#endif
