/* What an inaccessible piece of ours is that was touched: a guarded block's page; hardened build: a guard between spans
 * or around a huge block, a block of no bytes. */
#ifndef HAK_GUARD_FAULT_H
#define HAK_GUARD_FAULT_H

#include <stdbool.h>

/* After a fault at p: reports it, or says false. */
bool hak_fault_explain(const void *p);

#endif
