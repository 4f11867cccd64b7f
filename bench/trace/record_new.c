/*
 * operator new and delete over the recorder's malloc, in all forms ([new.delete]): an allocator
 * below may define them without calling malloc, and the recorder would miss them. In C, under
 * their linker names, so that C programs load no C++ runtime; a failed allocation looks up what it
 * needs of the runtime that the program must have.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dlfcn.h>
#include <stdlib.h>

#include "record.h"
#include "record_file.h"

typedef void (*handler)(void);

static void *runtime(const char *name) {
    void *library = dlopen("libstdc++.so.6", RTLD_LAZY | RTLD_NOLOAD);
    return library != NULL ? dlsym(library, name) : NULL;
}

static void *attempt(size_t size, size_t alignment) {
    return alignment == 0 ? record_malloc(size) : record_aligned(alignment, size);
}

/* Calls the new handler as long as there is one, then throws std::bad_alloc. */
static void *allocate_late(size_t size, size_t alignment) {
    handler (*get_handler)(void);
    void (*throw_bad_alloc)(void);
    *(void **)&get_handler = runtime("_ZSt15get_new_handlerv");
    *(void **)&throw_bad_alloc = runtime("_ZSt17__throw_bad_allocv");
    handler call;
    while (get_handler != NULL && (call = get_handler()) != NULL) {
        call();
        void *block = attempt(size, alignment);
        if (block != NULL) return block;
    }
    if (throw_bad_alloc != NULL) throw_bad_alloc();
    record_complain("operator new failed", "no C++ runtime is there to throw std::bad_alloc");
    abort();
}

static void *allocate(size_t size, size_t alignment) {
    void *block = attempt(size, alignment);
    return block != NULL ? block : allocate_late(size, alignment);
}

/* A failed nothrow form is the runtime's own: it calls the throwing form and catches. */
static void *allocate_nothrow(size_t size, const void *tag) {
    void *block = attempt(size, 0);
    if (block != NULL) return block;
    void *(*late)(size_t, const void *);
    *(void **)&late = runtime("_ZnwmRKSt9nothrow_t");
    return late != NULL ? late(size, tag) : NULL;
}

static void *allocate_aligned_nothrow(size_t size, size_t alignment, const void *tag) {
    void *block = attempt(size, alignment);
    if (block != NULL) return block;
    void *(*late)(size_t, size_t, const void *);
    *(void **)&late = runtime("_ZnwmSt11align_val_tRKSt9nothrow_t");
    return late != NULL ? late(size, alignment, tag) : NULL;
}

#define NEW(name, parameters, call)           \
    RECORD_EXPORT void *name parameters;      \
    RECORD_EXPORT void *name parameters { return call; }

NEW(_Znwm, (size_t n), allocate(n, 0))
NEW(_Znam, (size_t n), allocate(n, 0))
NEW(_ZnwmRKSt9nothrow_t, (size_t n, const void *tag), allocate_nothrow(n, tag))
NEW(_ZnamRKSt9nothrow_t, (size_t n, const void *tag), allocate_nothrow(n, tag))
NEW(_ZnwmSt11align_val_t, (size_t n, size_t a), allocate(n, a))
NEW(_ZnamSt11align_val_t, (size_t n, size_t a), allocate(n, a))
NEW(_ZnwmSt11align_val_tRKSt9nothrow_t, (size_t n, size_t a, const void *tag),
    allocate_aligned_nothrow(n, a, tag))
NEW(_ZnamSt11align_val_tRKSt9nothrow_t, (size_t n, size_t a, const void *tag),
    allocate_aligned_nothrow(n, a, tag))

/* The other arguments (size, alignment, the nothrow tag) say nothing that free must know. */
#define DELETE(name)                  \
    RECORD_EXPORT void name(void *p); \
    RECORD_EXPORT void name(void *p) { free(p); }

DELETE(_ZdlPv)
DELETE(_ZdaPv)
DELETE(_ZdlPvm)
DELETE(_ZdaPvm)
DELETE(_ZdlPvRKSt9nothrow_t)
DELETE(_ZdaPvRKSt9nothrow_t)
DELETE(_ZdlPvSt11align_val_t)
DELETE(_ZdaPvSt11align_val_t)
DELETE(_ZdlPvSt11align_val_tRKSt9nothrow_t)
DELETE(_ZdaPvSt11align_val_tRKSt9nothrow_t)
DELETE(_ZdlPvmSt11align_val_t)
DELETE(_ZdaPvmSt11align_val_t)
