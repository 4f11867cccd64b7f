/* Life of heaps: start of the allocator, making, parking, adopting, fork. Owns the registry and its lock. */
#include "heap/heap.h"

#include <pthread.h>
#include <string.h>

#include "base/schedule.h"
#include "config/config.h"
#include "heap/remote.h"
#include "large/huge.h"
#include "large/run.h"
#include "os/os.h"
#include "pool/budget.h"
#include "pool/release.h"
#include "pool/span_pool.h"

void *const hak_null_magazine[HAK_MAGAZINE_SLOTS] HAK_ALIGNED(HAK_MAGAZINE_BYTES);

HAK_TLS hak_front hak_tls_front = {
    .key = HAK_KEY_NONE,
    .phase = HAK_FRONT_FRESH,
    .top = {[0 ... HAK_FRONT_CLASSES - 1] = HAK_NULL_TOP},
};

hak_heap hak_emergency_heap = {.id = HAK_EMERGENCY_ID, .shared = true, .state = HAK_HEAP_PARKED};
hak_lock hak_registry_lock;

/* id -> heap in two levels of 1,024; entries are written once under the registry lock (release), read anywhere. */
#define LEAF_BITS 10
#define LEAF_SIZE (1u << LEAF_BITS)
static hak_heap *first_leaf[LEAF_SIZE] = {[HAK_EMERGENCY_ID] = &hak_emergency_heap};
static hak_heap **leaves[HAK_MAX_HEAPS >> LEAF_BITS] = {first_leaf}; /* there before the start: fork locks every heap */
static uint32_t id_limit = HAK_EMERGENCY_ID + 1;
/* registry lock: heaps without owner, the warm ones first, the latest of each kind first */
static hak_heap *parked;
static unsigned listed_count, warm_count; /* read without the lock to see whether there are any */

#define WARM_MAX 8
#define WARM_IDLE_MS 1000

/* A thread is young for so many slow paths: it has no heap, which with the slabs that go with it would be 20 KB at least,
 * and threads of a large pool may never need one. Allocating and freeing through a shared heap costs some 100 ns each. */
#define YOUNG_CALLS 256
#define YOUNG_TICK_MASK 63
/* Where threads end young, the next ones would be better off with a heap that one leaves to the other. So each that ends so
 * has one made: by a thread that begins and finds none parked. No more than so many at a time. */
#define HEIRS_MAX WARM_MAX
static uint32_t heirs;
static char young_mark; /* its address, as the value of the key, stands for a thread that is young */

/* The emergency heap, and others for when it is busy. Each is written once, under the registry lock, before the count. */
#define SHARED_MAX 8
static hak_heap *shared_heaps[SHARED_MAX] = {&hak_emergency_heap};
static unsigned shared_count = 1;

/* Thread ends are seen by a pthread key; its destructor asks to be called again until this round, so that other
 * keys' destructors, which may allocate and free, come first. */
#define PARK_IN_ROUND 3 /* of PTHREAD_DESTRUCTOR_ITERATIONS, 4 */
static pthread_key_t end_key;
static bool end_key_made; /* release after the key */

enum { COLD, READY };
static uint32_t start_state;
static hak_lock start_lock;

bool hak_heap_started(void) { return hak_load_acquire(&start_state) == READY; }

hak_heap *hak_heap_by_id(uint32_t id) {
  hak_heap **leaf = hak_load_acquire(&leaves[id >> LEAF_BITS]);
  return hak_load_acquire(&leaf[id & (LEAF_SIZE - 1)]);
}

uint32_t hak_heap_id_limit(void) { return hak_load_acquire(&id_limit); }

/* There is nothing to give back. */
static void end_young(void) {
  if (hak_tls_front.heap != NULL) return;
  hak_tls_front.phase = HAK_FRONT_ENDED;
  if (hak_load_relaxed(&heirs) < HEIRS_MAX) hak_add_relaxed(&heirs, 1);
}

static void on_thread_end(void *memory) {
  hak_heap *h = memory;
  if (memory == &young_mark) {
    end_young();
    return;
  }
  if (hak_tls_front.heap != h) return;
  if (++h->ending_rounds < PARK_IN_ROUND && pthread_setspecific(end_key, h) == 0) return;
  hak_heap_park_current();
}

