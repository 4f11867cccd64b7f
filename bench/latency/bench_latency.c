/*
 * The time of single calls. Each step picks a random slot of a working set; an empty slot gets a
 * block of the slot's size, a full one is freed, and the one call is timed with the time-stamp
 * counter. The slots are dealt evenly to the sizes. Each block's first and last byte is written
 * outside the timed part: a page fault there is the program's, one inside malloc is malloc's.
 *
 * What the two readings of the counter cost (the median of empty pairs) is taken off; a call that
 * took less counts as 0. Output: one `name=value` a line, then histograms in ticks of the counter,
 * labelled OPERATION:SIZE.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "bench.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>

#include "clock.h"
#include "histogram.h"

enum { SIZES_MAX = 12, FIXED_ARGUMENTS = 4 };

static const uint64_t DEFAULT_SIZES[] = {16, 64, 256, 1024, 4096, 32768, 65536, 1048576};

typedef struct {
    histogram allocations[SIZES_MAX];
    histogram frees[SIZES_MAX];
} results;

typedef struct {
    results *found;
    void **slots;
    uint64_t random;
} worker;

static uint64_t sizes[SIZES_MAX];
static uint64_t size_count, slot_count, steps, overhead;

static uint64_t net(uint64_t start, uint64_t stop) {
    uint64_t ticks = stop > start ? stop - start : 0;
    return ticks > overhead ? ticks - overhead : 0;
}

static void run_worker(void *state) {
    worker *w = state;
    for (uint64_t i = 0; i < steps; i++) {
        uint64_t random = bench_random(&w->random);
        uint64_t number = bench_below(random, slot_count), class = number % size_count;
        void *block = w->slots[number];
        if (block != NULL) {
            uint64_t start = clock_start();
            free(block);
            uint64_t stop = clock_stop();
            w->slots[number] = NULL;
            histogram_add(&w->found->frees[class], net(start, stop));
        } else {
            uint64_t start = clock_start();
            block = malloc(sizes[class]);
            uint64_t stop = clock_stop();
            w->slots[number] = bench_checked(block);
            bench_touch(block, sizes[class], random);
            histogram_add(&w->found->allocations[class], net(start, stop));
        }
    }
}

static void add_up(histogram *sum, const histogram *part) {
    for (uint32_t bucket = 0; bucket < HISTOGRAM_BUCKETS; bucket++)
        sum->counts[bucket] += part->counts[bucket];
}

static void print_results(worker *workers, uint64_t threads) {
    char label[32];
    for (uint64_t class = 0; class < size_count; class++) {
        for (uint64_t t = 1; t < threads; t++) {
            add_up(&workers[0].found->allocations[class], &workers[t].found->allocations[class]);
            add_up(&workers[0].found->frees[class], &workers[t].found->frees[class]);
        }
        snprintf(label, sizeof label, "malloc:%" PRIu64, sizes[class]);
        histogram_print(&workers[0].found->allocations[class], label);
        snprintf(label, sizeof label, "free:%" PRIu64, sizes[class]);
        histogram_print(&workers[0].found->frees[class], label);
    }
}

/* The sizes given, or the usual ones where none is. */
static void choose_sizes(const bench_arg *args) {
    for (uint64_t i = 0; i < SIZES_MAX && args[i].value != 0; i++) {
        for (uint64_t j = 0; j < i; j++)
            if (sizes[j] == args[i].value) bench_reject(&args[i], "is given twice");
        sizes[size_count++] = args[i].value;
    }
    if (size_count != 0) return;
    size_count = sizeof DEFAULT_SIZES / sizeof DEFAULT_SIZES[0];
    for (uint64_t i = 0; i < size_count; i++) sizes[i] = DEFAULT_SIZES[i];
}

static worker *make_workers(uint64_t threads, uint64_t seed) {
    worker *workers = bench_map(threads * sizeof *workers);
    for (uint64_t t = 0; t < threads; t++)
        workers[t] = (worker){.found = bench_map(sizeof(results)),
                              .slots = bench_map(slot_count * sizeof(void *)),
                              .random = bench_seed(seed + t)};
    return workers;
}

static uint64_t involuntary_switches(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (uint64_t)usage.ru_nivcsw;
}

int main(int argc, char **argv) {
    bench_arg args[FIXED_ARGUMENTS + SIZES_MAX] = {
        {"steps", "timed calls a thread, each malloc or free", 1000000, 1, UINT64_C(1) << 40},
        {"slots", "in a thread's working set, for all sizes together", 800, 1, UINT64_C(1) << 28},
        {"threads", "each with a working set of its own", 1, 1, 256},
        {"seed", "of the random numbers", 42, 0, UINT64_MAX},
    };
    for (int i = 0; i < SIZES_MAX; i++)
        args[FIXED_ARGUMENTS + i] = (bench_arg){
            "size", "bytes; 16 to 1048576 in eight steps when none is given", 0, 0, 1u << 30};
    bench_parse(argc, argv, "single malloc and free calls, each timed", args,
                sizeof args / sizeof args[0]);
    if (!clock_is_steady())
        bench_fail("this processor's time-stamp counter is not invariant: it cannot time calls");
    steps = args[0].value, slot_count = args[1].value;
    uint64_t threads = args[2].value;
    choose_sizes(args + FIXED_ARGUMENTS);
    if (slot_count < size_count) bench_reject(&args[1], "is less than the number of sizes");

    worker *workers = make_workers(threads, args[3].value);
    overhead = clock_overhead();
    uint64_t step = clock_step();
    uint64_t switches = involuntary_switches();
    uint64_t start_ns = bench_now_ns(), start_ticks = clock_stop();
    uint64_t elapsed = bench_run_threads(threads, run_worker, workers, sizeof *workers);
    switches = involuntary_switches() - switches;
    double rate = clock_rate(start_ns, start_ticks);

    bench_report(steps * threads, elapsed, "steps=%" PRIu64 " slots=%" PRIu64 " threads=%" PRIu64,
                 steps, slot_count, threads);
    bench_print("ticks_per_second=%.0f\noverhead_ticks=%" PRIu64 "\nstep_ticks=%" PRIu64
                "\ninvoluntary_switches=%" PRIu64 "\n",
                rate, overhead, step, switches);
    print_results(workers, threads);
    for (uint64_t t = 0; t < threads; t++)
        for (uint64_t i = 0; i < slot_count; i++) free(workers[t].slots[i]);
    return 0;
}
