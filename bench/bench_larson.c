/*
 * Server churn with thread hand-over, after Larson and Krishnan (1998): each of `threads` chains
 * owns an array of blocks. A worker replaces `round` randomly chosen blocks of the array, starts
 * its successor and exits; the successor inherits the array, so most blocks are freed by another
 * thread than the one that allocated them, which by then has ended. The work is fixed, not the
 * time, so that slices can be paired. One operation is one replacement (a free and a malloc).
 */
#include "bench.h"

#include <inttypes.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>

typedef struct {
    void **slots;
    uint64_t slot_count;
    uint64_t size_min;
    uint64_t size_span;
    uint64_t left;
    uint64_t round;
    uint64_t random;
} chain;

static sem_t chains_done;

static void *new_block(chain *c, uint64_t random) {
    return bench_block(c->size_min + (random & 0xffffffffu) % c->size_span, random);
}

static void start_worker(chain *c);

static void *worker(void *argument) {
    chain *c = argument;
    uint64_t steps = c->left < c->round ? c->left : c->round;
    for (uint64_t i = 0; i < steps; i++) {
        uint64_t random = bench_random(&c->random);
        void **slot = &c->slots[bench_below(random, c->slot_count)];
        free(*slot);
        *slot = new_block(c, random);
    }
    c->left -= steps;
    if (c->left > 0)
        start_worker(c);
    else
        sem_post(&chains_done);
    return NULL;
}

static void start_worker(chain *c) {
    pthread_t thread;
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    if (pthread_create(&thread, &attributes, worker, c) != 0) bench_fail("cannot start a thread");
    pthread_attr_destroy(&attributes);
}

int main(int argc, char **argv) {
    bench_arg args[] = {
        {"threads", "chains of workers at a time", 2, 1, 1024},
        {"iters", "replacements per chain", 5000000, 1, UINT64_C(1) << 48},
        {"slots", "blocks per chain", 1000, 1, UINT64_C(1) << 24},
        {"min", "smallest block, bytes", 8, 1, UINT64_C(1) << 30},
        {"max", "largest block, bytes", 1000, 1, UINT64_C(1) << 30},
        {"round", "replacements by one worker before it hands over", 50000, 1, UINT64_C(1) << 48},
        {"seed", "of the random numbers", 42, 0, UINT64_MAX},
        {"rest_ms", "after the load, then memory is looked at", 0, 0, 3600000},
    };
    bench_parse(argc, argv, "server churn: workers replace blocks, exit, and hand over their array",
                args, sizeof args / sizeof args[0]);
    uint64_t threads = args[0].value, iters = args[1].value, slots = args[2].value;
    uint64_t min = args[3].value, max = args[4].value;
    if (max < min) bench_reject(&args[4], "is below min");

    sem_init(&chains_done, 0, 0);
    chain *chains = bench_map(threads * sizeof *chains);
    for (uint64_t t = 0; t < threads; t++) {
        chains[t] = (chain){.slots = bench_map(slots * sizeof(void *)), .slot_count = slots,
                            .size_min = min, .size_span = max - min + 1, .left = iters,
                            .round = args[5].value, .random = bench_seed(args[6].value + t)};
        /* The first blocks come from this thread, as the server's set-up does in the original. */
        for (uint64_t i = 0; i < slots; i++)
            chains[t].slots[i] = new_block(&chains[t], bench_random(&chains[t].random));
    }

    uint64_t start = bench_now_ns();
    for (uint64_t t = 0; t < threads; t++) start_worker(&chains[t]);
    for (uint64_t t = 0; t < threads; t++)
        while (sem_wait(&chains_done) != 0) {
        }
    uint64_t elapsed = bench_now_ns() - start;

    bench_report(threads * iters, elapsed,
                 "threads=%" PRIu64 " iter=%" PRIu64 " slots=%" PRIu64 " min=%" PRIu64
                 " max=%" PRIu64,
                 threads, iters, slots, min, max);
    uint64_t rest_ms = args[7].value;
    bench_sleep_us(1000 * rest_ms);
    uint64_t held_kb = bench_resident_kb();
    for (uint64_t t = 0; t < threads; t++)
        for (uint64_t i = 0; i < slots; i++) free(chains[t].slots[i]);
    if (rest_ms > 0) bench_report_rest(held_kb, rest_ms);
    return 0;
}
