/*
 * A producer that stops: one thread allocates blocks and then sleeps until the program ends; other
 * threads free them all and never allocate, so nobody ever calls malloc again. Afterwards they sleep
 * as well (rest 0) or compute without a single call of the allocator (rest 1). What the program holds
 * then is looked at for `wait_ms`. One operation is a block freed.
 */
#include "bench.h"

#include <inttypes.h>
#include <stdbool.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <sys/mman.h>

enum { BATCH = 256, LOOK_US = 5000 };

static void **blocks;
static size_t table_bytes;
static uint64_t block_count, block_bytes, wanted_bytes, size_min, size_max, seed;
static _Atomic uint64_t next_batch, working;
static atomic_bool over;
static bool spinning;
static sem_t produced, consumed, never;
static _Atomic uint64_t spun;

static void sleep_for_good(void) {
    while (!atomic_load_explicit(&over, memory_order_relaxed)) sem_wait(&never);
}

static void *produce(void *unused) {
    (void)unused;
    uint64_t random = bench_seed(seed);
    bench_log_sizes sizes = bench_log_between(size_min, size_max);
    while (block_bytes < wanted_bytes) {
        uint64_t number = bench_random(&random);
        size_t size = bench_log_size(&sizes, number);
        blocks[block_count++] = bench_block(size, number);
        block_bytes += size;
    }
    sem_post(&produced);
    sleep_for_good();
    return NULL;
}

static void *consume(void *unused) {
    (void)unused;
    for (;;) {
        uint64_t first = BATCH * atomic_fetch_add(&next_batch, 1);
        if (first >= block_count) break;
        uint64_t end = first + BATCH < block_count ? first + BATCH : block_count;
        for (uint64_t i = first; i < end; i++) free(blocks[i]);
    }
    if (atomic_fetch_sub(&working, 1) == 1) sem_post(&consumed);
    if (!spinning) {
        sleep_for_good();
        return NULL;
    }
    uint64_t random = bench_seed(seed);
    while (!atomic_load_explicit(&over, memory_order_relaxed)) bench_random(&random);
    atomic_fetch_add(&spun, random);
    return NULL;
}

static void wait_for(sem_t *semaphore) {
    while (sem_wait(semaphore) != 0) {
    }
}

static void start(pthread_t *thread, void *(*work)(void *)) {
    if (pthread_create(thread, NULL, work, NULL) != 0) bench_fail("cannot start a thread");
}

int main(int argc, char **argv) {
    bench_arg args[] = {
        {"mb", "bytes allocated in all", 370, 1, UINT64_C(1) << 20},
        {"consumers", "threads that free", 2, 1, 256},
        {"rest", "of the consumers: 0 asleep, 1 computing", 0, 0, 1},
        {"min", "smallest block, bytes", 64, 16, UINT64_C(1) << 30},
        {"max", "largest block, bytes", 4096, 16, UINT64_C(1) << 30},
        {"wait_ms", "how long memory is looked at", 2000, 1, 3600000},
        {"goal_kb", "whose time is taken", 40960, 1, UINT64_C(1) << 40},
        {"seed", "of the random numbers", 42, 0, UINT64_MAX},
    };
    bench_parse(argc, argv, "a producer sleeps for good while others free what it allocated", args,
                sizeof args / sizeof args[0]);
    uint64_t consumers = args[1].value, goal_kb = args[6].value;
    size_min = args[3].value;
    size_max = args[4].value;
    if (size_max < size_min) bench_reject(&args[4], "is below min");
    wanted_bytes = args[0].value << 20;
    spinning = args[2].value != 0;
    seed = args[7].value;
    atomic_init(&working, consumers);
    table_bytes = (wanted_bytes / size_min + 1) * sizeof(void *);
    blocks = bench_map(table_bytes);
    pthread_t *threads = bench_map((consumers + 1) * sizeof *threads);
    sem_init(&produced, 0, 0);
    sem_init(&consumed, 0, 0);
    sem_init(&never, 0, 0);

    uint64_t before_kb = bench_resident_kb();
    start(&threads[0], produce);
    wait_for(&produced);
    uint64_t full_kb = bench_resident_kb() - block_count * sizeof(void *) / 1024;
    uint64_t begin = bench_now_ns();
    for (uint64_t t = 1; t <= consumers; t++) start(&threads[t], consume);
    wait_for(&consumed);
    uint64_t end = bench_now_ns();
    munmap(blocks, table_bytes);

    uint64_t freed_kb = bench_resident_kb(), now_kb = freed_kb, reached_us = UINT64_MAX, now = end;
    for (;;) {
        if (now_kb <= goal_kb && reached_us == UINT64_MAX) reached_us = (now - end) / 1000;
        if ((now - end) / 1000000 >= args[5].value) break;
        bench_sleep_us(LOOK_US);
        now_kb = bench_resident_kb();
        now = bench_now_ns();
    }
    bench_report(block_count, end - begin,
                 "mb=%" PRIu64 " consumers=%" PRIu64 " rest=%d min=%" PRIu64 " max=%" PRIu64,
                 args[0].value, consumers, spinning, size_min, size_max);
    bench_print("Memory: before_kb=%" PRIu64 " full_kb=%" PRIu64 " asked_kb=%" PRIu64
                " freed_kb=%" PRIu64 " end_kb=%" PRIu64,
                before_kb, full_kb, block_bytes / 1024, freed_kb, now_kb);
    if (reached_us != UINT64_MAX) bench_print(" reached_us=%" PRIu64, reached_us);
    bench_print(" peak_kb=%" PRIu64 "\n", bench_peak_kb());
    atomic_store(&over, true);
    for (uint64_t t = 0; t <= consumers; t++) sem_post(&never);
    for (uint64_t t = 0; t <= consumers; t++) pthread_join(threads[t], NULL);
    return 0;
}
