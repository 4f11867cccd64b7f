/* What happens around main: nothing here is needed for malloc to work. */
#ifndef HAK_API_INIT_H
#define HAK_API_INIT_H

void hak_fork_register(void);

#endif
