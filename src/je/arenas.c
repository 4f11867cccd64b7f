/* Arenas are heaps: those below opt.narenas are the main heap, all others were made by arenas.create. An index stays an
 * arena's until it is destroyed; then the lowest free one is given to the next. Locks: hak_je_lock for writes; a
 * mallocx reads an arena's heap without (acquire). */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>

#include "entry/heaps.h"
#include "je/je.h"
#include "life/thread.h"

hak_lock hak_je_lock;
static hak_je_arena arenas[HAK_JE_ARENAS]; /* the first ones are the main heap */
static unsigned main_count = 1;  /* of those; written at the start */
static unsigned arena_count = 1; /* relaxed: the highest index that was used, and 1 */
ssize_t hak_je_dirty_ms, hak_je_muzzy_ms;
static HAK_TLS unsigned own_index;
static pthread_key_t thread_key;
static bool has_key;

uint64_t hak_je_uptime_ns(const hak_je_arena *a) {
  return (hak_os_now_ms() - (a == NULL ? arenas : a)->made_ms) * 1000000;
}

unsigned hak_je_arena_count(void) { return hak_load_relaxed(&arena_count); }

hak_je_arena *hak_je_arena_at(size_t index) {
  return index < HAK_JE_ARENAS && hak_load_acquire(&arenas[index].made) ? &arenas[index] : NULL;
}

bool hak_je_arena_is_main(size_t index) { return index < main_count; }

static void begin(unsigned index, const char *kind) {
  hak_je_arena *a = &arenas[index];
  *a = (hak_je_arena){.dirty_ms = hak_je_dirty_ms,
                      .muzzy_ms = hak_je_muzzy_ms,
                      .made_ms = hak_os_now_ms(),
                      .grow_limit = arenas[0].grow_limit,
                      .oversize = arenas[0].oversize,
                      .dss = arenas[0].dss};
  snprintf(a->name, sizeof a->name, "%s_%u", kind, index);
}

static int make_locked(unsigned index, hak_je_arena *a) {
  begin(index, "manual");
  hakmem_heap_options options = {.size = sizeof options, .name = a->name};
  hakmem_heap *heap = hakmem_heap_new(&options);
  if (heap == NULL) return EAGAIN;
  heap->is_arena = true;
  hak_store_release(&a->heap, heap);
  hak_store_release(&a->made, true);
  if (index >= arena_count) hak_store_relaxed(&arena_count, index + 1);
  return 0;
}

int hak_je_arena_make(unsigned *index) {
  int error = EAGAIN;
  hak_lock_take(&hak_je_lock);
  for (unsigned i = main_count; i < HAK_JE_ARENAS; i++) {
    if (arenas[i].made) continue;
    error = make_locked(i, &arenas[i]);
    *index = i;
    break;
  }
  hak_lock_drop(&hak_je_lock);
  return error;
}

/* Of those that arenas.create made. */
static hak_je_arena *made_locked(size_t index) {
  hak_je_arena *a = hak_je_arena_is_main(index) ? NULL : hak_je_arena_at(index);
  return a != NULL && a->heap == hak_oversize_heap ? NULL : a;
}

int hak_je_arena_reset(size_t index) {
  hak_lock_take(&hak_je_lock);
  hak_je_arena *a = made_locked(index);
  hakmem_heap *heap = a == NULL ? NULL : a->heap;
  int saved = errno;
  hak_deferred d = {0};
  /* Under the lock, as the end: no snapshot looks into it meanwhile */
  size_t mappings = heap == NULL ? 0 : hak_heap_empty(heap, true, &d);
  hak_lock_drop(&hak_je_lock);
  hak_heap_finish(mappings, &d);
  errno = saved;
  return heap == NULL ? EFAULT : 0;
}

int hak_je_arena_destroy(size_t index) {
  hak_lock_take(&hak_je_lock);
  hak_je_arena *a = made_locked(index);
  bool can = a != NULL && hak_load_relaxed(&a->threads) == 0;
  int saved = errno;
  hak_deferred d = {0};
  size_t mappings = 0;
  if (can) {
    hak_je_figures_end_locked(index);
    hakmem_heap *heap = a->heap;
    hak_store_release(&a->heap, NULL);
    hak_store_release(&a->made, false);
    mappings = hak_heap_empty(heap, false, &d);
  }
  hak_lock_drop(&hak_je_lock);
  hak_heap_finish(mappings, &d); /* for which functions of the program may be called: with no lock that a fork takes */
  errno = saved;
  return can ? 0 : EFAULT;
}

