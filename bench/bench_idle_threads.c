/*
 * Idle threads: many threads with small stacks, each of which once allocated some blocks of mixed
 * sizes, freed them all, and sleeps from then on. Resident memory is looked at while all of them
 * sleep and none has allocated yet, and again when they all sleep after it: the difference is what
 * the allocator keeps for them. Stacks are touched before the first look. One operation is a block
 * allocated and freed.
 */
#include "bench.h"

#include <inttypes.h>
#include <pthread.h>

enum { STACK_TOUCHED_BYTES = 16384 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t go = PTHREAD_COND_INITIALIZER, arrived = PTHREAD_COND_INITIALIZER;
static uint64_t stage, there;
static uint64_t blocks_each, size_min, size_max, seed;

/* Arrives, then sleeps until the program has come to `wanted`. */
static void sleep_until(uint64_t wanted) {
    pthread_mutex_lock(&lock);
    there++;
    pthread_cond_signal(&arrived);
    while (stage < wanted) pthread_cond_wait(&go, &lock);
    pthread_mutex_unlock(&lock);
}

static void wait_for_all(uint64_t threads) {
    pthread_mutex_lock(&lock);
    while (there < threads) pthread_cond_wait(&arrived, &lock);
    there = 0;
    pthread_mutex_unlock(&lock);
}

static void advance(void) {
    pthread_mutex_lock(&lock);
    stage++;
    pthread_cond_broadcast(&go);
    pthread_mutex_unlock(&lock);
}

static void __attribute__((noinline)) touch_stack(void) {
    volatile unsigned char below[STACK_TOUCHED_BYTES];
    for (size_t at = 0; at < sizeof below; at += BENCH_PAGE_BYTES) below[at] = 1;
}

static void __attribute__((noinline)) allocate_once(uint64_t random) {
    void *blocks[1024];
    bench_log_sizes sizes = bench_log_between(size_min, size_max);
    for (uint64_t i = 0; i < blocks_each; i++) {
        uint64_t number = bench_random(&random);
        blocks[i] = bench_block(bench_log_size(&sizes, number), number);
    }
    for (uint64_t i = 0; i < blocks_each; i++) free(blocks[i]);
}

static void *idle(void *argument) {
    touch_stack();
    sleep_until(1);
    allocate_once(bench_seed(seed + (uint64_t)(uintptr_t)argument));
    sleep_until(2);
    return NULL;
}

int main(int argc, char **argv) {
    bench_arg args[] = {
        {"threads", "threads alive at once", 10000, 1, 100000},
        {"blocks", "each allocates and frees once", 100, 0, 1024},
        {"min", "smallest block, bytes", 16, 1, UINT64_C(1) << 20},
        {"max", "largest block, bytes", 8192, 1, UINT64_C(1) << 20},
        {"stack_kb", "of each thread", 64, 32, 65536},
        {"rest_ms", "before the last look", 2000, 0, 3600000},
        {"seed", "of the random numbers", 42, 0, UINT64_MAX},
    };
    bench_parse(argc, argv, "threads that once allocated sleep for good", args,
                sizeof args / sizeof args[0]);
    uint64_t threads = args[0].value;
    blocks_each = args[1].value;
    size_min = args[2].value;
    size_max = args[3].value;
    if (size_max < size_min) bench_reject(&args[3], "is below min");
    seed = args[6].value;

    pthread_t *all = bench_map(threads * sizeof *all);
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    if (pthread_attr_setstacksize(&attributes, args[4].value * 1024) != 0)
        bench_reject(&args[4], "is no size for a stack");
    for (uint64_t t = 0; t < threads; t++)
        if (pthread_create(&all[t], &attributes, idle, (void *)(uintptr_t)t) != 0)
            bench_fail("cannot start a thread");
    wait_for_all(threads);
    uint64_t before_kb = bench_resident_kb();
    uint64_t start = bench_now_ns();
    advance();
    wait_for_all(threads);
    uint64_t elapsed = bench_now_ns() - start;
    uint64_t idle_kb = bench_resident_kb();
    bench_sleep_us(1000 * args[5].value);
    uint64_t end_kb = bench_resident_kb();

    bench_report(threads * blocks_each, elapsed,
                 "threads=%" PRIu64 " blocks=%" PRIu64 " min=%" PRIu64 " max=%" PRIu64, threads,
                 blocks_each, size_min, size_max);
    bench_print("Memory: before_kb=%" PRIu64 " idle_kb=%" PRIu64 " end_kb=%" PRIu64
                " thread_bytes=%" PRIu64 " peak_kb=%" PRIu64 "\n",
                before_kb, idle_kb, end_kb,
                end_kb > before_kb ? (end_kb - before_kb) * 1024 / threads : 0, bench_peak_kb());
    advance();
    for (uint64_t t = 0; t < threads; t++) pthread_join(all[t], NULL);
    return 0;
}
