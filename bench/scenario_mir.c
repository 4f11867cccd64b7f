/* Symbols, and a function's life: build, evaluate, passes, evaluate, free. See scenario_mir.h. */
#include "scenario_mir.h"

#include "bench.h"
#include "scenario_mir_graph.h"

#include <stdio.h>
#include <string.h>

enum {
    FIRST_BUCKETS = 64,
    SYMBOLS_MAX = 4096,
    NAME_BYTES = 64,
    BLOCK_INSTRUCTIONS = 16,
    ARGUMENTS_MAX = 6,
    RECENT_VALUES = 24
};

struct mir_module {
    mir_symbol **buckets;
    uint64_t bucket_count;
    uint64_t symbol_count;
};

/* What a function under construction can name as operands, newest last. */
typedef struct {
    mir_module *module;
    mir_function *function;
    mir_block *block;
    mir_instruction **values;
    uint64_t value_count, value_capacity;
    uint64_t *random_state;
} builder;

mir_module *mir_new_module(void) {
    mir_module *module = bench_checked(malloc(sizeof *module));
    *module = (mir_module){.bucket_count = FIRST_BUCKETS};
    module->buckets = bench_checked(calloc(FIRST_BUCKETS, sizeof *module->buckets));
    return module;
}

void mir_free_module(mir_module *module) {
    for (uint64_t b = 0; b < module->bucket_count; b++) {
        for (mir_symbol *symbol = module->buckets[b], *next; symbol != NULL; symbol = next) {
            next = symbol->next_in_bucket;
            free(symbol->name);
            free(symbol);
        }
    }
    free(module->buckets);
    free(module);
}

static mir_symbol **bucket_of(mir_module *module, uint64_t hash) {
    return &module->buckets[hash & (module->bucket_count - 1)];
}

static void grow_buckets(mir_module *module) {
    mir_symbol **old = module->buckets;
    uint64_t old_count = module->bucket_count;
    module->bucket_count *= 2;
    module->buckets = bench_checked(calloc(module->bucket_count, sizeof *module->buckets));
    for (uint64_t b = 0; b < old_count; b++) {
        for (mir_symbol *symbol = old[b], *next; symbol != NULL; symbol = next) {
            next = symbol->next_in_bucket;
            mir_symbol **bucket = bucket_of(module, symbol->hash);
            symbol->next_in_bucket = *bucket;
            *bucket = symbol;
        }
    }
    free(old);
}

static uint64_t hash_name(const char *name) {
    uint64_t hash = 0;
    for (; *name != '\0'; name++) hash = bench_mix(hash, (unsigned char)*name);
    return hash;
}

static mir_symbol *intern(mir_module *module, const char *name) {
    uint64_t hash = hash_name(name);
    for (mir_symbol *s = *bucket_of(module, hash); s != NULL; s = s->next_in_bucket)
        if (s->hash == hash && strcmp(s->name, name) == 0) return s;
    if (module->symbol_count == module->bucket_count) grow_buckets(module);
    mir_symbol *symbol = bench_checked(malloc(sizeof *symbol));
    mir_symbol **bucket = bucket_of(module, hash);
    *symbol = (mir_symbol){.next_in_bucket = *bucket, .hash = hash};
    symbol->name = bench_checked(malloc(strlen(name) + 1));
    strcpy(symbol->name, name);
    *bucket = symbol;
    module->symbol_count++;
    return symbol;
}

static uint64_t choose(builder *b, uint64_t bound) {
    return bench_below(bench_random(b->random_state), bound);
}

/* A product of two choices: a few symbols are named often, most seldom. */
static mir_symbol *any_symbol(builder *b) {
    char name[NAME_BYTES];
    uint64_t number = choose(b, SYMBOLS_MAX) * choose(b, SYMBOLS_MAX) / SYMBOLS_MAX;
    const char *scope = number % 3 == 0 ? "standard_library_" : number % 3 == 1 ? "local_" : "";
    snprintf(name, sizeof name, "%sfunction_%u", scope, (unsigned)number);
    return intern(b->module, name);
}

static mir_instruction *any_value(builder *b) {
    uint64_t back = choose(b, b->value_count < RECENT_VALUES ? b->value_count : RECENT_VALUES);
    /* One in eight from further away, as parameters and loop-invariant values are. */
    if (choose(b, 8) == 0) back = choose(b, b->value_count);
    return b->values[b->value_count - 1 - back];
}

static mir_instruction *append(builder *b, mir_opcode opcode, uint32_t operand_count) {
    mir_instruction *i = mir_insert(b->function, b->block, NULL, opcode, operand_count);
    for (uint32_t slot = 0; slot < operand_count; slot++) mir_set_operand(i, slot, any_value(b));
    return i;
}

