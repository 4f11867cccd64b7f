/* The passes: each rewrites the function and keeps what it computes. */
#include "bench.h"
#include "scenario_mir_graph.h"

enum { LOOK_BACK = 12, ROUNDS = 2 };

static bool is_constant(const mir_instruction *i, uint64_t value) {
    return i->opcode == MIR_CONSTANT && i->constant == value;
}

static mir_instruction *insert_constant(mir_function *f, mir_instruction *before, uint64_t value) {
    mir_instruction *made = mir_insert(f, before->block, before, MIR_CONSTANT, 0);
    made->constant = value;
    return made;
}

static mir_instruction *insert_binary(mir_function *f, mir_instruction *before, mir_opcode opcode,
                                      mir_instruction *left, mir_instruction *right) {
    mir_instruction *made = mir_insert(f, before->block, before, opcode, 2);
    mir_set_operand(made, 0, left);
    mir_set_operand(made, 1, right);
    return made;
}

/* Operations on constants become constants, operations that change nothing their left operand. */
static mir_instruction *folded(mir_function *f, mir_instruction *i) {
    if (!mir_is_binary(i)) return NULL;
    mir_instruction *left = i->operands[0], *right = i->operands[1];
    if (left->opcode == MIR_CONSTANT && right->opcode == MIR_CONSTANT)
        return insert_constant(f, i, mir_apply(i->opcode, left->constant, right->constant));
    if (is_constant(right, 0) && i->opcode != MIR_MULTIPLY) return left;
    if (is_constant(right, 1) && i->opcode == MIR_MULTIPLY) return left;
    return NULL;
}

/* A multiplication by a sum of two powers of two becomes two shifts and an addition. */
static mir_instruction *expanded(mir_function *f, mir_instruction *i) {
    if (i->opcode != MIR_MULTIPLY || i->operands[1]->opcode != MIR_CONSTANT) return NULL;
    uint64_t factor = i->operands[1]->constant;
    if (__builtin_popcountll(factor) != 2) return NULL;
    mir_instruction *parts[2];
    for (int part = 0; part < 2; part++, factor &= factor - 1) {
        mir_instruction *by = insert_constant(f, i, (uint64_t)__builtin_ctzll(factor));
        parts[part] = insert_binary(f, i, MIR_SHIFT, i->operands[0], by);
    }
    return insert_binary(f, i, MIR_ADD, parts[0], parts[1]);
}

/* The same computed a little earlier in the block. */
static mir_instruction *computed_before(mir_function *f, mir_instruction *i) {
    (void)f;
    if (i->opcode == MIR_CONSTANT || (!mir_is_binary(i) && i->opcode != MIR_ADDRESS)) return NULL;
    mir_instruction *other = i->previous;
    for (int steps = 0; other != NULL && steps < LOOK_BACK; other = other->previous, steps++) {
        if (other->opcode != i->opcode || other->symbol != i->symbol) continue;
        if (i->opcode == MIR_ADDRESS) return other;
        if (other->operands[0] == i->operands[0] && other->operands[1] == i->operands[1])
            return other;
    }
    return NULL;
}

static void replace_each(mir_function *f,
                         mir_instruction *(*instead)(mir_function *, mir_instruction *)) {
    for (uint32_t b = 0; b < f->block_count; b++) {
        for (mir_instruction *i = f->blocks[b]->first, *next; i != NULL; i = next) {
            next = i->next;
            mir_instruction *with = instead(f, i);
            if (with == NULL) continue;
            mir_replace_uses(i, with);
            mir_delete(i);
        }
    }
}

/* From the end, so that what only dead instructions use goes in the same sweep. */
static void delete_unused(mir_function *f) {
    for (uint32_t b = f->block_count; b-- > 0;) {
        for (mir_instruction *i = f->blocks[b]->last, *previous; i != NULL; i = previous) {
            previous = i->previous;
            if (i->use_count == 0 && i->opcode < MIR_STORE) mir_delete(i);
        }
    }
}

/* A block that only goes on to the next one, which is reached from nowhere else. */
static void merge_chains(mir_function *f) {
    for (uint32_t b = 0; b + 1 < f->block_count;) {
        mir_block *block = f->blocks[b], *next = f->blocks[b + 1];
        mir_instruction *last = block->last;
        if (last->opcode == MIR_JUMP && block->successors[0] == next && next->predecessors == 1) {
            mir_delete(last);
            mir_merge_blocks(f, b);
        } else {
            b++;
        }
    }
}

void mir_run_passes(mir_function *f) {
    for (int round = 0; round < ROUNDS; round++) {
        replace_each(f, folded);
        replace_each(f, expanded);
        merge_chains(f);
        replace_each(f, computed_before);
        delete_unused(f);
    }
}
