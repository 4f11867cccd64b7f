/* Pointers that are not ours: counted, optionally reported, never dereferenced, never freed. */
#ifndef HAK_GUARD_FOREIGN_H
#define HAK_GUARD_FOREIGN_H

#include <stdint.h>

#include "os/os.h"

enum hak_foreign_call { HAK_FOREIGN_FREE, HAK_FOREIGN_REALLOC, HAK_FOREIGN_USABLE_SIZE, HAK_FOREIGN_CALLS };

/* Notes one such pointer; `caller` is the return address in the program. Keeps errno. */
HAK_COLD void hak_foreign_note(enum hak_foreign_call call, const void *p, const void *caller);

uint64_t hak_foreign_total(void);
uint64_t hak_foreign_calls(enum hak_foreign_call call);
/* Totals and the top callers, one line each (HAKMEM_EXTERNAL_GUARD_STATS). */
void hak_foreign_print(void);

#endif
