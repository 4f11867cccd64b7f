/* Draws and describes the loads of bench_drawn. See drawn_load.h. */
#include "drawn_load.h"

#include "bench.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#define MIB_BYTES (1024.0 * 1024.0)
#define LIVE_BYTES_MAX (512 * MIB_BYTES)
#define BURST_BYTES_MAX (16 * MIB_BYTES)

enum { SIZE_MIN = 8, SIZE_MAX_BYTES = 4 << 20, FEW_MAX = 10, FLEET_PARTS = 6 };

/* Names the random numbers of a property: the order is part of every seed's meaning. */
typedef enum {
    OF_THREADS, OF_LIVE, OF_LIFETIME, OF_FREES, OF_TOUCH, OF_CALLS, OF_PAUSES, OF_BURSTS, OF_SIZES
} property;

static uint64_t numbers_of(uint64_t seed, uint64_t which) {
    return bench_seed(bench_seed(seed) + 1000003 * which);
}

static uint64_t between(uint64_t *random, uint64_t min, uint64_t max) {
    return min + bench_below(bench_random(random), max - min + 1);
}

/* From 0 up to, but not, 1. */
static double share(uint64_t *random) {
    return (double)(bench_random(random) >> 11) / 9007199254740992.0;
}

/* The powers of two, and straight lines between them. log_2 below is its inverse. */
static double power_2(double exponent) {
    int whole = (int)exponent - (exponent < (int)exponent);
    double value = 1 + (exponent - whole);
    for (; whole > 0; whole--) value *= 2;
    for (; whole < 0; whole++) value /= 2;
    return value;
}

static double log_2(double value) {
    double whole = 0;
    for (; value >= 2; value /= 2) whole++;
    for (; value < 1; value *= 2) whole--;
    return whole + (value - 1);
}

/* Every doubling as likely as the next. */
static double log_between(uint64_t *random, double min, double max) {
    return power_2(log_2(min) + share(random) * (log_2(max) - log_2(min)));
}

/* An index into `weights`. */
static size_t weighted(uint64_t *random, const double *weights, size_t count) {
    double sum = 0;
    for (size_t i = 0; i < count; i++) sum += weights[i];
    double at = share(random) * sum;
    for (size_t i = 0; i + 1 < count; i++) {
        if (at < weights[i]) return i;
        at -= weights[i];
    }
    return count - 1;
}

#define WEIGHTED(random, ...)                                       \
    weighted(random, (const double[]){__VA_ARGS__},                 \
             sizeof((const double[]){__VA_ARGS__}) / sizeof(double))

/* Parameters of one set of sizes; `quantile` walks up the shares, so `below` and `density` only grow on. */
typedef struct {
    drawn_kind kind;
    double min, max;        /* uniform; power: min */
    double exponent;        /* power */
    double median, sigma;   /* lognormal: in doublings */
    double few[FEW_MAX], few_below[FEW_MAX];
    size_t few_count;
    double z, below, density, factor; /* lognormal: where the walk along the normal distribution is */
} shape;

/* After published figures of a fleet of servers: 98 % of the blocks below 1 KiB with about 28 % of the bytes, half of
 * the bytes in blocks above 8 KiB. The shares within are ours, so this is an approximation and not their histogram. */
static const struct {
    double below, min, max;
} fleet[FLEET_PARTS] = {{0.60, 8, 64},         {0.90, 64, 256},         {0.978, 256, 1024},
                        {0.99855, 1024, 8192}, {0.99992, 8192, 262144}, {1.0, 262144, 2097152}};

static double fleet_quantile(double at) {
    size_t part = 0;
    double first = 0;
    while (at >= fleet[part].below && part + 1 < FLEET_PARTS) first = fleet[part++].below;
    double within = (at - first) / (fleet[part].below - first);
    double low = log_2(fleet[part].min), high = log_2(fleet[part].max);
    return power_2(low + within * (high - low));
}

/* The normal distribution by its density in steps of 1/64; each factor is e^(-1/4096) of the one before. */
static double normal_quantile(shape *s, double at) {
    const double step = 1.0 / 64;
    while (s->below < at && s->z < 6) {
        s->below += s->density * step;
        s->density *= s->factor;
        s->factor *= __builtin_exp(-1.0 / 4096);
        s->z += step;
    }
    return s->z;
}

static double quantile(shape *s, double at) {
    switch (s->kind) {
        case ONE_SIZE: return s->min;
        case UNIFORM_SIZES: return s->min + at * (s->max - s->min);
        case LOGNORMAL_SIZES: return power_2(s->median + s->sigma * normal_quantile(s, at));
        case POWER_SIZES: return s->min * power_2(-log_2(1 - at) / s->exponent);
        case FLEET_SIZES: return fleet_quantile(at);
        case FEW_SIZES: break;
    }
    size_t i = 0;
    while (i + 1 < s->few_count && at >= s->few_below[i]) i++;
    return s->few[i];
}

