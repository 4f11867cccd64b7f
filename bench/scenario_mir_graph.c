/* Edits of the graph. See scenario_mir_graph.h. */
#include "scenario_mir_graph.h"

#include "bench.h"

enum { FIRST_CAPACITY = 2 };

mir_instruction *mir_insert(mir_function *f, mir_block *block, mir_instruction *position,
                            mir_opcode opcode, uint32_t operand_count) {
    mir_instruction *i = bench_checked(malloc(sizeof *i));
    *i = (mir_instruction){.block = block, .opcode = opcode, .operand_count = operand_count};
    if (operand_count > 0) i->operands = bench_checked(calloc(operand_count, sizeof *i->operands));
    i->next = position;
    i->previous = position != NULL ? position->previous : block->last;
    *(i->previous != NULL ? &i->previous->next : &block->first) = i;
    *(position != NULL ? &position->previous : &block->last) = i;
    f->instructions_made++;
    return i;
}

static void add_use(mir_instruction *of, mir_use use) {
    if (of->use_count == of->use_capacity) {
        of->use_capacity = of->use_capacity == 0 ? FIRST_CAPACITY : of->use_capacity * 2;
        of->uses = bench_checked(realloc(of->uses, of->use_capacity * sizeof *of->uses));
    }
    of->uses[of->use_count++] = use;
}

static void remove_use(mir_instruction *of, const mir_instruction *user, uint32_t slot) {
    uint32_t at = of->use_count;
    while (at > 0 && (of->uses[at - 1].user != user || of->uses[at - 1].slot != slot)) at--;
    if (at == 0) bench_fail("an operand is not among the uses");
    of->uses[at - 1] = of->uses[--of->use_count];
}

void mir_set_operand(mir_instruction *user, uint32_t slot, mir_instruction *operand) {
    if (user->operands[slot] != NULL) remove_use(user->operands[slot], user, slot);
    user->operands[slot] = operand;
    if (operand != NULL) add_use(operand, (mir_use){user, slot});
}

void mir_replace_uses(mir_instruction *old, mir_instruction *with) {
    while (old->use_count > 0) {
        mir_use use = old->uses[old->use_count - 1];
        mir_set_operand(use.user, use.slot, with);
    }
}

void mir_delete(mir_instruction *i) {
    if (i->use_count > 0) bench_fail("a used instruction is to be deleted");
    for (uint32_t slot = 0; slot < i->operand_count; slot++) mir_set_operand(i, slot, NULL);
    *(i->previous != NULL ? &i->previous->next : &i->block->first) = i->next;
    *(i->next != NULL ? &i->next->previous : &i->block->last) = i->previous;
    free(i->operands);
    free(i->uses);
    free(i);
}

mir_block *mir_add_block(mir_function *f) {
    if (f->block_count == f->block_capacity) {
        f->block_capacity = f->block_capacity == 0 ? FIRST_CAPACITY : f->block_capacity * 2;
        f->blocks = bench_checked(realloc(f->blocks, f->block_capacity * sizeof *f->blocks));
    }
    mir_block *block = bench_checked(calloc(1, sizeof *block));
    f->blocks[f->block_count++] = block;
    return block;
}

void mir_merge_blocks(mir_function *f, uint32_t index) {
    mir_block *block = f->blocks[index], *gone = f->blocks[index + 1];
    for (mir_instruction *i = gone->first; i != NULL; i = i->next) i->block = block;
    if (gone->first != NULL) {
        gone->first->previous = block->last;
        *(block->last != NULL ? &block->last->next : &block->first) = gone->first;
        block->last = gone->last;
    }
    block->successors[0] = gone->successors[0];
    block->successors[1] = gone->successors[1];
    free(gone);
    f->block_count--;
    for (uint32_t b = index + 1; b < f->block_count; b++) f->blocks[b] = f->blocks[b + 1];
}

uint64_t mir_apply(mir_opcode opcode, uint64_t left, uint64_t right) {
    switch (opcode) {
    case MIR_ADD: return left + right;
    case MIR_SUBTRACT: return left - right;
    case MIR_MULTIPLY: return left * right;
    case MIR_XOR: return left ^ right;
    case MIR_SHIFT: return left << (right & 63);
    default: bench_fail("not an operation on two values");
    }
}
