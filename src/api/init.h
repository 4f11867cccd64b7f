/* What happens around main: nothing here is needed for malloc to work. */
#ifndef HAK_API_INIT_H
#define HAK_API_INIT_H

void hak_fork_register(void);

/* Referred to by alloc.c, so that a static link with any part of the interface takes the constructor along. */
extern const char hak_init_linked;

#endif
