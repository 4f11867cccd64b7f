/*
 * Random code and the machine that runs it. Functions stand in levels and call only those of the
 * next one, so that every call ends. The writer counts the stack's height, so that no instruction
 * finds too few values; what an instruction does depends on the kinds of objects it finds.
 */
#include "scenario_vm.h"

#include "bench.h"
#include "scenario_vm_objects.h"

enum {
    LEVELS = 4,
    LEVEL_FUNCTIONS = 32,
    FUNCTIONS = LEVELS * LEVEL_FUNCTIONS,
    FUNCTION_LENGTH = 48,
    STACK_MAX = 16, /* values of one function on the stack */
    LOCALS_MAX = 8,
    TUPLE_MAX = 6,
    TUPLE_DEPTH_MAX = 4
};

typedef enum {
    PUSH_NUMBER, /* these leave one value more: operand */
    PUSH_STRING,
    PUSH_LIST,
    PUSH_DICTIONARY,
    LOAD_LOCAL,
    LOAD_GLOBAL,
    COPY,
    CALL,
    ADD, /* these need one value, some two or more */
    GET,
    APPEND,
    SET,
    MAKE_TUPLE,
    STORE_LOCAL,
    STORE_GLOBAL,
    DROP,
    RETURN
} opcode;

typedef struct {
    uint32_t opcode;
    uint32_t operand;
} instruction;

struct vm_code {
    instruction functions[FUNCTIONS][FUNCTION_LENGTH];
};

struct vm {
    const vm_code *code;
    uint64_t global_count;
    uint64_t executed;
    vm_object **globals;
    vm_object *stack[LEVELS * STACK_MAX];
    vm_object **top; /* the next free place */
};

/* How often each is written, of 64. */
static const uint8_t shares[RETURN] = {
    [PUSH_NUMBER] = 12, [PUSH_STRING] = 7, [PUSH_LIST] = 2, [PUSH_DICTIONARY] = 1,
    [LOAD_LOCAL] = 6,   [LOAD_GLOBAL] = 4, [COPY] = 3,      [CALL] = 2,
    [ADD] = 8,          [GET] = 3,         [APPEND] = 4,    [SET] = 2,
    [MAKE_TUPLE] = 3,   [STORE_LOCAL] = 4, [STORE_GLOBAL] = 1, [DROP] = 2};

static opcode any_opcode(uint64_t random) {
    uint64_t at = bench_below(random, 64);
    opcode code = PUSH_NUMBER;
    while (at >= shares[code]) at -= shares[code++];
    return code;
}

/* Values an instruction takes from the stack. */
static uint32_t taken(opcode code, uint32_t operand) {
    switch (code) {
    case COPY:
    case STORE_LOCAL:
    case STORE_GLOBAL:
    case DROP: return 1;
    case ADD:
    case GET:
    case APPEND: return 2;
    case SET: return 3;
    case MAKE_TUPLE: return operand;
    default: return 0;
    }
}

static uint32_t given(opcode code) {
    if (code == STORE_LOCAL || code == STORE_GLOBAL || code == DROP) return 0;
    return code == COPY ? 2 : 1;
}

static uint32_t any_operand(opcode code, uint64_t random, uint32_t level) {
    uint32_t bits = (uint32_t)random;
    if (code == MAKE_TUPLE) return 1 + bits % TUPLE_MAX;
    if (code == LOAD_LOCAL || code == STORE_LOCAL) return bits % LOCALS_MAX;
    if (code == CALL) return (level + 1) * LEVEL_FUNCTIONS + bits % LEVEL_FUNCTIONS;
    return bits;
}

static void write_function(instruction *out, uint32_t level, uint64_t *random_state) {
    uint32_t height = 0;
    for (uint32_t at = 0; at < FUNCTION_LENGTH - 1;) {
        uint64_t random = bench_random(random_state);
        opcode code = any_opcode(random);
        if (code == CALL && level == LEVELS - 1) continue;
        uint32_t operand = any_operand(code, random, level);
        if (taken(code, operand) > height) continue;
        uint32_t after = height - taken(code, operand) + given(code);
        /* Something must be left to return. */
        if (after > STACK_MAX || after == 0) continue;
        height = after;
        out[at++] = (instruction){code, operand};
    }
    out[FUNCTION_LENGTH - 1] = (instruction){RETURN, 0};
}

const vm_code *vm_write_code(uint64_t *random_state) {
    vm_code *code = bench_map(sizeof *code);
    for (uint32_t f = 0; f < FUNCTIONS; f++)
        write_function(code->functions[f], f / LEVEL_FUNCTIONS, random_state);
    return code;
}

vm *vm_new(const vm_code *code, uint64_t globals) {
    vm *m = bench_checked(malloc(sizeof *m));
    *m = (vm){.code = code, .global_count = globals};
    m->globals = bench_checked(malloc(globals * sizeof *m->globals));
    for (uint64_t g = 0; g < globals; g++) m->globals[g] = vm_number(0);
    m->top = m->stack;
    return m;
}

