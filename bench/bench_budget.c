/*
 * Churn under a budget: `threads` keep about `live_mb` live together while the sizes change by
 * phase. A phase refills a thread's part of the live memory, block by block in random places, with
 * one range of sizes; after each phase a burst of large buffers of `burst_mb` in all comes and goes.
 * What was freed in one shape does not suit the next one, so that memory gathers which is free and
 * resident. A further thread looks at resident memory every 10 ms. Every block is filled with a byte
 * of its own, which is checked before it is freed. One operation is a block allocated.
 *
 * Memory that could be given back is free whole pages. So at the end the pages in which a live block
 * lies are counted: what is resident beyond live_pages_kb is free, or the allocator's own.
 */
#include "bench.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { LOOK_US = 10000, BURST_BYTES = 3 << 20 };

static const struct {
    uint64_t min, max;
} ranges[] = {{65536, 262144},  {300000, 900000}, {131072, 524288}, {1000000, 2000000},
              {512, 2048},      {20000, 32000},   {4096, 16384},    {1024, 8192},
              {64, 8192},      {64, 65536}};

/* Which ranges take turns: blocks that give back whole pages when they are freed; small ones as
 * well, of which many share a page or slab; one range that never changes. */
static const struct {
    uint64_t first, count;
} shapes[] = {{0, 4}, {0, 8}, {8, 1}, {9, 1}};

typedef struct {
    unsigned char *block;
    size_t size;
} slot;

typedef struct {
    _Alignas(64) slot *slots;
    uint64_t count, bytes, most, allocated, random, number;
} worker;

static uint64_t phases, live_each, burst_each, slots_each, shape;
static atomic_bool over;
static _Atomic uint64_t highest_kb;

static void free_checked(slot *s) {
    if (s->block[0] != (unsigned char)s->size || s->block[s->size - 1] != (unsigned char)s->size)
        bench_fail("a block has lost what was written into it");
    free(s->block);
}

static void take(worker *w, size_t size) {
    unsigned char *block = bench_checked(malloc(size));
    memset(block, (int)(size & 0xff), size);
    w->slots[w->count++] = (slot){block, size};
    w->bytes += size;
    w->allocated++;
    if (w->count > w->most) w->most = w->count;
}

static void drop(worker *w, uint64_t at) {
    free_checked(&w->slots[at]);
    w->bytes -= w->slots[at].size;
    w->slots[at] = w->slots[--w->count];
}

static void burst(worker *w) {
    uint64_t first = w->count;
    for (uint64_t bytes = 0; bytes + BURST_BYTES <= burst_each; bytes += BURST_BYTES)
        take(w, BURST_BYTES);
    while (w->count > first) drop(w, w->count - 1);
}

static void churn(void *state) {
    worker *w = state;
    for (uint64_t phase = 0; phase < phases; phase++) {
        uint64_t range = shapes[shape].first + (phase + w->number) % shapes[shape].count;
        bench_log_sizes sizes = bench_log_between(ranges[range].min, ranges[range].max);
        for (uint64_t done = 0; done < 2 * live_each;) {
            size_t size = bench_log_size(&sizes, bench_random(&w->random));
            while (w->count > 0 && (w->bytes + size > live_each || w->count >= slots_each))
                drop(w, bench_below(bench_random(&w->random), w->count));
            take(w, size);
            done += size;
        }
        burst(w);
    }
}

typedef struct {
    uint64_t first, end;
} page_range;

static int by_first(const void *a, const void *b) {
    uint64_t x = ((const page_range *)a)->first, y = ((const page_range *)b)->first;
    return (x > y) - (x < y);
}

