/* Threads that are the library's own: the background thread and the profile's. They run nothing of the program, and do not keep its
 * process. */
#ifndef HAK_API_OWN_THREADS_H
#define HAK_API_OWN_THREADS_H

#include <stdbool.h>

/* Starts a thread that runs nothing of the program: no signal comes to it. 0 or an errno value. */
int hak_thread_of_ours(void *(*run)(void *));
/* All other threads are the library's, and there are some. Reads a file of /proc. */
bool hak_own_threads_only(void);
/* A program's threads may all end without exit. By each thread at its end; true for the process's first one where there are threads of
 * ours, which the caller wakes: from then on they look in each of their periods whether they are alone, and end the process. */
bool hak_own_threads_see_end(void);
bool hak_main_has_ended(void);
void hak_end_if_alone(void);
/* In the child of a fork, which has none. */
void hak_own_threads_fork_child(void);

#endif
