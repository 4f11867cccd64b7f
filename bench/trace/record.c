/*
 * The recorder: the allocation functions of the C library, each passed on to the next library's
 * (glibc's, or an allocator preloaded behind this one) and written down. A call from within the
 * allocator below is its own affair and not recorded; nor is one that failed, or a free of NULL.
 * Before the next library's functions are found, blocks come from a small array and are never
 * recorded: dlsym itself may want one.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "record.h"

#include <dlfcn.h>
#include <errno.h>
#include <malloc.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "format.h"
#include "record_file.h"
#include "record_lane.h"

enum { EARLY_BYTES = 1 << 16, EARLY_ALIGNMENT = 16 };

static struct {
    void *(*malloc)(size_t);
    void (*free)(void *);
    void *(*calloc)(size_t, size_t);
    void *(*realloc)(void *, size_t);
    int (*posix_memalign)(void **, size_t, size_t);
} below;
static atomic_bool found_below;
/* In a call to the allocator below, or looking for it. */
static __thread bool inside __attribute__((tls_model("initial-exec")));

/* Each early block has its size in the 16 bytes before it. */
static _Alignas(EARLY_ALIGNMENT) char early[EARLY_BYTES];
static atomic_size_t early_used;

static bool is_early(const void *block) {
    return (uintptr_t)block - (uintptr_t)early < EARLY_BYTES;
}

static void *early_block(size_t alignment, size_t size) {
    if (size > EARLY_BYTES || alignment > EARLY_BYTES) return NULL;
    size_t wanted = size + alignment + 2 * EARLY_ALIGNMENT;
    size_t start = atomic_fetch_add(&early_used, wanted);
    if (start + wanted > EARLY_BYTES) return NULL;
    uintptr_t at = (uintptr_t)early + start + EARLY_ALIGNMENT;
    at = (at + alignment - 1) & ~(alignment - 1);
    memcpy((char *)at - sizeof size, &size, sizeof size);
    return (void *)at;
}

static void *look_up(const char *name) {
    void *function = dlsym(RTLD_NEXT, name);
    if (function != NULL) return function;
    record_complain("no such function below the recorder", name);
    _exit(127);
}

/* False while this thread is looking already. Threads that look at once find the same. */
static bool resolve(void) {
    if (inside) return false;
    inside = true;
    /* Through void **: C has no cast from object to function pointers. */
    *(void **)&below.malloc = look_up("malloc");
    *(void **)&below.free = look_up("free");
    *(void **)&below.calloc = look_up("calloc");
    *(void **)&below.realloc = look_up("realloc");
    *(void **)&below.posix_memalign = look_up("posix_memalign");
    inside = false;
    /* release: pairs with the acquire in ready. */
    atomic_store_explicit(&found_below, true, memory_order_release);
    return true;
}

static inline bool ready(void) {
    return atomic_load_explicit(&found_below, memory_order_acquire) || resolve();
}

/* A lane for this call, or NULL where it is not recorded; `inside` is set until leave(). */
static inline record_lane *enter(void) {
    if (inside) return NULL;
    inside = true;
    return record_lane_enter();
}

static inline void leave(record_lane *lane, bool was_inside) {
    record_lane_leave(lane);
    inside = was_inside;
}

/* A file for every process that runs at all, and the settings before the program changes them. */
__attribute__((constructor)) static void begin(void) {
    if (!ready() || inside) return;
    leave(enter(), false);
}

void *record_malloc(size_t size) {
    if (!ready()) return early_block(EARLY_ALIGNMENT, size);
    bool was_inside = inside;
    record_lane *lane = enter();
    void *block = below.malloc(size);
    if (lane != NULL && block != NULL) record_allocation(lane, TRACE_MALLOC, block, size, 0);
    leave(lane, was_inside);
    return block;
}

RECORD_EXPORT void *malloc(size_t size) { return record_malloc(size); }