/* Pages in which a live block lies, each once. Called when all threads have ended. */
static uint64_t live_pages(const worker *workers, uint64_t threads) {
    uint64_t count = 0, pages = 0, end = 0;
    for (uint64_t t = 0; t < threads; t++) count += workers[t].count;
    page_range *ranges = bench_map((count + 1) * sizeof *ranges), *next = ranges;
    for (uint64_t t = 0; t < threads; t++) {
        for (uint64_t i = 0; i < workers[t].count; i++) {
            uint64_t at = (uint64_t)(uintptr_t)workers[t].slots[i].block;
            *next++ = (page_range){at / BENCH_PAGE_BYTES,
                                   (at + workers[t].slots[i].size - 1) / BENCH_PAGE_BYTES + 1};
        }
    }
    qsort(ranges, count, sizeof *ranges, by_first);
    for (uint64_t i = 0; i < count; i++) {
        uint64_t first = ranges[i].first > end ? ranges[i].first : end;
        if (ranges[i].end > first) pages += ranges[i].end - first;
        if (ranges[i].end > end) end = ranges[i].end;
    }
    munmap(ranges, (count + 1) * sizeof *ranges);
    return pages;
}

static void *look(void *unused) {
    (void)unused;
    while (!atomic_load(&over)) {
        uint64_t now_kb = bench_resident_kb();
        if (now_kb > atomic_load(&highest_kb)) atomic_store(&highest_kb, now_kb);
        bench_sleep_us(LOOK_US);
    }
    return NULL;
}

int main(int argc, char **argv) {
    bench_arg args[] = {
        {"phases", "of each thread", 20, 1, UINT64_C(1) << 32},
        {"live_mb", "live in all threads together", 130, 1, UINT64_C(1) << 20},
        {"burst_mb", "of large buffers, in all threads together", 40, 0, UINT64_C(1) << 20},
        {"threads", "threads", 2, 1, 256},
        {"shape", "sizes: 0 from 64 KiB, 1 from 512 B, 2 always to 8 KiB, 3 to 64 KiB", 1, 0, 3},
        {"seed", "of the random numbers", 42, 0, UINT64_MAX},
    };
    bench_parse(argc, argv, "live memory of a constant size in changing shapes", args,
                sizeof args / sizeof args[0]);
    uint64_t threads = args[3].value;
    phases = args[0].value;
    live_each = (args[1].value << 20) / threads;
    burst_each = (args[2].value << 20) / threads;
    shape = args[4].value;
    /* Untouched pages of the tables cost nothing. */
    slots_each = live_each / 64 + burst_each / BURST_BYTES + 1;
    worker *workers = bench_map(threads * sizeof *workers);
    for (uint64_t t = 0; t < threads; t++) {
        workers[t].slots = bench_map((slots_each + burst_each / BURST_BYTES + 1) * sizeof(slot));
        workers[t].random = bench_seed(args[5].value + t);
        workers[t].number = t;
    }
    pthread_t watcher;
    if (pthread_create(&watcher, NULL, look, NULL) != 0) bench_fail("cannot start a thread");
    uint64_t elapsed = bench_run_threads(threads, churn, workers, sizeof *workers);
    atomic_store(&over, true);
    pthread_join(watcher, NULL);

    uint64_t allocated = 0, table_bytes = 0, live_bytes = 0;
    for (uint64_t t = 0; t < threads; t++) {
        allocated += workers[t].allocated;
        live_bytes += workers[t].bytes;
        table_bytes += workers[t].most * sizeof(slot);
    }
    uint64_t end_kb = bench_resident_kb();
    bench_report(allocated, elapsed, "phases=%" PRIu64 " live_mb=%" PRIu64 " burst_mb=%" PRIu64
                 " threads=%" PRIu64 " shape=%" PRIu64, phases, args[1].value, args[2].value, threads,
                 args[4].value);
    uint64_t peak_kb = bench_peak_kb();
    bench_print("Memory: live_kb=%" PRIu64 " live_pages_kb=%" PRIu64 " tables_kb=%" PRIu64
                " end_kb=%" PRIu64 " highest_kb=%" PRIu64 " peak_kb=%" PRIu64 "\n",
                live_bytes / 1024, live_pages(workers, threads) * (BENCH_PAGE_BYTES / 1024),
                table_bytes / 1024, end_kb, atomic_load(&highest_kb), peak_kb);
    for (uint64_t t = 0; t < threads; t++)
        while (workers[t].count > 0) drop(&workers[t], workers[t].count - 1);
    return 0;
}
