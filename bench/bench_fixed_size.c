/*
 * Fixed size: every step frees one of `ws` blocks, chosen at random, and allocates another of the
 * same size in its place. One operation is such a pair: one free and one malloc.
 */
#include "bench.h"

#include <inttypes.h>
#include <stdlib.h>

int main(int argc, char **argv) {
    bench_arg args[] = {
        {"iters", "pairs of one free and one malloc", 20000000, 1, UINT64_C(1) << 48},
        {"size", "bytes of each block", 64, 1, UINT64_C(1) << 40},
        {"ws", "blocks alive", 128, 1, UINT64_C(1) << 28},
    };
    bench_parse(argc, argv, "free one of ws blocks and allocate one of the same size; 1 op = 1 pair",
                args, sizeof args / sizeof args[0]);
    uint64_t pairs = args[0].value, slot_count = args[2].value;
    size_t size = args[1].value;
    void **slots = bench_map(slot_count * sizeof *slots);
    for (uint64_t i = 0; i < slot_count; i++) slots[i] = bench_block(size, i);

    uint64_t state = bench_seed(42);
    uint64_t start = bench_now_ns();
    for (uint64_t i = 0; i < pairs; i++) {
        void **slot = &slots[bench_below(bench_random(&state), slot_count)];
        free(*slot);
        *slot = bench_block(size, i);
    }
    uint64_t elapsed = bench_now_ns() - start;

    bench_report(pairs, elapsed, "iter=%" PRIu64 " size=%zu ws=%" PRIu64, pairs, size, slot_count);
    for (uint64_t i = 0; i < slot_count; i++) free(slots[i]);
    return 0;
}
