/* A library with a lock of its own, under which it allocates, and which fork handlers keep whole for the child; and with a
 * worker, which allocates to its end and is ended before each fork. */
#ifndef TESTS_LIFECYCLE_HANDLERS_LIBRARY_H
#define TESTS_LIFECYCLE_HANDLERS_LIBRARY_H

/* Replaces what the library keeps. Any thread. */
void handlers_library_use(void);
/* From now on the worker is there, but for forks. Once, before other threads call. */
void handlers_library_start_worker(void);
/* Threads that its handler in the child has started and joined. */
int handlers_library_threads(void);

#endif
