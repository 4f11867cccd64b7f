/*
 * The floor: an allocator that does nothing, to measure what a bench program costs by itself.
 * malloc hands out the next bytes of a small ring, over and over; free returns at once. Blocks
 * therefore overlap sooner or later: good for programs that only write into their blocks, such as
 * those here, and for nothing else.
 *
 * Each thread has a ring of its own, small enough to stay in the first-level cache: what an
 * allocator's choice of addresses costs in caches is its own, not the program's. What must keep its
 * contents (thread descriptors, what libc asks for at start-up) comes from memory that is never
 * handed out again: realloc, the first KEPT_FIRST_BYTES of calloc and aligned requests, and the
 * first FIRST_LAP_BYTES of the first thread's mallocs. Only realloc can run out of it.
 *
 * Linked into a program in place of malloc, or preloaded.
 */
#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default"), noinline))
#define KIB ((size_t)1024)
#define MIB (KIB * KIB)

enum { ALIGNMENT_BYTES = 16, RING_COUNT = 64 };

#define FIRST_LAP_BYTES (64 * KIB)
#define RING_BYTES (16 * KIB)
#define RING_REQUEST_MAX (8 * KIB)
/* Larger requests start somewhere in LARGE_START_BYTES and may reach LARGE_REQUEST_MAX further. */
#define LARGE_START_BYTES (8 * MIB)
#define LARGE_REQUEST_MAX (128 * MIB)
#define KEPT_BYTES (128 * MIB)
#define KEPT_FIRST_BYTES (1 * MIB)

static struct {
    _Alignas(4096) unsigned char rings[RING_COUNT][RING_BYTES];
    unsigned char kept[KEPT_BYTES];
    unsigned char large[LARGE_START_BYTES + LARGE_REQUEST_MAX];
} arena;

static atomic_size_t rings_given;
static atomic_size_t kept_used;
static atomic_size_t large_used;

typedef struct {
    unsigned char *next;
    unsigned char *end;
    unsigned char *ring;
} cursor;

static _Thread_local cursor my_cursor __attribute__((tls_model("initial-exec")));

static void *out_of_memory(void) {
    errno = ENOMEM;
    return NULL;
}

static void *kept_block(size_t alignment, size_t size) {
    if (size > KEPT_BYTES || alignment > KEPT_BYTES) return out_of_memory();
    size_t room = size + alignment;
    size_t start = atomic_fetch_add_explicit(&kept_used, room, memory_order_relaxed);
    if (start > KEPT_BYTES || room > KEPT_BYTES - start) return out_of_memory();
    uintptr_t address = (uintptr_t)arena.kept + start;
    return (void *)((address + alignment - 1) & ~(uintptr_t)(alignment - 1));
}

/* A thread's first request, a large one, or one that does not fit the rest of the ring. */
static __attribute__((noinline)) void *malloc_slow(size_t size) {
    cursor *c = &my_cursor;
    if (size > LARGE_REQUEST_MAX) return out_of_memory();
    if (size > RING_REQUEST_MAX) {
        size_t used = atomic_fetch_add_explicit(&large_used, size, memory_order_relaxed);
        return arena.large + (used % LARGE_START_BYTES & ~(size_t)(ALIGNMENT_BYTES - 1));
    }
    if (c->ring == NULL) {
        size_t index = atomic_fetch_add_explicit(&rings_given, 1, memory_order_relaxed);
        c->ring = arena.rings[index % RING_COUNT];
        if (index == 0 && size <= FIRST_LAP_BYTES) {
            unsigned char *lap = kept_block(ALIGNMENT_BYTES, FIRST_LAP_BYTES);
            c->next = lap + size;
            c->end = lap + FIRST_LAP_BYTES;
            return lap;
        }
    }
    c->next = c->ring + size;
    c->end = c->ring + RING_BYTES;
    return c->ring;
}

/* Not by the name of malloc: a compiler may take malloc and memset for calloc, which calls this. */
static inline void *ring_block(size_t size) {
    cursor *c = &my_cursor;
    size_t rounded = (size + ALIGNMENT_BYTES - 1) & ~(size_t)(ALIGNMENT_BYTES - 1);
    unsigned char *block = c->next;
    if (__builtin_expect(rounded > (size_t)(c->end - block) || rounded < size, 0))
        return malloc_slow(rounded < size ? SIZE_MAX : rounded);
    c->next = block + rounded;
    return block;
}

EXPORT void *malloc(size_t size) { return ring_block(size); }

EXPORT void free(void *block) {
    /* Keeps the call and its argument, which is what the floor is there to count. */
    __asm__ volatile("" : : "r"(block) : "memory");
}

static bool is_early(void) {
    return atomic_load_explicit(&kept_used, memory_order_relaxed) < KEPT_FIRST_BYTES;
}

EXPORT void *calloc(size_t count, size_t size) {
    size_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes)) return out_of_memory();
    if (is_early()) return kept_block(ALIGNMENT_BYTES, bytes);
    void *block = ring_block(bytes);
    return block != NULL ? memset(block, 0, bytes) : NULL;
}

/* Sizes are not recorded: a realloc copies what can be read behind the old block, up to `size`. */
EXPORT void *realloc(void *old, size_t size) {
    void *block = kept_block(ALIGNMENT_BYTES, size);
    if (old == NULL || block == NULL) return block;
    unsigned char *arena_end = (unsigned char *)&arena + sizeof arena;
    size_t readable = (size_t)(arena_end - (unsigned char *)old);
    memmove(block, old, size < readable ? size : readable);
    return block;
}

EXPORT void *memalign(size_t alignment, size_t size) {
    if (alignment < ALIGNMENT_BYTES) alignment = ALIGNMENT_BYTES;
    if (is_early()) return kept_block(alignment, size);
    size_t room;
    if (__builtin_add_overflow(size, alignment - 1, &room)) return out_of_memory();
    uintptr_t address = (uintptr_t)ring_block(room);
    return (void *)((address + alignment - 1) & ~(uintptr_t)(alignment - 1));
}

EXPORT void *aligned_alloc(size_t alignment, size_t size) { return memalign(alignment, size); }

EXPORT int posix_memalign(void **out, size_t alignment, size_t size) {
    int saved = errno;
    void *block = memalign(alignment, size);
    errno = saved;
    if (block == NULL) return ENOMEM;
    *out = block;
    return 0;
}

EXPORT void *valloc(size_t size) { return memalign(4096, size); }

EXPORT void *pvalloc(size_t size) { return memalign(4096, (size + 4095) & ~(size_t)4095); }

EXPORT size_t malloc_usable_size(void *block) {
    (void)block;
    return 0;
}
