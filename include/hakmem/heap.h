/* hakmem: heaps. Memory by query, tenant, document or plug-in: allocated from any thread, freed by plain free, capped
 * exactly, counted, and dropped in one call.
 *
 * A heap is beside the main heap, which malloc serves. Its blocks are blocks like any others: free, realloc,
 * malloc_usable_size, operator delete and their hakmem_ names take them, in any thread; what realloc resizes stays in
 * its heap. All functions may be called by any thread at any time, but for a heap that another thread is destroying,
 * deleting or resetting: that is misuse, as is any use of it afterwards. Sizes are in bytes and, where they are
 * counted, usable sizes: the sum of malloc_usable_size of the blocks. Functions that return int return 0 or an errno
 * value. None is for signal handlers. */
#ifndef HAKMEM_HEAP_H
#define HAKMEM_HEAP_H

#include "hakmem/hakmem.h"

#ifdef __cplusplus
extern "C" {
#endif

#ifdef __GNUC__
#define HAKMEM_HEAP_RESULT __attribute__((__warn_unused_result__))
#else
#define HAKMEM_HEAP_RESULT
#endif

typedef struct hakmem_heap hakmem_heap;

/* None of its free blocks stays in a thread's cache: each call takes a lock, and memory that is free is the heap's at
 * once. */
#define HAKMEM_HEAP_UNCACHED 1u

/* Zero means the default. Fields are only ever added at the end; `size` is sizeof(hakmem_heap_options) of the program.
 */
typedef struct hakmem_heap_options {
  size_t size;
  const char *name;    /* copied, up to 63 bytes; NULL: none */
  size_t limit;        /* live bytes at most, its own and those of the heaps below it; 0: none */
  hakmem_heap *parent; /* its limit holds for this heap too; NULL: none */
  unsigned flags;      /* HAKMEM_HEAP_… */
} hakmem_heap_options;

/* A new heap; NULL options: no name, no limit. It costs 1 KiB until it is used. NULL with errno EINVAL: `size` is not
 * that of any version, an unknown flag, a name above 63 bytes; ENOMEM: no memory, or half a million heaps. */
hakmem_heap *hakmem_heap_new(const hakmem_heap_options *options) HAKMEM_NOEXCEPT HAKMEM_HEAP_RESULT;

/* As malloc, calloc, aligned_alloc (alignment a power of two, else EINVAL) and realloc, in the heap. Where the limit,
 * or that of a heap above it, would be passed, they return NULL with ENOMEM. realloc with a NULL p is malloc in `heap`;
 * else the block is resized in the heap that it is in, and `heap` says nothing. A block counts twice while realloc
 * copies it. One of up to 32 MiB (in the hardened library, of any size) also counts twice while it grows in place:
 * whether there is room behind it differs from run to run, and what a limit refuses must not. A larger one grows by the
 * kernel, and counts once. hakmem_expand copies nothing, and counts what is added. */
void *hakmem_heap_malloc(hakmem_heap *heap, size_t size) HAKMEM_NOEXCEPT HAKMEM_HEAP_RESULT;
void *hakmem_heap_calloc(hakmem_heap *heap, size_t count, size_t size) HAKMEM_NOEXCEPT HAKMEM_HEAP_RESULT;
void *hakmem_heap_aligned_alloc(hakmem_heap *heap, size_t alignment, size_t size) HAKMEM_NOEXCEPT HAKMEM_HEAP_RESULT;
void *hakmem_heap_realloc(hakmem_heap *heap, void *p, size_t size) HAKMEM_NOEXCEPT HAKMEM_HEAP_RESULT;

/* Frees every block of the heap, and of the heaps below it, and the heaps; takes time for their memory in units of 64
 * KiB, whatever the number of blocks. Threads that have one as their default allocate in the main heap from then on.
 * NULL does nothing. A heap that is none, or was destroyed before, is reported, and the program aborted. */
void hakmem_heap_destroy(hakmem_heap *heap) HAKMEM_NOEXCEPT;
/* Frees every block of the heap at once, and destroys the heaps below it; the heap stays, for another round of work:
 * with its name, id, parent, limit, callback and flags, as the default of threads that have it as theirs, and with all
 * its counts at 0. Takes as much time as destroy. Nobody uses the heap meanwhile, as of destroy. NULL does nothing;
 * misuse is found as by destroy. */
void hakmem_heap_reset(hakmem_heap *heap) HAKMEM_NOEXCEPT;
/* Ends the heap, and those below it, without their blocks: these live on as blocks of the main heap, and count no more
 * to any limit. */
void hakmem_heap_delete(hakmem_heap *heap) HAKMEM_NOEXCEPT;

/* The heap that the block at p is in; NULL: the main heap, or no block of ours. Any address of the block will do. */
hakmem_heap *hakmem_heap_of(const void *p) HAKMEM_NOEXCEPT;
/* "" where it has none. The text is the heap's. */
const char *hakmem_heap_name(const hakmem_heap *heap) HAKMEM_NOEXCEPT;
hakmem_heap *hakmem_heap_parent(const hakmem_heap *heap) HAKMEM_NOEXCEPT;

/* Limits are exact where the system has membarrier (Linux 4.14): else what other threads have cached counts to them.
 * But where a limit has refused a thousand requests within 10 ms, it leaves out, for the rest of these, what other
 * threads freed meanwhile: up to 4 KiB each, or half the room that there was. What is live never passes a limit.
 * Another limit; 0: none. One below what is live refuses every request until enough is freed. */
void hakmem_heap_set_limit(hakmem_heap *heap, size_t limit) HAKMEM_NOEXCEPT;
/* Has `callback` called when a request takes what counts to the limit to `percent` of it or more: in the thread of that
 * request, with no lock held, before the request is served; again only after it has fallen below by a sixteenth of the
 * limit. The callback may allocate, in this heap too, and free; it must not destroy, delete or reset the heap, the one
 * that the request is for, or one above these: where that one is gone, this is reported, and the program aborted. NULL:
 * none. EINVAL: percent is not 1 to 100. */
int hakmem_heap_set_callback(hakmem_heap *heap, unsigned percent,
                             void (*callback)(hakmem_heap *heap, size_t live, void *context),
                             void *context) HAKMEM_NOEXCEPT;

/* What plain malloc and its kin, operator new included, take from in the calling thread; NULL: the main heap, as at the
 * thread's start. Returns the one before. So that a library that one cannot change allocates inside: hakmem_heap
 * *before = hakmem_heap_set_default(heap); …; hakmem_heap_set_default(before). Blocks of the main heap that realloc
 * resizes stay there. Fails, with errno ENOMEM, where there is no memory for it: the default is as before. */
hakmem_heap *hakmem_heap_set_default(hakmem_heap *heap) HAKMEM_NOEXCEPT;
hakmem_heap *hakmem_heap_get_default(void) HAKMEM_NOEXCEPT;

/* Fields are only ever added at the end. */
typedef struct hakmem_heap_stats {
  uint64_t id;       /* of this process's heaps, never used again */
  size_t live;       /* bytes in blocks that the program has */
  /* Most bytes live, as of when a thread took memory of the heap. Exact where blocks are not cached; else off by what
   * that thread takes from its cache until the next such moment, or has put there, and by what others have cached: of
   * each size up to 64 KiB, or two blocks. A block that realloc grows counts here as it does for a limit. Never below
   * what was shown as live, nor above a limit that held all the time. */
  size_t peak;
  size_t blocks;     /* that the program has */
  size_t held;       /* bytes of memory taken for blocks: live ones, free ones, and the rest of their pages and spans */
  size_t limit;      /* 0: none */
  size_t total;      /* live bytes, its own and those of the heaps below it */
  uint64_t refused;  /* requests that its own limit has refused, of the heaps below it too */
  uint64_t requests; /* served; a block that grows by pages is one, copied or not */
} hakmem_heap_stats;

/* Fills in `size` bytes of *stats at most: sizeof *stats of the program. Exact while no other thread allocates or frees
 * in the heap. */
void hakmem_heap_get_stats(hakmem_heap *heap, hakmem_heap_stats *stats, size_t size) HAKMEM_NOEXCEPT;

/* Calls visit for each block with its usable size until it returns false; returns how many it was called for. Meanwhile
 * nobody allocates or frees in the heap, visit included. No lock is held: visit may be left by a jump, an exception or
 * the thread's cancellation. */
size_t hakmem_heap_visit(hakmem_heap *heap, bool (*visit)(void *block, size_t size, void *context), void *context);
/* Calls visit for each heap until it returns false, oldest first; returns how many it was called for, or the number of
 * heaps where visit is NULL. Heaps may come and go meanwhile, and visit may end any, this one too. Nobody waits for
 * visit. Where another thread ends the heap that it has, hakmem_heap_name, hakmem_heap_parent (NULL then) and
 * hakmem_heap_get_stats (no memory then) go on answering until visit returns; other uses are misuse, as always. No lock
 * is held: visit may be left as hakmem_heap_visit's. */
size_t hakmem_heap_list(bool (*visit)(hakmem_heap *heap, void *context), void *context);

#undef HAKMEM_HEAP_RESULT

#ifdef __cplusplus
}
#endif
#endif
