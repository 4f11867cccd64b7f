/* Reservation ladder, extension, growth in steps, lookup of further regions. Growth runs under the pool lock. */
#include "region/region.h"

#include <string.h>

#include "os/os.h"
#include "region/first_touch.h"

_Static_assert(HAK_CODES <= UINT8_MAX + 1, "the page map has a byte for a code");
_Static_assert(HAK_CHUNK_SPANS % 64 == 0, "a chunk's bitmaps are whole words");
_Static_assert(HAK_HUGE_PAGE_SPANS * 32 == HAK_CHUNK_SPANS, "a chunk's huge pages are the bits of a word");
_Static_assert(sizeof(hak_span) == 64, "one cache line, of a page that has 64");

hak_region hak_main_region;
/* Until the first region above every address, so that an old base with a new limit matches nothing. */
/* Each apart from what is written meanwhile. */
HAK_ALIGNED(HAK_CACHE_LINE) uintptr_t hak_main_base = (uintptr_t)1 << 63;
HAK_ALIGNED(HAK_CACHE_LINE) size_t hak_main_limit;
HAK_ALIGNED(HAK_CACHE_LINE) uintptr_t hak_main_spans;

hak_region *hak_latest_region;

static hak_region extra[HAK_MAX_REGIONS - 1];
static unsigned region_count; /* release after an entry is complete; acquire in lookups */
static size_t max_reservation;
static bool follows_page_sizes; /* pool lock: regions from now on */

/* The ladder of design: each rung a quarter of the one before, 16 MiB the smallest that is worth its tables. */
#define LADDER_BOTTOM ((size_t)16 << 20)
/* Of a rung above this only so much is reserved at first, and more in place when it is used up: emulators and tools
 * keep notes for each page that is reserved. A rung too; it holds the tables of the largest one. */
#define FIRST_RESERVED ((size_t)(HAK_HARD(CHECKED_FREE) ? 256 : 16) << 30)
/* Where the address space is limited, what is reserved and not used yet is the program's loss: a sixteenth of the limit
 * at a time. */
#define LIMITED_PART 16
#define LIMITED_LEAST (TABLES_STEP_SPANS * HAK_SPAN_SIZE)

/* Tables become accessible by a page of spans' metadata: 4 MiB of spans, what a small program ever needs. */
#define TABLES_STEP_SPANS (4 * HAK_KIB / sizeof(hak_span))

/* The tables, in the order in which they lie; each begins on a page of its own. */
static const struct {
  size_t field; /* of hak_region: where the table is */
  size_t element_bytes, spans_each;
} tables[] = {
    {offsetof(hak_region, map), sizeof(uint8_t), 1},
    {offsetof(hak_region, chunks), sizeof(hak_chunk), HAK_CHUNK_SPANS},
    {offsetof(hak_region, spans), sizeof(hak_span), 1},
    {offsetof(hak_region, bitmaps), HAK_BITMAP_WORDS * sizeof(uint64_t), 1},
    {offsetof(hak_region, held), HAK_SPAN_SIZE / HAK_GRANULE, 1},
};
#define TABLES (sizeof tables / sizeof *tables - !HAK_HARD(CHECKED_FREE))

hak_region *hak_region_at(unsigned index) {
  HAK_ASSERT(index < HAK_MAX_REGIONS);
  return index == 0 ? &hak_main_region : &extra[index - 1];
}

unsigned hak_region_count(void) { return hak_load_acquire(&region_count); }

/* Where the next table begins if this one, for so many spans, is at `at`. */
static uintptr_t behind(unsigned table, uintptr_t at, size_t spans) {
  HAK_ASSERT(table < TABLES);
  size_t each = tables[table].spans_each;
  return hak_align_up(at + (spans + each - 1) / each * tables[table].element_bytes, hak_os_page_size());
}

static size_t first_span_of(size_t spans) {
  uintptr_t end = 0;
  for (unsigned t = 0; t < TABLES; t++) end = behind(t, end, spans);
  return hak_spans_of(end);
}

/* The tables for all spans come first, each on pages of its own so that each can grow by itself. `bytes`: what the
 * region may grow to, of which `reserved` are there. */
