/* The handler of SIGSEGV and SIGBUS. If the program touched an inaccessible page of hakmem's (guard/fault.h), the
 * handler prints what is there; then the program ends as it would have.
 *
 * Hardened build: any other fault may follow from a misuse: a zeroed pointer was read from a freed block, or bytes
 * behind a block were taken for a pointer. Unless the program has a handler, the walk looks at all blocks
 * (harden/sweep.h), and the report names a free block that a register or the stack points into. */
#ifndef HAK_WATCH_CRASH_H
#define HAK_WATCH_CRASH_H

/* Catches SIGSEGV and SIGBUS. Idempotent; one caller at a time. A handler that the program installs later gets the
 * faults instead. */
void hak_crash_start(void);

#endif
