/*
 * What the bench programs share: arguments, clock, random numbers, the result line.
 * Nothing here calls malloc: slot arrays come from mmap and output goes through write, so that
 * the program's own bookkeeping is the same under every allocator and works under the floor.
 */
#ifndef HAKMEM_BENCH_H
#define HAKMEM_BENCH_H

#include <stddef.h>
#include <stdint.h>

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
_Noreturn void bench_reject(const bench_arg *arg, const char *why);

/* Stops the run when a block or a thread could not be had. */
_Noreturn void bench_fail(const char *what);

uint64_t bench_now_ns(void);

/* Zeroed memory for slot arrays, never from malloc. */
void *bench_map(size_t bytes);

void bench_print(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Prints `Throughput = N ops/s [labels] time=T.TTTs`. */
void bench_report(uint64_t ops, uint64_t elapsed_ns, const char *labels_format, ...)
    __attribute__((format(printf, 3, 4)));

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
    volatile unsigned char *bytes = block;
    bytes[0] = (unsigned char)value;
    bytes[size - 1] = (unsigned char)value;
}

#endif
