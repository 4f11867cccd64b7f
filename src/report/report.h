/* The heap walk. */
#ifndef HAK_REPORT_REPORT_H
#define HAK_REPORT_REPORT_H

#include <stddef.h>

#include "os/lock.h"

/* Walks every span, list and bitmap; prints each fault and returns their number. Callable from a debugger. */
size_t hak_heap_check(void);
/* One walk at a time. Ranks before all others; fork takes it too. */
extern hak_lock hak_heap_check_lock;

#endif
