/*
 * Single calls timed with the processor's counter: the time-stamp counter of x86-64, the virtual
 * counter of aarch64. It must run at one rate whatever the processor does (x86-64: invariant TSC;
 * aarch64: always); its rate is measured against CLOCK_MONOTONIC over the whole run.
 */
#ifndef HAKMEM_BENCH_CLOCK_H
#define HAKMEM_BENCH_CLOCK_H

#include <stdbool.h>
#include <stdint.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <x86intrin.h>

static inline bool clock_is_steady(void) {
    unsigned a, b, c, d;
    return __get_cpuid(0x80000007, &a, &b, &c, &d) && (d & (1u << 8)) != 0;
}

/* lfence on either side: the counter is read after all before it is done (Intel SDM, RDTSC), and
 * nothing of what is timed begins before. */
static inline uint64_t clock_start(void) {
    _mm_lfence();
    uint64_t ticks = __rdtsc();
    _mm_lfence();
    return ticks;
}

/* rdtscp waits for all before it; the fence keeps what follows out. */
static inline uint64_t clock_stop(void) {
    unsigned processor;
    uint64_t ticks = __rdtscp(&processor);
    _mm_lfence();
    return ticks;
}

#elif defined(__aarch64__)
static inline bool clock_is_steady(void) { return true; }

/* isb on either side: the counter is read after all before it is done, and before what follows. */
static inline uint64_t clock_start(void) {
    uint64_t ticks;
    __asm__ volatile("isb\n\tmrs %0, cntvct_el0\n\tisb" : "=r"(ticks)::"memory");
    return ticks;
}

static inline uint64_t clock_stop(void) { return clock_start(); }
#endif

/* What a start and a stop with nothing in between take: the median of many. */
uint64_t clock_overhead(void);

/* Some counters move in steps of many ticks (those of 100 MHz, made up to the nominal rate):
 * shorter differences cannot be seen. 1 where there are no such steps. */
uint64_t clock_step(void);

/* Ticks a second since two readings at about the same time; waits until 50 ms have passed. */
double clock_rate(uint64_t start_ns, uint64_t start_ticks);

#endif
