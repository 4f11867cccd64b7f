/* Objects of the interpreter. See scenario_vm_objects.h. */
#include "scenario_vm_objects.h"

#include "bench.h"

#include <string.h>

enum { FIRST_CAPACITY = 4, ELEMENTS_MAX = 1024, STRING_MAX = 2000 };

typedef struct {
    vm_object head;
    double value;
} number;

typedef struct {
    vm_object head;
    uint32_t length;
    char text[];
} string;

typedef struct {
    vm_object head;
    uint32_t count;
    vm_object *items[];
} tuple;

typedef struct {
    vm_object head;
    uint32_t count, capacity;
    vm_object **items;
} list;

typedef struct {
    vm_object *key; /* NULL: free */
    vm_object *value;
    uint64_t digest;
} entry;

/* Open addressing; the capacity is a power of two, and a quarter of it is free. */
typedef struct {
    vm_object head;
    uint32_t count, capacity;
    entry *entries;
} dictionary;

static void *new_object(vm_kind kind, size_t bytes, bool flat) {
    vm_object *object = bench_checked(malloc(bytes));
    *object = (vm_object){.references = 1, .kind = (uint8_t)kind, .flat = flat};
    return object;
}

static void drop_items(vm_object **items, uint32_t count) {
    for (uint32_t i = count; i-- > 0;) vm_drop(items[i]);
}

static void empty_dictionary(dictionary *d) {
    for (uint32_t i = 0; i < d->capacity; i++) {
        if (d->entries[i].key == NULL) continue;
        vm_drop(d->entries[i].key);
        vm_drop(d->entries[i].value);
    }
    free(d->entries);
    d->entries = NULL;
    d->count = d->capacity = 0;
}

void vm_destroy(vm_object *object) {
    switch (object->kind) {
    case VM_TUPLE: drop_items(((tuple *)object)->items, ((tuple *)object)->count); break;
    case VM_LIST:
        drop_items(((list *)object)->items, ((list *)object)->count);
        free(((list *)object)->items);
        break;
    case VM_DICTIONARY: empty_dictionary((dictionary *)object); break;
    default: break;
    }
    free(object);
}

vm_object *vm_number(double value) {
    number *n = new_object(VM_NUMBER, sizeof *n, true);
    n->value = value;
    return &n->head;
}

static string *new_string(uint32_t length) {
    string *s = new_object(VM_STRING, sizeof *s + length + 1, true);
    s->length = length;
    s->text[length] = '\0';
    return s;
}

vm_object *vm_string(uint32_t length, uint64_t start) {
    string *s = new_string(length);
    for (uint32_t i = 0; i < length; i++) s->text[i] = (char)('a' + (start + i * 7) % 26);
    return &s->head;
}

vm_object *vm_tuple(vm_object **items, uint32_t count) {
    tuple *t = new_object(VM_TUPLE, sizeof *t + count * sizeof *items, true);
    t->count = count;
    for (uint32_t i = 0; i < count; i++) {
        t->items[i] = items[i];
        t->head.flat = t->head.flat && items[i]->flat;
        if (items[i]->depth >= t->head.depth) t->head.depth = (uint8_t)(items[i]->depth + 1);
    }
    return &t->head;
}

vm_object *vm_list(void) {
    list *l = new_object(VM_LIST, sizeof *l, false);
    l->count = l->capacity = 0;
    l->items = NULL;
    return &l->head;
}

vm_object *vm_dictionary(void) {
    dictionary *d = new_object(VM_DICTIONARY, sizeof *d, false);
    d->count = d->capacity = 0;
    d->entries = NULL;
    return &d->head;
}

uint64_t vm_length(const vm_object *object) {
    switch (object->kind) {
    case VM_STRING: return ((const string *)object)->length;
    case VM_TUPLE: return ((const tuple *)object)->count;
    case VM_LIST: return ((const list *)object)->count;
    case VM_DICTIONARY: return ((const dictionary *)object)->count;
    default: return 1;
    }
}

