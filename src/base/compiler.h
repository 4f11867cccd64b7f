/* Compiler attributes used by every box, and nothing else. */
#ifndef HAK_BASE_COMPILER_H
#define HAK_BASE_COMPILER_H

#define HAK_LIKELY(x) __builtin_expect(!!(x), 1)
#define HAK_UNLIKELY(x) __builtin_expect(!!(x), 0)
#define HAK_INLINE static inline __attribute__((always_inline))
#define HAK_COLD __attribute__((cold, noinline))
#define HAK_NOINLINE __attribute__((noinline))
#define HAK_EXPORT __attribute__((visibility("default")))
/* On declarations of data the fast path reads: without it each access goes through the GOT. */
#define HAK_HIDDEN __attribute__((visibility("hidden")))
#define HAK_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#define HAK_ALIGNED(n) __attribute__((aligned(n)))

/* x is what it is, but the compiler does not know how it came about. */
#define HAK_OPAQUE(x) __asm__("" : "+r"(x))

/* The compiler moves no access to memory past this. */
#define HAK_IN_ORDER() __asm__ volatile("" : : : "memory")

/* Initial-exec: one load and one fs-relative access, no call to __tls_get_addr, at the price of living in
   glibc's spare static TLS when the library is loaded by dlopen (docs/architecture.md gives the sizes). */
#define HAK_TLS __thread __attribute__((tls_model("initial-exec")))

/* On functions that look at what another thread may be writing, where any value will do (report/peek.c). */
#define HAK_RACY __attribute__((no_sanitize("thread")))

#define HAK_CACHE_LINE 64

/* The address at which the thread's own data begins. gcc 10 (Debian 11) has the builtin, but not for x86-64. */
#if defined(__x86_64__) && !defined(__clang__) && __GNUC__ < 11
HAK_INLINE void *hak_thread_pointer(void) {
  void *pointer;
  __asm__("movq %%fs:0, %0" : "=r"(pointer));
  return pointer;
}
#else
HAK_INLINE void *hak_thread_pointer(void) { return __builtin_thread_pointer(); }
#endif

#endif
