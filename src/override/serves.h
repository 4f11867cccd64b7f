/* Of override_libc.c, for its neighbours. */
#ifndef HAK_OVERRIDE_SERVES_H
#define HAK_OVERRIDE_SERVES_H

#include <stdbool.h>

#include "os/os.h"

/* Whether the loader has bound free to this library's: a program may bring a malloc of its own. */
HAK_HIDDEN bool hak_override_serves(void);

#endif
