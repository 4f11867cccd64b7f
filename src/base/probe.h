/* Static probes (USDT) of the provider hakmem: a note in the file says where one is and where its arguments are; its place is one nop.
 *
 * A probe's semaphore counts who listens: a tracer raises it through the file's mapping, gdb through the process's memory. While it
 * is 0 arguments are not even computed. It is written by nobody in here. Where <sys/sdt.h> is missing HAK_PROBES is 0, and nothing of
 * this is left. */
#ifndef HAK_BASE_PROBE_H
#define HAK_BASE_PROBE_H

#include "base/atomic.h"
#include "base/compiler.h"

#if HAK_PROBES
#define _SDT_HAS_SEMAPHORES 1
#include <sys/sdt.h>

/* Once for each probe, in the one file that fires it. The note names the semaphore in assembler, which link-time optimisation does not
 * read: hence no static variable, and `used`. Hidden, since each module has its own. */
#define HAK_PROBE_DEFINE(name) \
  HAK_HIDDEN unsigned short hakmem_##name##_semaphore __attribute__((used, section(".probes")))
#define HAK_PROBE_LISTENED(name) HAK_UNLIKELY(hak_load_relaxed(&hakmem_##name##_semaphore) != 0)
#define HAK_PROBE1(name, a) \
  do { \
    if (HAK_PROBE_LISTENED(name)) STAP_PROBE1(hakmem, name, a); \
  } while (0)
#define HAK_PROBE3(name, a, b, c) \
  do { \
    if (HAK_PROBE_LISTENED(name)) STAP_PROBE3(hakmem, name, a, b, c); \
  } while (0)
#else
#define HAK_PROBE_DEFINE(name) _Static_assert(1, "no probes")
#define HAK_PROBE1(name, a) ((void)(a))
#define HAK_PROBE3(name, a, b, c) ((void)(a), (void)(b), (void)(c))
#endif

#endif
