/*
 * Soak: one process that lives long and works in epochs, each of the same work, so that what an
 * epoch costs can be followed over hours. An epoch has eight phases: the range of sizes changes,
 * the working set breathes between all and a quarter of the slots. Every phase is run by new
 * threads that inherit the slots of ended ones; now and then a block is handed to whoever comes
 * next through a mailbox, resized, or large. Each epoch prints one line: its operations and time,
 * memory at its end, and the latency of single calls, timed at random distances. With wait=1 an
 * epoch begins when a line comes in on standard input, so that several allocators can take turns.
 */
#include "bench.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>
#include <x86intrin.h>

#include "latency/histogram.h"

enum {
    MAILBOXES = 256,
    /* One step in so many, on average. */
    HAND_OVER_EVERY = 8,
    RESIZE_EVERY = 64,
    TIMED_EVERY = 256,
    LARGE_MIN_BYTES = 64 << 10,
    LARGE_MAX_BYTES = 4 << 20,
};

/* What a phase allocates, how many quarters of the slots it may use, and how rare large blocks are.
 * The last two have none: what lives at an epoch's end is to be alike in all epochs. */
typedef struct {
    uint64_t size_min, size_max, quarters, large_every;
} phase;

static const phase phases[] = {
    {16, 1024, 4, 8192},     {16, 128, 2, 8192},    {256, 32768, 3, 4096}, {16, 1024, 1, 8192},
    {1024, 131072, 2, 2048}, {1024, 8192, 4, 8192}, {16, 512, 1, 0},       {16, 4096, 4, 0},
};
enum { PHASES = sizeof phases / sizeof phases[0] };

/* Written at the start of every block; the last byte repeats the low byte of the size. */
typedef struct {
    uint64_t size;
} block_head;

/* The times of sampled calls, in ticks of the processor's time-stamp counter. */
typedef struct {
    uint64_t count;
    uint64_t largest;
    histogram ticks;
} timings;

typedef struct {
    void **slots;
    uint64_t slot_count;
    uint64_t steps; /* of one phase */
    uint64_t random;
    uint64_t ops;
    int64_t live_bytes; /* below 0 when it freed what others allocated */
    bench_log_sizes sizes;
    uint64_t window; /* the slots that may be filled in this phase */
    uint64_t large_every;
    uint64_t until_timed;
    timings latency;
} worker;

static _Atomic(void *) mailboxes[MAILBOXES];
static uint64_t clock_cost_ticks;

/* Waits for the instructions before it, and lets none after it begin early. */
static inline uint64_t ticks_now(void) {
    unsigned processor;
    uint64_t ticks = __rdtscp(&processor);
    _mm_lfence();
    return ticks;
}

/* The ticks between two readings with nothing in between, at the least. */
static uint64_t clock_cost(void) {
    uint64_t least = UINT64_MAX;
    for (int i = 0; i < 1000; i++) {
        uint64_t start = ticks_now(), ticks = ticks_now() - start;
        if (ticks < least) least = ticks;
    }
    return least;
}

static void timings_move(timings *to, timings *from) {
    to->count += from->count;
    if (from->largest > to->largest) to->largest = from->largest;
    for (uint32_t i = 0; i < HISTOGRAM_BUCKETS; i++) to->ticks.counts[i] += from->ticks.counts[i];
    memset(from, 0, sizeof *from);
}

/* The least time that this share of the calls did not exceed, to a bucket's width; 0 of none. */
static uint64_t timings_quantile(const timings *all, double share) {
    uint64_t seen = 0;
    for (uint32_t i = 0; i < HISTOGRAM_BUCKETS; i++) {
        seen += all->ticks.counts[i];
        if (seen > 0 && (double)seen >= share * (double)all->count) {
            uint64_t most = histogram_low(i + 1) - 1;
            return most < all->largest ? most : all->largest;
        }
    }
    return 0;
}

static void label(worker *w, void *block, size_t size) {
    ((block_head *)block)->size = size;
    ((unsigned char *)block)[size - 1] = (unsigned char)size;
    /* Between the two labels. */
    bench_touch_pages((char *)block + sizeof(block_head), size - sizeof(block_head) - 1, size);
    w->live_bytes += (int64_t)size;
}