vm_object *vm_add(const vm_object *left, const vm_object *right) {
    if (left->kind == VM_NUMBER && right->kind == VM_NUMBER)
        return vm_number(((const number *)left)->value + ((const number *)right)->value);
    if (left->kind == VM_STRING && right->kind == VM_STRING) {
        const string *l = (const string *)left, *r = (const string *)right;
        if (l->length + r->length > STRING_MAX) return vm_number(l->length);
        string *both = new_string(l->length + r->length);
        memcpy(both->text, l->text, l->length);
        memcpy(both->text + l->length, r->text, r->length);
        return &both->head;
    }
    return vm_number((double)(vm_length(left) + vm_length(right)));
}

void vm_append(vm_object *object, vm_object *item) {
    list *l = (list *)object;
    if (l->count == ELEMENTS_MAX) {
        drop_items(l->items, l->count);
        free(l->items);
        l->items = NULL;
        l->count = l->capacity = 0;
    }
    if (l->count == l->capacity) {
        l->capacity = l->capacity == 0 ? FIRST_CAPACITY : l->capacity + l->capacity / 2;
        l->items = bench_checked(realloc(l->items, l->capacity * sizeof(vm_object *)));
    }
    l->items[l->count++] = item;
}

/* The entry with that key, or the free one where it belongs. */
static entry *find(entry *entries, uint32_t capacity, uint64_t digest) {
    uint32_t at = (uint32_t)digest & (capacity - 1);
    while (entries[at].key != NULL && entries[at].digest != digest) at = (at + 1) & (capacity - 1);
    return &entries[at];
}

static void grow_dictionary(dictionary *d) {
    uint32_t capacity = d->capacity == 0 ? 2 * FIRST_CAPACITY : d->capacity * 2;
    entry *entries = bench_checked(calloc(capacity, sizeof *entries));
    for (uint32_t i = 0; i < d->capacity; i++)
        if (d->entries[i].key != NULL)
            *find(entries, capacity, d->entries[i].digest) = d->entries[i];
    free(d->entries);
    d->entries = entries;
    d->capacity = capacity;
}

void vm_set(vm_object *object, vm_object *key, vm_object *value) {
    dictionary *d = (dictionary *)object;
    if (d->count == ELEMENTS_MAX) empty_dictionary(d);
    if (d->count + 1 > d->capacity / 4 * 3) grow_dictionary(d);
    uint64_t digest = vm_digest(key);
    entry *e = find(d->entries, d->capacity, digest);
    if (e->key != NULL) {
        vm_drop(e->key);
        vm_drop(e->value);
    } else {
        d->count++;
    }
    *e = (entry){key, value, digest};
}

vm_object *vm_get(vm_object *container, const vm_object *key) {
    uint64_t digest = vm_digest(key), length = vm_length(container);
    if (length > 0 && container->kind == VM_LIST)
        return vm_hold(((list *)container)->items[digest % length]);
    if (length > 0 && container->kind == VM_TUPLE)
        return vm_hold(((tuple *)container)->items[digest % length]);
    if (length > 0 && container->kind == VM_DICTIONARY) {
        dictionary *d = (dictionary *)container;
        entry *e = find(d->entries, d->capacity, digest);
        if (e->key != NULL) return vm_hold(e->value);
    }
    return vm_number((double)length);
}

uint64_t vm_digest(const vm_object *object) {
    uint64_t sum = bench_mix(object->kind, vm_length(object));
    switch (object->kind) {
    case VM_NUMBER: {
        uint64_t bits;
        memcpy(&bits, &((const number *)object)->value, sizeof bits);
        return bench_mix(sum, bits);
    }
    case VM_STRING: {
        const string *s = (const string *)object;
        for (uint32_t i = 0; i < s->length; i++) sum = sum * 31 + (unsigned char)s->text[i];
        return bench_mix(sum, 0);
    }
    case VM_TUPLE: {
        const tuple *t = (const tuple *)object;
        for (uint32_t i = 0; i < t->count; i++) sum = bench_mix(sum, vm_digest(t->items[i]));
        return sum;
    }
    default: return sum; /* lists and dictionaries count by their size */
    }
}