/* libc's list of destructors of C++ thread_local objects, which is for everybody; NULL: not in this libc. */
extern int __cxa_thread_atexit_impl(void (*function)(void *), void *argument, void *library) __attribute__((weak));
extern void *__dso_handle;

static void on_thread_end_without_key(void *memory) {
  if (hak_tls_front.heap == memory) hak_heap_park_current();
}

/* glibc takes a block of 32 bytes for it and aborts where there is none: one is made sure of first. */
static void watch_end_without_key(hak_heap *h) {
  unsigned class_code = hak_class_for(4 * sizeof(void *));
  void *p = __cxa_thread_atexit_impl == NULL ? NULL : hak_heap_alloc(h, class_code);
  if (p == NULL) return;
  hak_heap_free_own(h, p, class_code);
  __cxa_thread_atexit_impl(on_thread_end_without_key, h, &__dso_handle);
}

/* A huge page of which a small program uses a corner would be much of its memory. */
#define THP_AUTO_SMALL_BYTES (16 * HAK_MIB)

static size_t huge_pages_from(void) {
  if (hak_config.thp == HAK_THP_OFF) return SIZE_MAX;
  return hak_config.thp == HAK_THP_ON ? 0 : THP_AUTO_SMALL_BYTES / HAK_SPAN_SIZE;
}

/* Zeroed, for every class. */
static void *make_counts(size_t bytes_a_class) {
  return hak_cell_take_block((unsigned)((HAK_FRONT_CLASSES * bytes_a_class + HAK_CELL_SIZE - 1) / HAK_CELL_SIZE));
}

static bool start_locked(void) {
  hak_config_load_environment();
  hak_size_class_init((unsigned)hak_config.tiny_max_class);
  if (!hak_region_init((size_t)hak_config.reserve_mb * HAK_MIB)) return false;
  hak_span_pool.huge_from_spans = huge_pages_from();
  hak_release_start();
  hak_store_relaxed(&hak_requests_noted, hak_config.stats != HAK_STATS_OFF || hak_config.stats_page != 0);
  hak_heap_init_bins(&hak_emergency_heap);
  if (hak_load_relaxed(&hak_requests_noted)) hak_emergency_heap.requests = make_counts(sizeof(hak_request_counts));
  return true;
}

/* Under no lock: a program may interpose pthread_key_create, and allocate there. The heap that serves it, and other threads
 * that come by meanwhile, are watched without the key. */
static void make_end_key(void) {
  static uint32_t asked;
  if (__atomic_exchange_n(&asked, 1, __ATOMIC_RELAXED) != 0) return;
  if (pthread_key_create(&end_key, on_thread_end) == 0) hak_store_release(&end_key_made, true);
}

bool hak_heap_start(void) {
  if (HAK_LIKELY(hak_heap_started())) return true;
  hak_heap_at_start();
  make_end_key();
  hak_lock_take(&start_lock);
  if (start_state != READY) hak_store_release(&start_state, start_locked() ? READY : COLD);
  hak_lock_drop(&start_lock);
  return hak_heap_started();
}

static void list_heap(hak_heap **link, hak_heap *h, uint32_t state) {
  h->next_parked = *link;
  *link = h;
  h->listed = true;
  hak_store_relaxed(&listed_count, listed_count + 1);
  if (state == HAK_HEAP_WARM) hak_store_relaxed(&warm_count, warm_count + 1);
  /* Sequentially consistent, before the look at the inbox that follows; see send() in remote.c. */
  hak_store_seq(&h->state, state);
}

static hak_heap *unlist_heap(hak_heap **link) {
  hak_heap *h = *link;
  *link = h->next_parked;
  h->listed = false;
  hak_store_relaxed(&listed_count, listed_count - 1);
  if (hak_load_relaxed(&h->state) == HAK_HEAP_WARM) hak_store_relaxed(&warm_count, warm_count - 1);
  return h;
}

/* The link to the warm heap that has been so longest; only while there is one. */
static hak_heap **oldest_warm(void) {
  hak_heap **link = &parked;
  for (unsigned i = 1; i < warm_count; i++) link = &(*link)->next_parked;
  return link;
}