static bool lay_out(hak_region *r, uintptr_t base, size_t bytes, size_t reserved) {
  HAK_ASSERT(base % HAK_SPAN_SIZE == 0 && bytes % HAK_SPAN_SIZE == 0 && reserved <= bytes);
  size_t spans = bytes >> HAK_SPAN_SHIFT, first = first_span_of(spans);
  if (first + TABLES_STEP_SPANS > reserved >> HAK_SPAN_SHIFT) return false;
  uintptr_t at = base;
  for (unsigned t = 0; t < TABLES; t++) {
    memcpy((char *)r + tables[t].field, &at, sizeof at);
    at = behind(t, at, spans);
  }
  r->tables_end = at;
  r->base = base;
  r->span_count = spans;
  r->first_span = r->ready_spans = r->table_spans = first;
  r->reserved_bytes = reserved;
  memset(r->index, 0, sizeof r->index);
  r->limit = 0;
  r->trimmed = r->populated = false;
  return true;
}

size_t hak_region_table_bytes(size_t spans) {
  size_t of_span = 0;
  for (unsigned t = 0; t < TABLES; t++) of_span += tables[t].element_bytes / tables[t].spans_each;
  return spans * of_span;
}

static uintptr_t table_at(const hak_region *r, unsigned table) {
  uintptr_t at = r->tables_end;
  if (table < TABLES) memcpy(&at, (const char *)r + tables[table].field, sizeof at);
  return at;
}

/* Where the pages begin that describe first_span. The map below it describes the tables themselves: always 0, but any
 * address below limit may be looked up. */
static uintptr_t first_page(const hak_region *r, unsigned table) {
  size_t before = table == 0 ? 0 : r->first_span / tables[table].spans_each;
  return hak_align_down(table_at(r, table) + before * tables[table].element_bytes, hak_os_page_size());
}

size_t hak_region_table_pages(const hak_region *r, size_t end) {
  size_t bytes = 0;
  for (unsigned t = 0; t < TABLES; t++) bytes += behind(t, table_at(r, t), end) - first_page(r, t);
  return bytes;
}

/* Each guard makes two mappings of one: half of them all are left to the program. Further guards, and those that the
 * system refuses, are marked pages. */
#define GUARDS_MAX (2 * HAK_OS_MAPPINGS_PART)

static void make_guards(const hak_region *r, size_t from, size_t to) {
  static uint32_t made;
  for (size_t at = from; at < to; at++) {
    if (!hak_region_is_guard(at)) continue;
    void *span = hak_region_address(r, at);
    bool mapped = made < GUARDS_MAX && hak_os_guard(span, HAK_SPAN_SIZE);
    made += mapped;
    if (!mapped) hak_os_mark_guard(span, HAK_SPAN_SIZE);
  }
}

/* To the kernel, memory with one access and one advice is one mapping. Where both change at one address, memory that
 * takes on both in two calls is a mapping more in between, and a process that has all it may have is refused. So what
 * is in dumps reaches a page further than what is accessible, and spans are accessible a page beyond the last that is
 * handed out: whatever the program does to its blocks, the memory at either end is like what is put to it. */
static size_t offset_behind(const hak_region *r, size_t spans, size_t pages) {
  return hak_min_size((spans << HAK_SPAN_SHIFT) + pages * hak_os_page_size(), r->reserved_bytes);
}
#define DUMPED_AHEAD 2
#define ACCESSIBLE_AHEAD 1

/* Makes what describes spans up to `to` accessible, where that of spans below table_spans is. */
static bool commit_table(const hak_region *r, unsigned table, size_t to) {
  uintptr_t at = table_at(r, table), end = behind(table, at, to);
  void *start = (void *)(r->table_spans > r->first_span ? behind(table, at, r->table_spans) : first_page(r, table));
  HAK_ASSERT(r->table_spans < to && (uintptr_t)start <= end);
  size_t bytes = end - (uintptr_t)start;
  if (bytes == 0) return true;
  hak_os_put_into_dumps(start,
                        hak_min_size(bytes + hak_os_page_size(), behind(table, at, r->span_count) - (uintptr_t)start));
  return hak_os_commit(start, bytes);
}

static bool commit_tables(hak_region *r, size_t to) {
  size_t from = r->table_spans;
  HAK_ASSERT(from < to && to <= r->span_count);
  for (unsigned t = 0; t < TABLES; t++) {
    if (!commit_table(r, t, to)) return false;
  }
  /* Once for many steps; what is not accessible is a hole in a dump. */
  char *start = hak_region_address(r, from), *end = (char *)r->base + offset_behind(r, to, DUMPED_AHEAD);
  if (end > start) hak_os_put_into_dumps(start, (size_t)(end - start));
  hak_store_relaxed(&r->table_spans, to);
  return true;
}

