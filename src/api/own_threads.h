/* Threads that are the library's own: the background thread and the profile's. They run no code of the program, and do not keep
 * its process alive. */
#ifndef HAK_API_OWN_THREADS_H
#define HAK_API_OWN_THREADS_H

#include <stdbool.h>

/* Starts a thread with all signals blocked, so that no handler of the program runs on it. 0 or an errno value. */
int hak_thread_of_ours(void *(*run)(void *));
/* Called by such a thread, last. */
void hak_thread_of_ours_ends(void);
/* All other threads are the library's, and there are some. Reads a file of /proc. */
bool hak_own_threads_only(void);
/* A program's threads may all end without exit. Each calls this at its end. True for the process's first thread if the library has
 * threads: the caller wakes them, and from then on they look every period whether they are alone, and end the process. */
bool hak_own_threads_see_end(void);
bool hak_main_has_ended(void);
void hak_end_if_alone(void);
/* In the child of a fork, which has no such thread. */
void hak_own_threads_fork_child(void);

#endif