static size_t unlabel(worker *w, void *block) {
    size_t size = ((block_head *)block)->size;
    if (size < sizeof(block_head) || size > LARGE_MAX_BYTES ||
        ((unsigned char *)block)[size - 1] != (unsigned char)size)
        bench_fail("a block has lost what was written to it");
    w->live_bytes -= (int64_t)size;
    return size;
}

/* True when the next call is to be timed; the distances vary so that no pattern is followed. */
static int timed(worker *w) {
    if (--w->until_timed > 0) return 0;
    w->until_timed = 1 + bench_below(bench_random(&w->random), 2 * TIMED_EVERY);
    return 1;
}

static void note_time(worker *w, uint64_t start) {
    uint64_t ticks = ticks_now() - start;
    ticks = ticks > clock_cost_ticks ? ticks - clock_cost_ticks : 0;
    histogram_add(&w->latency.ticks, ticks);
    w->latency.count++;
    if (ticks > w->latency.largest) w->latency.largest = ticks;
}

static void release(worker *w, void *block) {
    unlabel(w, block);
    w->ops++;
    if (!timed(w)) {
        free(block);
        return;
    }
    uint64_t start = ticks_now();
    free(block);
    note_time(w, start);
}

static void *obtain(worker *w, size_t size) {
    void *block;
    w->ops++;
    if (!timed(w)) {
        block = malloc(size);
    } else {
        uint64_t start = ticks_now();
        block = malloc(size);
        note_time(w, start);
    }
    label(w, bench_checked(block), size);
    return block;
}

static void *resize(worker *w, void *block) {
    size_t old = unlabel(w, block);
    size_t size = bench_log_size(&w->sizes, bench_random(&w->random));
    block = bench_checked(realloc(block, size));
    if (((block_head *)block)->size != old) bench_fail("realloc lost the contents");
    w->ops++;
    label(w, block, size);
    return block;
}

static size_t next_size(worker *w, uint64_t random) {
    if (w->large_every != 0 && random % w->large_every == 0)
        return bench_size(random, LARGE_MIN_BYTES, LARGE_MAX_BYTES);
    return bench_log_size(&w->sizes, bench_random(&w->random));
}

/* Leaves the block for another step of any thread, and frees what was left there before. */
static void hand_over(worker *w, void *block, uint64_t random) {
    _Atomic(void *) *mailbox = &mailboxes[(random >> 16) % MAILBOXES];
    void *left = atomic_exchange_explicit(mailbox, block, memory_order_acq_rel);
    if (left != NULL) release(w, left);
}

static void step(worker *w) {
    uint64_t random = bench_random(&w->random);
    uint64_t index = bench_below(random, w->slot_count);
    void **slot = &w->slots[index];
    if (*slot == NULL) {
        if (index < w->window) *slot = obtain(w, next_size(w, random));
    } else if (random % RESIZE_EVERY == 1 && index < w->window) {
        *slot = resize(w, *slot);
    } else {
        void *block = *slot;
        *slot = NULL;
        if (random % HAND_OVER_EVERY == 2)
            hand_over(w, block, random);
        else
            release(w, block);
    }
}

static void run_phase(void *state) {
    worker *w = state;
    for (uint64_t i = 0; i < w->steps; i++) step(w);
}

/* Runs the phases; returns the time the threads worked, and the most memory seen after a phase. */
static uint64_t run_epoch(worker *workers, uint64_t threads, uint64_t *peak_kb) {
    uint64_t elapsed = 0;
    for (size_t p = 0; p < PHASES; p++) {
        for (uint64_t t = 0; t < threads; t++) {
            workers[t].sizes = bench_log_between(phases[p].size_min, phases[p].size_max);
            workers[t].large_every = phases[p].large_every;
            workers[t].window = (workers[t].slot_count * phases[p].quarters + 3) / 4;
        }
        elapsed += bench_run_threads(threads, run_phase, workers, sizeof *workers);
        uint64_t resident = bench_resident_kb();
        if (resident > *peak_kb) *peak_kb = resident;
    }
    return elapsed;
}