/* Spans [from, to), and their entries in the tables. */
static bool commit_step(hak_region *r, size_t from, size_t to) {
  HAK_ASSERT(r->first_span <= from && from < to && to <= r->reserved_bytes >> HAK_SPAN_SHIFT);
  size_t ahead = hak_min_size(hak_align_up(to, TABLES_STEP_SPANS), r->span_count);
  if (to > r->table_spans && !commit_tables(r, ahead) && !commit_tables(r, to)) return false;
  if (!hak_os_commit(hak_region_address(r, from), offset_behind(r, to, ACCESSIBLE_AHEAD) - (from << HAK_SPAN_SHIFT)))
    return false;
  if (HAK_HARD(GUARDS)) make_guards(r, from, to);
  return true;
}

/* Spans [from, to) of one chunk are accessible now, free and clean. */
static void add_free(hak_region *r, size_t from, size_t to) {
  HAK_ASSERT(from < to && from / HAK_CHUNK_SPANS == (to - 1) / HAK_CHUNK_SPANS);
  hak_chunk *chunk = &r->chunks[from / HAK_CHUNK_SPANS];
  for (size_t i = from; i < to; i++) {
    if (hak_region_is_guard(i)) continue;
    chunk->free[i % HAK_CHUNK_SPANS / 64] |= (uint64_t)1 << (i % 64);
    chunk->free_spans++;
  }
}

static void note_reserved(const hak_region *r, void *addr, size_t bytes) {
  if (!r->follows_page_sizes) hak_os_small_pages(addr, bytes);
  hak_os_leave_out_of_dumps(addr, bytes);
}

/* What is reserved at a time under a limit of the address space. */
static size_t limited_part(size_t limit) {
  return hak_align_down(hak_min_size(hak_max_size(limit / LIMITED_PART, LIMITED_LEAST), FIRST_RESERVED), HAK_SPAN_SIZE);
}

static void note_extended(hak_region *r, size_t more) {
  HAK_ASSERT(more % HAK_SPAN_SIZE == 0 && r->reserved_bytes + more <= r->span_count << HAK_SPAN_SHIFT);
  void *end = (void *)(r->base + r->reserved_bytes);
  note_reserved(r, end, more);
  hak_os_name(end, more, HAK_NAME_HEAP); /* as what it continues: differently named mappings do not merge */
  hak_os_own(end, more);
  size_t before = r->reserved_bytes;
  r->reserved_bytes += more;
  size_t dumped = offset_behind(r, r->table_spans, DUMPED_AHEAD);
  if (dumped > before) hak_os_put_into_dumps(end, dumped - before);
}

/* What is mapped now would be locked (mlockall(MCL_FUTURE)), as what is reserved is not. */
static bool is_new_memory_locked(void) {
  size_t page = hak_os_page_size();
  void *p = hak_os_reserve(page, page);
  bool locked = p == NULL || hak_os_is_locked(p, page);
  if (p != NULL) hak_os_unmap_own(p, page);
  return locked;
}

/* What the tables are accessible for is left as it is: the first blocks of many classes take a page each, not 16. So
 * are the pages ahead; and as many behind these are left in dumps, so that the next step takes no mapping more. */
static void follow_page_sizes(hak_region *r) {
  size_t from = offset_behind(r, r->table_spans, DUMPED_AHEAD), left = DUMPED_AHEAD * hak_os_page_size();
  char *rest = (char *)r->base + from;
  if (from + left >= r->reserved_bytes || r->populated) return;
  if (!hak_os_renew(rest, r->reserved_bytes - from, HAK_OS_RESERVED)) return;
  hak_store_relaxed(&r->follows_page_sizes, true);
  for (size_t chunk = r->first_span / HAK_CHUNK_SPANS; chunk * HAK_CHUNK_SPANS < r->table_spans; chunk++) {
    size_t spans = hak_min_size(r->table_spans - chunk * HAK_CHUNK_SPANS, HAK_CHUNK_SPANS);
    hak_store_relaxed(&r->chunks[chunk].small_spans, (uint16_t)spans);
  }
  hak_os_leave_out_of_dumps(rest + left, r->reserved_bytes - from - left);
}

void hak_region_follow_page_sizes(void) {
  if (follows_page_sizes || is_new_memory_locked()) return;
  follows_page_sizes = true;
  for (unsigned i = hak_region_count(); i-- > 0;) follow_page_sizes(hak_region_at(i));
}

