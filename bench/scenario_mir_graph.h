/*
 * The graph behind scenario_mir.h: its structures, and the edits that keep operands and uses in
 * step. Invariant: instruction a is operand s of b exactly when (b, s) is among a's uses.
 */
#ifndef HAKMEM_SCENARIO_MIR_GRAPH_H
#define HAKMEM_SCENARIO_MIR_GRAPH_H

#include <stdbool.h>
#include <stdint.h>

typedef struct mir_symbol {
    struct mir_symbol *next_in_bucket;
    char *name;
    uint64_t hash;
} mir_symbol;

typedef enum {
    MIR_CONSTANT,
    MIR_ADDRESS, /* of a symbol */
    MIR_ADD,
    MIR_SUBTRACT,
    MIR_MULTIPLY,
    MIR_XOR,
    MIR_SHIFT,
    /* From here on kept even if nobody uses the result. */
    MIR_STORE,
    MIR_CALL,
    MIR_JUMP,
    MIR_BRANCH,
    MIR_RETURN
} mir_opcode;

struct mir_instruction;

typedef struct {
    struct mir_instruction *user;
    uint32_t slot;
} mir_use;

typedef struct mir_instruction {
    struct mir_instruction *previous, *next;
    struct mir_block *block;
    mir_opcode opcode;
    uint32_t operand_count, use_count, use_capacity;
    struct mir_instruction **operands;
    mir_use *uses;
    mir_symbol *symbol;
    uint64_t constant;
    uint64_t value; /* of the last evaluation */
} mir_instruction;

typedef struct mir_block {
    mir_instruction *first, *last;
    struct mir_block *successors[2]; /* as many as the last instruction has ways to go */
    uint32_t predecessors;
} mir_block;

typedef struct {
    mir_block **blocks;
    uint32_t block_count, block_capacity;
    uint64_t instructions_made;
} mir_function;

/* Before `position`, or at the block's end when that is NULL. Operands are set one by one. */
mir_instruction *mir_insert(mir_function *f, mir_block *block, mir_instruction *position,
                            mir_opcode opcode, uint32_t operand_count);

void mir_set_operand(mir_instruction *user, uint32_t slot, mir_instruction *operand);

/* `with` takes over all uses of `old`. */
void mir_replace_uses(mir_instruction *old, mir_instruction *with);

/* Nobody may use it any more. */
void mir_delete(mir_instruction *instruction);

mir_block *mir_add_block(mir_function *f);

/* Moves the instructions of the block at `index` + 1 to the end of the one at `index`. */
void mir_merge_blocks(mir_function *f, uint32_t index);

uint64_t mir_apply(mir_opcode opcode, uint64_t left, uint64_t right);

static inline bool mir_is_binary(const mir_instruction *i) {
    return i->opcode >= MIR_ADD && i->opcode <= MIR_SHIFT;
}

void mir_run_passes(mir_function *f);

#endif
