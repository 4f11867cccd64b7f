/* Which CPU a thread runs on, as a small dense number: a hint, read without a system call. */
#ifndef HAK_OS_CPU_H
#define HAK_OS_CPU_H

#include <stddef.h>
#include <stdint.h>

#include "base/atomic.h"
#include "base/compiler.h"

/* Offset from the thread pointer of the word to read; 0: there is none. */
extern HAK_HIDDEN ptrdiff_t hak_os_cpu_offset;

/* Bytes of a CPU's second-level cache, or a usual size if the system does not say; constant from hak_os_cpu_start
 * on. */
extern HAK_HIDDEN size_t hak_os_l2_bytes;

/* Finds both. The word is the concurrency id in the thread's rseq area if the kernel keeps one there (Linux 6.3), else
 * the number of the CPU. hakmem only reads the area that libc has registered, and runs no restartable sequence. */
void hak_os_cpu_start(void);
/* CPUs that the process might run on when it was asked first. */
uint32_t hak_os_cpu_count(void);
/* The number of a thread without that word: given at its first call, below the number of CPUs. */
uint32_t hak_os_cpu_slow(void);

HAK_INLINE uint32_t hak_os_cpu(void) {
  ptrdiff_t offset = hak_os_cpu_offset;
  if (HAK_UNLIKELY(offset == 0)) return hak_os_cpu_slow();
  uint32_t id = hak_load_relaxed((const uint32_t *)((const char *)hak_thread_pointer() + offset));
  return HAK_LIKELY(id < UINT32_C(0x80000000)) ? id : hak_os_cpu_slow(); /* libc has not registered this thread */
}

#endif