static void report_epoch(uint64_t epoch, worker *workers, uint64_t threads, uint64_t elapsed_ns,
                         uint64_t peak_kb, double ns_per_tick) {
    uint64_t ops = 0;
    int64_t live = 0;
    timings *all = &workers[0].latency;
    for (uint64_t t = 0; t < threads; t++) {
        ops += workers[t].ops;
        live += workers[t].live_bytes;
        workers[t].ops = 0;
        if (t > 0) timings_move(all, &workers[t].latency);
    }
    bench_print("Epoch = %" PRIu64 " ops=%" PRIu64 " seconds=%.6f rss_kb=%" PRIu64
                " peak_rss_kb=%" PRIu64 " live_kb=%" PRId64
                " timed=%" PRIu64 " p50_ns=%.0f p99_ns=%.0f p999_ns=%.0f max_ns=%.0f\n",
                epoch, ops, (double)elapsed_ns / 1e9, bench_resident_kb(), peak_kb, live / 1024,
                all->count, ns_per_tick * (double)timings_quantile(all, 0.5),
                ns_per_tick * (double)timings_quantile(all, 0.99),
                ns_per_tick * (double)timings_quantile(all, 0.999),
                ns_per_tick * (double)all->largest);
    memset(all, 0, sizeof *all);
}

/* False when standard input has ended: nobody wants another epoch. */
static int next_epoch_wanted(void) {
    char byte;
    while (read(STDIN_FILENO, &byte, 1) == 1)
        if (byte == '\n') return 1;
    return 0;
}

static void free_all(worker *workers, uint64_t threads) {
    for (uint64_t i = 0; i < MAILBOXES; i++) free(atomic_load(&mailboxes[i]));
    for (uint64_t t = 0; t < threads; t++)
        for (uint64_t i = 0; i < workers[t].slot_count; i++) free(workers[t].slots[i]);
}

int main(int argc, char **argv) {
    bench_arg args[] = {
        {"epochs", "to run at most", 5, 1, UINT64_C(1) << 48},
        {"steps", "of each thread in an epoch", 2000000, PHASES, UINT64_C(1) << 48},
        {"threads", "at work at the same time", 2, 1, 1024},
        {"slots", "blocks that a thread may hold", 4000, 4, UINT64_C(1) << 28},
        {"wait", "1: each epoch waits for a line on standard input", 0, 0, 1},
        {"seed", "of the random numbers", 42, 0, UINT64_MAX},
    };
    bench_parse(argc, argv, "a long life in epochs of equal work; one line of figures an epoch",
                args, sizeof args / sizeof args[0]);
    uint64_t epochs = args[0].value, threads = args[2].value, wait = args[4].value;
    worker *workers = bench_map(threads * sizeof *workers);
    for (uint64_t t = 0; t < threads; t++) {
        workers[t].slots = bench_map(args[3].value * sizeof(void *));
        workers[t].slot_count = args[3].value;
        workers[t].steps = args[1].value / PHASES;
        workers[t].random = bench_seed(args[5].value + t);
        workers[t].until_timed = 1;
    }
    clock_cost_ticks = clock_cost();

    uint64_t ops_all = 0, elapsed_all = 0, done = 0;
    for (; done < epochs && (!wait || next_epoch_wanted()); done++) {
        uint64_t peak_kb = 0, ticks = ticks_now(), start = bench_now_ns();
        uint64_t elapsed = run_epoch(workers, threads, &peak_kb);
        double ns_per_tick =
            (double)(bench_now_ns() - start) / (double)(ticks_now() - ticks);
        for (uint64_t t = 0; t < threads; t++) ops_all += workers[t].ops;
        elapsed_all += elapsed;
        report_epoch(done + 1, workers, threads, elapsed, peak_kb, ns_per_tick);
    }
    if (done > 0)
        bench_report(ops_all, elapsed_all, "epochs=%" PRIu64 " threads=%" PRIu64, done, threads);
    free_all(workers, threads);
    return 0;
}
