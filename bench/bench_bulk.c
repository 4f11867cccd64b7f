/*
 * Bulk: allocate N blocks of random sizes, free them all in the order they were allocated, in
 * reverse, or shuffled; `rounds` times. What loaders, compilers and one-shot tools do. One
 * operation is one block allocated and freed.
 */
#include "bench.h"

#include <inttypes.h>

enum { IN_ORDER, REVERSED, SHUFFLED };

static void lay_out_order(uint32_t *order, uint64_t count, uint64_t kind, uint64_t *random_state) {
    for (uint64_t i = 0; i < count; i++)
        order[i] = (uint32_t)(kind == REVERSED ? count - 1 - i : i);
    if (kind != SHUFFLED) return;
    for (uint64_t i = count - 1; i > 0; i--) {
        uint64_t other = bench_below(bench_random(random_state), i + 1);
        uint32_t kept = order[i];
        order[i] = order[other];
        order[other] = kept;
    }
}

int main(int argc, char **argv) {
    bench_arg args[] = {
        {"blocks", "blocks alive at the top of each round", 500000, 1, UINT64_C(1) << 30},
        {"order", "of the frees: 0 as allocated, 1 reversed, 2 shuffled", SHUFFLED, 0, SHUFFLED},
        {"min", "smallest block, bytes", 16, 1, UINT64_C(1) << 30},
        {"max", "largest block, bytes", 256, 1, UINT64_C(1) << 30},
        {"rounds", "rounds", 3, 1, UINT64_C(1) << 32},
        {"seed", "of the random numbers", 42, 0, UINT64_MAX},
    };
    bench_parse(argc, argv, "allocate N blocks, free them in order, reversed or shuffled", args,
                sizeof args / sizeof args[0]);
    uint64_t count = args[0].value, min = args[2].value, max = args[3].value;
    uint64_t rounds = args[4].value;
    if (max < min) bench_reject(&args[3], "is below min");
    uint64_t random_state = bench_seed(args[5].value);
    void **blocks = bench_map(count * sizeof *blocks);
    uint32_t *order = bench_map(count * sizeof *order);
    lay_out_order(order, count, args[1].value, &random_state);

    uint64_t start = bench_now_ns();
    for (uint64_t round = 0; round < rounds; round++) {
        for (uint64_t i = 0; i < count; i++) {
            uint64_t random = bench_random(&random_state);
            blocks[i] = bench_block(bench_size(random, min, max), random);
        }
        for (uint64_t i = 0; i < count; i++) free(blocks[order[i]]);
    }
    uint64_t elapsed = bench_now_ns() - start;

    bench_report(count * rounds, elapsed,
                 "blocks=%" PRIu64 " order=%" PRIu64 " min=%" PRIu64 " max=%" PRIu64
                 " rounds=%" PRIu64,
                 count, args[1].value, min, max, rounds);
    return 0;
}
