/* HAKMEM_BACKGROUND: a thread that does the allocator's idle work, for programs whose own threads may stop allocating. It
 * wakes every 250 ms while there is something to give back or the program takes memory, does a bounded part of it, and
 * else sleeps until somebody frees what should go back. */
#ifndef HAK_API_BACKGROUND_H
#define HAK_API_BACKGROUND_H

#include <stdbool.h>

/* Starts the thread if it is wanted and this process has none. Called by the constructor and in the child of a fork, which
 * has lost its parent's; the allocator is ready, no lock is held. A refusal is said in one line and the program goes on without. */
void hak_background_start(void);
/* In the child of a fork. restart: with a thread if the parent had one. */
void hak_background_fork_child(bool restart);

#endif
