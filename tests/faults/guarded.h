/* For programs that change something of the machine around a command. */
#ifndef TESTS_FAULTS_GUARDED_H
#define TESTS_FAULTS_GUARDED_H

#include <stdbool.h>

#define SKIPPED 77 /* exit status: this machine does not allow the setting */

/* Has put_back() run in a process of its own, at guard_end() or when this process ends in any other way, however
 * violent. That process has a copy of what is in memory now. */
bool guard_start(void (*put_back)(void));
/* Waits until everything is back. */
void guard_end(void);

/* Runs the command; its process runs enter() first (NULL: nothing), which says what is wrong if it returns false.
 * Returns the command's exit status, 1 where a signal ended it, SKIPPED where it was not run. */
int run_command(char **command, bool (*enter)(void));

#endif
