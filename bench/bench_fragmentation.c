/*
 * Fragmentation: live memory stays about the same while its shape changes. Each phase allocates
 * twice the live memory in blocks of another range of sizes; random older blocks are freed to make
 * room, but a share of all blocks stays for PINNED_PHASES phases and keeps the memory around it
 * from being used for other sizes. At the end the program can be idle, then prints resident memory
 * less its own tables, beside live memory. After the bad case of Robson (1977): survivors of one
 * size keep other sizes out. One operation is one block allocated, and in time freed.
 */
#include "bench.h"

#include <inttypes.h>
#include <time.h>

enum { PINNED_PHASES = 8, CHURN = 2, SIZE_MIN_BYTES = 16, KIB = 1024 };

typedef struct {
    void *block;
    size_t size;
} slot;

/* A set that gives back any member: what is live and not pinned, or one phase's pinned blocks. */
typedef struct {
    slot *slots;
    uint64_t count;
    uint64_t most; /* count's highest value: so many slots are resident */
    uint64_t bytes;
} block_set;

/* Far apart from one phase to the next, so that one phase's holes do not suit the next one. */
static const struct {
    uint64_t min, max;
} ranges[] = {{16, 64},       {1024, 4096},   {64, 256},      {8192, 32768},
              {256, 1024},    {16, 8192},     {4096, 16384},  {32, 512}};

enum { RANGES = sizeof ranges / sizeof ranges[0] };

typedef struct {
    block_set movable;
    block_set pinned[PINNED_PHASES];
    uint64_t live_bytes;
    uint64_t allocated;
    uint64_t random;
} heap_shape;

static void add(block_set *set, void *block, size_t size) {
    set->slots[set->count++] = (slot){block, size};
    if (set->count > set->most) set->most = set->count;
    set->bytes += size;
}

static void free_at(block_set *set, uint64_t index) {
    slot *s = &set->slots[index];
    free(s->block);
    set->bytes -= s->size;
    *s = set->slots[--set->count];
}

static uint64_t free_all(block_set *set) {
    uint64_t bytes = set->bytes;
    while (set->count > 0) free_at(set, set->count - 1);
    return bytes;
}

static void make_room(heap_shape *h, size_t size, uint64_t live_max) {
    while (h->live_bytes + size > live_max && h->movable.count > 0) {
        uint64_t bytes = h->movable.bytes;
        free_at(&h->movable, bench_below(bench_random(&h->random), h->movable.count));
        h->live_bytes -= bytes - h->movable.bytes;
    }
}

static void run_phase(heap_shape *h, uint64_t phase, uint64_t live_max, uint64_t pin_percent) {
    block_set *pinned = &h->pinned[phase % PINNED_PHASES];
    h->live_bytes -= free_all(pinned);
    bench_log_sizes sizes =
        bench_log_between(ranges[phase % RANGES].min, ranges[phase % RANGES].max);
    for (uint64_t done = 0; done < CHURN * live_max;) {
        size_t size = bench_log_size(&sizes, bench_random(&h->random));
        uint64_t random = bench_random(&h->random);
        make_room(h, size, live_max);
        /* Never more than the phase's part, so that the movable ones always have room. */
        int pin = bench_below(random, 100) < pin_percent &&
                  pinned->bytes + size <= live_max / PINNED_PHASES;
        add(pin ? pinned : &h->movable, bench_block(size, random), size);
        h->live_bytes += size;
        h->allocated++;
        done += size;
    }
}

static uint64_t tables_kb(const heap_shape *h) {
    uint64_t slots = h->movable.most;
    for (int i = 0; i < PINNED_PHASES; i++) slots += h->pinned[i].most;
    return slots * sizeof(slot) / KIB;
}

static void sleep_ms(uint64_t ms) {
    struct timespec rest = {.tv_sec = (time_t)(ms / 1000), .tv_nsec = (long)(ms % 1000) * 1000000};
    while (nanosleep(&rest, &rest) != 0) {
    }
}

int main(int argc, char **argv) {
    bench_arg args[] = {
        {"phases", "phases, each with sizes of another range", 8, 1, UINT64_C(1) << 32},
        {"live_kb", "live memory, KiB", 16384, 1024, UINT64_C(1) << 26},
        {"survive", "percent of blocks that stay for 8 phases", 1, 0, 100},
        {"idle_ms", "rest before resident memory is read, ms", 0, 0, 3600000},
        {"seed", "of the random numbers", 42, 0, UINT64_MAX},
    };
    bench_parse(argc, argv, "sizes change by phase, some blocks survive; resident and live memory",
                args, sizeof args / sizeof args[0]);
    uint64_t phases = args[0].value, live_max = args[1].value * KIB;
    uint64_t most_blocks = live_max / SIZE_MIN_BYTES;
    heap_shape h = {.random = bench_seed(args[4].value)};
    h.movable.slots = bench_map((most_blocks + 1) * sizeof(slot));
    for (int i = 0; i < PINNED_PHASES; i++)
        h.pinned[i].slots = bench_map((most_blocks / PINNED_PHASES + 1) * sizeof(slot));

    uint64_t start = bench_now_ns();
    for (uint64_t phase = 0; phase < phases; phase++)
        run_phase(&h, phase, live_max, args[2].value);
    uint64_t elapsed = bench_now_ns() - start;

    bench_report(h.allocated, elapsed,
                 "phases=%" PRIu64 " live_kb=%" PRIu64 " survive=%" PRIu64 " idle_ms=%" PRIu64
                 " blocks=%" PRIu64,
                 phases, args[1].value, args[2].value, args[3].value, h.allocated);
    sleep_ms(args[3].value);
    bench_print("RSS = %" PRIu64 " kB, live = %" PRIu64 " kB\n",
                bench_resident_kb() - tables_kb(&h), h.live_bytes / KIB);
    free_all(&h.movable);
    for (int i = 0; i < PINNED_PHASES; i++) free_all(&h.pinned[i]);
    return 0;
}
