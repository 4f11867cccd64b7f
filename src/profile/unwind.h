/* Walks up the stack, for samples: by the modules' call frame information, and by frame pointers where there is
 * none. */
#ifndef HAK_PROFILE_UNWIND_H
#define HAK_PROFILE_UNWIND_H

#include <stdint.h>

/* On the process's first thread, before others: where its stack ends. */
void hak_unwind_note_main(void);

/* Before the first walk that shall be fast; once, and under no lock, since libc may take the loader's. Where libc
 * cannot be asked for the module of an address without a lock (all but glibc 2.35 and later), this notes the modules
 * that are loaded; of others only frame pointers are followed. */
void hak_unwind_start(void);

/* Return addresses of the callers of the calling function, innermost first; at most `capacity`, and how many. Each less
 * one lies in an instruction of the caller: in its call, or, of a function that a signal interrupted, the one it was to
 * go on with.
 *
 * Never allocates, takes no lock, changes no errno; no system call on a stack that was walked before, unless it is
 * neither the thread's nor the process's first one. For signal handlers, fork's child, constructors, destructors,
 * inside dl_iterate_phdr and beside dlopen and dlclose. A stack that was overwritten ends the walk, or gives wrong
 * addresses. */
unsigned hak_unwind(uintptr_t *pcs, unsigned capacity);

#endif
