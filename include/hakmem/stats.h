/* hakmem: figures of the allocator. docs/figures.md explains each one, and the sums that hold.
 *
 * A snapshot looks at every span once, while other threads go on: no figure is negative, and the sums hold exactly in
 * each snapshot. Any thread may take one at any time, but not in a signal handler: it takes the allocator's locks one
 * after the other. Sizes are in bytes. */
#ifndef HAKMEM_STATS_H
#define HAKMEM_STATS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
#define HAKMEM_STATS_NOEXCEPT noexcept
extern "C" {
#else
#define HAKMEM_STATS_NOEXCEPT
#endif

#define HAKMEM_STATS_VERSION 4

/* Fields are only ever added at the end, with a new version. (Version 2 renamed fields of the first.) */
typedef struct hakmem_stats {
  uint32_t version; /* of the library's structure */
  uint32_t size;    /* bytes that were filled in */
  uint64_t time_ms; /* CLOCK_MONOTONIC */

  uint64_t accessible; /* spans + huge_live + huge_heaps + huge_kept + sampled_accessible + own */
  uint64_t live;       /* slab_live + extents + huge_live + sampled_live + heaps_live */

  /* spans = slabs + extents + extents_cached + span_heaps + free_dirty + free_clean + claimed + guards */
  uint64_t spans;
  uint64_t slabs;
  uint64_t extents;        /* live ones: blocks of 256 KiB to 32 MiB, of calloc from 32 KiB on */
  uint64_t extents_cached; /* freed, and not yet back in the pool */
  uint64_t free_dirty;     /* free, and may hold memory */
  uint64_t free_clean;     /* free, and reads as zero */
  uint64_t claimed;        /* being purged at this moment */
  uint64_t guards;         /* hardened build: inaccessible */

  /* slabs = slab_handed_out + slab_free + slab_never_allocated + slab_rest
     slab_handed_out = slab_live + slab_cached + slab_depots */
  uint64_t slab_handed_out;
  uint64_t slab_live;            /* the program's */
  uint64_t slab_cached;          /* in thread caches, as each thread said at its last slow path */
  uint64_t slab_depots;          /* in the arenas' depots, for the next thread that refills its cache */
  uint64_t slab_free;            /* free blocks of partly used slabs */
  uint64_t slab_never_allocated; /* blocks never allocated since the slab was made */
  uint64_t slab_rest;            /* too little for a block: before the first one and behind the last */

  uint64_t extent_count;     /* live ones */
  uint64_t extent_requested; /* of `extents`, what was asked for; 0 unless requests_noted */

  uint64_t huge_live, huge_count; /* of the main heap */
  uint64_t huge_kept, huge_kept_count; /* freed mappings, kept for the next huge block */

  uint64_t sampled_live, sampled_count; /* blocks of HAKMEM_GUARD_SAMPLE */
  uint64_t sampled_accessible;

  /* own = own_metadata + own_tables + own_other */
  uint64_t own;
  uint64_t own_metadata; /* arenas, thread caches, magazines */
  uint64_t own_tables;   /* page map, span metadata, bitmaps */
  uint64_t own_other;    /* table of huge blocks, of sampled guards */

  uint64_t arenas;
  uint64_t caches_used, caches_unused; /* thread caches; unused ones wait for the next thread */
  uint64_t regions, reserved;          /* reserved: address space */

  /* since the start */
  uint64_t span_allocs, span_frees; /* slabs and extents taken from, and returned to, the span pool */
  uint64_t huge_allocs, huge_failures;
  uint64_t slow_paths; /* refills and overflows; wraps at 2^32 for each thread cache */
  uint64_t purges, purged; /* ranges purged, and their bytes */
  uint64_t madvise, madvise_failures, mmap, munmap, mprotect, mremap; /* system calls */
  uint64_t foreign_frees, foreign_reallocs, foreign_usable_sizes;     /* calls with pointers that are not ours */

  uint64_t requests_noted; /* 1: sizes that are asked for are noted (HAKMEM_STATS or HAKMEM_STATS_PAGE) */
  /* Estimated: of slab_live, what was asked for, and what rounding up to block sizes adds. Both leave out classes
     without a noted request. */
  uint64_t estimated_requested, estimated_rounding;

  uint64_t slab_purged; /* of slab_free: pages purged inside slabs, as far as their slab has not been used since */
  /* HAKMEM_RSS_TARGET and HAKMEM_LIMIT, docs/tuning.md */
  uint64_t budget_target, budget_limit, budget_used, budget_resident, budget_level, budget_refused;

  /* Since version 3. Peaks are since the start of the process, or the fork that made it. There is none of `live`:
     counting it would cost each malloc and free. */
  uint64_t used_peak;               /* the most that budget_used has been: held by the allocator, in use or not */
  uint64_t resident, resident_peak; /* the whole process's, by the kernel; 0: it does not say */

  /* Since version 4: heaps (hakmem/heap.h). All other figures of blocks are the main heap's alone.
     heaps_held = span_heaps + huge_heaps = heaps_live + heaps_free. heaps_live is no more than that, and else as of a
     moment of its own. */
  uint64_t span_heaps; /* of `spans`: those that heaps have */
  uint64_t huge_heaps; /* mappings that heaps have */
  uint64_t heaps;      /* how many there are; those that were deleted while they had blocks are in the sums alone */
  uint64_t heaps_held, heaps_live;
  uint64_t heaps_free;    /* free blocks, and those in thread caches; the rest of their pages and spans */
  uint64_t heaps_blocks;  /* that the program has */
  uint64_t heaps_refused; /* requests, by limits of heaps that there are */
} hakmem_stats;

/* One size class. slab_bytes = handed_out + free + never_allocated + rest; handed_out = live + cached + depots. */
typedef struct hakmem_class_stats {
  uint32_t block_size;
  uint32_t aligned; /* 1: power-of-two blocks for alignments above 64 */
  uint64_t slabs, slab_bytes;
  uint64_t handed_out, live, cached, depots;
  uint64_t free, never_allocated, rest;
  uint64_t requests, requested; /* those that took the slow path, a sample of all, and the sum of their sizes */
  uint64_t hits, misses, refills, flushes; /* 0 unless HAKMEM_TINY_FRONT_METRICS=1 */
} hakmem_class_stats;

/* Fills the first `size` bytes of *out, sizeof *out as the caller knows it; what this library does not know is 0.
 * Returns 0, or EINVAL when out is NULL or size is smaller than version 2's structure. */
int hakmem_stats_get(hakmem_stats *out, size_t size) HAKMEM_STATS_NOEXCEPT;

/* Fills up to `count` rows in order of the class code, and returns how many classes there are. */
size_t hakmem_stats_classes(hakmem_class_stats *out, size_t count) HAKMEM_STATS_NOEXCEPT;

/* Writes a snapshot to the file descriptor, as text or as JSON, without allocating. Returns 0, or the errno value of a
 * write that failed. */
int hakmem_stats_print(int fd, int json) HAKMEM_STATS_NOEXCEPT;

#ifdef __cplusplus
}
#endif
#endif
