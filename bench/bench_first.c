/*
 * The first requests of a process: `requests` replacements of mixed sizes in a few slots, each timed
 * alone, as a short-lived process or a fresh worker meets them; then the first 64 blocks of each
 * size class of powers of two and the steps between. Where a profile fills its caches before main,
 * this is what that gains. One operation is a timed malloc. The clock's own time is in every figure.
 */
#include "bench.h"

#include <inttypes.h>
#include <string.h>

enum { SLOTS = 64, FIRST = 64, CLASS_SIZES = 40 };

/* The value below which `permille` of the sorted times lie. */
static uint64_t quantile(const uint64_t *sorted, uint64_t count, uint64_t permille) {
    uint64_t at = count * permille / 1000;
    return sorted[at < count ? at : count - 1];
}

/* By Shell's method: the C library's qsort may allocate. */
static void sort(uint64_t *values, uint64_t count) {
    for (uint64_t gap = count / 2; gap > 0; gap /= 2)
        for (uint64_t i = gap; i < count; i++) {
            uint64_t value = values[i], at = i;
            for (; at >= gap && values[at - gap] > value; at -= gap)
                values[at] = values[at - gap];
            values[at] = value;
        }
}

static uint64_t timed_block(size_t size, void **block) {
    uint64_t start = bench_now_ns();
    *block = malloc(size);
    uint64_t end = bench_now_ns();
    bench_touch(bench_checked(*block), size, end);
    return end - start;
}

int main(int argc, char **argv) {
    bench_arg args[] = {
        {"requests", "first ones, timed", 1000, 1, 1000000},
        {"max", "largest block, bytes", 1039, 16, UINT64_C(1) << 20},
        {"seed", "of the random numbers", 42, 0, UINT64_MAX},
    };
    bench_parse(argc, argv, "latency of a fresh process's first requests", args,
                sizeof args / sizeof args[0]);
    uint64_t requests = args[0].value, random = bench_seed(args[2].value);
    uint64_t *times = bench_map(requests * sizeof *times);
    uint64_t *class_times = bench_map(CLASS_SIZES * FIRST * sizeof *class_times);
    void **class_blocks = bench_map(CLASS_SIZES * FIRST * sizeof *class_blocks);
    /* The tables' pages are there before the first look at the clock. */
    memset(times, 0, requests * sizeof *times);
    memset(class_times, 0, CLASS_SIZES * FIRST * sizeof *class_times);
    memset(class_blocks, 0, CLASS_SIZES * FIRST * sizeof *class_blocks);
    void *slots[SLOTS] = {NULL};
    bench_now_ns();

    uint64_t begin = bench_now_ns();
    for (uint64_t i = 0; i < requests; i++) {
        uint64_t number = bench_random(&random);
        void **slot = &slots[bench_below(number, SLOTS)];
        free(*slot);
        times[i] = timed_block(bench_size(number, 16, args[1].value), slot);
    }
    uint64_t elapsed = bench_now_ns() - begin;
    uint64_t taken = 0;
    for (uint64_t size = 16; size <= args[1].value; size *= 2)
        for (uint64_t step = 0; step < 4 && taken < CLASS_SIZES * FIRST; step++) {
            uint64_t bytes = size + size / 4 * step;
            if (bytes > args[1].value) break;
            for (int i = 0; i < FIRST; i++, taken++)
                class_times[taken] = timed_block(bytes, &class_blocks[taken]);
        }
    sort(times, requests);
    sort(class_times, taken);
    bench_report(requests, elapsed, "requests=%" PRIu64 " max=%" PRIu64, requests, args[1].value);
    bench_print("Memory: p50_ns=%" PRIu64 " p99_ns=%" PRIu64 " max_ns=%" PRIu64
                " class_p50_ns=%" PRIu64 " class_p99_ns=%" PRIu64 " class_max_ns=%" PRIu64
                " total_ns=%" PRIu64 " peak_kb=%" PRIu64 "\n",
                quantile(times, requests, 500), quantile(times, requests, 990),
                times[requests - 1], quantile(class_times, taken, 500),
                quantile(class_times, taken, 990), class_times[taken - 1], elapsed,
                bench_peak_kb());
    for (uint64_t i = 0; i < taken; i++) free(class_blocks[i]);
    for (int i = 0; i < SLOTS; i++) free(slots[i]);
    return 0;
}