/* Behind the warm ones. */
static void list_parked(hak_heap *h) {
  list_heap(warm_count == 0 ? &parked : &(*oldest_warm())->next_parked, h, HAK_HEAP_PARKED);
}

static hak_heap *adopt(void) {
  hak_lock_take(&hak_registry_lock);
  hak_heap *h = NULL;
  if (parked != NULL) {
    h = unlist_heap(&parked);
    hak_store_seq(&h->state, HAK_HEAP_ACTIVE);
  }
  hak_lock_drop(&hak_registry_lock);
  return h;
}

/* Makes a warm heap that its caller has taken off the list a parked one. Nobody else touches its owner's fields. */
static void make_cold(hak_heap *h) {
  hak_heap_trim(h);
  hak_cell_give(h->cells);
  h->cells = NULL;
  hak_store_relaxed(&h->front, NULL);
  hak_lock_take(&hak_registry_lock);
  list_parked(h);
  hak_lock_drop(&hak_registry_lock);
}

bool hak_heap_has_warm(void) {
  hak_lock_take(&hak_registry_lock);
  bool any = warm_count > 0;
  hak_lock_drop(&hak_registry_lock);
  return any;
}

void hak_heap_trim_warm(bool idle_only, uint64_t now_ms) {
  hak_heap *h;
  do {
    h = NULL;
    if (hak_load_relaxed(&warm_count) == 0) return;
    hak_lock_take(&hak_registry_lock);
    if (warm_count > 0 && (!idle_only || now_ms >= (*oldest_warm())->parked_ms + WARM_IDLE_MS))
      h = unlist_heap(oldest_warm());
    hak_lock_drop(&hak_registry_lock);
    if (h != NULL) make_cold(h);
  } while (h != NULL);
}

/* Heaps looked at each time. */
#define HELPED_MAX 16
/* An owner that has not been in its slow path for so long is asleep, as far as memory is concerned. */
#define ASLEEP_MS 500

static void help_heap(hak_heap *h, uint64_t now_ms) {
  if (h == hak_tls_front.heap || now_ms < hak_load_relaxed(&h->last_tick_ms) + ASLEEP_MS) return;
  if (hak_remote_pending(h)) hak_remote_drain(h);
  hak_heap_trim_slabs(h); /* empty ones that it keeps to carve */
  hak_remote_look_again(h);
  hak_heap_give_holes(h, now_ms);
}

/* Another heap at each call, one after the other; two threads may get the same one. */
static hak_heap *next_heap(void) {
  static uint32_t next;
  return hak_heap_by_id(HAK_EMERGENCY_ID + hak_add_relaxed(&next, 1) % (hak_heap_id_limit() - HAK_EMERGENCY_ID));
}

static uint32_t helped_at_once(void) {
  return (uint32_t)hak_min_size(hak_heap_id_limit() - HAK_EMERGENCY_ID, HELPED_MAX);
}

void hak_heap_drain_others(void) {
  for (uint32_t n = helped_at_once(); n > 0; n--) {
    hak_heap *h = next_heap();
    if (h != hak_tls_front.heap && hak_remote_pending(h)) hak_remote_drain(h);
  }
}

void hak_heap_help(uint64_t now_ms) {
  for (uint32_t n = helped_at_once(); n > 0; n--) help_heap(next_heap(), now_ms);
  bool over = hak_budget_level() >= HAK_BUDGET_OVER;
  hak_heap_trim_warm(!over, now_ms);
  hak_huge_release_idle(over ? UINT64_MAX : now_ms);
}

