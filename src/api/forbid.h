/* Scopes in which a thread may neither allocate nor free (hakmem_forbid): a call that does is reported with its stack. The fast path tests
 * nothing for it: in a scope every request ends its countdown, and no free finds a cache (tcache/tcache.h), so the slow path sees each. */
#ifndef HAK_API_FORBID_H
#define HAK_API_FORBID_H

#include <stddef.h>

#include "tcache/tcache.h"

/* Reports, or ends the program (HAKMEM_FORBID). */
void hak_forbid_report(const char *call, const void *p, size_t size);

/* A call that has taken a slow path, and ended no countdown: the same, where it is in a scope. */
HAK_INLINE void hak_forbid_look(const char *call, const void *p, size_t size) {
  if (HAK_UNLIKELY(hak_tls.phase == HAK_THREAD_FORBIDDEN)) hak_forbid_report(call, p, size);
}

/* The thread ends. */
HAK_INLINE void hak_forbid_end(void) {
  if (HAK_UNLIKELY(hak_tls.phase == HAK_THREAD_FORBIDDEN)) hak_tcache_take_back();
}

#endif
