/*
 * A spike of memory: blocks of mixed sizes, each doubling of the size with an equal share of the
 * bytes, all freed in an order of no use to anybody; then the program goes on with a few small
 * allocations a millisecond and never rests longer than that. What it still holds is looked at
 * every 5 ms, less its own table, which is given back before. One operation is a block of the spike,
 * allocated and freed.
 */
#include "bench.h"

#include <inttypes.h>
#include <stdbool.h>
#include <sys/mman.h>

enum { KEPT = 64, STEPS_A_ROUND = 4, ROUND_US = 1000, LOOK_NS = 5000000, LIGHT_SPREAD = 1024 };

typedef struct {
    uint64_t elapsed_ns, resident_kb, after_2s_kb, reached_us;
} light_result;

/* The size below which a share `random` of all blocks lies when their number goes with 1/size². */
static size_t spike_size(uint64_t random, uint64_t min, uint64_t max) {
    double share = (double)(random >> 11) / 9007199254740992.0;
    double inverse = 1.0 / (double)min - share * (1.0 / (double)min - 1.0 / (double)max);
    return (size_t)(1.0 / inverse);
}

static void shuffle(void **blocks, uint64_t count, uint64_t *random) {
    for (uint64_t i = count; i > 1; i--) {
        uint64_t other = bench_below(bench_random(random), i);
        void *block = blocks[i - 1];
        blocks[i - 1] = blocks[other];
        blocks[other] = block;
    }
}

/* Replaces a few of a few small blocks each round, until the goal is reached and 2 s are over, or
 * the time is. */
static light_result light_work(uint64_t wait_ms, uint64_t goal_kb, uint64_t *random) {
    void *kept[KEPT] = {NULL};
    light_result r = {.after_2s_kb = UINT64_MAX, .reached_us = UINT64_MAX};
    uint64_t start = bench_now_ns(), next_look = start;
    for (;;) {
        for (int i = 0; i < STEPS_A_ROUND; i++) {
            uint64_t number = bench_random(random);
            void **slot = &kept[bench_below(number, KEPT)];
            free(*slot);
            *slot = bench_block(16 + (number & (LIGHT_SPREAD - 1)), number);
        }
        bench_sleep_us(ROUND_US / 2);
        uint64_t now = bench_now_ns();
        r.elapsed_ns = now - start;
        if (now < next_look) continue;
        next_look = now + LOOK_NS;
        r.resident_kb = bench_resident_kb();
        if (r.resident_kb <= goal_kb && r.reached_us == UINT64_MAX)
            r.reached_us = r.elapsed_ns / 1000;
        bool two_seconds = r.elapsed_ns >= UINT64_C(2000000000);
        if (two_seconds && r.after_2s_kb == UINT64_MAX) r.after_2s_kb = r.resident_kb;
        if ((two_seconds && r.reached_us != UINT64_MAX) || r.elapsed_ns / 1000000 >= wait_ms) break;
    }
    for (int i = 0; i < KEPT; i++) free(kept[i]);
    return r;
}

int main(int argc, char **argv) {
    bench_arg args[] = {
        {"mb", "size of the spike", 2048, 1, UINT64_C(1) << 20},
        {"min", "smallest block, bytes", 64, 16, UINT64_C(1) << 30},
        {"max", "largest block, bytes", UINT64_C(1) << 20, 16, UINT64_C(1) << 30},
        {"wait_ms", "longest light work, ms", 12000, 2000, 3600000},
        {"seed", "of the random numbers", 42, 0, UINT64_MAX},
    };
    bench_parse(argc, argv, "a spike of memory is freed, then the program works on with little", args,
                sizeof args / sizeof args[0]);
    uint64_t spike_bytes = args[0].value << 20, min = args[1].value, max = args[2].value;
    if (max <= min) bench_reject(&args[2], "is not above min");
    uint64_t random = bench_seed(args[4].value);

    /* Never more blocks than of the smallest size; untouched pages of the table cost nothing. */
    size_t table_bytes = spike_bytes / min * sizeof(void *) + sizeof(void *);
    void **blocks = bench_map(table_bytes);
    uint64_t before_kb = bench_resident_kb(), count = 0, bytes = 0;
    uint64_t start = bench_now_ns();
    while (bytes < spike_bytes) {
        size_t size = spike_size(bench_random(&random), min, max);
        void *block = bench_checked(malloc(size));
        bench_touch_pages(block, size, size);
        blocks[count++] = block;
        bytes += size;
    }
    uint64_t filled_ns = bench_now_ns() - start;
    uint64_t spike_kb = bench_resident_kb() - count * sizeof(void *) / 1024;
    shuffle(blocks, count, &random);
    start = bench_now_ns();
    for (uint64_t i = 0; i < count; i++) free(blocks[i]);
    uint64_t freed_ns = bench_now_ns() - start;
    munmap(blocks, table_bytes);
    uint64_t freed_kb = bench_resident_kb();
    light_result r = light_work(args[3].value, bytes / 20 / 1024, &random);

    bench_report(count, filled_ns + freed_ns, "mb=%" PRIu64 " min=%" PRIu64 " max=%" PRIu64,
                 args[0].value, min, max);
    bench_print("Memory: before_kb=%" PRIu64 " spike_kb=%" PRIu64 " asked_kb=%" PRIu64
                " freed_kb=%" PRIu64 " after_2s_kb=%" PRIu64 " end_kb=%" PRIu64 " end_ms=%" PRIu64,
                before_kb, spike_kb, bytes / 1024, freed_kb, r.after_2s_kb, r.resident_kb,
                r.elapsed_ns / 1000000);
    /* No figure where the goal was not reached in the time given. */
    if (r.reached_us != UINT64_MAX) bench_print(" reached_us=%" PRIu64, r.reached_us);
    bench_print(" peak_kb=%" PRIu64 "\n", bench_peak_kb());
    return 0;
}
