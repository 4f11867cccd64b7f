/* Atomic accesses with the order spelled out at each use. The __atomic builtins serve C and C++ alike
   (override/override_new.cc includes the fast path), and ThreadSanitizer understands them. */
#ifndef HAK_BASE_ATOMIC_H
#define HAK_BASE_ATOMIC_H

#define hak_load_relaxed(p) __atomic_load_n((p), __ATOMIC_RELAXED)
#define hak_load_acquire(p) __atomic_load_n((p), __ATOMIC_ACQUIRE)
/* A relaxed load that the compiler may fold into the instruction that uses it, which it never does for an atomic one:
   an aligned word is read whole on every machine this builds for. For the fast path only. */
#ifdef __SANITIZE_THREAD__
#define hak_load_folded(p) hak_load_relaxed(p)
#define hak_store_folded(p, v) hak_store_relaxed((p), (v))
#else
#define hak_load_folded(p) (*(p))
#define hak_store_folded(p, v) (*(volatile __typeof__(*(p)) *)(p) = (v)) /* the address, that is */
#endif
/* A relaxed load of which ThreadSanitizer is not told in a function marked HAK_RACY; of atomic ones it always is. */
#define hak_load_racy(p) (*(const volatile __typeof__(*(p)) *)(p))
#define hak_load_seq(p) __atomic_load_n((p), __ATOMIC_SEQ_CST)
#define hak_store_relaxed(p, v) __atomic_store_n((p), (v), __ATOMIC_RELAXED)
#define hak_store_release(p, v) __atomic_store_n((p), (v), __ATOMIC_RELEASE)
#define hak_store_seq(p, v) __atomic_store_n((p), (v), __ATOMIC_SEQ_CST)
#define hak_exchange_acquire(p, v) __atomic_exchange_n((p), (v), __ATOMIC_ACQUIRE)
#define hak_exchange_seq(p, v) __atomic_exchange_n((p), (v), __ATOMIC_SEQ_CST)
#define hak_exchange_release(p, v) __atomic_exchange_n((p), (v), __ATOMIC_RELEASE)
#define hak_add_relaxed(p, v) __atomic_add_fetch((p), (v), __ATOMIC_RELAXED)
#define hak_sub_relaxed(p, v) __atomic_sub_fetch((p), (v), __ATOMIC_RELAXED)
/* The new value. Of a word that one thread at a time writes, its owner or whoever holds its lock; others read it
 * relaxed. */
#define hak_add_single(p, v) \
  (__extension__({ \
    __typeof__(p) hak_word = (p); \
    __typeof__(*hak_word) hak_sum = *hak_word + (v); \
    hak_store_relaxed(hak_word, hak_sum); \
    hak_sum; \
  }))
#define hak_sub_single(p, v) hak_add_single((p), 0 - (v))
/* What is stored from here on comes after what was: on x86 by itself. */
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)
#define HAK_RELEASE_OWN() __asm__ volatile("" : : : "memory")
#else
#define HAK_RELEASE_OWN() __atomic_thread_fence(__ATOMIC_RELEASE)
#endif
/* What is loaded from here on comes after what was, relaxed: on x86 by itself. */
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)
#define HAK_ACQUIRE_OWN() __asm__ volatile("" : : : "memory")
#else
#define HAK_ACQUIRE_OWN() __atomic_thread_fence(__ATOMIC_ACQUIRE)
#endif
/* Adds to such a word, relaxed, where the sum is not needed: one instruction on x86, which the compiler never makes of
 * an atomic load and store. */
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)
#define hak_add_own(p, v) (*(p) += (v))
#else
#define hak_add_own(p, v) ((void)hak_add_single((p), (v)))
#endif
#define hak_cas_acquire(p, expected, v) \
  __atomic_compare_exchange_n((p), (expected), (v), 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED)

#endif