void hak_region_advise(const hak_region *r, size_t first, size_t spans) {
  const hak_chunk *c = &r->chunks[first / HAK_CHUNK_SPANS];
  bool small = !hak_load_relaxed(&r->follows_page_sizes) ||
               first % HAK_CHUNK_SPANS < hak_load_relaxed(&c->small_spans);
  if (c->huge || small) hak_os_set_pages(hak_region_address(r, first), spans << HAK_SPAN_SHIFT, c->huge);
}

/* Doubles the reservation, or adds what the system grants, at least `needed` bytes. Where somebody else's memory is in
 * the way the region ends here; so it does where the system refuses without a limit, which may be raised, or have room
 * again. */
static void extend(hak_region *r, size_t needed) {
  HAK_ASSERT(needed > 0 && needed % HAK_SPAN_SIZE == 0);
  void *end = (void *)(r->base + r->reserved_bytes);
  size_t rest = (r->span_count << HAK_SPAN_SHIFT) - r->reserved_bytes, limit = hak_os_limit(HAK_OS_ADDRESS_SPACE);
  bool limited = limit != SIZE_MAX, taken = false;
  size_t most = limited ? hak_max_size(limited_part(limit), needed) : r->reserved_bytes;
  for (size_t more = hak_min_size(most, rest); more >= hak_min_size(needed, rest) && more > 0;
       more = hak_align_down(more / 2, HAK_SPAN_SIZE)) {
    if (hak_os_extend(end, more, HAK_OS_RESERVED, &taken)) {
      note_extended(r, more);
      return;
    }
  }
  if (!limited || taken) r->span_count = r->reserved_bytes >> HAK_SPAN_SHIFT;
}

/* Spans become accessible in steps of this part of what is: a growing program makes few calls, and what runs off a
 * block soon meets memory that is not accessible. */
#define STEP_PART 4
#define FIRST_STEP HAK_SLAB_SPANS_MOST /* any slab */

/* At most to the chunk's end. Huge pages come one at a time: after a dear one there are no more. mlockall(MCL_FUTURE)
 * populates what becomes writable: then the steps stay small. */
static size_t next_step(const hak_region *r, bool huge_pages) {
  if (r->populated) return FIRST_STEP;
  return huge_pages ? HAK_HUGE_PAGE_SPANS : hak_max_size((r->ready_spans - r->first_span) / STEP_PART, FIRST_STEP);
}

bool hak_region_grow(hak_region *r, size_t spans, bool huge) {
  HAK_ASSERT(r->ready_spans <= r->span_count && r->first_span <= r->ready_spans);
  size_t from = r->ready_spans, chunk_end = hak_align_up(from + 1, HAK_CHUNK_SPANS);
  size_t needed = hak_min_size(hak_min_size(chunk_end, from + spans), r->span_count) << HAK_SPAN_SHIFT;
  if (needed > r->reserved_bytes) extend(r, needed - r->reserved_bytes);
  size_t end = hak_min_size(chunk_end, r->reserved_bytes >> HAK_SPAN_SHIFT);
  if (from == end) return false;
  bool new_chunk = from == r->first_span || from % HAK_CHUNK_SPANS == 0;
  bool other_kind = !new_chunk && !r->populated && r->chunks[from / HAK_CHUNK_SPANS].huge != huge;
  size_t least = hak_min_size(spans, end - from);
  bool huge_pages = new_chunk ? huge && !r->populated : r->chunks[from / HAK_CHUNK_SPANS].huge;
  /* A huge page that is accessible in part is small pages when it is touched. */
  size_t to = hak_align_up(from + hak_max_size(next_step(r, huge_pages), least), huge_pages ? HAK_HUGE_PAGE_SPANS : 1);
  size_t step = other_kind ? end - from : hak_min_size(to, end) - from;
  HAK_ASSERT(step >= least && least > 0);
  size_t tables_before = r->table_spans;
  while (!commit_step(r, from, from + step)) {
    if (step == least) return false; /* whatever became accessible before the failure is harmless */
    step = hak_max_size(step / 2, least);
  }
  hak_chunk *chunk = &r->chunks[from / HAK_CHUNK_SPANS];
  if (new_chunk) chunk->huge = huge && !r->populated;
  if (chunk->huge && hak_huge_pages_are_dear()) {
    size_t start = hak_max_size(from - from % HAK_CHUNK_SPANS, r->first_span);
    hak_chunk_end_huge(chunk);
    if (from > start) hak_os_small_pages(hak_region_address(r, start), (from - start) << HAK_SPAN_SHIFT);
    hak_store_relaxed(&chunk->small_spans, (uint16_t)(from % HAK_CHUNK_SPANS));
  }
  if (chunk->huge)
    hak_os_huge_pages(hak_region_address(r, from), step << HAK_SPAN_SHIFT);
  else
    hak_note_small_pages(step << HAK_SPAN_SHIFT);
  if (r->table_spans > tables_before) r->populated = hak_os_is_locked(hak_region_address(r, from), HAK_SPAN_SIZE);
  add_free(r, from, from + step);
  r->ready_spans = from + step;
  HAK_ASSERT(r->ready_spans <= r->table_spans && r->ready_spans << HAK_SPAN_SHIFT <= r->reserved_bytes);
  hak_store_release(&r->limit, r->ready_spans << HAK_SPAN_SHIFT);
  if (r == &hak_main_region) {
    hak_store_relaxed(&hak_main_base, r->base);
    hak_store_relaxed(&hak_main_spans, (uintptr_t)r->spans - (r->base >> HAK_SPAN_SHIFT) * sizeof(hak_span));
    hak_store_release(&hak_main_limit, r->limit);
  }
  return true;
}

