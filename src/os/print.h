/* Messages to stderr without allocating. One call writes one message of at most 1,023 bytes in one write;
 * a longer one is cut, and ends with a newline. In a setuid program addresses ("%p") are left out; what else would show
 * one may not be passed there (hak_os_has_more_rights). */
#ifndef HAK_OS_PRINT_H
#define HAK_OS_PRINT_H

#include "base/compiler.h"

void hak_print(const char *format, ...) HAK_PRINTF(1, 2);

#endif
