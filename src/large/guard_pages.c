#include "large/guard_pages.h"

#include "region/size_class.h"

static size_t mapped_bytes(size_t bytes) { return bytes + 2 * HAK_SPAN_SIZE; }

bool hak_guard_pages_reach(const void *p, size_t bytes, const void *address) {
  return (uintptr_t)address - ((uintptr_t)p - HAK_SPAN_SIZE) < mapped_bytes(bytes);
}

bool hak_guard_pages_unmap(void *p, size_t bytes) {
  return hak_os_unmap((char *)p - HAK_SPAN_SIZE, mapped_bytes(bytes));
}

/* In a zone of a terabyte blocks follow each other from an address on that was drawn at random, each with as much room
 * behind it as it takes: there it may grow. Only hints: two threads may use one, and the kernel puts the second block
 * elsewhere. */
#define ZONE_BYTES ((size_t)1 << 40)
static uintptr_t zone; /* relaxed; 0: none yet */
static size_t zone_used = ZONE_BYTES;

static uintptr_t place_for(size_t all, size_t align, size_t room) {
  size_t step = hak_align_up(all + room, hak_max_size(align, HAK_SPAN_SIZE));
  if (step > ZONE_BYTES) return 0;
  size_t used = hak_load_relaxed(&zone_used);
  if (used > ZONE_BYTES - step) {
    hak_store_relaxed(&zone, hak_os_random_place(HAK_HUGE_PAGE, ZONE_BYTES));
    used = 0;
  }
  hak_store_relaxed(&zone_used, used + step);
  uintptr_t start = hak_load_relaxed(&zone);
  return start == 0 ? 0 : hak_align_up(start + used, align);
}

/* Where the place is taken there is no room to grow in: the zone overlaps the program's mappings, or a region. */
static char *map_in_zone(size_t all, size_t align) {
  uintptr_t place = place_for(all, align, all);
  char *p = hak_os_map_near(place, all, align, HAK_OS_SEALED);
  if (p == NULL || (uintptr_t)p == place || place == 0) return p;
  hak_store_relaxed(&zone_used, ZONE_BYTES);
  hak_os_unmap_own(p, all);
  return hak_os_map_near(place_for(all, align, all), all, align, HAK_OS_SEALED);
}

/* `inner` of `all` bytes accessible, from `offset` on. */
static void *map_part(size_t all, size_t align, size_t offset, size_t inner) {
  char *sealed = map_in_zone(all, align);
  if (sealed == NULL || hak_os_commit(sealed + offset, inner)) return sealed;
  hak_os_unmap_own(sealed, all);
  return NULL;
}

/* Relaxed: some guards are marked pages, as no mappings were left for them. */
static bool some_marked;

static void mark(char *start, size_t before, size_t bytes) {
  bool done = hak_os_mark_guard(start + before - HAK_SPAN_SIZE, HAK_SPAN_SIZE);
  if (done && !hak_os_mark_guard(start + before + bytes, HAK_SPAN_SIZE))
    hak_os_unmark_guard(start + before - HAK_SPAN_SIZE, HAK_SPAN_SIZE);
  if (done) hak_store_relaxed(&some_marked, true);
}

/* The last mapping that the process may have is a large one, from which blocks are cut, with marked pages for guards:
 * of small ones there would be no second. What was cut is not cut again. Dumps leave it out, as gcore would write all
 * of it. Where memory is locked as it comes there is none. It is reserved at the start, away from other mappings, since
 * the program may take all that it may have: it becomes accessible as a whole, and so stays one. */
#define LAST_BYTES (64 * HAK_GIB)
static uintptr_t reserved, last; /* relaxed, all three; 0: none */
static size_t last_used;

void hak_guard_pages_start(void) {
  if (hak_os_is_limited(HAK_OS_ADDRESS_SPACE)) return; /* the program needs the addresses itself */
  reserved = (uintptr_t)hak_os_map_near(hak_os_random_place(HAK_HUGE_PAGE, LAST_BYTES), LAST_BYTES, HAK_SPAN_SIZE,
                                        HAK_OS_RESERVED);
}

size_t hak_guard_pages_give_back_reserved(void) {
  void *kept = (void *)hak_exchange_acquire(&reserved, 0);
  return kept != NULL && hak_os_unmap_own(kept, LAST_BYTES) ? LAST_BYTES : 0;
}

/* What is locked would become resident as a whole. After mlockall(MCL_CURRENT) what was reserved is locked, and what is
 * reserved in its place is not. */
