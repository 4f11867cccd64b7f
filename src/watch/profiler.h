/* When a heap profile is written: at exit, on a signal, every so often, when memory has grown, near a limit, when
 * `hakmem profile PID` asks, and by hakmem_profile_dump. A thread of the library waits for all but the first and the
 * last, so that a process at rest answers too, and no thread of the program is held up by a file, but near a limit
 * (watch/black_box.h). */
#ifndef HAK_WATCH_PROFILER_H
#define HAK_WATCH_PROFILER_H

#include <stdbool.h>

/* In the constructor and when the profile is switched on, and in the child of a fork; does nothing until an option has
 * it on. */
void hak_profiler_start(void);
void hak_profiler_fork_child(bool restart);

/* The thread of the profile looks around. */
void hak_profiler_wake(void);

bool hak_profiler_wanted_at_exit(void);
void hak_profiler_at_exit(bool may_lock);

#endif
