/* The coarse clocks, monotonic and since 1970, without libc's symbols, without the processor's time counter, and without a system call
 * where the kernel gives the process a vDSO. So slow paths may ask for the time in a process that may read no time
 * counter (PR_SET_TSC) or make no system call (SECCOMP_MODE_STRICT). They advance with the kernel's tick, every 1 to 10 ms. */
#ifndef HAK_OS_CLOCK_H
#define HAK_OS_CLOCK_H

#include <stdint.h>

uint64_t hak_os_clock_ns(void);
uint64_t hak_os_unix_ns(void);

#endif
