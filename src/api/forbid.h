/* Scopes in which a thread may neither allocate nor free (hakmem_forbid): a call that does is reported with its stack. The fast path tests
 * nothing for it: in a scope every request ends its countdown, and no free finds a cache (tcache/tcache.h), so the slow path sees each. */
#ifndef HAK_API_FORBID_H
#define HAK_API_FORBID_H

#include <stddef.h>

#include "tcache/tcache.h"

/* Reports, or ends the program (HAKMEM_FORBID). */
void hak_forbid_report(const char *call, const void *p, size_t size);

/* A free of p has taken a slow path. */
HAK_INLINE void hak_forbid_look(const void *p) {
  if (HAK_UNLIKELY(hak_tls.phase == HAK_THREAD_FORBIDDEN)) hak_forbid_report("free", p, 0);
}

/* The thread ends. */
HAK_INLINE void hak_forbid_end(void) {
  if (HAK_UNLIKELY(hak_tls.phase == HAK_THREAD_FORBIDDEN)) hak_tcache_take_back();
}

#endif