void vm_free(vm *m) {
    for (uint64_t g = 0; g < m->global_count; g++) vm_drop(m->globals[g]);
    free(m->globals);
    free(m);
}

static void push(vm *m, vm_object *object) { *m->top++ = object; }

static vm_object *pop(vm *m) { return *--m->top; }

static void store(vm_object **place, vm_object *value) {
    vm_object *old = *place;
    *place = value;
    if (old != NULL) vm_drop(old);
}

static vm_object *length_instead(vm_object *object) {
    vm_object *length = vm_number((double)vm_length(object));
    vm_drop(object);
    return length;
}

/* What may go into a list or dictionary. */
static vm_object *flattened(vm_object *object) {
    return object->flat ? object : length_instead(object);
}

/* Tuples in tuples in tuples end somewhere, or taking one apart could take for ever. */
static void make_tuple(vm *m, uint32_t count) {
    m->top -= count;
    for (uint32_t i = 0; i < count; i++)
        if (m->top[i]->depth == TUPLE_DEPTH_MAX) m->top[i] = length_instead(m->top[i]);
    vm_object *made = vm_tuple(m->top, count);
    push(m, made);
}

/* Another one at each call, so that all are used in time. */
static vm_object **global(vm *m, uint32_t operand) {
    return &m->globals[bench_below(bench_mix(operand, m->executed), m->global_count)];
}

static void add(vm *m) {
    vm_object *right = pop(m), *left = pop(m);
    push(m, vm_add(left, right));
    vm_drop(left);
    vm_drop(right);
}

static void get(vm *m) {
    vm_object *key = pop(m), *container = pop(m);
    push(m, vm_get(container, key));
    vm_drop(container);
    vm_drop(key);
}

/* To a list; anything else and the item become a tuple. */
static void append(vm *m) {
    if (m->top[-2]->kind == VM_LIST) {
        vm_object *item = flattened(pop(m));
        vm_append(m->top[-1], item);
    } else {
        make_tuple(m, 2);
    }
}

/* In a dictionary; anything else gives way to a new one. */
static void set(vm *m) {
    vm_object *value = flattened(pop(m)), *key = flattened(pop(m));
    if (m->top[-1]->kind != VM_DICTIONARY) {
        vm_drop(pop(m));
        push(m, vm_dictionary());
    }
    vm_set(m->top[-1], key, value);
}

static void call(vm *m, uint32_t function);

static void execute(vm *m, instruction i, vm_object **locals) {
    switch ((opcode)i.opcode) {
    case PUSH_NUMBER: push(m, vm_number(i.operand & 0xff)); break;
    case PUSH_STRING: push(m, vm_string(i.operand >> 8 & 31, i.operand & 0xff)); break;
    case PUSH_LIST: push(m, vm_list()); break;
    case PUSH_DICTIONARY: push(m, vm_dictionary()); break;
    case LOAD_LOCAL:
        push(m, locals[i.operand] != NULL ? vm_hold(locals[i.operand]) : vm_number(0));
        break;
    case LOAD_GLOBAL: push(m, vm_hold(*global(m, i.operand))); break;
    case COPY: push(m, vm_hold(m->top[-1])); break;
    case CALL: call(m, i.operand); break;
    case ADD: add(m); break;
    case GET: get(m); break;
    case APPEND: append(m); break;
    case SET: set(m); break;
    case MAKE_TUPLE: make_tuple(m, i.operand); break;
    case STORE_LOCAL: store(&locals[i.operand], pop(m)); break;
    case STORE_GLOBAL: store(global(m, i.operand), pop(m)); break;
    case DROP: vm_drop(pop(m)); break;
    case RETURN: break;
    }
}

/* A frame's variables are one block, freed in the reverse order of calls. */
static void call(vm *m, uint32_t function) {
    vm_object **bottom = m->top;
    vm_object **locals = bench_checked(calloc(LOCALS_MAX, sizeof *locals));
    const instruction *code = m->code->functions[function];
    for (; code->opcode != RETURN; code++) execute(m, *code, locals);
    m->executed += FUNCTION_LENGTH;
    vm_object *result = pop(m);
    while (m->top > bottom) vm_drop(pop(m));
    for (uint32_t i = 0; i < LOCALS_MAX; i++)
        if (locals[i] != NULL) vm_drop(locals[i]);
    free(locals);
    push(m, result);
}

uint64_t vm_call(vm *m, uint64_t random, uint64_t *sum) {
    uint64_t executed = m->executed;
    call(m, (uint32_t)bench_below(random, LEVEL_FUNCTIONS));
    vm_object *result = pop(m);
    *sum = bench_mix(*sum, vm_digest(result));
    vm_drop(result);
    return m->executed - executed;
}
