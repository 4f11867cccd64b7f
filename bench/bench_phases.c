/*
 * Phases with changing sizes: each fills `mb` with blocks of one narrow range of sizes and frees all
 * but `survive` of a hundred, in random order; the survivors stay until the end. After each phase
 * the program rests, then what it holds, without its own tables, is set against what is live. The
 * ranges are a quarter of a doubling wide and far apart from one phase to the next, so that no phase
 * finds the holes of the last one in its own size. One operation is a block allocated.
 */
#include "bench.h"

#include <inttypes.h>
#include <sys/mman.h>

enum { WIDTH_SHARE = 5, PERMILLE = 1000 };

static const uint64_t first_sizes[] = {48, 2048, 160, 20000, 24, 800, 6000, 96, 30000, 400};

enum { RANGES = sizeof first_sizes / sizeof first_sizes[0] };

typedef struct {
    void **blocks;
    uint64_t count, bytes;
} survivors;

static uint64_t table_kb(uint64_t slots) { return slots * sizeof(void *) / 1024; }

/* Frees in random order; each block survives with the same chance. The size is asked of nobody: a
 * block carries it in its first bytes. */
static void free_most(void **blocks, uint64_t count, uint64_t percent, survivors *kept,
                      uint64_t *random) {
    for (uint64_t left = count; left > 0; left--) {
        uint64_t at = bench_below(bench_random(random), left);
        void *block = blocks[at];
        blocks[at] = blocks[left - 1];
        if (bench_below(bench_random(random), 100) >= percent) {
            free(block);
            continue;
        }
        kept->blocks[kept->count++] = block;
        kept->bytes += *(size_t *)block;
    }
}

int main(int argc, char **argv) {
    bench_arg args[] = {
        {"phases", "number of phases", 20, 1, 100000},
        {"mb", "filled in each phase", 200, 1, UINT64_C(1) << 20},
        {"survive", "of a hundred blocks", 1, 0, 50},
        {"rest_ms", "after each phase", 100, 0, 3600000},
        {"end_ms", "of further rest after the last one", 2000, 0, 3600000},
        {"seed", "of the random numbers", 42, 0, UINT64_MAX},
    };
    bench_parse(argc, argv, "phases of one size each leave survivors behind", args,
                sizeof args / sizeof args[0]);
    uint64_t phases = args[0].value, phase_bytes = args[1].value << 20, survive = args[2].value;
    uint64_t random = bench_seed(args[5].value);
    uint64_t slots = phase_bytes / first_sizes[4] + 1;
    survivors kept = {.blocks = bench_map((phases * slots / 50 * survive + slots) * sizeof(void *))};
    uint64_t allocated = 0, busy_ns = 0, over_live_sum = 0, worst = 0, held_kb = 0;
    uint64_t rested_kb = 0;

    uint64_t before_kb = bench_resident_kb();
    for (uint64_t phase = 0; phase < phases; phase++) {
        uint64_t min = first_sizes[phase % RANGES], count = 0;
        void **blocks = bench_map(slots * sizeof(void *));
        uint64_t start = bench_now_ns();
        for (uint64_t bytes = 0; bytes < phase_bytes;) {
            uint64_t number = bench_random(&random);
            size_t size = bench_size(number, min, min + min / WIDTH_SHARE);
            size_t *block = bench_checked(malloc(size));
            bench_touch_pages(block, size, number);
            *block = size;
            blocks[count++] = block;
            bytes += size;
        }
        free_most(blocks, count, survive, &kept, &random);
        busy_ns += bench_now_ns() - start;
        allocated += count;
        munmap(blocks, slots * sizeof(void *));
        bench_sleep_us(1000 * args[3].value);
        if (phase + 1 == phases) {
            /* What comes back without a call of the program, such as huge pages made whole. */
            rested_kb = bench_resident_kb() - before_kb - table_kb(kept.count);
            bench_sleep_us(1000 * args[4].value);
        }
        held_kb = bench_resident_kb() - before_kb - table_kb(kept.count);
        uint64_t over_live = held_kb * 1024 * PERMILLE / (kept.bytes != 0 ? kept.bytes : 1);
        over_live_sum += over_live;
        if (over_live > worst) worst = over_live;
    }
    bench_report(allocated, busy_ns, "phases=%" PRIu64 " mb=%" PRIu64 " survive=%" PRIu64, phases,
                 args[1].value, survive);
    bench_print("Memory: before_kb=%" PRIu64 " live_kb=%" PRIu64 " rested_kb=%" PRIu64 " end_kb=%" PRIu64
                " end_permille=%" PRIu64 " mean_permille=%" PRIu64 " worst_permille=%" PRIu64
                " peak_kb=%" PRIu64 "\n",
                before_kb, kept.bytes / 1024, rested_kb, held_kb,
                held_kb * 1024 * PERMILLE / (kept.bytes != 0 ? kept.bytes : 1),
                over_live_sum / phases, worst, bench_peak_kb());
    for (uint64_t i = 0; i < kept.count; i++) free(kept.blocks[i]);
    return 0;
}
