/*
 * Mid and large blocks, several threads: each thread keeps its own slots and replaces a random one
 * by a block of a random size (8 KiB to 1 MiB by default), writing one byte in every page, so that
 * the cost of memory that has to be faulted in again is part of the figure. One operation is one
 * replacement (a free and a malloc).
 */
#include "bench.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>

static uint64_t replacements, size_min, size_span, slot_count;

typedef struct {
    pthread_t thread;
    void **slots;
    uint64_t random;
} worker_state;

static void *new_block(uint64_t random) {
    size_t size = size_min + (random & 0xffffffffu) % size_span;
    void *block = bench_checked(malloc(size));
    bench_touch_pages(block, size, random);
    return block;
}

static void *worker(void *argument) {
    worker_state *w = argument;
    for (uint64_t i = 0; i < replacements; i++) {
        uint64_t random = bench_random(&w->random);
        void **slot = &w->slots[bench_below(random, slot_count)];
        free(*slot);
        *slot = new_block(random);
    }
    return NULL;
}

int main(int argc, char **argv) {
    bench_arg args[] = {
        {"threads", "threads", 2, 1, 1024},
        {"iters", "replacements per thread", 100000, 1, UINT64_C(1) << 48},
        {"min", "smallest block, bytes", 8192, 1, UINT64_C(1) << 32},
        {"max", "largest block, bytes", 1048576, 1, UINT64_C(1) << 32},
        {"slots", "blocks alive per thread", 64, 1, UINT64_C(1) << 24},
        {"seed", "of the random numbers", 42, 0, UINT64_MAX},
    };
    bench_parse(argc, argv, "threads replace blocks of 8 KiB to 1 MiB and touch every page", args,
                sizeof args / sizeof args[0]);
    uint64_t threads = args[0].value;
    replacements = args[1].value;
    size_min = args[2].value;
    if (args[3].value < size_min) bench_reject(&args[3], "is below min");
    size_span = args[3].value - size_min + 1;
    slot_count = args[4].value;

    worker_state *workers = bench_map(threads * sizeof *workers);
    for (uint64_t t = 0; t < threads; t++) {
        workers[t].slots = bench_map(slot_count * sizeof(void *));
        workers[t].random = bench_seed(args[5].value + t);
    }

    uint64_t start = bench_now_ns();
    for (uint64_t t = 0; t < threads; t++)
        if (pthread_create(&workers[t].thread, NULL, worker, &workers[t]) != 0)
            bench_fail("cannot start a thread");
    for (uint64_t t = 0; t < threads; t++) pthread_join(workers[t].thread, NULL);
    uint64_t elapsed = bench_now_ns() - start;

    bench_report(threads * replacements, elapsed,
                 "threads=%" PRIu64 " iter=%" PRIu64 " min=%" PRIu64 " max=%" PRIu64
                 " slots=%" PRIu64,
                 threads, replacements, size_min, args[3].value, slot_count);
    for (uint64_t t = 0; t < threads; t++)
        for (uint64_t i = 0; i < slot_count; i++) free(workers[t].slots[i]);
    return 0;
}
