/* hakmem: C interface.
 *
 * Linking or preloading the library replaces the malloc family; the functions below are the same family under names
 * of its own, plus what malloc lacks. All functions may be called by any thread at any time, before constructors and
 * after main included. Sizes are in bytes. Where the library replaces malloc, blocks of either family may be freed by
 * either (HAKMEM_MIXED_FAMILIES, below); built with HAKMEM_OVERRIDE=OFF it does not.
 *
 * Compilers are told what the functions return (size, which function frees it). What _FORTIFY_SOURCE and
 * __builtin_object_size then know of a block is the size that was asked for: a program that writes up to the usable
 * size gets its blocks from hakmem_alloc_at_least, whose size compilers are not told. Nor are they told the alignment:
 * after the free of an address inside a block, which may go unnoticed for a while, malloc can return that address.
 *
 * Failure is NULL with errno ENOMEM unless noted; requests above PTRDIFF_MAX always fail so. Memory is aligned to 16
 * unless noted. free and its kin keep errno.
 */
#ifndef HAKMEM_H
#define HAKMEM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#ifdef __GLIBC__
#include <malloc.h> /* struct mallinfo; from glibc 2.33 on struct mallinfo2 */
#endif

#define HAKMEM_VERSION_MAJOR 0
#define HAKMEM_VERSION_MINOR 1
#define HAKMEM_VERSION_PATCH 0
#define HAKMEM_VERSION_STRING "0.1.0"

