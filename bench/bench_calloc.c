/*
 * Zeroed blocks: a working set of blocks from calloc, a random one replaced at a time, sizes up to
 * 64 KiB, each doubling as likely as the next. The program reads a byte in every cache line, which
 * must be zero, and writes it, so that memory that comes back is never clean by chance. One
 * operation is one replacement (a free and a calloc).
 */
#include "bench.h"

#include <inttypes.h>

enum { LINE_BYTES = 64 };

static void *zeroed_block(size_t size, uint64_t random) {
    /* As programs call it: so many elements of a small size. */
    size_t element = (size_t)1 << (random & 3);
    volatile unsigned char *bytes = bench_checked(calloc((size + element - 1) / element, element));
    for (size_t at = 0; at < size; at += LINE_BYTES) {
        if (bytes[at] != 0) bench_fail("a block from calloc is not zero");
        bytes[at] = 0xff;
    }
    if (size > 1 && bytes[size - 1] != 0 && (size - 1) % LINE_BYTES != 0)
        bench_fail("a block from calloc does not end in zero");
    bytes[size - 1] = 0xff;
    return (void *)bytes;
}

int main(int argc, char **argv) {
    bench_arg args[] = {
        {"iters", "replacements", 250000, 1, UINT64_C(1) << 48},
        {"slots", "blocks alive", 1000, 1, UINT64_C(1) << 28},
        {"min", "smallest block, bytes", 16, 1, UINT64_C(1) << 34},
        {"max", "largest block, bytes", 65536, 1, UINT64_C(1) << 34},
        {"seed", "of the random numbers", 42, 0, UINT64_MAX},
    };
    bench_parse(argc, argv, "replace zeroed blocks of widely different sizes, read and write them",
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
        uint64_t random = bench_random(&random_state);
        void **slot = &slots[bench_below(random, slot_count)];
        free(*slot);
        *slot = zeroed_block(size, random);
    }
    uint64_t elapsed = bench_now_ns() - start;

    bench_report(replacements, elapsed,
                 "iter=%" PRIu64 " slots=%" PRIu64 " min=%" PRIu64 " max=%" PRIu64, replacements,
                 slot_count, min, max);
    for (uint64_t i = 0; i < slot_count; i++) free(slots[i]);
    return 0;
}
