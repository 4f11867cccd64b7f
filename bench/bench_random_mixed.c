/*
 * Random mixed: each step picks a random slot of a working set; an empty slot gets a block of 16
 * to 1039 bytes, a full one is freed. About half the slots are full at any time. One step is one
 * operation. The branch on the slot cannot be predicted, so much of the time is the harness's own:
 * read the figure beside that of the floor binary.
 */
#include "bench.h"

#include <inttypes.h>
#include <stdlib.h>

enum { SIZE_MIN_BYTES = 16, SIZE_SPREAD = 1024 };

static void run_steps(void **slots, uint64_t slot_count, uint64_t steps, uint64_t seed) {
    uint64_t state = bench_seed(seed);
    for (uint64_t i = 0; i < steps; i++) {
        uint64_t random = bench_random(&state);
        void **slot = &slots[bench_below(random, slot_count)];
        if (*slot != NULL) {
            free(*slot);
            *slot = NULL;
        } else {
            size_t size = SIZE_MIN_BYTES + (random & (SIZE_SPREAD - 1));
            *slot = bench_block(size, random);
        }
    }
}

int main(int argc, char **argv) {
    bench_arg args[] = {
        {"iters", "steps, each one malloc or one free", 10000000, 1, UINT64_C(1) << 48},
        {"ws", "slots in the working set", 400, 1, UINT64_C(1) << 28},
        {"seed", "of the random numbers", 42, 0, UINT64_MAX},
    };
    bench_parse(argc, argv, "one malloc or free of 16 to 1039 bytes on a random slot per step",
                args, sizeof args / sizeof args[0]);
    uint64_t steps = args[0].value, slot_count = args[1].value;
    void **slots = bench_map(slot_count * sizeof *slots);

    uint64_t start = bench_now_ns();
    run_steps(slots, slot_count, steps, args[2].value);
    uint64_t elapsed = bench_now_ns() - start;

    bench_report(steps, elapsed, "iter=%" PRIu64 " ws=%" PRIu64, steps, slot_count);
    for (uint64_t i = 0; i < slot_count; i++) free(slots[i]);
    return 0;
}
