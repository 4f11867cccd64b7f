/*
 * Large blocks: one thread replaces a random one of a few blocks of 64 KiB to 32 MiB, each doubling
 * of the size as likely as the next, and writes one byte in every page, so that the cost of memory
 * that has to be faulted in again is part of the figure. Modelled on the large-block test of the
 * mimalloc suite. One operation is one replacement (a free and a malloc).
 */
#include "bench.h"

#include <inttypes.h>

int main(int argc, char **argv) {
    bench_arg args[] = {
        {"iters", "replacements", 150, 1, UINT64_C(1) << 48},
        {"slots", "blocks alive", 16, 1, UINT64_C(1) << 24},
        {"min", "smallest block, bytes", UINT64_C(64) << 10, 1, UINT64_C(1) << 36},
        {"max", "largest block, bytes", UINT64_C(32) << 20, 1, UINT64_C(1) << 36},
        {"seed", "of the random numbers", 42, 0, UINT64_MAX},
    };
    bench_parse(argc, argv, "replace large blocks of widely different sizes and touch every page",
                args, sizeof args / sizeof args[0]);
    uint64_t replacements = args[0].value, slot_count = args[1].value;
    uint64_t min = args[2].value, max = args[3].value;
    if (max < min) bench_reject(&args[3], "is below min");
    bench_log_sizes sizes = bench_log_between(min, max);
    uint64_t random_state = bench_seed(args[4].value);
    void **slots = bench_map(slot_count * sizeof *slots);

    uint64_t start = bench_now_ns();
    for (uint64_t i = 0; i < replacements; i++) {
        size_t size = bench_log_size(&sizes, bench_random(&random_state));
        void **slot = &slots[bench_below(bench_random(&random_state), slot_count)];
        free(*slot);
        *slot = bench_checked(malloc(size));
        bench_touch_pages(*slot, size, i);
    }
    uint64_t elapsed = bench_now_ns() - start;

    bench_report(replacements, elapsed,
                 "iter=%" PRIu64 " slots=%" PRIu64 " min=%" PRIu64 " max=%" PRIu64, replacements,
                 slot_count, min, max);
    for (uint64_t i = 0; i < slot_count; i++) free(slots[i]);
    return 0;
}