/* Few sizes, the first the most frequent, the n-th 1/n of that (Zipf). */
static void draw_few(shape *s, uint64_t *random, double scale) {
    s->few_count = between(random, 2, FEW_MAX);
    double sum = 0;
    for (size_t i = 0; i < s->few_count; i++) {
        s->few[i] = log_between(random, scale / 4, scale * 16);
        s->few_below[i] = sum += 1.0 / (double)(i + 1);
    }
    for (size_t i = 0; i < s->few_count; i++) s->few_below[i] /= sum;
}

static shape draw_shape(uint64_t *random) {
    shape s = {.z = -6, .density = __builtin_exp(-18.0) * 0.3989422804014327,
               .factor = __builtin_exp(6.0 / 64 - 1.0 / 8192)};
    s.kind = (drawn_kind)WEIGHTED(random, 15, 22, 15, 18, 15, 15);
    /* What is typical here: mostly small, sometimes buffers, seldom large blocks. */
    static const double lows[] = {16, 512, 16384}, highs[] = {512, 16384, 262144};
    size_t range = WEIGHTED(random, 78, 16, 6);
    double scale = log_between(random, lows[range], highs[range]);
    s.min = s.kind == UNIFORM_SIZES || s.kind == POWER_SIZES ? scale / 2 : scale;
    s.max = scale * power_2(1 + 6 * share(random));
    s.exponent = 1 + share(random);
    s.median = log_2(scale);
    s.sigma = 0.7 + 1.3 * share(random);
    if (s.kind == FEW_SIZES) draw_few(&s, random, scale);
    return s;
}

static uint32_t size_at(shape *s, double at) {
    double size = quantile(s, at);
    return (uint32_t)(size < SIZE_MIN ? SIZE_MIN : size > SIZE_MAX_BYTES ? SIZE_MAX_BYTES : size);
}

static void draw_sizes(drawn_sizes *sizes, uint64_t *random) {
    shape s = draw_shape(random);
    const double stratum = 1.0 / DRAWN_STRATA, fine = stratum / DRAWN_TAIL;
    double sum = 0, tail = 0;
    for (int i = 0; i + 1 < DRAWN_STRATA; i++) {
        sizes->strata[i] = size_at(&s, (i + 0.5) * stratum);
        sum += sizes->strata[i];
    }
    for (int i = 0; i < DRAWN_TAIL; i++) {
        sizes->tail[i] = size_at(&s, 1 - stratum + (i + 0.5) * fine);
        tail += sizes->tail[i];
    }
    sizes->strata[DRAWN_STRATA - 1] = sizes->tail[DRAWN_TAIL / 2];
    sizes->mean = (sum + tail / DRAWN_TAIL) / DRAWN_STRATA;
    sizes->kind = s.kind;
}

static void draw_lifetime(drawn_load *load, uint64_t *random) {
    load->lifetime = (drawn_lifetime)WEIGHTED(random, 30, 10, 12, 14, 10, 14, 10);
    load->order = (drawn_order)WEIGHTED(random, 1, 1, 1);
    load->long_share = (uint32_t)between(random, 3, 26);
    load->window = between(random, 4, 64);
    load->set_count = load->lifetime == LIVE_DRIFT ? between(random, 2, DRAWN_SETS_MAX) : 1;
    if (load->lifetime == LIVE_GENERATIONS) load->long_share *= 3;
}

static void draw_frees(drawn_load *load, uint64_t *random) {
    load->frees = load->threads == 1 ? (drawn_frees)(WEIGHTED(random, 85, 15) * FREES_SUCCESSOR)
                                     : (drawn_frees)WEIGHTED(random, 30, 35, 17, 18);
    load->exchanged = (uint32_t)(DRAWN_SHARE_ALL * (0.05 + 0.95 * share(random)));
    if (between(random, 1, 4) == 1) load->exchanged = DRAWN_SHARE_ALL;
    load->bundle = (uint64_t)log_between(random, 4, DRAWN_BUNDLE_MAX + 0.5);
    load->stages = between(random, 2, DRAWN_STAGES_MAX);
    load->successors = (uint64_t)log_between(random, 2, 50);
    if (load->frees != FREES_PIPELINE) return;
    uint64_t lanes = load->threads / load->stages;
    load->threads = load->stages * (lanes != 0 ? lanes : 1);
    load->lifetime = LIVE_FIFO;
    load->set_count = 1;
}

