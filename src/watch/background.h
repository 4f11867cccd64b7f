/* Threads that are the library's own: the heap profile's (profiler.c), and the helper. They run no code of the program,
 * and do not keep its process alive.
 *
 * HAKMEM_BACKGROUND: the helper does the allocator's idle work, for programs whose own threads may stop allocating. It
 * wakes every 250 ms while there is memory to purge or the program allocates, and purges a bounded part; else it sleeps
 * until a free makes memory dirty that may not stay. */
#ifndef HAK_WATCH_BACKGROUND_H
#define HAK_WATCH_BACKGROUND_H

#include <stdbool.h>

/* Starts a thread with all signals blocked, so that no handler of the program runs on it. 0 or an errno value. */
int hak_thread_of_ours(void *(*run)(void *));
/* All other threads are the library's, and there are some. Reads a file of /proc. */
bool hak_own_threads_only(void);
/* A program's threads may all end without exit. Each calls this at its end. True for the process's first thread if the
 * library has threads: the caller wakes them, and from then on they look every period whether they are alone, and end
 * the process. */
bool hak_own_threads_see_end(void);
bool hak_main_has_ended(void);
void hak_end_if_alone(void);

/* Starts the helper if it is wanted and this process has none. Called by the constructor and in the child of a fork,
 * which has lost its parent's; the allocator is ready, no lock is held. If the system refuses a thread, one line says
 * so, and the program runs without. */
void hak_background_start(void);
/* HAKMEM_BACKGROUND may have changed: starts the helper, or the helper ends by itself soon. */
void hak_background_follow(void);
/* In the child of a fork, which has no such thread. restart: with a helper if the parent had one. */
void hak_background_fork_child(bool restart);

#endif
