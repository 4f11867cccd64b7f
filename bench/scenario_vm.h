/*
 * An interpreter with boxed values: numbers, strings, tuples, lists and dictionaries, all blocks
 * with reference counts. Code is random but well formed; a machine runs it and owns a stack and
 * some global variables, whose values survive from call to call. Used by bench_vm and bench_mixed.
 */
#ifndef HAKMEM_SCENARIO_VM_H
#define HAKMEM_SCENARIO_VM_H

#include <stdint.h>

typedef struct vm_code vm_code;
typedef struct vm vm;

/* In mapped memory, read-only afterwards: several machines may run it at a time. */
const vm_code *vm_write_code(uint64_t *random_state);

vm *vm_new(const vm_code *code, uint64_t globals);

void vm_free(vm *machine);

/* Calls one of the outermost functions, chosen by `random`. Returns how many instructions ran; a
 * digest of the function's result goes into *sum. */
uint64_t vm_call(vm *machine, uint64_t random, uint64_t *sum);

#endif