static void draw_live(drawn_load *load, uint64_t *random) {
    double mean = 0;
    for (uint64_t i = 0; i < load->set_count; i++)
        if (load->sets[i].mean > mean) mean = load->sets[i].mean;
    double most = LIVE_BYTES_MAX / mean;
    /* Blocks in boxes and queues are live as well: few live blocks make small bundles, and those would measure the
     * hand-over, or the waking of threads, in place of the allocator. */
    double least = 10, threads = (double)load->threads;
    if (load->frees == FREES_EXCHANGE) least = 32 * threads;
    if (load->frees == FREES_PIPELINE) least = 128 * threads;
    if (most > 1e6) most = 1e6;
    load->live = (uint64_t)log_between(random, least, most > 2 * least ? most : 2 * least);
    uint64_t floor = 4 * load->threads;
    if (load->live < floor) load->live = floor;
    uint64_t bundles = load->live / (8 * load->threads);
    if (load->bundle > bundles) load->bundle = bundles != 0 ? bundles : 1;
}

static uint32_t draw_share(uint64_t *random) {
    double drawn = log_between(random, 0.02, 0.4) * DRAWN_SHARE_ALL;
    return between(random, 0, 1) ? (uint32_t)(drawn / 2) + 1 : 0;
}

static void draw_calls(drawn_load *load, uint64_t *random) {
    bool has_some = between(random, 0, 1);
    load->alignment = (size_t)1 << between(random, 5, 12);
    if (!has_some) return;
    load->realloc_share = draw_share(random);
    load->calloc_share = draw_share(random);
    load->aligned_share = draw_share(random);
    load->sized_share = draw_share(random);
}

static void draw_interruptions(drawn_load *load) {
    uint64_t random = numbers_of(load->seed, OF_PAUSES);
    bool has_pauses = between(&random, 1, 100) <= 20, pipeline = load->frees == FREES_PIPELINE;
    load->pauses = has_pauses ? between(&random, 1, 8) : 0;
    load->pause_us = between(&random, 100, 2000);
    random = numbers_of(load->seed, OF_BURSTS);
    bool has_bursts = between(&random, 1, 100) <= 20 && !pipeline;
    load->bursts = has_bursts ? between(&random, 2, 20) : 0;
    load->burst_blocks = (uint64_t)log_between(&random, 32, 4096);
    double most = BURST_BYTES_MAX / load->sets[0].mean / (double)load->threads;
    if ((double)load->burst_blocks > most) load->burst_blocks = most > 1 ? (uint64_t)most : 1;
}

/* So many steps that two CPUs take about 200 ms under an ordinary allocator, and every slot is replaced once. The
 * costs are rough means in ns; the same work for every allocator is what counts. */
static void draw_steps(drawn_load *load, uint64_t scale) {
    double mean = 0;
    for (uint64_t i = 0; i < load->set_count; i++) mean += load->sets[i].mean / (double)load->set_count;
    double live_bytes = mean * (double)load->live, cost = 20;
    if (live_bytes > 1 * MIB_BYTES) cost += 40;
    if (live_bytes > 16 * MIB_BYTES) cost += 60;
    if (load->touch == TOUCH_ALL) cost += mean * (live_bytes > 2 * MIB_BYTES ? 0.15 : 0.05);
    if (mean > 2048) cost += 60;
    if (mean > 16384) cost += 1200; /* page faults, system calls */
    if (load->frees == FREES_EXCHANGE) cost += 80;
    if (load->frees == FREES_PIPELINE) cost += 80 * (double)load->stages;
    cost += mean * (0.1 * load->calloc_share + 0.2 * load->realloc_share) / DRAWN_SHARE_ALL;
    if (load->threads > 1) cost /= 2;
    double steps = 200e6 / cost, least = 2.0 * (double)load->live;
    load->steps = (uint64_t)((steps > least ? steps : least) * (double)scale / 100);
    uint64_t every = 8 * load->threads;
    if (load->steps < every) load->steps = every;
    /* A thread's start and end, some 30 us, are to be a small part of what it does. */
    uint64_t rounds = load->steps / load->threads / 2000;
    if (load->successors > rounds) load->successors = rounds > 2 ? rounds : 2;
}

void drawn_draw(drawn_load *load, uint64_t seed, uint64_t scale) {
    memset(load, 0, sizeof *load);
    load->seed = seed;
    uint64_t random = numbers_of(seed, OF_THREADS);
    static const uint64_t threads[] = {1, 2, 3, 4, 8, 16, 32, 64};
    load->threads = threads[WEIGHTED(&random, 34, 27, 6, 14, 9, 5, 3, 2)];
    random = numbers_of(seed, OF_LIFETIME);
    draw_lifetime(load, &random);
    random = numbers_of(seed, OF_FREES);
    draw_frees(load, &random);
    for (uint64_t i = 0; i < load->set_count; i++) {
        random = numbers_of(seed, OF_SIZES + i);
        draw_sizes(&load->sets[i], &random);
    }
    random = numbers_of(seed, OF_LIVE);
    draw_live(load, &random);
    random = numbers_of(seed, OF_TOUCH);
    load->touch = (drawn_touch)WEIGHTED(&random, 4, 3, 3);
    random = numbers_of(seed, OF_CALLS);
    draw_calls(load, &random);
    draw_interruptions(load);
    draw_steps(load, scale);
}

