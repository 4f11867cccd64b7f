/* Hardened build: a fault that no piece of ours explains may follow from a misuse: a zeroed pointer was read from a freed block, or
 * bytes behind a block were taken for one. Before the program ends as it would have, the walk looks at all blocks (api/sweep.h), and
 * the report names a free block that a register or the stack points into. */
#ifndef HAK_API_CRASH_H
#define HAK_API_CRASH_H

/* Before hak_fault_start, which passes on what it cannot explain. Once. */
void hak_crash_start(void);

#endif
