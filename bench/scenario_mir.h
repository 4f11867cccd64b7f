/*
 * A compiler's intermediate representation: functions of basic blocks of instructions, each with a
 * list of operands and a list of uses, built, rewritten by passes and freed whole; and a module
 * with the symbols they name, which stay. Used by bench_mir and bench_mixed.
 */
#ifndef HAKMEM_SCENARIO_MIR_H
#define HAKMEM_SCENARIO_MIR_H

#include <stdint.h>

typedef struct mir_module mir_module;

mir_module *mir_new_module(void);

void mir_free_module(mir_module *module);

/* Builds a random function of about so many instructions, runs the passes, checks that it still
 * computes the same, and frees it. Returns how many instructions were made, passes included; what
 * the function computes goes into *sum. */
uint64_t mir_compile(mir_module *module, uint64_t instructions, uint64_t *random_state,
                     uint64_t *sum);

#endif
