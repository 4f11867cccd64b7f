/*
 * Producer and consumer: producers allocate blocks and never free, consumers free and never
 * allocate. Blocks travel in batches of 128 through a bounded ring, so that the ring's lock is
 * taken once a batch and a slow side holds the other back. One operation is one block, allocated
 * by one thread and freed by another.
 */
#include "bench.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

enum { BATCH_BLOCKS = 128, RING_BATCHES = 64 };

typedef struct {
    uint64_t count;
    void *blocks[BATCH_BLOCKS];
} batch;

static struct {
    pthread_mutex_t lock;
    pthread_cond_t not_full;
    pthread_cond_t not_empty;
    uint64_t head;
    uint64_t tail;
    uint64_t producers_left;
    batch batches[RING_BATCHES];
} ring = {.lock = PTHREAD_MUTEX_INITIALIZER,
          .not_full = PTHREAD_COND_INITIALIZER,
          .not_empty = PTHREAD_COND_INITIALIZER};

static uint64_t block_bytes;
static uint64_t blocks_each;

static void ring_put(const batch *full) {
    pthread_mutex_lock(&ring.lock);
    while (ring.head - ring.tail == RING_BATCHES) pthread_cond_wait(&ring.not_full, &ring.lock);
    ring.batches[ring.head++ % RING_BATCHES] = *full;
    pthread_cond_signal(&ring.not_empty);
    pthread_mutex_unlock(&ring.lock);
}

static bool ring_take(batch *out) {
    pthread_mutex_lock(&ring.lock);
    while (ring.head == ring.tail && ring.producers_left > 0)
        pthread_cond_wait(&ring.not_empty, &ring.lock);
    bool got = ring.head != ring.tail;
    if (got) {
        *out = ring.batches[ring.tail++ % RING_BATCHES];
        pthread_cond_signal(&ring.not_full);
    }
    pthread_mutex_unlock(&ring.lock);
    return got;
}

static void *producer(void *argument) {
    (void)argument;
    batch filling;
    for (uint64_t left = blocks_each; left > 0; left -= filling.count) {
        filling.count = left < BATCH_BLOCKS ? left : BATCH_BLOCKS;
        for (uint64_t i = 0; i < filling.count; i++)
            filling.blocks[i] = bench_block(block_bytes, i);
        ring_put(&filling);
    }
    pthread_mutex_lock(&ring.lock);
    ring.producers_left--;
    pthread_cond_broadcast(&ring.not_empty);
    pthread_mutex_unlock(&ring.lock);
    return NULL;
}

static void *consumer(void *argument) {
    (void)argument;
    batch taken;
    while (ring_take(&taken))
        for (uint64_t i = 0; i < taken.count; i++) free(taken.blocks[i]);
    return NULL;
}

int main(int argc, char **argv) {
    bench_arg args[] = {
        {"producers", "threads that allocate", 1, 1, 256},
        {"consumers", "threads that free", 1, 1, 256},
        {"size", "bytes of each block", 64, 1, UINT64_C(1) << 30},
        {"count", "blocks per producer", 5000000, 1, UINT64_C(1) << 48},
    };
    bench_parse(argc, argv, "producers allocate, consumers free, batches of 128 in between", args,
                sizeof args / sizeof args[0]);
    uint64_t producers = args[0].value, consumers = args[1].value;
    block_bytes = args[2].value;
    blocks_each = args[3].value;
    ring.producers_left = producers;
    pthread_t *threads = bench_map((producers + consumers) * sizeof *threads);

    uint64_t start = bench_now_ns();
    for (uint64_t t = 0; t < producers + consumers; t++)
        if (pthread_create(&threads[t], NULL, t < producers ? producer : consumer, NULL) != 0)
            bench_fail("cannot start a thread");
    for (uint64_t t = 0; t < producers + consumers; t++) pthread_join(threads[t], NULL);
    uint64_t elapsed = bench_now_ns() - start;

    bench_report(producers * blocks_each, elapsed,
                 "producers=%" PRIu64 " consumers=%" PRIu64 " size=%" PRIu64 " count=%" PRIu64,
                 producers, consumers, block_bytes, blocks_each);
    return 0;
}
