/*
 * Aligned: a working set of small and mid-size blocks, a random one replaced at a time, a third of
 * the new ones each from malloc, aligned_alloc and posix_memalign. Alignments are powers of two
 * from 16 bytes, all equally likely; sizes up to 8 KiB, each doubling as likely as the next. Every
 * address is checked. One operation is one replacement (a free and an allocation).
 */
#include "bench.h"

#include <inttypes.h>

static void *aligned_block(uint64_t kind, size_t alignment, size_t size) {
    void *block = NULL;
    if (kind == 0) {
        alignment = _Alignof(max_align_t);
        /* A small block need only be aligned for what fits into it. */
        while (alignment > size) alignment /= 2;
        block = malloc(size);
    } else if (kind == 1) {
        /* C11 wants a multiple of the alignment. */
        block = aligned_alloc(alignment, (size + alignment - 1) & ~(alignment - 1));
    } else if (posix_memalign(&block, alignment, size) != 0) {
        block = NULL;
    }
    bench_touch(bench_checked(block), size, kind);
    if (((uintptr_t)block & (alignment - 1)) != 0) bench_fail("a block is not aligned as asked");
    return block;
}

int main(int argc, char **argv) {
    bench_arg args[] = {
        {"iters", "replacements", 5000000, 1, UINT64_C(1) << 48},
        {"slots", "blocks alive", 1000, 1, UINT64_C(1) << 28},
        {"min", "smallest block, bytes", 16, 1, UINT64_C(1) << 30},
        {"max", "largest block, bytes", 8192, 1, UINT64_C(1) << 30},
        {"align", "largest alignment, bytes, a power of two", 4096, 16, UINT64_C(1) << 24},
        {"seed", "of the random numbers", 42, 0, UINT64_MAX},
    };
    bench_parse(argc, argv, "replace blocks from malloc, aligned_alloc and posix_memalign", args,
                sizeof args / sizeof args[0]);
    uint64_t replacements = args[0].value, slot_count = args[1].value;
    uint64_t min = args[2].value, max = args[3].value, align_max = args[4].value;
    if (max < min) bench_reject(&args[3], "is below min");
    if ((align_max & (align_max - 1)) != 0) bench_reject(&args[4], "is not a power of two");
    unsigned alignments = (unsigned)__builtin_ctzll(align_max) - 3; /* 16 is the first */
    bench_log_sizes sizes = bench_log_between(min, max);
    uint64_t random_state = bench_seed(args[5].value);
    void **slots = bench_map(slot_count * sizeof *slots);

    uint64_t start = bench_now_ns();
    for (uint64_t i = 0; i < replacements; i++) {
        uint64_t random = bench_random(&random_state);
        size_t size = bench_log_size(&sizes, bench_random(&random_state));
        size_t alignment = (size_t)16 << (random & 0xffffu) % alignments;
        void **slot = &slots[bench_below(random, slot_count)];
        free(*slot);
        *slot = aligned_block((random >> 16 & 0xffffu) % 3, alignment, size);
    }
    uint64_t elapsed = bench_now_ns() - start;

    bench_report(replacements, elapsed,
                 "iter=%" PRIu64 " slots=%" PRIu64 " min=%" PRIu64 " max=%" PRIu64
                 " align=%" PRIu64,
                 replacements, slot_count, min, max, align_max);
    for (uint64_t i = 0; i < slot_count; i++) free(slots[i]);
    return 0;
}