static bool is_locked(char *start) { return hak_os_is_locked(start, hak_os_page_size()); }

static bool store_if_none(uintptr_t *word, const void *start) {
  uintptr_t none = 0;
  return __atomic_compare_exchange_n(word, &none, (uintptr_t)start, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
}

static void make_last(void) {
  if (hak_load_relaxed(&last) != 0) return;
  char *fresh = (char *)hak_exchange_acquire(&reserved, 0);
  bool again = fresh == NULL || (is_locked(fresh) && hak_os_unmap_own(fresh, LAST_BYTES));
  if (again) fresh = hak_os_reserve(LAST_BYTES, HAK_SPAN_SIZE);
  if (fresh == NULL) return;
  bool locked = is_locked(fresh), done = !locked && hak_os_commit(fresh, LAST_BYTES) && store_if_none(&last, fresh);
  if (done)
    hak_os_leave_out_of_dumps(fresh, LAST_BYTES);
  else if (locked || hak_load_relaxed(&last) != 0 || !store_if_none(&reserved, fresh)) /* the system may agree later */
    hak_os_unmap_own(fresh, LAST_BYTES);
}

static char *cut_from_last(size_t all, size_t align) {
  uintptr_t base = hak_load_relaxed(&last), start;
  size_t used = hak_load_relaxed(&last_used);
  if (base == 0 || all > LAST_BYTES || align > LAST_BYTES) return NULL;
  do {
    start = hak_align_up(base + used, align);
    if (start - base > LAST_BYTES - all) return NULL;
  } while (!__atomic_compare_exchange_n(&last_used, &used, start - base + all, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
  return (char *)start;
}

/* No number of mappings would do: the system has not so much memory, or addresses. */
static bool is_too_large(size_t all) {
  void *p = hak_os_map(all, hak_os_page_size());
  if (p == NULL) return !hak_os_has_all_mappings();
  hak_os_unmap_own(p, all);
  return false;
}

void *hak_guard_pages_map(size_t bytes, size_t align, bool wanted) {
  HAK_ASSERT(hak_is_pow2(align) && bytes % hak_os_page_size() == 0);
  static hak_os_refusal refused; /* mappings for guard pages */
  size_t before = hak_max_size(HAK_SPAN_SIZE, align), all;
  if (__builtin_add_overflow(before + HAK_SPAN_SIZE, bytes, &all)) return NULL;
  align = hak_max_size(align, hak_os_page_size());
  wanted = wanted && !hak_os_refused_lately(&refused);
  char *start = wanted ? map_part(all, align, before, bytes) : NULL;
  if (start == NULL) {
    if (wanted && is_too_large(all)) return NULL;
    if (wanted) make_last();
    start = cut_from_last(all, align);
    if (start == NULL) start = hak_os_map_near(place_for(all, align, 0), all, align, HAK_OS_ACCESSIBLE);
    if (start == NULL) return NULL;
    if (wanted) hak_os_note_refusal(&refused);
    mark(start, before, bytes);
  }
  if (before > HAK_SPAN_SIZE) hak_os_unmap_own(start, before - HAK_SPAN_SIZE);
  return start + before;
}

bool hak_guard_pages_resize(void *p, size_t old_bytes, size_t bytes) {
  HAK_ASSERT(bytes != old_bytes && bytes > 0);
  char *start = p;
  size_t change = bytes > old_bytes ? bytes - old_bytes : old_bytes - bytes;
  if (bytes > old_bytes) {
    char *end = start + old_bytes + HAK_SPAN_SIZE;
    bool taken;
    if (!hak_os_extend(end, change, HAK_OS_SEALED, &taken)) return false;
    /* The block grows into the guard behind it, whichever kind that was; what lies behind it now is inaccessible. */
    bool committed = hak_os_commit(start + old_bytes, change);
    if (committed && (!hak_load_relaxed(&some_marked) || hak_os_unmark_guard(start + old_bytes, change))) return true;
    /* What was its guard is sealed again: where two mappings were to become accessible, the first one may be. */
    hak_os_seal(start + old_bytes, hak_min_size(change, HAK_SPAN_SIZE));
    hak_os_unmap(end, change);
    return false;
  }
  if (!hak_os_seal(start + bytes, change)) return false;
  hak_os_unmap(start + bytes + HAK_SPAN_SIZE, change); /* else the addresses are lost */
  return true;
}
