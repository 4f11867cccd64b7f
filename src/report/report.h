/* The heap walk. */
#ifndef HAK_REPORT_REPORT_H
#define HAK_REPORT_REPORT_H

#include <stddef.h>

/* Walks every span, list and bitmap; prints each fault and returns their number. Callable from a debugger. */
size_t hak_heap_check(void);

#endif
