/*
 * Compiler graphs: function after function of an intermediate representation is built from small
 * blocks (instructions, their operand lists, their use lists, which grow), rewritten by passes that
 * insert, replace and delete instructions, and freed whole; symbols stay for the whole run.
 * Modelled on what optimising compilers do. One operation is one instruction made.
 */
#include "bench.h"
#include "scenario_mir.h"

#include <inttypes.h>

int main(int argc, char **argv) {
    bench_arg args[] = {
        {"functions", "functions compiled", 1000, 1, UINT64_C(1) << 48},
        {"size", "instructions of each function, about", 500, 1, UINT64_C(1) << 28},
        {"seed", "of the random numbers", 42, 0, UINT64_MAX},
    };
    bench_parse(argc, argv, "build compiler graphs, rewrite them by passes, free them", args,
                sizeof args / sizeof args[0]);
    uint64_t functions = args[0].value, size = args[1].value;
    uint64_t random_state = bench_seed(args[2].value);
    uint64_t made = 0, sum = 0;

    uint64_t start = bench_now_ns();
    mir_module *module = mir_new_module();
    for (uint64_t i = 0; i < functions; i++) {
        /* From a half to one and a half times the size. */
        uint64_t instructions = size / 2 + bench_below(bench_random(&random_state), size + 1);
        made += mir_compile(module, instructions, &random_state, &sum);
    }
    mir_free_module(module);
    uint64_t elapsed = bench_now_ns() - start;

    bench_report(made, elapsed,
                 "functions=%" PRIu64 " size=%" PRIu64 " made=%" PRIu64 " check=%016" PRIx64,
                 functions, size, made, sum);
    return 0;
}
