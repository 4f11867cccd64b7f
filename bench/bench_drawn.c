/*
 * A load drawn from a seed (drawn_load.h): nobody has tuned an allocator to it. The work is fixed by the seed, so every
 * allocator does the same. One operation is a block allocated, by malloc or one of its kin; a realloc counts too.
 *
 * Every block begins with a tag of its own, which is compared before the block is freed or grown. Threads hand blocks
 * over in bundles: one atomic exchange, or one lock, for a whole bundle, so that the program's own part stays small.
 * Sized calls are C++'s operator new and sized operator delete, which every allocator here replaces, or leaves to the
 * C++ library; C23's free_sized is in few of them. The C++ library is loaded by loads that have such calls only.
 */
#include "bench.h"
#include "drawn_load.h"

#include <dlfcn.h>
#include <inttypes.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>

enum { LINE_BYTES = 64, BOXES_A_THREAD = 4, PIPELINE_REPLACED = 64, MIN_QUEUE = 4 };
enum { REST_KEPT = 64, REST_STEPS = 4, REST_US = 500 };
enum { ARG_SEED, ARG_SCALE, ARG_CHECK, ARG_REST };

#define SIZED (UINT32_C(1) << 31)
#define SIZE_OF(s) ((s).size & ~SIZED)

/* A live block; the top bit of the size says that it came from operator new. */
typedef struct {
    unsigned char *block;
    uint32_t size, tag;
} slot;

typedef struct {
    uint64_t count;
    slot slots[DRAWN_BUNDLE_MAX];
} bundle;

typedef struct {
    _Alignas(LINE_BYTES) _Atomic(bundle *) held;
} box;

/* Bundles on their way from one stage of a pipeline to the next: one thread fills, one empties. Who has to wait waits
 * until half of the queue is ready, so that threads are not woken for every bundle. */
typedef struct {
    _Alignas(LINE_BYTES) pthread_mutex_t lock;
    pthread_cond_t changed;
    uint64_t capacity, filled, emptied;
    bool is_closed;
    bundle *ring;
} queue;

typedef struct {
    _Alignas(LINE_BYTES) slot *slots;
    slot *burst;
    const drawn_sizes *sizes;
    bundle *outgoing;
    uint64_t count, window, nursery;              /* how many slots, and of which use */
    uint64_t random, tags, steps_left, round;
    uint64_t filled, at, top, set, set_left;      /* where the lifetime's pattern is */
    uint64_t burst_every, until_burst, pause_every, until_pause, until_next;
    uint64_t blocks, sum, lost;                   /* allocated; of all tags freed; tags overwritten */
    queue *in, *out;                              /* of a stage */
} lane;

static drawn_load load;
static uint32_t plain_calls, realloc_from, calloc_from, aligned_from;
static box *boxes;
static uint64_t box_count;
static sem_t chains_done;
static uint64_t table_bytes;
static void *(*sized_new)(size_t size);
static void (*sized_delete)(void *block, size_t size);

/* Memory for the program's own tables, touched before the load begins. */
static void *table(uint64_t bytes) {
    unsigned char *memory = bench_map(bytes);
    for (uint64_t at = 0; at < bytes; at += BENCH_PAGE_BYTES) ((volatile unsigned char *)memory)[at] = 0;
    table_bytes += (bytes + BENCH_PAGE_BYTES - 1) / BENCH_PAGE_BYTES * BENCH_PAGE_BYTES;
    return memory;
}

static void find_sized_calls(void) {
    if (load.sized_share == 0) return;
    if (dlopen("libstdc++.so.6", RTLD_NOW | RTLD_GLOBAL) == NULL) bench_fail("there is no libstdc++.so.6");
    *(void **)&sized_new = dlsym(RTLD_DEFAULT, "_Znwm");
    *(void **)&sized_delete = dlsym(RTLD_DEFAULT, "_ZdlPvm");
    if (sized_new == NULL || sized_delete == NULL) bench_fail("there are no sized operators");
}

static inline uint32_t read_tag(const unsigned char *block) {
    uint32_t tag;
    memcpy(&tag, block, sizeof tag);
    return tag;
}