static bool is_in_another(const hak_region *r, const void *base) {
  for (unsigned i = 0; i < hak_region_count(); i++) {
    const hak_region *other = hak_region_at(i);
    if (other != r && (uintptr_t)base - other->base < other->limit) return true;
  }
  return false;
}

/* Absent spans are holes, which the kernel may fill. What region an address is of is told by base and limit: none lies
 * in another. */
static void *reserve_apart(const hak_region *r, size_t bytes, size_t reserved) {
  size_t align = HAK_HUGE_PAGE; /* so that huge pages lie in a chunk as in memory */
  void *base = hak_os_reserve_with_room(reserved, align, bytes);
  if (base == NULL || !is_in_another(r, base)) return base;
  hak_os_unmap_own(base, reserved);
  base = hak_os_map_near(hak_os_random_place(align, bytes), reserved, align, HAK_OS_RESERVED);
  if (base == NULL || !is_in_another(r, base)) return base;
  hak_os_unmap_own(base, reserved);
  return NULL;
}

/* Where the reservation was the last mapping that the process may have, no part of it can be made accessible: then all
 * of it is. */
static bool make_first_accessible(hak_region *r) {
  if (hak_region_grow(r, 1, false)) return true;
  return hak_os_has_all_mappings() && hak_os_commit((void *)r->base, r->reserved_bytes) && hak_region_grow(r, 1, false);
}

/* A region that may grow to `bytes`, of which `reserved` are reserved now. */
static bool reserve(hak_region *r, size_t bytes, size_t reserved) {
  HAK_ASSERT(reserved > 0 && reserved <= bytes);
  void *base = reserve_apart(r, bytes, reserved);
  if (base == NULL) return false;
  r->follows_page_sizes = follows_page_sizes;
  note_reserved(r, base, reserved);
  if (lay_out(r, (uintptr_t)base, bytes, reserved)) {
    size_t tables_bytes = r->first_span << HAK_SPAN_SHIFT; /* named before anything is accessible */
    hak_os_name(base, tables_bytes, HAK_NAME_TABLES);
    hak_os_name((char *)base + tables_bytes, reserved - tables_bytes, HAK_NAME_HEAP);
    if (make_first_accessible(r)) {
      hak_os_own(base, reserved);
      return true;
    }
  }
  hak_os_unmap_own(base, reserved); /* nobody has seen it yet */
  return false;
}

/* Under a limit: tables for more than there can be would be much of it. */
static size_t first_reserved(size_t bytes, size_t limit) {
  size_t tables_bytes = first_span_of(bytes >> HAK_SPAN_SHIFT) << HAK_SPAN_SHIFT;
  return hak_min_size(bytes, limit == SIZE_MAX ? FIRST_RESERVED : tables_bytes + limited_part(limit));
}

