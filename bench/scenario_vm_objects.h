/*
 * The objects behind scenario_vm.h. Lists and dictionaries only hold flat objects (numbers, strings
 * and tuples of those), so no cycle can arise and counts are enough. Functions that return an
 * object return a reference of the caller's; `take` in a comment means that a reference goes over.
 */
#ifndef HAKMEM_SCENARIO_VM_OBJECTS_H
#define HAKMEM_SCENARIO_VM_OBJECTS_H

#include <stdbool.h>
#include <stdint.h>

typedef enum { VM_NUMBER, VM_STRING, VM_TUPLE, VM_LIST, VM_DICTIONARY } vm_kind;

typedef struct vm_object {
    uint32_t references;
    uint8_t kind;
    uint8_t depth; /* of tuples in tuples */
    bool flat;
} vm_object;

static inline vm_object *vm_hold(vm_object *object) {
    object->references++;
    return object;
}

void vm_destroy(vm_object *object);

static inline void vm_drop(vm_object *object) {
    if (--object->references == 0) vm_destroy(object);
}

vm_object *vm_number(double value);

/* `length` letters that follow from `start`. */
vm_object *vm_string(uint32_t length, uint64_t start);

/* Takes the items. */
vm_object *vm_tuple(vm_object **items, uint32_t count);

vm_object *vm_list(void);

vm_object *vm_dictionary(void);

/* The sum of numbers, two strings in one, else the number of all elements. */
vm_object *vm_add(const vm_object *left, const vm_object *right);

/* Both take what is added; a list or dictionary that is full is emptied first. */
void vm_append(vm_object *list, vm_object *item);
void vm_set(vm_object *dictionary, vm_object *key, vm_object *value);

/* The element of a list, tuple or dictionary that `key` names, else a new number. */
vm_object *vm_get(vm_object *container, const vm_object *key);

uint64_t vm_length(const vm_object *object);

/* Equal for equal objects; of lists and dictionaries only the size counts. */
uint64_t vm_digest(const vm_object *object);

#endif
