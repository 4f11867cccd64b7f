/*
 * Swing: allocate `blocks` blocks of one size, free them all in the same order, again and again. The
 * pattern that empties and overfills a cache of fewer blocks each time round. One operation is one
 * block allocated and freed.
 */
#include "bench.h"

#include <inttypes.h>
#include <stdlib.h>

int main(int argc, char **argv) {
    bench_arg args[] = {
        {"iters", "blocks allocated and freed in all", 20000000, 1, UINT64_C(1) << 48},
        {"blocks", "blocks alive at the top of each swing", 400, 1, UINT64_C(1) << 24},
        {"size", "bytes of each block", 256, 1, UINT64_C(1) << 30},
    };
    bench_parse(argc, argv, "allocate N blocks of one size, free them, repeat", args,
                sizeof args / sizeof args[0]);
    uint64_t iters = args[0].value, count = args[1].value, size = args[2].value;
    void **blocks = bench_map(count * sizeof *blocks);

    uint64_t start = bench_now_ns();
    for (uint64_t done = 0; done < iters; done += count) {
        for (uint64_t i = 0; i < count; i++) blocks[i] = bench_checked(malloc(size));
        for (uint64_t i = 0; i < count; i++) free(blocks[i]);
    }
    uint64_t elapsed = bench_now_ns() - start;

    bench_report((iters + count - 1) / count * count, elapsed,
                 "iter=%" PRIu64 " blocks=%" PRIu64 " size=%" PRIu64, iters, count, size);
    return 0;
}
