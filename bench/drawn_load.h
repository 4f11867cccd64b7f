/*
 * A load drawn from a seed, for bench_drawn: threads, live blocks, sizes, lifetimes, who frees, what is touched, calls.
 * The draw uses whole numbers and the four operations of doubles only, so that a seed means the same load everywhere.
 * Every property has random numbers of its own: a new property leaves the others of a seed as they were.
 */
#ifndef HAKMEM_DRAWN_LOAD_H
#define HAKMEM_DRAWN_LOAD_H

#include <stddef.h>
#include <stdint.h>

enum {
    DRAWN_STRATA = 4096, /* equally likely sizes */
    DRAWN_TAIL = 16,     /* the last stratum again, in finer steps: rare large sizes */
    DRAWN_SETS_MAX = 4,
    DRAWN_STAGES_MAX = 4,
    DRAWN_BUNDLE_MAX = 64,
    DRAWN_SHARE_ALL = 256, /* shares of calls and frees are out of this */
};

typedef enum { ONE_SIZE, FEW_SIZES, UNIFORM_SIZES, LOGNORMAL_SIZES, POWER_SIZES, FLEET_SIZES } drawn_kind;

typedef struct {
    uint32_t strata[DRAWN_STRATA];
    uint32_t tail[DRAWN_TAIL];
    double mean;
    drawn_kind kind;
} drawn_sizes;

typedef enum {
    LIVE_RANDOM,      /* a random block is replaced */
    LIVE_FIFO,        /* the oldest block is replaced */
    LIVE_LIFO,        /* a stack grows and shrinks to random heights */
    LIVE_PHASES,      /* all are allocated, all are freed */
    LIVE_DRIFT,       /* random, and the set of sizes changes */
    LIVE_SHORT,       /* most are freed after few others, a few live long */
    LIVE_GENERATIONS, /* a nursery is swept: survivors replace old blocks */
} drawn_lifetime;

typedef enum { ORDER_FIRST_FIRST, ORDER_LAST_FIRST, ORDER_SCATTERED } drawn_order;
typedef enum { FREES_OWN, FREES_EXCHANGE, FREES_PIPELINE, FREES_SUCCESSOR } drawn_frees;
typedef enum { TOUCH_FIRST, TOUCH_ENDS, TOUCH_ALL } drawn_touch;

typedef struct {
    uint64_t seed;
    uint64_t threads, live, steps; /* blocks live and blocks allocated, of all threads */
    drawn_lifetime lifetime;
    drawn_order order;    /* phases */
    uint32_t long_share;  /* mostly short, generations */
    uint64_t window;      /* mostly short: short-lived blocks of a thread */
    drawn_frees frees;
    uint32_t exchanged;   /* share of frees that go through a box */
    uint64_t bundle;      /* blocks that change hands at once */
    uint64_t stages;
    uint64_t successors;
    drawn_touch touch;
    uint32_t realloc_share, calloc_share, aligned_share, sized_share;
    size_t alignment;
    uint64_t pauses, pause_us;     /* of a thread */
    uint64_t bursts, burst_blocks; /* of a thread */
    uint64_t set_count;
    drawn_sizes sets[DRAWN_SETS_MAX];
} drawn_load;

/* `scale` is the work in percent; the live blocks are not scaled. */
void drawn_draw(drawn_load *load, uint64_t seed, uint64_t scale);

/* One line of English without its end; cut short where it does not fit. */
void drawn_describe(const drawn_load *load, char *text, size_t bytes);

/* Takes the 16 lowest bits of `random`. */
static inline size_t drawn_size(const drawn_sizes *sizes, uint64_t random) {
    uint64_t stratum = random & (DRAWN_STRATA - 1);
    if (__builtin_expect(stratum != DRAWN_STRATA - 1, 1)) return sizes->strata[stratum];
    return sizes->tail[(random >> 12) & (DRAWN_TAIL - 1)];
}

#endif
