/* What the time-stamp counter is like here. See clock.h. */
#include "clock.h"

#include "bench.h"
#include "histogram.h"

enum { EMPTY_PAIRS = 20001, DELAYS = 256, TRIES = 101, RATE_NS_MIN = 50000000 };

uint64_t clock_overhead(void) {
    static histogram pairs;
    for (unsigned i = 0; i < EMPTY_PAIRS; i++) {
        uint64_t start = clock_start(), stop = clock_stop();
        histogram_add(&pairs, stop > start ? stop - start : 0);
    }
    uint64_t before = 0;
    for (uint32_t bucket = 0;; bucket++)
        if ((before += pairs.counts[bucket]) > EMPTY_PAIRS / 2) return histogram_low(bucket);
}

static inline void add_one(uint64_t *sum) {
#if defined(__x86_64__)
    __asm__ volatile("add $1, %0" : "+r"(*sum));
#else
    __asm__ volatile("add %0, %0, #1" : "+r"(*sum));
#endif
}

/* The shortest of several measurements of a chain of additions. */
static uint64_t shortest(unsigned additions) {
    uint64_t least = UINT64_MAX;
    for (unsigned i = 0; i < TRIES; i++) {
        uint64_t sum = i, start = clock_start();
        for (unsigned n = 0; n < additions; n++) add_one(&sum);
        uint64_t ticks = clock_stop() - start;
        if (ticks < least) least = ticks;
    }
    return least;
}

/* By insertion: qsort may call malloc, which is what is measured here. */
static void sort(uint64_t *values, unsigned count) {
    for (unsigned i = 1; i < count; i++) {
        uint64_t value = values[i];
        unsigned at = i;
        for (; at > 0 && values[at - 1] > value; at--) values[at] = values[at - 1];
        values[at] = value;
    }
}

/* Ever longer delays give a staircase; values next to each other are one stair, rounded twice. */
uint64_t clock_step(void) {
    static uint64_t lengths[DELAYS];
    for (unsigned n = 0; n < DELAYS; n++) lengths[n] = shortest(n);
    sort(lengths, DELAYS);
    uint64_t stairs = 0, last = lengths[0];
    for (unsigned n = 1; n < DELAYS; n++) {
        if (lengths[n] - lengths[n - 1] <= 2) continue;
        stairs++;
        last = lengths[n];
    }
    return stairs != 0 ? (last - lengths[0]) / stairs : 1;
}

double clock_rate(uint64_t start_ns, uint64_t start_ticks) {
    uint64_t now_ns;
    do now_ns = bench_now_ns();
    while (now_ns - start_ns < RATE_NS_MIN);
    return (double)(clock_stop() - start_ticks) * 1e9 / (double)(now_ns - start_ns);
}
