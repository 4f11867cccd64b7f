/* HAKMEM_BACKGROUND: a thread that does the allocator's idle work, for programs whose own threads may stop allocating. It
 * wakes every 250 ms while there is memory to purge or the program allocates, and purges a bounded part; else it sleeps
 * until a free makes memory dirty that may not stay. */
#ifndef HAK_API_BACKGROUND_H
#define HAK_API_BACKGROUND_H

#include <stdbool.h>

/* Starts the thread if it is wanted and this process has none. Called by the constructor and in the child of a fork, which
 * has lost its parent's; the allocator is ready, no lock is held. If the system refuses a thread, one line says so, and the program runs without. */
void hak_background_start(void);
/* HAKMEM_BACKGROUND may have changed: starts the thread, or the thread ends by itself soon. */
void hak_background_follow(void);
/* In the child of a fork. restart: with a thread if the parent had one. */
void hak_background_fork_child(bool restart);

#endif