static void add_value(builder *b, mir_instruction *value) {
    if (b->value_count == b->value_capacity) {
        b->value_capacity = b->value_capacity == 0 ? RECENT_VALUES : b->value_capacity * 2;
        b->values = bench_checked(realloc(b->values, b->value_capacity * sizeof *b->values));
    }
    b->values[b->value_count++] = value;
}

static void append_random(builder *b) {
    uint64_t kind = b->value_count == 0 ? 0 : choose(b, 16);
    if (kind < 4) {
        mir_instruction *constant = append(b, MIR_CONSTANT, 0);
        constant->constant = choose(b, 16);
        add_value(b, constant);
    } else if (kind < 6) {
        mir_instruction *address = append(b, MIR_ADDRESS, 0);
        address->symbol = any_symbol(b);
        add_value(b, address);
    } else if (kind < 13) {
        add_value(b, append(b, MIR_ADD + choose(b, MIR_SHIFT - MIR_ADD + 1), 2));
    } else if (kind == 13) {
        append(b, MIR_STORE, 2);
    } else {
        mir_instruction *call = append(b, MIR_CALL, (uint32_t)choose(b, ARGUMENTS_MAX + 1));
        call->symbol = any_symbol(b);
        add_value(b, call);
    }
}

/* Ends each block: the last one returns, the others go on and sometimes ahead. */
static void connect_blocks(builder *b) {
    mir_function *f = b->function;
    for (uint32_t at = 0; at < f->block_count; at++) {
        b->block = f->blocks[at];
        uint32_t ahead = f->block_count - 1 - at;
        if (ahead == 0) {
            append(b, MIR_RETURN, 1);
            continue;
        }
        bool branches = choose(b, 3) > 0;
        append(b, branches ? MIR_BRANCH : MIR_JUMP, branches);
        b->block->successors[0] = f->blocks[at + 1];
        if (branches) b->block->successors[1] = f->blocks[at + 1 + choose(b, ahead)];
        for (int way = 0; way <= branches; way++) b->block->successors[way]->predecessors++;
    }
}

static void build(mir_module *module, mir_function *f, uint64_t instructions,
                  uint64_t *random_state) {
    builder b = {.module = module, .function = f, .random_state = random_state};
    while (f->instructions_made < instructions) {
        b.block = mir_add_block(f);
        uint64_t length = 1 + choose(&b, 2 * BLOCK_INSTRUCTIONS);
        for (uint64_t i = 0; i < length; i++) append_random(&b);
    }
    /* The blocks' last instructions are made last and come earlier: they use the first block's
     * values. */
    for (uint64_t v = 0; v < b.value_count; v++)
        if (b.values[v]->block != f->blocks[0]) b.value_count = v;
    connect_blocks(&b);
    free(b.values);
}

/* Straight through all blocks: what is stored, called, tested and returned makes up the result. */
static uint64_t evaluate(const mir_function *f) {
    uint64_t result = 0;
    for (uint32_t b = 0; b < f->block_count; b++) {
        for (mir_instruction *i = f->blocks[b]->first; i != NULL; i = i->next) {
            if (i->opcode == MIR_JUMP) continue;
            if (mir_is_binary(i)) {
                i->value = mir_apply(i->opcode, i->operands[0]->value, i->operands[1]->value);
                continue;
            }
            i->value = i->symbol != NULL ? i->symbol->hash : i->constant;
            for (uint32_t slot = 0; slot < i->operand_count; slot++)
                i->value = bench_mix(i->value, i->operands[slot]->value);
            if (i->opcode >= MIR_STORE) result = bench_mix(result, i->value);
        }
    }
    return result;
}

static void free_function(mir_function *f) {
    for (uint32_t b = 0; b < f->block_count; b++) {
        for (mir_instruction *i = f->blocks[b]->first, *next; i != NULL; i = next) {
            next = i->next;
            free(i->operands);
            free(i->uses);
            free(i);
        }
        free(f->blocks[b]);
    }
    free(f->blocks);
}

uint64_t mir_compile(mir_module *module, uint64_t instructions, uint64_t *random_state,
                     uint64_t *sum) {
    mir_function f = {.blocks = NULL};
    build(module, &f, instructions, random_state);
    uint64_t before = evaluate(&f);
    mir_run_passes(&f);
    if (evaluate(&f) != before) bench_fail("a pass changed what a function computes");
    *sum = bench_mix(*sum, before);
    free_function(&f);
    return f.instructions_made;
}
