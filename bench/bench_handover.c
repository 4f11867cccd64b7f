/*
 * Hand-over, after the malloc test of Lever and Boreham (2000) in which some threads only allocate
 * and others only free: allocators fill small batches with blocks of random sizes, freers take the
 * batch filled last and free it. The numbers of the two kinds need not be equal. There are as many
 * batches as `batches` says; who finds no empty (or no full) one waits, so that memory in flight is
 * bounded. One operation is one block, allocated by one thread and freed by another.
 */
#include "bench.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdbool.h>

enum { BATCH_BLOCKS_MAX = 4096 };

typedef struct batch {
    struct batch *next;
    uint64_t count;
    void *blocks[];
} batch;

static struct {
    pthread_mutex_t lock;
    pthread_cond_t has_empty;
    pthread_cond_t has_full;
    batch *empty;
    batch *full;
    uint64_t allocators_left;
} desk = {.lock = PTHREAD_MUTEX_INITIALIZER,
          .has_empty = PTHREAD_COND_INITIALIZER,
          .has_full = PTHREAD_COND_INITIALIZER};

typedef struct {
    bool allocates;
    uint64_t random;
} worker_state;

static uint64_t blocks_each, batch_blocks, size_min, size_max;

static void push(batch **list, batch *b, pthread_cond_t *has_some) {
    pthread_mutex_lock(&desk.lock);
    b->next = *list;
    *list = b;
    pthread_cond_signal(has_some);
    pthread_mutex_unlock(&desk.lock);
}

static batch *take_empty(void) {
    pthread_mutex_lock(&desk.lock);
    while (desk.empty == NULL) pthread_cond_wait(&desk.has_empty, &desk.lock);
    batch *b = desk.empty;
    desk.empty = b->next;
    pthread_mutex_unlock(&desk.lock);
    return b;
}

/* NULL: no full batch is left and none will come. */
static batch *take_full(void) {
    pthread_mutex_lock(&desk.lock);
    while (desk.full == NULL && desk.allocators_left > 0)
        pthread_cond_wait(&desk.has_full, &desk.lock);
    batch *b = desk.full;
    if (b != NULL) desk.full = b->next;
    pthread_mutex_unlock(&desk.lock);
    return b;
}

static void allocate_all(uint64_t *random_state) {
    for (uint64_t left = blocks_each; left > 0;) {
        batch *b = take_empty();
        b->count = left < batch_blocks ? left : batch_blocks;
        for (uint64_t i = 0; i < b->count; i++) {
            uint64_t random = bench_random(random_state);
            b->blocks[i] = bench_block(bench_size(random, size_min, size_max), random);
        }
        left -= b->count;
        push(&desk.full, b, &desk.has_full);
    }
    pthread_mutex_lock(&desk.lock);
    desk.allocators_left--;
    pthread_cond_broadcast(&desk.has_full);
    pthread_mutex_unlock(&desk.lock);
}

static void free_all(void) {
    for (batch *b; (b = take_full()) != NULL; push(&desk.empty, b, &desk.has_empty))
        for (uint64_t i = 0; i < b->count; i++) free(b->blocks[i]);
}

static void work(void *state) {
    worker_state *w = state;
    if (w->allocates)
        allocate_all(&w->random);
    else
        free_all();
}

static void lay_out_batches(uint64_t count) {
    size_t batch_bytes = sizeof(batch) + batch_blocks * sizeof(void *);
    char *memory = bench_map(count * batch_bytes);
    for (uint64_t i = 0; i < count; i++) {
        batch *b = (batch *)(memory + i * batch_bytes);
        b->next = desk.empty;
        desk.empty = b;
    }
}

int main(int argc, char **argv) {
    bench_arg args[] = {
        {"allocators", "threads that only allocate", 3, 1, 256},
        {"freers", "threads that only free", 1, 1, 256},
        {"count", "blocks per allocating thread", 500000, 1, UINT64_C(1) << 48},
        {"batch", "blocks handed over at a time", 32, 1, BATCH_BLOCKS_MAX},
        {"batches", "batches in all, full or empty", 256, 1, UINT64_C(1) << 20},
        {"min", "smallest block, bytes", 8, 1, UINT64_C(1) << 30},
        {"max", "largest block, bytes", 512, 1, UINT64_C(1) << 30},
        {"seed", "of the random numbers", 42, 0, UINT64_MAX},
    };
    bench_parse(argc, argv, "some threads only allocate, others only free; small batches between",
                args, sizeof args / sizeof args[0]);
    uint64_t allocators = args[0].value, freers = args[1].value;
    blocks_each = args[2].value;
    batch_blocks = args[3].value;
    size_min = args[5].value;
    size_max = args[6].value;
    if (size_max < size_min) bench_reject(&args[6], "is below min");

    lay_out_batches(args[4].value);
    desk.allocators_left = allocators;
    worker_state *workers = bench_map((allocators + freers) * sizeof *workers);
    for (uint64_t t = 0; t < allocators + freers; t++)
        workers[t] = (worker_state){.allocates = t < allocators,
                                    .random = bench_seed(args[7].value + t)};

    uint64_t elapsed = bench_run_threads(allocators + freers, work, workers, sizeof *workers);

    bench_report(allocators * blocks_each, elapsed,
                 "allocators=%" PRIu64 " freers=%" PRIu64 " count=%" PRIu64 " batch=%" PRIu64
                 " batches=%" PRIu64 " min=%" PRIu64 " max=%" PRIu64,
                 allocators, freers, blocks_each, batch_blocks, args[4].value, size_min, size_max);
    return 0;
}