static inline void touch(slot *s) {
    size_t size = SIZE_OF(*s);
    if (load.touch == TOUCH_ALL) memset(s->block, (unsigned char)s->tag, size);
    memcpy(s->block, &s->tag, sizeof s->tag);
    /* The compiler must not see that nobody reads what is written. */
    __asm__ volatile("" : : "r"(s->block) : "memory");
    if (load.touch == TOUCH_ENDS && size > sizeof s->tag) s->block[size - 1] = (unsigned char)s->tag;
}

static inline void check(lane *l, const slot *s) {
    size_t size = SIZE_OF(*s);
    l->sum += s->tag;
    bool is_whole = read_tag(s->block) == s->tag;
    if (load.touch != TOUCH_FIRST && size > sizeof s->tag)
        is_whole &= s->block[size - 1] == (unsigned char)s->tag;
    /* Without a branch: under the floor, which overwrites tags, it could not be foretold. */
    l->lost += !is_whole;
}

static inline uint32_t call_of(uint64_t random) { return (uint32_t)(random >> 16) & (DRAWN_SHARE_ALL - 1); }

static inline uint32_t next_tag(lane *l) { return (uint32_t)(l->tags += UINT64_C(0x9e3779b9)); }

/* One of the rarer calls. A block for realloc is half as large at first. */
static __attribute__((noinline)) void take_otherwise(slot *s, uint32_t call) {
    size_t size = s->size;
    if (call >= aligned_from) {
        s->block = aligned_alloc(load.alignment, (size + load.alignment - 1) & ~(load.alignment - 1));
    } else if (call >= calloc_from) {
        s->block = calloc(1, size);
    } else if (call >= realloc_from) {
        s->block = bench_checked(malloc(size / 2 + sizeof s->tag));
        memcpy(s->block, &s->tag, sizeof s->tag);
        s->block = realloc(s->block, size);
    } else {
        s->block = sized_new(size);
        s->size |= SIZED;
    }
}

/* Fields are written one by one and never copied whole: a load of 16 bytes behind stores of 8 and 4 waits for them. */
static inline void take(lane *l, slot *s, uint64_t random) {
    uint32_t call = call_of(random), size = (uint32_t)drawn_size(l->sizes, random);
    s->size = size;
    s->tag = next_tag(l);
    if (__builtin_expect(call < plain_calls, 1))
        s->block = malloc(size);
    else
        take_otherwise(s, call);
    bench_checked(s->block);
    touch(s);
    l->blocks++;
}

static inline void release(lane *l, const slot *s) {
    check(l, s);
    if (__builtin_expect((s->size & SIZED) != 0, 0))
        sized_delete(s->block, SIZE_OF(*s));
    else
        free(s->block);
}

static void release_all(lane *l, bundle *b) {
    for (uint64_t i = 0; i < b->count; i++) release(l, &b->slots[i]);
    b->count = 0;
}

/* The full bundle goes into a box; what was there is freed here. */
static __attribute__((noinline)) void exchange(lane *l) {
    box *b = &boxes[bench_below(bench_random(&l->round), box_count)];
    l->outgoing = atomic_exchange_explicit(&b->held, l->outgoing, memory_order_acq_rel);
    release_all(l, l->outgoing);
}

/* The block in a slot is not used any more; some slots are still empty. */
static inline void drop(lane *l, slot *s) {
    if (s->block == NULL) return;
    /* The tag's low bits say nothing of its place in the pattern: it grows by an odd number. */
    if (load.frees == FREES_EXCHANGE && (s->tag & (DRAWN_SHARE_ALL - 1)) < load.exchanged) {
        bundle *b = l->outgoing;
        b->slots[b->count++] = *s;
        if (b->count == load.bundle) exchange(l);
    } else {
        release(l, s);
    }
    s->block = NULL;
}

static __attribute__((noinline)) void resize(lane *l, slot *s, uint64_t random) {
    check(l, s);
    uint32_t tag = s->tag;
    s->size = (uint32_t)drawn_size(l->sizes, random);
    s->block = bench_checked(realloc(s->block, s->size));
    if (read_tag(s->block) != tag) l->lost++;
    s->tag = next_tag(l);
    touch(s);
    l->blocks++;
}