static hak_heap *make_locked(bool shared) {
  if (id_limit == HAK_MAX_HEAPS) return NULL;
  hak_heap **leaf = leaves[id_limit >> LEAF_BITS];
  if (leaf == NULL) {
    leaf = hak_cell_take_block(LEAF_SIZE * sizeof *leaf / HAK_CELL_SIZE);
    if (leaf == NULL) return NULL;
    hak_store_release(&leaves[id_limit >> LEAF_BITS], leaf);
  }
  hak_heap *h = hak_cell_take_block((sizeof *h + HAK_CELL_SIZE - 1) / HAK_CELL_SIZE);
  if (h == NULL) return NULL;
  h->id = id_limit;
  h->shared = shared;
  h->state = shared ? HAK_HEAP_PARKED : HAK_HEAP_ACTIVE;
  hak_heap_init_bins(h);
  if (hak_config.front_metrics) h->counts = make_counts(sizeof *h->counts);
  if (hak_load_relaxed(&hak_requests_noted)) h->requests = make_counts(sizeof *h->requests);
  hak_store_release(&leaf[id_limit & (LEAF_SIZE - 1)], h);
  hak_store_release(&id_limit, id_limit + 1);
  return h;
}

static hak_heap *make(void) {
  hak_lock_take(&hak_registry_lock);
  hak_heap *h = make_locked(false);
  hak_lock_drop(&hak_registry_lock);
  return h;
}

/* One more shared heap, if there are still `count`. Its slow lock is taken, or NULL. */
static hak_heap *add_shared(unsigned count) {
  hak_heap *h = NULL;
  hak_lock_take(&hak_registry_lock);
  if (shared_count == count && (h = make_locked(true)) != NULL) {
    hak_lock_take(&h->lock);
    shared_heaps[count] = h;
    hak_store_release(&shared_count, count + 1);
  }
  hak_lock_drop(&hak_registry_lock);
  return h;
}

hak_heap *hak_heap_lock_shared(void) {
  unsigned count = hak_load_acquire(&shared_count); /* pairs with add_shared */
  for (unsigned i = 0; i < count; i++) {
    if (hak_lock_try(&shared_heaps[i]->lock)) return shared_heaps[i];
  }
  hak_heap *h = count < SHARED_MAX ? add_shared(count) : NULL;
  if (h != NULL) return h;
  h = shared_heaps[((uintptr_t)&hak_tls_front >> 12) % count]; /* different stacks */
  hak_lock_take(&h->lock);
  return h;
}

HAK_COLD uint64_t hak_heap_seed(hak_heap *h) {
  hak_os_random(&h->random, sizeof h->random);
  h->random |= h->random == 0;
  return h->random;
}

static void clear_front(hak_front *front) {
  front->key = HAK_KEY_NONE;
  for (unsigned c = 0; c < HAK_FRONT_CLASSES; c++) front->top[c] = HAK_NULL_TOP;
}

static void attach(hak_heap *h, hak_front *front) {
  bool bypass_fast_path = h->counts != NULL || hak_config.hot_ring_enable == 0 || hak_config.guard_sample != 0;
  bool warm = h->front != NULL; /* then it is the shadow */
  h->ending_rounds = 0;
  h->last_slow_ms = hak_os_now_ms();
  hak_store_relaxed(&h->front, bypass_fast_path ? &h->shadow : front);
  if (!warm)
    clear_front(h->front);
  else if (!bypass_fast_path)
    memcpy(front->top, h->shadow.top, sizeof front->top);
  front->heap = h;
  front->phase = HAK_FRONT_LIVE;
  if (!bypass_fast_path) front->key = HAK_TAG(h->id, 0);
}

hak_heap *hak_heap_make_current(void) {
  hak_front *front = &hak_tls_front;
  if (front->heap != NULL) return front->heap;
  if (front->phase == HAK_FRONT_ENDED || !hak_heap_start()) return NULL;
  HAK_SCHEDULE_POINT("adopt: before");
  hak_heap *h = adopt();
  HAK_SCHEDULE_POINT("adopt: taken, not attached");
  if (h == NULL) h = make();
  if (h == NULL) return NULL;
  attach(h, front);
  /* Published first: glibc may allocate inside, and then finds the heap in place. */
  if (!hak_load_acquire(&end_key_made) || pthread_setspecific(end_key, h) != 0) watch_end_without_key(h);
  return h;
}

static bool is_heir(void) {
  uint32_t left = hak_load_relaxed(&heirs);
  while (left > 0) {
    if (hak_cas_acquire(&heirs, &left, left - 1)) return true;
  }
  return false;
}

