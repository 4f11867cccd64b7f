/*
 * Cross frees: threads share one table of blocks of 8 to 16,000 bytes. A step puts a new block into
 * a random slot by an atomic exchange and frees the one it finds there, whoever allocated it: with
 * n threads, (n - 1) of n frees are of another thread's block. Modelled on the cross-thread runs of
 * rpmalloc's benchmark. One operation is one replacement (a free and a malloc).
 */
#include "bench.h"

#include <inttypes.h>
#include <stdatomic.h>

static _Atomic(void *) *slots;
static uint64_t slot_count, replacements, size_min, size_max;

static void replace_blocks(void *state) {
    uint64_t random_state = *(uint64_t *)state;
    for (uint64_t i = 0; i < replacements; i++) {
        uint64_t random = bench_random(&random_state);
        void *block = bench_block(bench_size(random, size_min, size_max), random);
        /* acquire and release: whoever takes a block has seen what its thread wrote there. */
        free(atomic_exchange_explicit(&slots[bench_below(random, slot_count)], block,
                                      memory_order_acq_rel));
    }
}

int main(int argc, char **argv) {
    bench_arg args[] = {
        {"threads", "threads", 2, 1, 1024},
        {"iters", "replacements per thread", 500000, 1, UINT64_C(1) << 48},
        {"slots", "blocks alive in the shared table", 2000, 1, UINT64_C(1) << 28},
        {"min", "smallest block, bytes", 8, 1, UINT64_C(1) << 30},
        {"max", "largest block, bytes", 16000, 1, UINT64_C(1) << 30},
        {"seed", "of the random numbers", 42, 0, UINT64_MAX},
    };
    bench_parse(argc, argv, "threads replace blocks of a shared table, mostly others' blocks", args,
                sizeof args / sizeof args[0]);
    uint64_t threads = args[0].value;
    replacements = args[1].value;
    slot_count = args[2].value;
    size_min = args[3].value;
    size_max = args[4].value;
    if (size_max < size_min) bench_reject(&args[4], "is below min");

    slots = bench_map(slot_count * sizeof *slots);
    /* A cache line each is not needed: a thread reads its seed once. */
    uint64_t *seeds = bench_map(threads * sizeof *seeds);
    for (uint64_t t = 0; t < threads; t++) seeds[t] = bench_seed(args[5].value + t);

    uint64_t elapsed = bench_run_threads(threads, replace_blocks, seeds, sizeof *seeds);

    bench_report(threads * replacements, elapsed,
                 "threads=%" PRIu64 " iter=%" PRIu64 " slots=%" PRIu64 " min=%" PRIu64
                 " max=%" PRIu64,
                 threads, replacements, slot_count, size_min, size_max);
    for (uint64_t i = 0; i < slot_count; i++) free(atomic_load(&slots[i]));
    return 0;
}
