/* Static probes (USDT): a note in the file names a probe's provider, and says where the probe is and where its
 * arguments are; its place is one nop.
 *
 * A probe's semaphore counts who listens: a tracer raises it through the file's mapping, gdb through the process's
 * memory. While it is 0 arguments are not even computed. It is written by nobody in here. Where <sys/sdt.h> is missing
 * HAK_PROBES is 0, and nothing of this is left.
 *
 * Arguments are where a function's first ones would be: OpenTelemetry's eBPF profiler reads those registers, and not
 * the note. */
#ifndef HAK_OS_PROBE_H
#define HAK_OS_PROBE_H

#include <stdint.h>

#include "base/atomic.h"
#include "base/compiler.h"

#if HAK_PROBES
#define _SDT_HAS_SEMAPHORES 1
#include <sys/sdt.h>

#if defined(__x86_64__)
#define HAK_PROBE_A "rdi"
#define HAK_PROBE_B "rsi"
#define HAK_PROBE_C "rdx"
#elif defined(__aarch64__)
#define HAK_PROBE_A "x0"
#define HAK_PROBE_B "x1"
#define HAK_PROBE_C "x2"
#else
#error "the registers of a function's first arguments"
#endif

/* Once for each probe, in the one file that fires it. The note names the semaphore in assembler, which link-time
 * optimisation does not read: hence no static variable, and `used`. Hidden, since each module has its own. */
#define HAK_PROBE_DEFINE(provider, name) \
  HAK_HIDDEN unsigned short provider##_##name##_semaphore __attribute__((used, section(".probes")))
#define HAK_PROBE_LISTENED(provider, name) HAK_UNLIKELY(hak_load_relaxed(&provider##_##name##_semaphore) != 0)
#define HAK_PROBE1(provider, name, a) \
  do { \
    if (HAK_PROBE_LISTENED(provider, name)) { \
      register uint64_t a_ __asm__(HAK_PROBE_A) = (uint64_t)(a); \
      STAP_PROBE1(provider, name, a_); \
    } \
  } while (0)
/* All are computed before the first is in its register, which a call on the way would change. */
#define HAK_PROBE3(provider, name, a, b, c) \
  do { \
    if (HAK_PROBE_LISTENED(provider, name)) { \
      uint64_t a_of = (uint64_t)(a), b_of = (uint64_t)(b), c_of = (uint64_t)(c); \
      register uint64_t a_ __asm__(HAK_PROBE_A) = a_of; \
      register uint64_t b_ __asm__(HAK_PROBE_B) = b_of; \
      register uint64_t c_ __asm__(HAK_PROBE_C) = c_of; \
      STAP_PROBE3(provider, name, a_, b_, c_); \
    } \
  } while (0)
#else
#define HAK_PROBE_DEFINE(provider, name) _Static_assert(1, "no probes")
#define HAK_PROBE_LISTENED(provider, name) 0
#define HAK_PROBE1(provider, name, a) ((void)(a))
#define HAK_PROBE3(provider, name, a, b, c) ((void)(a), (void)(b), (void)(c))
#endif

#endif