/* --- threads --- */

static void leave(void) {
  if (own_index != 0) hak_sub_relaxed(&arenas[own_index].threads, 1);
  own_index = 0;
}

/* Destructors of the program's that run later allocate as a thread does that chose no arena: this one counts no more,
 * and may end. */
static void leave_at_end(void *set) {
  (void)set;
  bool has_default = own_index != 0 && hak_tls.in_heap;
  leave();
  if (has_default) hak_heap_set_default(hak_tls.cache, NULL);
}

unsigned hak_je_thread_arena(void) { return own_index; }

int hak_je_set_thread_arena(unsigned index) {
  if (index == own_index) return 0;
  hak_lock_take(&hak_je_lock);
  hak_je_arena *a = hak_je_arena_at(index);
  int saved = errno, error = a == NULL ? EFAULT : 0;
  if (error == 0) {
    errno = 0;
    hakmem_heap_set_default(a->heap);
    error = errno == ENOMEM ? EAGAIN : 0;
  }
  if (error == 0) {
    leave();
    own_index = index;
    if (index != 0) hak_add_relaxed(&a->threads, 1);
  }
  hak_lock_drop(&hak_je_lock);
  if (error == 0 && has_key) pthread_setspecific(thread_key, arenas);
  errno = saved;
  return error;
}

bool hak_je_arena_of(const void *p, unsigned *index) {
  hakmem_heap *heap = hakmem_heap_of(p);
  *index = 0;
  if (heap == NULL) return hakmem_is_ours(p);
  for (unsigned i = main_count; i < hak_je_arena_count(); i++) {
    hak_je_arena *a = hak_je_arena_at(i);
    if (a != NULL && hak_load_acquire(&a->heap) == heap) return *index = i, true;
  }
  return true; /* a heap of hakmem_heap_new: with the main one */
}

/* --- decay: one for all memory, for free memory is nobody's --- */

int hak_je_set_decay(size_t index, bool dirty, ssize_t ms) {
  if (ms < -1) return EFAULT;
  hak_je_arena *a = hak_je_arena_at(index);
  if (a == NULL) return EFAULT;
  hak_lock_take(&hak_je_lock);
  if (dirty)
    a->dirty_ms = ms;
  else
    a->muzzy_ms = ms;
  hak_lock_drop(&hak_je_lock);
  if (dirty && index == 0) hak_je_set_decay_option(ms);
  if (dirty && ms >= 0) hakmem_purge();
  return 0;
}

/* --- start, and fork --- */

static void fork_lock(void) { hak_lock_take(&hak_je_lock); }
static void fork_unlock(void) { hak_lock_drop(&hak_je_lock); }
/* Of threads there is one. */
static void fork_child(void) {
  for (unsigned i = 1; i < arena_count; i++) hak_store_relaxed(&arenas[i].threads, own_index == i);
  hak_lock_drop(&hak_je_lock);
}

/* opt.oversize_threshold: an arena that cannot be reset or end. */
static void make_oversize(size_t least) {
  unsigned index;
  if (least <= HAK_SMALL_MAX || least > PTRDIFF_MAX || !hak_start() || hak_je_arena_make(&index) != 0) return;
  hak_oversize_heap = arenas[index].heap;
  hak_oversize_heap->is_arena = false; /* what is resized stays */
  hak_oversize = least;
}

void hak_je_arenas_start(void) {
  arenas[0] = (hak_je_arena){.grow_limit = hak_je_lextent_size(HAK_JE_LEXTENTS - 1),
                             .oversize = hak_je_conf.oversize_threshold,
                             .dss = hak_je_conf.dss};
  main_count = arena_count = (unsigned)hak_min_size(hak_je_conf.narenas, HAK_JE_ARENAS);
  for (unsigned i = 0; i < main_count; i++) {
    begin(i, "auto");
    arenas[i].made = true;
  }
  has_key = pthread_key_create(&thread_key, leave_at_end) == 0;
  hak_fork_register(); /* before: so fork takes this box's lock first */
  pthread_atfork(fork_lock, fork_unlock, fork_child);
  make_oversize(hak_je_conf.oversize_threshold);
}