static bool reserve_region(hak_region *r, size_t spans, size_t most) {
  size_t limit = hak_os_limit(HAK_OS_ADDRESS_SPACE);
  size_t possible = hak_align_up(hak_min_size(limit, HAK_REGION_BYTES_MOST), LADDER_BOTTOM), tried = 0;
  for (size_t rung = HAK_REGION_BYTES_MOST; rung >= LADDER_BOTTOM; rung /= 4) {
    size_t bytes = hak_min_size(rung, possible), all = bytes >> HAK_SPAN_SHIFT; /* the rungs above the limit are one */
    if (rung > most || bytes == tried || all < first_span_of(all) + spans) continue;
    if (reserve(r, bytes, first_reserved(bytes, limit))) return true;
    tried = bytes;
  }
  return false;
}

bool hak_region_init(size_t max_bytes) {
  max_reservation = hak_max_size(max_bytes, LADDER_BOTTOM);
  if (!reserve_region(&hak_main_region, 1, max_reservation)) return false;
  hak_store_release(&hak_latest_region, NULL);
  hak_store_release(&region_count, 1);
  return true;
}

/* Where the system refuses while the last region could go on, another one would have no more. */
hak_region *hak_region_add(size_t spans) {
  unsigned n = hak_load_relaxed(&region_count);
  if (n == 0 || n == HAK_MAX_REGIONS) return NULL;
  const hak_region *last = hak_region_at(n - 1);
  if (last->ready_spans < last->span_count && hak_os_is_limited(HAK_OS_ADDRESS_SPACE)) return NULL;
  size_t there = 0;
  for (unsigned i = 0; i < n; i++) there += hak_region_at(i)->ready_spans << HAK_SPAN_SHIFT;
  hak_region *r = &extra[n - 1];
  if (!reserve_region(r, spans, hak_max_size(max_reservation, there))) return NULL;
  r->before = hak_latest_region;
  HAK_ASSERT(r->limit != 0 && r->base != 0); /* whole before it is found */
  hak_store_release(&hak_latest_region, r);
  hak_store_release(&region_count, n + 1);
  return r;
}

hak_region *hak_region_unless_absent(hak_region *r, const void *p) {
  size_t index = hak_region_index(r, p);
  HAK_ASSERT(index < r->span_count);
  /* No block is in the tables: of them, too, some went back. */
  if (index < r->first_span) return hak_load_relaxed(&r->trimmed) ? NULL : r;
  uint64_t absent = hak_load_relaxed(&r->chunks[index / HAK_CHUNK_SPANS].absent[index % HAK_CHUNK_SPANS / 64]);
  return (absent >> (index % 64) & 1) != 0 ? NULL : r;
}

hak_region *hak_region_find_slow(const void *p) {
  hak_region *r = hak_region_further(p);
  if (r == NULL || hak_region_code(r, p) != HAK_CODE_NONE) return r;
  return hak_region_unless_absent(r, p);
}

/* --- giving back, where the system limits what a process may have --- */

static size_t unmap_between(uintptr_t start, uintptr_t end) {
  return start < end && hak_os_unmap_own((void *)start, end - start) ? end - start : 0;
}

size_t hak_region_give_back_reserved(hak_region *r, size_t spans) {
  size_t end = hak_max_size(hak_min_size(r->first_span + spans, r->span_count), r->table_spans), bytes = 0;
  size_t ready = r->ready_spans << HAK_SPAN_SHIFT;
  if (!r->trimmed) { /* once: what has gone may be somebody else's by the next time */
    hak_store_relaxed(&r->trimmed, true);
    for (unsigned t = 0; t < TABLES; t++) { /* what describes neither the spans that there are nor those up to `end` */
      bytes += unmap_between(table_at(r, t), first_page(r, t)) +
               unmap_between(behind(t, table_at(r, t), end), table_at(r, t + 1));
    }
    r->span_count = end;
  }
  if (ready < r->reserved_bytes && hak_os_unmap_own((void *)(r->base + ready), r->reserved_bytes - ready)) {
    bytes += r->reserved_bytes - ready;
    r->reserved_bytes = ready;
  }
  return bytes;
}

bool hak_region_restore(hak_region *r, size_t first, size_t spans, bool *lost) {
  HAK_ASSERT(spans > 0 && first >= r->first_span && first + spans <= r->ready_spans);
  void *start = hak_region_address(r, first);
  size_t bytes = spans << HAK_SPAN_SHIFT;
  if (!hak_os_extend(start, bytes, HAK_OS_RESERVED, lost)) return false;
  if (!hak_os_commit(start, bytes)) {
    hak_os_unmap_own(start, bytes);
    return false;
  }
  hak_region_advise(r, first, spans);
  hak_os_name(start, bytes, HAK_NAME_HEAP);
  return true;
}
