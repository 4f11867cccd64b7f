/*
 * What the bench programs share: arguments, clock, random numbers, threads, the result line.
 * Only bench_block calls malloc: slot arrays come from mmap and output goes through write, so that
 * the program's own bookkeeping is the same under every allocator and works under the floor.
 */
#ifndef HAKMEM_BENCH_H
#define HAKMEM_BENCH_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { BENCH_PAGE_BYTES = 4096 };

/* One positional argument: `value` holds the default before parsing. */
typedef struct {
    const char *name;
    const char *help;
    uint64_t value;
    uint64_t min;
    uint64_t max;
} bench_arg;

/* Prints one line on stderr and exits with status 2 when an argument is bad; answers --help. */
void bench_parse(int argc, char **argv, const char *pattern, bench_arg *args, size_t count);

/* For conditions between arguments, such as min above max. */
void bench_reject(const bench_arg *arg, const char *why) __attribute__((noreturn));

/* Stops the run when a block or a thread could not be had. */
void bench_fail(const char *what) __attribute__((noreturn));

uint64_t bench_now_ns(void);

/* In a loop that waits for another thread. */
static inline void bench_pause(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Zeroed memory for slot arrays, never from malloc. */
void *bench_map(size_t bytes);

/* Resident memory of this process now, read without malloc; 0 where /proc cannot be read. */
uint64_t bench_resident_kb(void);

/* The most that was resident at any time. */
uint64_t bench_peak_kb(void);

void bench_sleep_us(uint64_t us);

/* Runs `work` on `count` states of `state_bytes` each, one thread a state, all let go at once.
 * Returns the time from the first start to the last end, without creating and ending threads. */
uint64_t bench_run_threads(uint64_t count, void (*work)(void *state), void *states,
                           size_t state_bytes);

void bench_print(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Prints `Throughput = N ops/s [labels] time=T.TTTs`. */
void bench_report(uint64_t ops, uint64_t elapsed_ns, const char *labels_format, ...)
    __attribute__((format(printf, 3, 4)));

/* After a load with all freed: rests once more, then prints what was held before, and what is held
 * now, as `Memory: held_kb=… end_kb=… peak_kb=…`. */
void bench_report_rest(uint64_t held_kb, uint64_t rest_ms);

/* xorshift64: three shifts, and good high bits. The state must never be 0. */
static inline uint64_t bench_random(uint64_t *state) {
    uint64_t x = *state;
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    *state = x;
    return x;
}

/* Spreads a small seed over all bits (splitmix64), so that seeds 1 and 2 differ at once. */
uint64_t bench_seed(uint64_t seed);

/* An even choice below `bound` (at most 2^32) from the high half of `random`, without a division. */
static inline uint64_t bench_below(uint64_t random, uint64_t bound) {
    return ((random >> 32) * bound) >> 32;
}

/* Writes the first and the last byte, as a program that uses its block would. */
static inline void bench_touch(void *block, size_t size, uint64_t value) {
    volatile unsigned char *bytes = (volatile unsigned char *)block;
    bytes[0] = (unsigned char)value;
    bytes[size - 1] = (unsigned char)value;
}

/* Writes one byte in every page, so that the cost of faulting memory in is part of the figure. */
static inline void bench_touch_pages(void *block, size_t size, uint64_t value) {
    volatile unsigned char *bytes = (volatile unsigned char *)block;
    for (size_t at = 0; at < size; at += BENCH_PAGE_BYTES) bytes[at] = (unsigned char)value;
}

/* What malloc, calloc or realloc returned, unless that is NULL. */
static inline void *bench_checked(void *block) {
    if (block == NULL) bench_fail("the allocator returned NULL");
    return block;
}

/* A block from malloc, touched. */
static inline void *bench_block(size_t size, uint64_t value) {
    void *block = bench_checked(malloc(size));
    bench_touch(block, size, value);
    return block;
}

/* Mixes one more value into a check sum (a multiplication and a shift, not cryptography). */
static inline uint64_t bench_mix(uint64_t sum, uint64_t value) {
    sum = (sum ^ value) * UINT64_C(0x9e3779b97f4a7c15);
    return sum ^ (sum >> 29);
}

/* An even choice of a size from the low half of `random`; bench_below takes the high half. */
static inline size_t bench_size(uint64_t random, uint64_t min, uint64_t max) {
    return min + (random & 0xffffffffu) % (max - min + 1);
}

/* Sizes below 2^40, each doubling as likely as the next. A code is the size's logarithm in steps
 * of a millionth of a doubling: its exponent, then the 20 bits that follow the leading one. */
typedef struct {
    uint64_t min, max, first_code, codes;
} bench_log_sizes;

static inline uint64_t bench_log_code(uint64_t size) {
    unsigned exponent = 63u - (unsigned)__builtin_clzll(size);
    return ((uint64_t)exponent << 20) + (((size << 20) >> exponent) & 0xfffffu);
}

static inline bench_log_sizes bench_log_between(uint64_t min, uint64_t max) {
    uint64_t first = bench_log_code(min);
    bench_log_sizes sizes = {min, max, first, bench_log_code(max) - first + 1};
    return sizes;
}

/* Uses the high half of `random`: take another one for the slot. */
static inline size_t bench_log_size(const bench_log_sizes *sizes, uint64_t random) {
    uint64_t code = sizes->first_code + bench_below(random, sizes->codes);
    uint64_t size = (((UINT64_C(1) << 20) | (code & 0xfffffu)) << (code >> 20)) >> 20;
    return size < sizes->min ? sizes->min : size > sizes->max ? sizes->max : size;
}

#ifdef __cplusplus
}
#endif

#endif