#ifdef __cplusplus
#define HAKMEM_NOEXCEPT noexcept
extern "C" {
#else
#define HAKMEM_NOEXCEPT
#endif

#ifdef __GNUC__
#define HAKMEM_ATTRIBUTE(...) __attribute__((__VA_ARGS__))
#else
#define HAKMEM_ATTRIBUTE(...)
#endif
/* What may free a block: gcc warns where something else does (-Wmismatched-dealloc, on by default). That includes
 * malloc with hakmem_free and hakmem_malloc with free, which are right only where the library replaces the malloc
 * family: a program that relies on this defines HAKMEM_MIXED_FAMILIES. Clang has no such attribute. */
#if defined(__GNUC__) && !defined(__clang__) && __GNUC__ >= 11 && !defined(HAKMEM_MIXED_FAMILIES)
#define HAKMEM_FREED_BY(function) __attribute__((__malloc__(function, 1)))
#else
#define HAKMEM_FREED_BY(function)
#endif
#define HAKMEM_FREED_BY_ANY \
  HAKMEM_FREED_BY(hakmem_free) HAKMEM_FREED_BY(hakmem_free_sized) HAKMEM_FREED_BY(hakmem_free_aligned_sized) \
  HAKMEM_FREED_BY(hakmem_realloc) HAKMEM_FREED_BY(hakmem_reallocarray)
/* A block that nothing else points to. */
#define HAKMEM_FRESH HAKMEM_ATTRIBUTE(__malloc__) HAKMEM_FREED_BY_ANY

/* Frees p; NULL does nothing; a pointer that is not ours is left alone and counted. C11 7.22.3.3. */
void hakmem_free(void *p) HAKMEM_NOEXCEPT;
/* free with the size that was asked for (C23 7.24.3.4). A size that no block at p can have been asked for is reported
 * and the program aborted. */
void hakmem_free_sized(void *p, size_t size) HAKMEM_NOEXCEPT;
/* free with alignment and size (C23 7.24.3.5); size checked as above. */
void hakmem_free_aligned_sized(void *p, size_t alignment, size_t size) HAKMEM_NOEXCEPT;
/* Resizes p, in place where possible, else by moving min(old, new) bytes; on failure p stays as it is. p NULL is
 * malloc(size). Size 0 frees p and returns NULL (glibc manual, "Changing the Size of a Block"). A pointer that is not
 * ours gives NULL with EINVAL and is left alone. C11 7.22.3.5. */
void *hakmem_realloc(void *p, size_t size) HAKMEM_NOEXCEPT
    HAKMEM_ATTRIBUTE(__alloc_size__(2), __warn_unused_result__);
/* realloc(p, count * size) with the product checked. glibc manual, OpenBSD. */
void *hakmem_reallocarray(void *p, size_t count, size_t size) HAKMEM_NOEXCEPT
    HAKMEM_ATTRIBUTE(__alloc_size__(2, 3), __warn_unused_result__);
/* Grows the block at p where it is, so that `size` bytes may be used, and returns p; where it has as many already,
 * nothing happens, and it never shrinks. NULL with ENOMEM where there is no room behind it, or a limit, that of its
 * heap included, is in the way; then, and with contents in any case, it is as it was. Blocks up to 256 KiB are of fixed
 * sizes (hakmem_good_size) and rarely grow; larger ones do while what lies behind is free. NULL, and a pointer that is
 * not ours, give NULL with EINVAL; other misuse is found as by realloc. As jemalloc's xallocx, but for shrinking. */
void *hakmem_expand(void *p, size_t size) HAKMEM_NOEXCEPT HAKMEM_ATTRIBUTE(__warn_unused_result__);
/* Once more: each frees what both return. */
void *hakmem_realloc(void *p, size_t size) HAKMEM_NOEXCEPT HAKMEM_FREED_BY_ANY;
void *hakmem_reallocarray(void *p, size_t count, size_t size) HAKMEM_NOEXCEPT HAKMEM_FREED_BY_ANY;

/* Allocates `size` bytes, uninitialised; size 0 gives a unique pointer that can be freed. C11 7.22.3.4. */
void *hakmem_malloc(size_t size) HAKMEM_NOEXCEPT HAKMEM_FRESH HAKMEM_ATTRIBUTE(__alloc_size__(1));
/* Allocates count * size bytes of zeros; overflow of the product fails. C11 7.22.3.2. */
void *hakmem_calloc(size_t count, size_t size) HAKMEM_NOEXCEPT HAKMEM_FRESH HAKMEM_ATTRIBUTE(__alloc_size__(1, 2));

/* Alignment a power of two, any size (glibc 2.36); other alignments fail with EINVAL. C11 7.22.3.1. */
void *hakmem_aligned_alloc(size_t alignment, size_t size) HAKMEM_NOEXCEPT HAKMEM_FRESH
    HAKMEM_ATTRIBUTE(__alloc_size__(2));
/* The same with count * size bytes of zeros; overflow of the product fails with ENOMEM. */
void *hakmem_aligned_calloc(size_t alignment, size_t count, size_t size) HAKMEM_NOEXCEPT HAKMEM_FRESH
    HAKMEM_ATTRIBUTE(__alloc_size__(2, 3));
/* realloc to an address with that alignment: where the block's own has it and there is room, in place; else min(old,
 * new) bytes move, the pages of a block above 32 MiB without a copy up to an alignment of a page. The block may have
 * had any alignment. Alignments and failures as of aligned_alloc and realloc: p stays as it is. p NULL is
 * aligned_alloc; size 0 frees p and returns NULL. */
void *hakmem_aligned_realloc(void *p, size_t alignment, size_t size) HAKMEM_NOEXCEPT
    HAKMEM_ATTRIBUTE(__alloc_size__(3), __warn_unused_result__);
void *hakmem_aligned_realloc(void *p, size_t alignment, size_t size) HAKMEM_NOEXCEPT HAKMEM_FREED_BY_ANY;
/* Alignment a power of two and a multiple of sizeof(void *). Returns 0, EINVAL or ENOMEM; errno and, on failure, *out
 * are left alone. POSIX.1-2017. */
int hakmem_posix_memalign(void **out, size_t alignment, size_t size) HAKMEM_NOEXCEPT
    HAKMEM_ATTRIBUTE(__nonnull__(1), __warn_unused_result__);
/* As glibc: an alignment that is no power of two is rounded up to one. */
void *hakmem_memalign(size_t alignment, size_t size) HAKMEM_NOEXCEPT HAKMEM_FRESH HAKMEM_ATTRIBUTE(__alloc_size__(2));
/* Page-aligned; pvalloc also rounds the size up to whole pages. glibc manual. */
void *hakmem_valloc(size_t size) HAKMEM_NOEXCEPT HAKMEM_FRESH HAKMEM_ATTRIBUTE(__alloc_size__(1));
void *hakmem_pvalloc(size_t size) HAKMEM_NOEXCEPT HAKMEM_FRESH;

/* Bytes that may be used at p, at least what was asked for; 0 for NULL and for pointers that are not ours. */
size_t hakmem_malloc_usable_size(void *p) HAKMEM_NOEXCEPT;
/* The usable size that requests of `size` bytes get, at the least; 0 if they fail. It holds for every block that
 * malloc, calloc, realloc or a heap gives. The first blocks of a thread may have more, so that none shares a cache line
 * with another thread's, and so may mappings that are used again. It is `size` where blocks are sampled
 * (HAKMEM_GUARD_SAMPLE), as those end behind it. */
size_t hakmem_good_size(size_t size) HAKMEM_NOEXCEPT;
/* malloc that also stores the usable size in *actual (0 on failure); modelled on C++23 allocate_at_least. */
void *hakmem_alloc_at_least(size_t size, size_t *actual) HAKMEM_NOEXCEPT HAKMEM_FRESH;
/* Whether p came from this allocator and not from another: true for every address from the first to the last usable
 * byte of each block that the program has, false for NULL and for memory that was never the allocator's. It does not
 * tell whether a block is in use. After a free it may be either: true for as long as the memory is kept for blocks (a
 * small block's neighbours are in use, or its memory is cached), and false once it is free for anything. The same holds
 * of what lies between and beside blocks. So the answer is of use for a pointer that is not freed yet. Never reads the
 * memory at p. */
bool hakmem_is_ours(const void *p) HAKMEM_NOEXCEPT;

/* Returns cached blocks of the calling thread and all free memory beyond `pad` bytes to the system; 1 if memory was
 * given back, else 0. glibc manual. */
int hakmem_malloc_trim(size_t pad) HAKMEM_NOEXCEPT;
/* The same with no pad, and returns the bytes that were given back. What other threads have cached goes too,
 * but for a block of each class (Linux 4.14 or later). */
size_t hakmem_purge(void) HAKMEM_NOEXCEPT;
/* Makes `bytes` of free memory ready for blocks up to 32 MiB, before a server's start: accessible, so that no system
 * call makes it so later. HAKMEM_RESERVE_POPULATE: its pages are resident, so that nothing faults (Linux 5.14; else
 * each is written to); and they stay, however long nothing asks for them, until as much more is in use, or
 * hakmem_purge, hakmem_malloc_trim, or a target that comes near gives them back. HAKMEM_RESERVE_HUGE: of huge pages,
 * where the kernel and HAKMEM_THP grant them. What is free already counts. A later call takes the place of an earlier
 * one; 0 bytes: nothing is kept any more. Returns 0; EINVAL: an unknown flag; ENOMEM: the machine, its cgroup,
 * HAKMEM_LIMIT or the addresses that the system grants do not suffice, and nothing more is kept than before. Not for
 * signal handlers. */
#define HAKMEM_RESERVE_POPULATE 1u
#define HAKMEM_RESERVE_HUGE 2u
int hakmem_reserve(size_t bytes, unsigned flags) HAKMEM_NOEXCEPT;
/* Puts all blocks that the calling thread caches back into their slabs: other threads find them there, and their pages
 * go back to the system in time (HAKMEM_DECAY_MS) as other free memory. For a thread of a pool, or an event loop, that
 * is about to wait for long. Takes time for each cached block, of which there may be thousands, and a lock for each
 * batch of them; the thread's next allocations take blocks from slabs again. With nothing cached it looks at each size
 * class and takes no lock. Like any slow path it may purge what is due. The quarantine of the hardened build stays. Not
 * for signal handlers. */
void hakmem_thread_idle(void) HAKMEM_NOEXCEPT;
/* From forbid(true) on, until forbid(false), what the calling thread allocates or frees is reported to stderr with its
 * stack, or ends the program after that (HAKMEM_FORBID=abort): for code that must not wait, such as audio, control
 * loops and trading. Calls are served as ever meanwhile, more slowly; a realloc that leaves the block where it is is
 * reported above 256 KiB alone. Returns what held before, so that scopes nest: bool before = hakmem_forbid(true); …;
 * hakmem_forbid(before). Nothing is forbidden where there is no memory for the scope, at the thread's first. At most
 * 1,000 calls of a process are reported. Costs other threads, and this one outside of it, nothing; both calls take some
 * 100 ns. Not for signal handlers. */
bool hakmem_forbid(bool forbidden) HAKMEM_NOEXCEPT;
/* Bytes that the calling thread has asked for since it began, whatever became of the blocks: the difference of two
 * calls is what lies between. Exact but for this: each request counts as its size and 15 bytes (the hardened library: 8
 * to 15 more), and realloc counts with the whole new size where it moves a block or resizes one above 256 KiB, else
 * not. What a signal handler asks for may be missed where it interrupts the allocator. Costs the allocation nothing. In
 * a child of fork the thread goes on counting. */
uint64_t hakmem_thread_allocated(void) HAKMEM_NOEXCEPT;
/* M_TRIM_THRESHOLD with -1, for glibc never to give memory back, sets HAKMEM_DECAY_MS to its highest value, unless the
 * environment or hakmem_conf sets that option. All else changes nothing: arenas are the CPUs' (M_ARENA_MAX), blocks
 * have mappings of their own above 32 MiB (M_MMAP_THRESHOLD). Returns 1 for a parameter of <malloc.h>, 0 for any other.
 * glibc manual. */
int hakmem_mallopt(int param, int value) HAKMEM_NOEXCEPT;
#ifdef __GLIBC__
/* Totals in glibc's forms. hblks and hblkhd are the huge blocks, which no other field contains: uordblks + hblkhd is
 * what is handed out (thread caches included). arena = uordblks + fordblks; ordblks is the number of free blocks,
 * keepcost the part of fordblks outside of slabs. Memory whose pages went back to the system is in none. Each field of
 * mallinfo is INT_MAX where it would be larger. glibc manual. */
#if __GLIBC_PREREQ(2, 33)
struct mallinfo2 hakmem_mallinfo2(void) HAKMEM_NOEXCEPT;
#endif
struct mallinfo hakmem_mallinfo(void) HAKMEM_NOEXCEPT;
#endif
/* Writes totals as XML; options must be 0 (else EINVAL is returned). Returns 0, or -1 when writing failed. glibc
 * malloc_info(3). */
int hakmem_malloc_info(int options, FILE *stream) HAKMEM_NOEXCEPT;
/* Prints all figures to stderr, as hakmem_stats_print of <hakmem/stats.h> does as text. */
void hakmem_malloc_stats(void) HAKMEM_NOEXCEPT;

/* Settings that a program brings along; the program may define it, the library does not: const char *hakmem_conf =
 * "thp=off,decay_ms=5000"; Names as in docs/options.md, in lower case and without HAKMEM_. Read once, before the first
 * block, so the initial value has to be whole. The environment is above it: an option that has a variable is the
 * variable's. Programs with elevated rights read it too. In a program that is not linked to the library (LD_PRELOAD) it
 * is seen if exported (-rdynamic). */
extern const char *hakmem_conf HAKMEM_ATTRIBUTE(visibility("default"));

/* Reads or sets an option of docs/options.md by its environment name, which may go without HAKMEM_ as for the command's
 * --set: "HAKMEM_DECAY_MS" or "DECAY_MS". Sizes are in bytes; -80 is 80%, -101 auto; of words, as those of
 * HAKMEM_PROFILE, the number of the word in docs/options.md, from 0; of rates, N of 1/N. Returns 0; EINVAL: no such
 * option, a text (HAKMEM_HEAP_PROFILE_PREFIX) or a value out of range; EBUSY: the option is read at start only and the
 * allocator has started. */
int hakmem_option_get(const char *name, int64_t *value) HAKMEM_NOEXCEPT;
int hakmem_option_set(const char *name, int64_t value) HAKMEM_NOEXCEPT;

/* Where an option's value is from. */
enum {
  HAKMEM_ORIGIN_DEFAULT,
  HAKMEM_ORIGIN_IMPLIED, /* by another option, such as HAKMEM_PROFILE */
  HAKMEM_ORIGIN_ENVIRONMENT,
  HAKMEM_ORIGIN_API, /* hakmem_option_set */
  HAKMEM_ORIGIN_PROGRAM /* hakmem_conf */
};

/* Fields are only ever added at the end. Strings are the library's; those of the values are valid during the call
 * alone. */
typedef struct hakmem_option {
  const char *name;    /* with HAKMEM_ */
  const char *value;   /* now, as the variable is written: "lean", "80%", "512M", "1/1000" */
  const char *initial; /* the default, so written */
  const char *meaning;
  int64_t number; /* as hakmem_option_get gives it; 0 of a text */
  int origin;     /* HAKMEM_ORIGIN_… */
  bool live;      /* hakmem_option_set may change it at any time */
  bool text;      /* hakmem_option_get and _set do not know it */
} hakmem_option;

/* Calls visit for each option until it returns false, and returns the number of options that it was called for; all
 * there are where visit is NULL. Holds no lock meanwhile: visit may allocate; it must not throw. */
size_t hakmem_option_list(bool (*visit)(const hakmem_option *option, void *context), void *context) HAKMEM_NOEXCEPT;

/* Switches the heap profile (HAKMEM_HEAP_PROFILE) on, with one sample in rate_bytes (0: what HAKMEM_HEAP_PROFILE_RATE
 * says), and off. Switched on, it begins anew: blocks that are older are unknown to it, and each output says since when
 * it knows. While it is on, a start changes the rate alone. A thread that has not been sampled takes part from its next
 * slow path on, at the latest when it has asked for 1 MiB more, or for 1,024 blocks of a size; the calling thread, from
 * its next request on. Switched off, samples that are freed are still noted, and what is written is as of the switch
 * otherwise. reset forgets all samples, on or off, and begins anew. Return 0; EINVAL: a rate above 2^40; ENOMEM;
 * ENOTSUP: nothing to switch off or reset, as the profile has never been on. Not for signal handlers. The first start
 * makes a thread, which writes the files that HAKMEM_HEAP_PROFILE_SECONDS and its kin ask for, and answers `hakmem
 * profile PID`. */
int hakmem_profile_start(size_t rate_bytes) HAKMEM_NOEXCEPT;
int hakmem_profile_stop(void) HAKMEM_NOEXCEPT;
int hakmem_profile_reset(void) HAKMEM_NOEXCEPT;

/* Labels what the calling thread allocates from here on, in heap profiles: a request, a tenant, a query. Each sample is
 * its label's from its allocation to its free, whoever frees it. A thread begins with 0, none; 2^64 - 1 counts as none
 * too. Two stores, at any time, in signal handlers too. pprof shows the number under "label" (as a signed one) and its
 * text under "label_name"; `hakmem profile --by label` sums by it. */
void hakmem_label_set(uint64_t label) HAKMEM_NOEXCEPT;
uint64_t hakmem_label_get(void) HAKMEM_NOEXCEPT;
/* Names a label, in place of an earlier name; the text is copied. Returns 0; EINVAL: label 0 or 2^64 - 1, no text, or
 * one above 255 bytes; ENOMEM: no memory, or above 16 MiB of names. Not for signal handlers. */
int hakmem_label_name(uint64_t label, const char *text) HAKMEM_NOEXCEPT;

/* Writes the heap profile (HAKMEM_HEAP_PROFILE) as of now to a file of mode 0600, which has its name only when it is
 * whole; a regular file of that name is replaced. Links are followed that belong to root or to the effective user. A
 * pipe and a device are written to. Returns 0; EINVAL: no path or kind; ENOTSUP: the profile has never been on; ENXIO:
 * nobody has opened the pipe to read; EACCES: another user's link, or pipe in a folder that anybody may write to; or
 * why the file cannot be written. Sampled allocations of other threads wait meanwhile. */
typedef enum hakmem_profile_format {
  HAKMEM_PROFILE_PPROF,    /* text that pprof reads */
  HAKMEM_PROFILE_JEMALLOC, /* heap_v2, for jeprof */
  HAKMEM_PROFILE_JSON,     /* all there is, for `hakmem profile` */
  HAKMEM_PROFILE_PROTO     /* pprof's profile.proto, uncompressed, with mappings, build identifiers and addresses */
} hakmem_profile_format;
int hakmem_profile_dump(const char *path, int kind) HAKMEM_NOEXCEPT;

/* What hakmem_profile_write writes, one or more of it: for each stack blocks and bytes that are live, were live at the
 * peak, were allocated in all; blocks freed by how long they had lived; free bytes that cannot be given back because of
 * a live block. */
enum {
  HAKMEM_PROFILE_LIVE = 1,
  HAKMEM_PROFILE_PEAK = 2,
  HAKMEM_PROFILE_TOTAL = 4,
  HAKMEM_PROFILE_LIFETIMES = 8,
  HAKMEM_PROFILE_PINNED = 16,
  HAKMEM_PROFILE_ALL = 31
};
/* Gives the heap profile as of now to write(context, data, bytes), in one or more calls, each with other data: for a
 * program's own HTTP port. PROTO has what is asked for, the lowest first; PPROF and JEMALLOC have what is live (or at
 * the peak, where live is not asked for) and the total; JSON has all. Allocates nothing and takes no lock of libc's;
 * `write` is called with no lock held, may allocate, returns 0 or what shall be returned here, and must not throw.
 * Returns 0; EINVAL; ENOTSUP: the profile has never been on; ENOMEM. Sampled allocations of other threads wait while
 * the profile is rendered. Not for signal handlers. */
int hakmem_profile_write(int what, hakmem_profile_format format,
                         int (*write)(void *context, const void *data, size_t bytes), void *context) HAKMEM_NOEXCEPT;

/* Registers what is called, with the bytes that are resident and the target in bytes, when the process stays above
 * HAKMEM_RSS_TARGET (unless it is set, 95 % of the control group's limit) although all free memory has been given back:
 * at most once in 250 ms, never by two threads at a time, from inside some thread's allocation but with no lock of the
 * allocator held. It may allocate and free; it must not take a lock that is held where the program allocates (setting a
 * flag or writing to an eventfd is safe), and must return. NULL unregisters; a call that has begun in another thread
 * may still end after that. */
void hakmem_set_pressure_callback(void (*callback)(size_t resident, size_t target, void *context),
                                  void *context) HAKMEM_NOEXCEPT;

/* Walks all slabs, extents, lists and bitmaps; prints each fault to stderr and returns their number. Exact while no
 * other thread allocates or frees; extents are read without a lock, and one that is being freed meanwhile can be
 * reported. Takes the allocator's locks: not for signal handlers. For debuggers, hak_heap_check() is the same under an
 * internal name. */
size_t hakmem_heap_check(void) HAKMEM_NOEXCEPT;

/* Spans and large blocks handed out so far; not zero once the allocator has served a request. */
uint64_t hakmem_served(void) HAKMEM_NOEXCEPT;

/* "0.1.0" */
const char *hakmem_version(void) HAKMEM_NOEXCEPT HAKMEM_ATTRIBUTE(__returns_nonnull__);

#undef HAKMEM_ATTRIBUTE
#undef HAKMEM_FREED_BY
#undef HAKMEM_FREED_BY_ANY
#undef HAKMEM_FRESH

#ifdef __cplusplus
}
#endif
#endif
