/* Raw system calls. They go through no symbol of libc, which a program may interpose with a function that allocates,
 * and do not touch errno. A result in [-4095, -1] is a negated errno value. Includes nothing but what the kernel
 * defines. */
#ifndef HAK_OS_CALL_H
#define HAK_OS_CALL_H

#include <stdbool.h>
#include <sys/syscall.h>

#include "base/compiler.h"

#if !defined(__x86_64__) && !defined(__aarch64__)
#include <errno.h>
#include <unistd.h>
#endif

HAK_INLINE bool hak_os_call_failed(long result) { return (unsigned long)result > -4096UL; }
/* The error as errno would have it, 0: none. */
HAK_INLINE int hak_os_call_error(long result) { return hak_os_call_failed(result) ? (int)-result : 0; }

HAK_INLINE long hak_os_call_inline(long number, long a, long b, long c, long d, long e, long f) {
#if defined(__x86_64__)
  long result;
  register long r10 __asm__("r10") = d;
  register long r8 __asm__("r8") = e;
  register long r9 __asm__("r9") = f;
  __asm__ volatile("syscall"
                   : "=a"(result)
                   : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                   : "rcx", "r11", "memory");
  return result;
#elif defined(__aarch64__)
  register long x8 __asm__("x8") = number;
  register long x0 __asm__("x0") = a;
  register long x1 __asm__("x1") = b;
  register long x2 __asm__("x2") = c;
  register long x3 __asm__("x3") = d;
  register long x4 __asm__("x4") = e;
  register long x5 __asm__("x5") = f;
  __asm__ volatile("svc #0"
                   : "+r"(x0)
                   : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5)
                   : "memory");
  return x0;
#else
  int saved = errno;
  long result = syscall(number, a, b, c, d, e, f);
  if (result == -1) result = -errno;
  errno = saved;
  return result;
#endif
}

#if HAK_OS_REPLACEABLE /* builds that tests link: a test may stand in between (tests/targets/paged_kernel.c) */
long hak_os_call6(long number, long a, long b, long c, long d, long e, long f);
#else
HAK_INLINE long hak_os_call6(long number, long a, long b, long c, long d, long e, long f) {
  return hak_os_call_inline(number, a, b, c, d, e, f);
}
#endif

/* Arguments that are left out are 0. */
#define HAK_OS_CALL_PICK(number, a, b, c, d, e, f, ...) \
  hak_os_call6((number), (long)(a), (long)(b), (long)(c), (long)(d), (long)(e), (long)(f))
#define hak_os_call(...) HAK_OS_CALL_PICK(__VA_ARGS__, 0, 0, 0, 0, 0, 0, 0)

#endif