static inline void replace(lane *l, slot *s, uint64_t random) {
    uint32_t call = call_of(random);
    bool is_realloc = call >= realloc_from && call < calloc_from;
    if (__builtin_expect(is_realloc && s->block != NULL && (s->size & SIZED) == 0, 0)) {
        resize(l, s, random);
        return;
    }
    drop(l, s);
    take(l, s, random);
}

static inline slot *any_slot(lane *l, uint64_t random) { return &l->slots[bench_below(random, l->count)]; }

/* The first blocks fill the slots in order. */
static inline void step_random(lane *l, uint64_t random) {
    slot *s = l->filled < l->count ? &l->slots[l->filled++] : any_slot(l, random);
    replace(l, s, random);
}

static void step_drift(lane *l, uint64_t random) {
    if (l->set_left-- == 0) {
        l->set = (l->set + 1) % load.set_count;
        l->sizes = &load.sets[l->set];
        l->set_left = 2 * l->count;
    }
    step_random(l, random);
}

static inline void step_fifo(lane *l, uint64_t random) {
    replace(l, &l->slots[l->at], random);
    if (++l->at == l->count) l->at = 0;
}

static void step_lifo(lane *l, uint64_t random) {
    while (l->at == l->top) {
        uint64_t low = bench_below(bench_random(&l->round), l->at + 1);
        while (l->at > low) drop(l, &l->slots[--l->at]);
        l->top = low + 1 + bench_below(bench_random(&l->round), l->count - low);
        if (l->top > l->count) l->top = l->count;
    }
    take(l, &l->slots[l->at++], random);
}

/* A large prime as the stride meets every slot once, unless it divides their number, which is too small for that. */
static void drop_all(lane *l, uint64_t count, drawn_order order) {
    uint64_t stride = UINT64_C(2654435761) % count, at = 0;
    for (uint64_t i = 0; i < count; i++) {
        if (order == ORDER_FIRST_FIRST) at = i;
        if (order == ORDER_LAST_FIRST) at = count - 1 - i;
        drop(l, &l->slots[at]);
        if (order == ORDER_SCATTERED && (at += stride) >= count) at -= count;
    }
}

static void step_phases(lane *l, uint64_t random) {
    if (l->at == l->count) {
        drop_all(l, l->count, load.order);
        l->at = 0;
    }
    take(l, &l->slots[l->at++], random);
}

/* The first `window` slots hold the short-lived blocks. */
static void step_short(lane *l, uint64_t random) {
    uint32_t part = (uint32_t)(random >> 24) & (DRAWN_SHARE_ALL - 1);
    if (part < load.long_share) {
        replace(l, &l->slots[l->window + bench_below(random, l->count - l->window)], random);
        return;
    }
    replace(l, &l->slots[l->at], random);
    if (++l->at == l->window) l->at = 0;
}

static void sweep(lane *l) {
    for (uint64_t i = 0; i < l->nursery; i++) {
        slot *young = &l->slots[i];
        if ((young->tag & (DRAWN_SHARE_ALL - 1)) >= load.long_share) {
            drop(l, young);
            continue;
        }
        slot *old = &l->slots[l->nursery + bench_below(bench_random(&l->round), l->count - l->nursery)];
        drop(l, old);
        *old = *young;
        young->block = NULL;
    }
    l->at = 0;
}

static void step_generations(lane *l, uint64_t random) {
    if (l->at == l->nursery) sweep(l);
    take(l, &l->slots[l->at++], random);
}

static void burst(lane *l) {
    for (uint64_t i = 0; i < load.burst_blocks; i++) take(l, &l->burst[i], bench_random(&l->round));
    for (uint64_t i = load.burst_blocks; i-- > 0;) drop(l, &l->burst[i]);
}

/* Steps until a burst or a pause, whichever is first, are counted down together. */
static void set_next(lane *l) {
    l->until_next = l->until_burst < l->until_pause ? l->until_burst : l->until_pause;
    l->until_burst -= l->until_next;
    l->until_pause -= l->until_next;
}

