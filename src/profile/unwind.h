#ifndef HAK_PROFILE_UNWIND_H
#define HAK_PROFILE_UNWIND_H
#include <stdint.h>
unsigned hak_unwind(uintptr_t *pcs, unsigned capacity);
void hak_unwind_start(void);
#endif