RECORD_EXPORT void *calloc(size_t count, size_t size) {
    size_t bytes;
    if (!ready()) {
        /* Never handed out twice, so still zero. */
        return __builtin_mul_overflow(count, size, &bytes) ? NULL
                                                           : early_block(EARLY_ALIGNMENT, bytes);
    }
    bool was_inside = inside;
    record_lane *lane = enter();
    void *block = below.calloc(count, size);
    if (lane != NULL && block != NULL)
        record_allocation(lane, TRACE_CALLOC, block, count * size, 0);
    leave(lane, was_inside);
    return block;
}

RECORD_EXPORT void free(void *block) {
    if (block == NULL || is_early(block) || !ready()) return;
    bool was_inside = inside;
    record_lane *lane = enter();
    if (lane != NULL) record_free(lane, record_stamp(), block);
    below.free(block);
    leave(lane, was_inside);
}

static void *move_early(void *old, size_t size) {
    size_t old_size;
    memcpy(&old_size, (char *)old - sizeof old_size, sizeof old_size);
    void *block = record_malloc(size);
    if (block != NULL) memcpy(block, old, old_size < size ? old_size : size);
    return block;
}

RECORD_EXPORT void *realloc(void *old, size_t size) {
    if (old == NULL) return record_malloc(size);
    if (is_early(old)) return move_early(old, size);
    if (!ready()) return NULL;
    bool was_inside = inside;
    record_lane *lane = enter();
    uint64_t stamp = lane != NULL ? record_stamp() : 0;
    void *block = below.realloc(old, size);
    if (lane != NULL && block != NULL) record_realloc(lane, stamp, old, block, size);
    /* glibc's realloc to 0 bytes is a free. */
    if (lane != NULL && block == NULL && size == 0) record_free(lane, stamp, old);
    leave(lane, was_inside);
    return block;
}

RECORD_EXPORT void *reallocarray(void *old, size_t count, size_t size) {
    size_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes)) {
        errno = ENOMEM;
        return NULL;
    }
    return realloc(old, bytes);
}

static int allocate_aligned(void **block, size_t alignment, size_t size) {
    if (!ready()) {
        *block = early_block(alignment < EARLY_ALIGNMENT ? EARLY_ALIGNMENT : alignment, size);
        return *block != NULL ? 0 : ENOMEM;
    }
    bool was_inside = inside;
    record_lane *lane = enter();
    int error = below.posix_memalign(block, alignment, size);
    if (lane != NULL && error == 0)
        record_allocation(lane, TRACE_ALIGNED, *block, size, alignment);
    leave(lane, was_inside);
    return error;
}

RECORD_EXPORT int posix_memalign(void **block, size_t alignment, size_t size) {
    if (alignment < sizeof(void *) || (alignment & (alignment - 1)) != 0) return EINVAL;
    return allocate_aligned(block, alignment, size);
}

/* As glibc's memalign: what is no power of two is rounded up to one. */
void *record_aligned(size_t alignment, size_t size) {
    size_t rounded = sizeof(void *);
    while (rounded < alignment && rounded != 0) rounded <<= 1;
    void *block = NULL;
    int error = rounded != 0 ? allocate_aligned(&block, rounded, size) : EINVAL;
    if (error == 0) return block;
    errno = error;
    return NULL;
}

RECORD_EXPORT void *memalign(size_t alignment, size_t size) {
    return record_aligned(alignment, size);
}

RECORD_EXPORT void *aligned_alloc(size_t alignment, size_t size) {
    return record_aligned(alignment, size);
}

static size_t page_bytes(void) { return (size_t)sysconf(_SC_PAGESIZE); }

RECORD_EXPORT void *valloc(size_t size) { return record_aligned(page_bytes(), size); }

RECORD_EXPORT void *pvalloc(size_t size) {
    size_t page = page_bytes(), rounded;
    if (__builtin_add_overflow(size, page - 1, &rounded)) {
        errno = ENOMEM;
        return NULL;
    }
    return record_aligned(page, rounded & ~(page - 1));
}
