/* The je box: jemalloc's interface (<jemalloc/jemalloc.h> of 5.3, and its manual) over the core. Of libhakmem-je.so
 * alone.
 *
 * An arena is a heap: 0, and those up to opt.narenas, are the main heap, which all threads share that chose none;
 * arenas.create makes others (arenas.c). mallctl's names are the rows of one table (ctl.def). What statistics say is as
 * of the last write of "epoch" (figures.c).
 *
 * One lock, hak_je_lock, before all of the core's: arenas' table, the snapshot, what was set. Allocation takes none of
 * this box's locks. */
#ifndef HAK_JE_JE_H
#define HAK_JE_JE_H

#include <stdio.h> /* ssize_t */

#include "hakmem/heap.h"
#include "entry/entry.h"

#define HAK_JE_PAGE ((size_t)4096)
/* The most: MALLOCX_ARENA has 12 bits, of which 0 says none. The next two stand for others */
#define HAK_JE_ARENAS 4095
#define HAK_JE_ALL 4096        /* MALLCTL_ARENAS_ALL */
#define HAK_JE_DESTROYED 4097  /* MALLCTL_ARENAS_DESTROYED */
#define HAK_JE_NAME 32

extern hak_lock hak_je_lock;

/* --- conf.c: jemalloc's settings as this process has them, what mallctl shows as opt.*; written once, at the start
 * --- */

#define HAK_JE_TYPES(TYPE) \
  TYPE(BOOL, bool) \
  TYPE(UNSIGNED, unsigned) TYPE(SIZE, size_t) TYPE(SSIZE, ssize_t) TYPE(U64, uint64_t) TYPE(I64, int64_t) \
      TYPE(STRING, const char *) TYPE(POINTER, void *)
#define HAK_JE_TYPEDEF(name, type) typedef type hak_je_##name;
HAK_JE_TYPES(HAK_JE_TYPEDEF)

struct hak_je_conf {
#define CONF(kind, name, initial) hak_je_##kind name;
#include "je/conf.def"
};
extern struct hak_je_conf hak_je_conf;

/* Reads malloc_conf, /etc/malloc.conf, MALLOC_CONF and malloc_conf_2_conf_harder, the later ones above the earlier, and
 * sets hakmem's options by them. Called once, before the core reads its own settings, which are above these. */
void hak_je_conf_read(char **variables);
/* What one of these has, 1 to 4; NULL: nothing. */
const char *hak_je_conf_source(unsigned source);
/* The core has: what opt.* shows is what holds. */
void hak_je_conf_settle(void);
/* In jemalloc's form, for malloc_message. */
void hak_je_say(const char *format, ...) HAK_PRINTF(1, 2);
extern void (*malloc_message)(void *context, const char *text);
/* hakmem's option of that name, without HAKMEM_; and two set, as far as they go. */
int64_t hak_je_option(const char *name);
void hak_je_set_decay_option(ssize_t ms);
void hak_je_set_rate_option(size_t lg);
size_t hak_je_prof_lg_sample(void); /* 0: there is no profile */

/* --- ctl_prof.c --- */

/* Writes the file of opt.prof_final; false: there is to be none. */
bool hak_je_prof_final(void);

/* --- mallocx.c: flags --- */

void *mallocx(size_t size, int flags);

#define HAK_JE_ALIGN(flags) ((size_t)1 << ((flags) & 63))
#define HAK_JE_ZERO 0x40
#define HAK_JE_TCACHE(flags) (((unsigned)(flags) >> 8 & 0xfff)) /* 0: the thread's, 1: none, else an identifier and 2 */
#define HAK_JE_ARENA(flags) ((unsigned)(flags) >> 20) /* 0: the thread's, else the index and 1 */

/* --- tcaches.c: by identifier --- */

#define HAK_JE_TCACHES 4094 /* a flag has room for no more */
/* hak_je_lock is held, as of the last one. HAK_JE_TCACHES: there are all of them, or no memory. */
unsigned hak_je_tcache_make(void);
/* NULL, false: it has none, or no room, or the block is of no small class. */
void *hak_je_tcache_pop(unsigned id, size_t size, size_t align);
bool hak_je_tcache_push(unsigned id, void *p);
/* False: there is no such. */
bool hak_je_tcache_flush(unsigned id, bool ends);

