/*
 * Thread churn: many short-lived threads, `live` of them at a time. Each allocates a batch of
 * blocks of mixed sizes, frees every other one itself, leaves the rest for whichever thread comes
 * next, and frees what another thread left: its owner may still run or be long gone. Resident
 * memory at 10, 50 and 100 % of the threads must not grow. One operation is one malloc with its
 * free, wherever that happens; creating and joining the threads is part of the time.
 */
#include "bench.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

enum { SIZE_MIN_BYTES = 16, SIZE_SPREAD = 1024 };

/* One thread's lane: `own` is the buffer the next thread of the lane fills. */
typedef struct {
    pthread_t thread;
    void **own;
    uint64_t random;
} lane;

static uint64_t blocks_each;

/* The buffer last left for others. There is one buffer more than lanes, so each holds just one. */
static _Atomic(void **) left_over;

static void *short_life(void *argument) {
    lane *l = argument;
    for (uint64_t i = 0; i < blocks_each; i++) {
        uint64_t random = bench_random(&l->random);
        size_t size = SIZE_MIN_BYTES + (random & (SIZE_SPREAD - 1));
        l->own[i] = bench_block(size, random);
    }
    for (uint64_t i = 0; i < blocks_each; i += 2) {
        free(l->own[i]);
        l->own[i] = NULL;
    }
    /* acquire and release: the buffer's contents travel with its address, in both directions. */
    l->own = atomic_exchange_explicit(&left_over, l->own, memory_order_acq_rel);
    for (uint64_t i = 1; i < blocks_each; i += 2) {
        free(l->own[i]);
        l->own[i] = NULL;
    }
    return NULL;
}

int main(int argc, char **argv) {
    bench_arg args[] = {
        {"n_threads", "threads in all", 10000, 10, UINT64_C(1) << 32},
        {"blocks", "blocks each thread allocates", 100, 2, UINT64_C(1) << 24},
        {"live", "threads alive at a time", 2, 1, 256},
    };
    bench_parse(argc, argv, "short-lived threads that leave blocks for the next ones to free", args,
                sizeof args / sizeof args[0]);
    uint64_t threads = args[0].value, live = args[2].value;
    blocks_each = args[1].value;
    if (live > threads) bench_reject(&args[2], "is above n_threads");

    lane *lanes = bench_map(live * sizeof *lanes);
    for (uint64_t i = 0; i < live; i++) {
        lanes[i].own = bench_map(blocks_each * sizeof(void *));
        lanes[i].random = bench_seed(42 + i);
    }
    atomic_store(&left_over, bench_map(blocks_each * sizeof(void *)));

    uint64_t marks[3] = {threads / 10, threads / 2, threads};
    uint64_t samples_kb[3];
    size_t sampled = 0;
    uint64_t start = bench_now_ns();
    for (uint64_t t = 0; t < threads + live; t++) {
        lane *l = &lanes[t % live];
        if (t >= live) {
            pthread_join(l->thread, NULL);
            if (t - live + 1 == marks[sampled]) samples_kb[sampled++] = bench_resident_kb();
        }
        if (t < threads && pthread_create(&l->thread, NULL, short_life, l) != 0)
            bench_fail("cannot start a thread");
    }
    uint64_t elapsed = bench_now_ns() - start;

    bench_report(threads * blocks_each, elapsed,
                 "threads=%" PRIu64 " blocks=%" PRIu64 " live=%" PRIu64, threads, blocks_each, live);
    bench_print("VmRSS kB: 10%%=%" PRIu64 " 50%%=%" PRIu64 " 100%%=%" PRIu64 "\n", samples_kb[0],
                samples_kb[1], samples_kb[2]);
    void **last = atomic_load(&left_over);
    for (uint64_t i = 0; i < blocks_each; i++) free(last[i]);
    return 0;
}