static __attribute__((noinline)) void interrupt_now(lane *l) {
    if (l->until_burst == 0) {
        burst(l);
        l->until_burst = l->burst_every;
    }
    if (l->until_pause == 0) {
        bench_sleep_us(load.pause_us);
        l->until_pause = l->pause_every;
    }
    set_next(l);
}

static inline void interrupt(lane *l) {
    if (__builtin_expect(--l->until_next == 0, 0)) interrupt_now(l);
}

/* A loop of its own for every lifetime: their choice is no part of a step. */
#define RUN_STEPS(step)                   \
    for (; steps > 0; steps--) {          \
        step(l, bench_random(&l->random)); \
        interrupt(l);                     \
    }                                     \
    break

static void run_steps(lane *l, uint64_t steps) {
    switch (load.lifetime) {
        case LIVE_RANDOM: RUN_STEPS(step_random);
        case LIVE_FIFO: RUN_STEPS(step_fifo);
        case LIVE_LIFO: RUN_STEPS(step_lifo);
        case LIVE_PHASES: RUN_STEPS(step_phases);
        case LIVE_DRIFT: RUN_STEPS(step_drift);
        case LIVE_SHORT: RUN_STEPS(step_short);
        case LIVE_GENERATIONS: RUN_STEPS(step_generations);
    }
}

static void work_alone(void *state) {
    lane *l = state;
    run_steps(l, l->steps_left);
    drop_all(l, l->count, ORDER_FIRST_FIRST);
}

static void start_successor(lane *l);

static void *inherit(void *argument) {
    lane *l = argument;
    uint64_t round = load.steps / load.threads / load.successors + 1;
    uint64_t steps = l->steps_left < round ? l->steps_left : round;
    run_steps(l, steps);
    l->steps_left -= steps;
    if (l->steps_left > 0) {
        start_successor(l);
    } else {
        drop_all(l, l->count, ORDER_FIRST_FIRST);
        sem_post(&chains_done);
    }
    return NULL;
}

static void start_successor(lane *l) {
    pthread_t thread;
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    if (pthread_create(&thread, &attributes, inherit, l) != 0) bench_fail("cannot start a thread");
    pthread_attr_destroy(&attributes);
}

static uint64_t run_chains(lane *lanes) {
    sem_init(&chains_done, 0, 0);
    uint64_t start = bench_now_ns();
    for (uint64_t t = 0; t < load.threads; t++) start_successor(&lanes[t]);
    for (uint64_t t = 0; t < load.threads; t++)
        while (sem_wait(&chains_done) != 0) {
        }
    return bench_now_ns() - start;
}

/* Hands on the bundle that was filled, unless it is the first call, and waits for room for the next one. */
static bundle *next_to_fill(queue *q, bool has_filled) {
    pthread_mutex_lock(&q->lock);
    if (has_filled) {
        q->filled++;
        if (2 * (q->filled - q->emptied) >= q->capacity) pthread_cond_signal(&q->changed);
    }
    if (q->filled - q->emptied == q->capacity)
        while (2 * (q->filled - q->emptied) > q->capacity) pthread_cond_wait(&q->changed, &q->lock);
    pthread_mutex_unlock(&q->lock);
    bundle *b = &q->ring[q->filled % q->capacity];
    b->count = 0;
    return b;
}

/* NULL: the queue is closed and empty. */
static bundle *next_to_empty(queue *q, bool has_emptied) {
    pthread_mutex_lock(&q->lock);
    if (has_emptied) {
        q->emptied++;
        if (2 * (q->filled - q->emptied) <= q->capacity) pthread_cond_signal(&q->changed);
    }
    if (q->filled == q->emptied)
        while (!q->is_closed && 2 * (q->filled - q->emptied) < q->capacity)
            pthread_cond_wait(&q->changed, &q->lock);
    bool is_over = q->filled == q->emptied;
    pthread_mutex_unlock(&q->lock);
    return is_over ? NULL : &q->ring[q->emptied % q->capacity];
}

static void close_queue(queue *q, bundle *last) {
    pthread_mutex_lock(&q->lock);
    if (last->count > 0) q->filled++;
    q->is_closed = true;
    pthread_cond_signal(&q->changed);
    pthread_mutex_unlock(&q->lock);
}