typedef struct {
    char *at, *end;
} writer;

static void add(writer *w, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void add(writer *w, const char *format, ...) {
    va_list list;
    va_start(list, format);
    size_t room = (size_t)(w->end - w->at);
    int length = vsnprintf(w->at, room, format, list);
    va_end(list);
    if (length > 0) w->at += (size_t)length < room ? (size_t)length : room - 1;
}

static const char *plural(uint64_t count) { return count == 1 ? "" : "s"; }

static unsigned percent(uint32_t part) { return (100 * part + DRAWN_SHARE_ALL / 2) / DRAWN_SHARE_ALL; }

static void describe_sizes(writer *w, const drawn_sizes *sizes) {
    static const char *const words[] = {"of one size,", "of a few sizes (Zipf),", "uniform", "lognormal",
                                        "after a power law", "like a fleet's (approximation)"};
    const uint32_t *at = sizes->strata;
    if (sizes->kind == ONE_SIZE) {
        add(w, "%s %" PRIu32 " B", words[ONE_SIZE], at[0]);
        return;
    }
    uint32_t median = at[DRAWN_STRATA / 2], last = sizes->tail[DRAWN_TAIL - 1];
    if (sizes->kind == FEW_SIZES)
        add(w, "%s mostly %" PRIu32 " B, mean %.0f B", words[FEW_SIZES], at[0], sizes->mean);
    else
        add(w, "%s %" PRIu32 " to %" PRIu32 " B, median %" PRIu32 " B, mean %.0f B", words[sizes->kind], at[0],
            last, median, sizes->mean);
}

static void describe_lifetime(writer *w, const drawn_load *load) {
    static const char *const orders[] = {"first first", "last first", "scattered"};
    switch (load->lifetime) {
        case LIVE_RANDOM: add(w, "random replacement"); break;
        case LIVE_FIFO: add(w, "the oldest is replaced"); break;
        case LIVE_LIFO: add(w, "stack swings"); break;
        case LIVE_PHASES: add(w, "all allocated, all freed (%s)", orders[load->order]); break;
        case LIVE_DRIFT: add(w, "random replacement, %" PRIu64 " sets of sizes in turn", load->set_count); break;
        case LIVE_SHORT:
            add(w, "most live for %" PRIu64 " allocations, %u %% for long", load->window, percent(load->long_share));
            break;
        case LIVE_GENERATIONS: add(w, "a nursery, %u %% survive", percent(load->long_share)); break;
    }
}

static void describe_frees(writer *w, const drawn_load *load) {
    switch (load->frees) {
        case FREES_OWN: add(w, "each thread frees its own"); break;
        case FREES_EXCHANGE:
            add(w, "%u %% exchanged between threads, %" PRIu64 " at once", percent(load->exchanged), load->bundle);
            break;
        case FREES_PIPELINE:
            add(w, "pipelines of %" PRIu64 " stages, %" PRIu64 " at once", load->stages, load->bundle);
            break;
        case FREES_SUCCESSOR: add(w, "%" PRIu64 " successive threads inherit the blocks", load->successors); break;
    }
}

static void describe_calls(writer *w, const drawn_load *load) {
    if (load->realloc_share != 0) add(w, "; %u %% realloc", percent(load->realloc_share));
    if (load->calloc_share != 0) add(w, "; %u %% calloc", percent(load->calloc_share));
    if (load->aligned_share != 0)
        add(w, "; %u %% aligned to %zu B", percent(load->aligned_share), load->alignment);
    if (load->sized_share != 0) add(w, "; %u %% sized new and delete", percent(load->sized_share));
}

void drawn_describe(const drawn_load *load, char *text, size_t bytes) {
    static const char *const touches[] = {"first line", "both ends", "all"};
    writer w = {text, text + bytes};
    add(&w, "%" PRIu64 " thread%s, %" PRIu64 " live blocks (%.2f MiB) ", load->threads, plural(load->threads),
        load->live, load->sets[0].mean * (double)load->live / MIB_BYTES);
    describe_sizes(&w, &load->sets[0]);
    add(&w, "; ");
    describe_lifetime(&w, load);
    add(&w, "; ");
    describe_frees(&w, load);
    add(&w, "; %s touched", touches[load->touch]);
    describe_calls(&w, load);
    if (load->pauses != 0)
        add(&w, "; %" PRIu64 " pause%s of %" PRIu64 " us", load->pauses, plural(load->pauses), load->pause_us);
    if (load->bursts != 0)
        add(&w, "; %" PRIu64 " bursts of %" PRIu64 " block%s", load->bursts, load->burst_blocks,
            plural(load->burst_blocks));
}