/* --- arenas.c --- */

typedef struct hak_je_arena {
  hakmem_heap *heap; /* release; NULL: the main heap, or it is destroyed */
  bool made;         /* by arenas.create, or at the start */
  uint32_t threads;  /* that set it by thread.arena; relaxed */
  ssize_t dirty_ms, muzzy_ms;
  size_t grow_limit, oversize;
  const char *dss;
  uint64_t made_ms;
  char name[HAK_JE_NAME];
} hak_je_arena;

unsigned hak_je_arena_count(void);
/* The arena, if it is there; NULL: not made, or destroyed. */
hak_je_arena *hak_je_arena_at(size_t index);
/* Whether it is the main heap; such ones stay. */
bool hak_je_arena_is_main(size_t index);
/* Errno values. */
int hak_je_arena_make(unsigned *index);
int hak_je_arena_reset(size_t index);
int hak_je_arena_destroy(size_t index);
/* Of the calling thread. */
unsigned hak_je_thread_arena(void);
int hak_je_set_thread_arena(unsigned index);
/* The index of a block's arena; false: no block of ours. */
bool hak_je_arena_of(const void *p, unsigned *index);
/* Default for arenas made from now on, and of the main heap. */
extern ssize_t hak_je_dirty_ms, hak_je_muzzy_ms;
int hak_je_set_decay(size_t index, bool dirty, ssize_t ms);
uint64_t hak_je_uptime_ns(const hak_je_arena *arena); /* NULL: of the main heap */
void hak_je_arenas_start(void);

/* --- figures.c --- */

/* What jemalloc calls small ends below four pages: programs have its constants. Larger classes are the first large ones
 * here, in slabs or not. */
#define HAK_JE_SMALL_MAX ((size_t)14336)
#define HAK_JE_BINS 48      /* ordinary classes up to that */
/* The other ordinary ones, those of whole spans; then four to a doubling, up to PTRDIFF_MAX */
#define HAK_JE_LEXTENTS 192
/* Sizes of a class: bins', large ones'. */
size_t hak_je_bin_size(size_t bin);
uint32_t hak_je_bin_regions(size_t bin);
size_t hak_je_bin_slab(size_t bin);
size_t hak_je_lextent_size(size_t large);

typedef struct hak_je_count {
  uint64_t nmalloc, ndalloc; /* what was seen to come and go from one epoch to the next: no more than there was */
  uint64_t current, grown, shrunk; /* the last two: epochs at which there were more, or fewer */
} hak_je_count;
typedef struct hak_je_bin {
  hak_je_count regions, slabs;
  size_t nonfull;
} hak_je_bin;
typedef struct hak_je_figures {
  size_t small, large; /* bytes allocated */
  size_t active, dirty, mapped, retained, base, resident, cached; /* bytes */
  uint64_t purges, advices, purged; /* sweeps, calls, pages */
  hak_je_bin bins[HAK_JE_BINS];
  hak_je_count lextents[HAK_JE_LEXTENTS];
} hak_je_figures;

extern uint64_t hak_je_epoch;
extern uint64_t hak_je_flushes; /* relaxed: of whole thread caches, by mallctl */
/* Bytes of all arenas, without a snapshot. */
size_t hak_je_active_now(void);
/* hak_je_lock is held, as of the next two. Takes a new snapshot. */
void hak_je_refresh_locked(void);
/* Of the last one: of an arena, HAK_JE_ALL or HAK_JE_DESTROYED; all 0 where it has none. */
const hak_je_figures *hak_je_figures_locked(size_t index);
/* The arena is about to end: adds what it has had to the destroyed ones. The snapshot stays, as of its epoch. */
void hak_je_figures_end_locked(size_t index);
/* Whether there are some: an arena's, all, or the destroyed ones'. */
bool hak_je_has_figures(size_t index);
unsigned hak_je_threads_of(size_t index);
hak_je_count hak_je_sum_bins(const hak_je_figures *f);
hak_je_count hak_je_sum_lextents(const hak_je_figures *f);

#endif