static void first_stage(lane *l) {
    bundle *to = next_to_fill(l->out, false);
    for (uint64_t i = l->steps_left; i > 0; i--) {
        take(l, &to->slots[to->count++], bench_random(&l->random));
        if (to->count == load.bundle) to = next_to_fill(l->out, true);
        interrupt(l);
    }
    close_queue(l->out, to);
}

/* Hands most blocks on, and replaces a quarter. */
static void middle_stage(lane *l) {
    bundle *to = next_to_fill(l->out, false);
    for (bundle *from = next_to_empty(l->in, false); from != NULL; from = next_to_empty(l->in, true)) {
        for (uint64_t i = 0; i < from->count; i++) {
            slot *s = &from->slots[i], *next = &to->slots[to->count++];
            uint64_t random = bench_random(&l->random);
            if (((random >> 24) & (DRAWN_SHARE_ALL - 1)) < PIPELINE_REPLACED) {
                release(l, s);
                take(l, next, random);
            } else {
                *next = *s;
            }
            if (to->count == load.bundle) to = next_to_fill(l->out, true);
        }
    }
    close_queue(l->out, to);
}

static void last_stage(lane *l) {
    for (bundle *from = next_to_empty(l->in, false); from != NULL; from = next_to_empty(l->in, true))
        release_all(l, from);
}

static void work_stage(void *state) {
    lane *l = state;
    if (l->in == NULL)
        first_stage(l);
    else if (l->out == NULL)
        last_stage(l);
    else
        middle_stage(l);
}

static queue *lay_out_queue(uint64_t pipelines) {
    queue *q = table(sizeof *q);
    pthread_mutex_init(&q->lock, NULL);
    pthread_cond_init(&q->changed, NULL);
    q->capacity = load.live / (pipelines * (load.stages - 1) * load.bundle);
    if (q->capacity < MIN_QUEUE) q->capacity = MIN_QUEUE;
    q->ring = table(q->capacity * sizeof *q->ring);
    return q;
}

static void lay_out_pipelines(lane *lanes) {
    uint64_t pipelines = load.threads / load.stages;
    for (uint64_t t = 0; t < load.threads; t++) {
        uint64_t stage = t % load.stages;
        if (stage > 0) lanes[t].in = lanes[t - 1].out;
        if (stage + 1 < load.stages) lanes[t].out = lay_out_queue(pipelines);
    }
}

static void lay_out_boxes(lane *lanes) {
    box_count = BOXES_A_THREAD * load.threads;
    boxes = table(box_count * sizeof *boxes);
    bundle *bundles = table((box_count + load.threads) * sizeof *bundles);
    for (uint64_t i = 0; i < box_count; i++) atomic_init(&boxes[i].held, bundles++);
    for (uint64_t t = 0; t < load.threads; t++) lanes[t].outgoing = bundles++;
}

static void lay_out_lane(lane *l, uint64_t number) {
    l->random = bench_seed(load.seed + (number << 32));
    l->round = bench_seed(~load.seed + (number << 32));
    l->tags = bench_seed(number);
    l->count = load.live / load.threads;
    /* Of a pipeline only the first stage counts. */
    l->steps_left = load.steps / (load.frees == FREES_PIPELINE ? load.threads / load.stages : load.threads);
    l->sizes = &load.sets[0];
    l->set_left = 2 * l->count;
    l->window = load.window < l->count / 2 ? load.window : l->count / 2;
    l->nursery = (l->count + 7) / 8;
    /* Counted down once a step; 2^64 steps are never done. */
    l->until_burst = l->until_pause = UINT64_MAX;
    if (load.bursts != 0) l->until_burst = l->burst_every = l->steps_left / (load.bursts + 1) + 1;
    if (load.pauses != 0) l->until_pause = l->pause_every = l->steps_left / (load.pauses + 1) + 1;
    set_next(l);
    if (load.frees != FREES_PIPELINE) l->slots = table(l->count * sizeof *l->slots);
    if (load.bursts != 0) l->burst = table(load.burst_blocks * sizeof *l->burst);
}

