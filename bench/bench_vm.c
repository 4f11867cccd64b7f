/*
 * Interpreter objects: a machine runs random code on boxed numbers, strings, tuples, growing lists
 * and dictionaries, all with reference counts. Most die in the reverse order of their birth, on the
 * stack or with their frame; what is stored in globals, lists and dictionaries survives. Modelled
 * on interpreters such as CPython. One operation is one instruction of the interpreted code.
 */
#include "bench.h"
#include "scenario_vm.h"

#include <inttypes.h>

int main(int argc, char **argv) {
    bench_arg args[] = {
        {"steps", "interpreted instructions, at least", 8000000, 1, UINT64_C(1) << 48},
        {"globals", "global variables", 10000, 1, UINT64_C(1) << 28},
        {"seed", "of the random numbers", 42, 0, UINT64_MAX},
    };
    bench_parse(argc, argv, "run an interpreter with boxed, reference-counted objects", args,
                sizeof args / sizeof args[0]);
    uint64_t steps = args[0].value, globals = args[1].value;
    uint64_t random_state = bench_seed(args[2].value);
    const vm_code *code = vm_write_code(&random_state);
    uint64_t executed = 0, sum = 0;

    uint64_t start = bench_now_ns();
    vm *machine = vm_new(code, globals);
    while (executed < steps) executed += vm_call(machine, bench_random(&random_state), &sum);
    vm_free(machine);
    uint64_t elapsed = bench_now_ns() - start;

    bench_report(executed, elapsed,
                 "steps=%" PRIu64 " globals=%" PRIu64 " executed=%" PRIu64 " check=%016" PRIx64,
                 steps, globals, executed, sum);
    return 0;
}
