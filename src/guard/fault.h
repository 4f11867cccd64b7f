/* Faults: where an inaccessible piece of ours was touched, says what is there before the program ends as it would have. A handler
 * that the program installs later gets the faults instead. */
#ifndef HAK_GUARD_FAULT_H
#define HAK_GUARD_FAULT_H

#include <stdbool.h>

/* Catches SIGSEGV and SIGBUS. Idempotent; one caller at a time. */
void hak_fault_start(void);
/* Whether a fault has been reported. */
bool hak_fault_told(void);

#endif