/* At a thread's first call. The process's first heap is made at once: most programs have one thread. */
static bool begins_young(void) {
  bool counted = hak_config.front_metrics || hak_config.hot_ring_enable == 0 || hak_config.guard_sample != 0;
  if (HAK_HARDENED || counted || hak_heap_id_limit() == HAK_EMERGENCY_ID + 1) return false;
  if (hak_load_relaxed(&listed_count) != 0 || is_heir()) return false;
  return hak_load_acquire(&end_key_made) && pthread_setspecific(end_key, &young_mark) == 0;
}

static bool is_young(hak_front *front) {
  if (front->calls == YOUNG_CALLS) return false;
  /* Counted first: glibc may allocate inside, and then finds a thread that has begun. */
  if (++front->calls == 1 && !begins_young()) {
    front->calls = YOUNG_CALLS;
    return false;
  }
  if ((front->calls & YOUNG_TICK_MASK) == 0) {
    uint64_t now = hak_os_now_ms();
    hak_release_tick(now);
    hak_heap_at_tick(now);
  }
  return true;
}

hak_heap *hak_heap_grow_up(void) {
  hak_front *front = &hak_tls_front;
  if (front->phase == HAK_FRONT_ENDED || !hak_heap_start()) return NULL;
  return is_young(front) ? NULL : hak_heap_make_current();
}

void hak_heap_park_current(void) {
  hak_front *front = &hak_tls_front;
  hak_heap *h = front->heap, *surplus = NULL;
  if (h == NULL) return;
  hak_heap_before_park();
  hak_heap_slim(h);
  if (h->front == front) memcpy(h->shadow.top, front->top, sizeof front->top);
  hak_store_relaxed(&h->front, &h->shadow);
  clear_front(front);
  front->heap = NULL;
  front->phase = HAK_FRONT_ENDED;
  uint64_t now = hak_os_now_ms();
  HAK_SCHEDULE_POINT("park: flushed, still active");
  hak_lock_take(&hak_registry_lock);
  h->parked_ms = now;
  list_heap(&parked, h, HAK_HEAP_WARM);
  if (warm_count > WARM_MAX) surplus = unlist_heap(oldest_warm());
  hak_lock_drop(&hak_registry_lock);
  HAK_SCHEDULE_POINT("park: parked, inbox not read");
  hak_remote_drain(h);
  if (surplus != NULL) make_cold(surplus);
  hak_release_wake_helper();
}

void hak_heap_fork_lock(void) {
  hak_lock_take(&start_lock);
  hak_lock_take(&hak_registry_lock);
  for (uint32_t id = HAK_EMERGENCY_ID; id < id_limit; id++) hak_lock_take(&hak_heap_by_id(id)->lock);
  hak_heap_holes_fork_lock();
}

bool hak_heap_all_locks(bool (*is)(hak_lock *lock)) {
  bool all = is(&start_lock) && is(&hak_registry_lock);
  for (uint32_t id = HAK_EMERGENCY_ID; all && id < id_limit; id++) all = is(&hak_heap_by_id(id)->lock);
  return all;
}

void hak_heap_fork_unlock(void) {
  hak_heap_holes_fork_unlock();
  for (uint32_t id = HAK_EMERGENCY_ID; id < id_limit; id++) hak_lock_drop(&hak_heap_by_id(id)->lock);
  hak_lock_drop(&hak_registry_lock);
  hak_lock_drop(&start_lock);
}

/* What a thread that is not in the child had cached is lost there: its front may have been in the middle of a push. */
static void orphan(hak_heap *h) {
  h->front = NULL;
  h->cells = NULL;
  h->homecoming = NULL;
  h->quarantine = NULL;
  h->recording = false;
  memset(h->open, 0, sizeof h->open);
  h->returned_bytes = 0;
  hak_heap_init_bins(h);
  list_parked(h);
}

void hak_heap_fork_child(void) {
  hak_heap_holes_fork_child();
  hak_heap *own = hak_tls_front.heap;
  for (uint32_t id = HAK_EMERGENCY_ID; id < id_limit; id++) {
    hak_heap *h = hak_heap_by_id(id);
    /* What is on the list is whole: the registry lock was held. */
    if (h != own && !h->shared && !h->listed) orphan(h);
  }
}