static lane *lay_out(void) {
    lane *lanes = table(load.threads * sizeof *lanes);
    for (uint64_t t = 0; t < load.threads; t++) lay_out_lane(&lanes[t], t);
    if (load.frees == FREES_PIPELINE) lay_out_pipelines(lanes);
    if (load.frees == FREES_EXCHANGE) lay_out_boxes(lanes);
    aligned_from = DRAWN_SHARE_ALL - load.aligned_share;
    calloc_from = aligned_from - load.calloc_share;
    realloc_from = calloc_from - load.realloc_share;
    plain_calls = realloc_from - load.sized_share;
    return lanes;
}

/* What waits in the boxes when all threads have ended. */
static void empty_boxes(lane *lanes) {
    for (uint64_t t = 0; t < load.threads && load.frees == FREES_EXCHANGE; t++)
        release_all(&lanes[0], lanes[t].outgoing);
    for (uint64_t i = 0; i < box_count; i++) release_all(&lanes[0], atomic_load(&boxes[i].held));
}

/* The program works on with little: a few small blocks a millisecond. */
static uint64_t rest(uint64_t rest_ms) {
    void *kept[REST_KEPT] = {NULL};
    uint64_t random = bench_seed(load.seed), until = bench_now_ns() + 1000000 * rest_ms;
    while (bench_now_ns() < until) {
        for (int i = 0; i < REST_STEPS; i++) {
            uint64_t number = bench_random(&random);
            void **place = &kept[bench_below(number, REST_KEPT)];
            free(*place);
            *place = bench_block(16 + (number & 1023), number);
        }
        bench_sleep_us(REST_US);
    }
    uint64_t resident_kb = bench_resident_kb();
    for (int i = 0; i < REST_KEPT; i++) free(kept[i]);
    return resident_kb;
}

static uint64_t less(uint64_t kb, uint64_t table_kb) { return kb > table_kb ? kb - table_kb : 0; }

int main(int argc, char **argv) {
    bench_arg args[] = {
        {"seed", "of the load and of all random numbers", 1, 0, UINT64_MAX},
        {"scale", "work, percent of what the seed says", 100, 1, 100000},
        {"check", "fail when a block has lost what was written into it; 0 for the floor", 1, 0, 1},
        {"rest_ms", "light work after the load, then memory is looked at; 0: none", 0, 0, 3600000},
    };
    bench_parse(argc, argv, "a load drawn from a seed: sizes, lifetimes, threads and hand-over", args,
                sizeof args / sizeof args[0]);
    drawn_draw(&load, args[ARG_SEED].value, args[ARG_SCALE].value);
    find_sized_calls();
    lane *lanes = lay_out();

    uint64_t elapsed = load.frees == FREES_SUCCESSOR  ? run_chains(lanes)
                       : load.frees == FREES_PIPELINE ? bench_run_threads(load.threads, work_stage, lanes, sizeof *lanes)
                                                      : bench_run_threads(load.threads, work_alone, lanes, sizeof *lanes);
    empty_boxes(lanes);
    uint64_t peak_kb = bench_peak_kb(), table_kb = table_bytes / 1024;
    uint64_t blocks = 0, sum = 0, lost = 0;
    for (uint64_t t = 0; t < load.threads; t++) {
        blocks += lanes[t].blocks;
        sum += lanes[t].sum;
        lost += lanes[t].lost;
    }
    if (lost != 0 && args[ARG_CHECK].value != 0) bench_fail("a block has lost what was written into it");

    char words[512];
    drawn_describe(&load, words, sizeof words);
    bench_report(blocks, elapsed, "seed=%" PRIu64 " scale=%" PRIu64 " threads=%" PRIu64 " blocks=%" PRIu64
                 " check=%" PRIx64, load.seed, args[ARG_SCALE].value, load.threads, blocks, sum);
    bench_print("Load: %s\n", words);
    bench_print("Memory: table_kb=%" PRIu64 " peak_kb=%" PRIu64, table_kb, less(peak_kb, table_kb));
    if (args[ARG_REST].value > 0) bench_print(" rest_kb=%" PRIu64, less(rest(args[ARG_REST].value), table_kb));
    bench_print("\n");
    return 0;
}
