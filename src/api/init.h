/* What happens around main: nothing here is needed for malloc to work. */
#ifndef HAK_API_INIT_H
#define HAK_API_INIT_H

#include <stdbool.h>

void hak_fork_register(void);
/* Whether this thread may wait for every lock there is: not in a signal handler that has interrupted it under one. Waits up to
 * half a second, for locks of other threads too. */
bool hak_fork_may_lock(void);

/* This process is a fork's child. */
extern bool hak_forked; /* relaxed */

/* The constructor. A second call does nothing. */
void hak_start_first(int argc, char **argv, char **variables);

/* Put into each file of the interface that a static link may take alone, so that the constructor comes along. */
extern const char hak_init_linked;
#define HAK_LINK_INIT __attribute__((used)) static const char *const init_linked = &hak_init_linked

#endif
