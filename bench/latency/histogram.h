/*
 * Counts of whole numbers in buckets whose width grows with the value: exact below 128, then 128
 * buckets a doubling, so a bucket's middle is within 0.4 % of every value in it. No allocation, no
 * lock: one histogram a thread, added up afterwards.
 */
#ifndef HAKMEM_BENCH_HISTOGRAM_H
#define HAKMEM_BENCH_HISTOGRAM_H

#include <stdint.h>

enum {
    HISTOGRAM_DETAIL_BITS = 7,
    HISTOGRAM_DETAIL = 1 << HISTOGRAM_DETAIL_BITS,
    HISTOGRAM_VALUE_BITS = 48, /* larger values count as the largest one */
    HISTOGRAM_BUCKETS = (HISTOGRAM_VALUE_BITS - HISTOGRAM_DETAIL_BITS + 1) * HISTOGRAM_DETAIL,
};

typedef struct {
    uint64_t counts[HISTOGRAM_BUCKETS];
} histogram;

static inline uint32_t histogram_bucket(uint64_t value) {
    if (value < HISTOGRAM_DETAIL) return (uint32_t)value;
    if (value >> HISTOGRAM_VALUE_BITS != 0) return HISTOGRAM_BUCKETS - 1;
    unsigned shift = 63u - (unsigned)__builtin_clzll(value) - HISTOGRAM_DETAIL_BITS;
    return (shift << HISTOGRAM_DETAIL_BITS) + (uint32_t)(value >> shift);
}

/* The smallest value of a bucket; that of bucket + 1 is the first above it. */
static inline uint64_t histogram_low(uint32_t bucket) {
    if (bucket < 2 * HISTOGRAM_DETAIL) return bucket;
    unsigned shift = (bucket >> HISTOGRAM_DETAIL_BITS) - 1;
    return (uint64_t)(bucket - (shift << HISTOGRAM_DETAIL_BITS)) << shift;
}

static inline void histogram_add(histogram *h, uint64_t value) {
    h->counts[histogram_bucket(value)]++;
}

/* One line `bucket,LABEL,LOW,HIGH,COUNT` for each bucket that is not empty; HIGH is included. */
void histogram_print(const histogram *h, const char *label);

#endif
