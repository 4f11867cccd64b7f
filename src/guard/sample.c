#include "guard/sample.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "config/config.h"
#include "os/os.h"
#include "os/print.h"
#include "profile/unwind.h"
#include "tcache/draw.h"

#define FRAMES 16
#define FILL 0xa5 /* beside the block */
/* Inaccessible, before the first slot and behind the last: what misses a block by far is told too */
#define MARGIN HAK_MIB
#define NONE UINT32_MAX

enum { UNUSED, CHANGING, LIVE, FREED };

typedef struct stack {
  int thread;
  unsigned depth;
  uintptr_t frames[FRAMES];
} stack;

/* Lock: hak_sample_lock. A slot that is CHANGING belongs to one thread, which makes its system call without the
 * lock. */
typedef struct slot {
  uint32_t state;
  uint32_t next_freed; /* while FREED: the one freed after it, or NONE */
  unsigned tag;
  uintptr_t block;
  size_t size;
  stack allocated, freed;
} slot;

uintptr_t hak_sample_base;
size_t hak_sample_bytes;
hak_lock hak_sample_lock;

static slot *slots; /* of a mapping of their own */
static uint32_t slot_count;
static bool stacks_kept;
static size_t slot_block_bytes, slot_bytes; /* whole pages; the second with the guard */
static hak_os_refusal refused; /* accessible pages */
static uint32_t used_count /* written under the lock */, first_freed = NONE, last_freed = NONE;
static uint64_t random_place; /* the next slot is drawn from it */
static hak_sample_figures figures;

static void record(stack *s) {
  if (!hak_load_relaxed(&stacks_kept)) return;
  s->thread = hak_os_is_confined() ? 0 : hak_os_tid();
  s->depth = hak_unwind(s->frames, FRAMES);
  HAK_ASSERT(s->depth <= FRAMES);
}

static uintptr_t slot_address(size_t i) { return hak_sample_base + i * slot_bytes; }
static uintptr_t slot_end(const slot *s) { return slot_address((size_t)(s - slots)) + slot_block_bytes; }
static uintptr_t first_page(const slot *s) { return hak_align_down(s->block, hak_os_page_size()); }

static size_t slot_of(const void *p) { return ((uintptr_t)p - hak_sample_base) / slot_bytes; }

/* --- reports --- */

void hak_sample_print_frames(const uintptr_t *frames, unsigned depth) {
  for (unsigned i = 0; i < depth; i++) {
    void *pc = (void *)frames[i];
    Dl_info at;
    if (dladdr(pc, &at) == 0 || at.dli_fname == NULL)
      hak_print("hakmem:   #%u %p\n", i, pc);
    else
      hak_print("hakmem:   #%u %p %s+%#zx %s\n", i, pc, at.dli_fname,
                (size_t)(frames[i] - (uintptr_t)at.dli_fbase), at.dli_sname == NULL ? "" : at.dli_sname);
  }
}

static void print_stack(const char *title, const stack *s) {
  if (s->depth == 0) return;
  hak_print("hakmem: %s by thread %d:\n", title, s->thread);
  hak_sample_print_frames(s->frames, s->depth);
}

/* where: the look that found it; NULL: the access or the call itself. */
static void report(const char *what, const char *where, const void *p, const slot *s) {
  intptr_t distance = (intptr_t)((uintptr_t)p - s->block);
  const char *place = distance < 0 ? "before" : (size_t)distance < s->size ? "inside" : "behind";
  size_t bytes = distance < 0                 ? (size_t)-distance
                 : (size_t)distance < s->size ? (size_t)distance
                                              : (size_t)distance - s->size;
  hak_print("hakmem: %s%s%s: %p, %zu bytes %s the %s block %p of %zu bytes [process %d, thread %d]\n", what,
            where == NULL ? "" : ", seen ", where == NULL ? "" : where, p, bytes, place,
            s->state == FREED ? "freed" : "allocated", (void *)s->block, s->size, hak_os_pid(), hak_os_tid());
  print_stack("allocated", &s->allocated);
  if (s->state == FREED) print_stack("freed", &s->freed);
}

__attribute__((noreturn)) static HAK_COLD void end_program(const char *what, const char *where, const void *p,
                                                           const slot *s) {
  report(what, where, p, s);
  abort();
}

static bool has_been_used(size_t i) { return i < slot_count && slots[i].state >= LIVE; }

/* An address between two blocks belongs to the one it is nearer to: behind the last, or before the next. Far from any:
 * to the one it is reached from upwards. NULL: there is none. */
static const slot *nearest(const void *p) {
  size_t i = (uintptr_t)p < hak_sample_base ? 0 : hak_min_size(slot_of(p), slot_count - 1);
  bool guard = (uintptr_t)p - slot_address(i) >= slot_block_bytes;
  if (guard && !has_been_used(i) && has_been_used(i + 1)) return &slots[i + 1];
  for (size_t n = i + 1; n-- > 0;) {
    if (has_been_used(n)) return &slots[n];
  }
  for (size_t n = i + 1; n < slot_count; n++) {
    if (has_been_used(n)) return &slots[n];
  }
  return NULL;
}

bool hak_sample_explain(const void *p) {
  if (!hak_sample_on() || (uintptr_t)p - (hak_sample_base - MARGIN) >= hak_sample_bytes + 2 * MARGIN) return false;
  const slot *s = nearest(p);
  if (s == NULL) return false;
  report(s->state == FREED ? "use after free" : "access outside of a block", NULL, p, s);
  return true;
}

/* --- blocks --- */

void hak_sample_start(size_t blocks, bool with_stacks) {
  if (blocks == 0) return;
  if (with_stacks) {
    hak_unwind_start();
    hak_store_relaxed(&stacks_kept, true);
  }
  if (hak_sample_on()) return;
  size_t page = hak_os_page_size();
  slot_block_bytes = hak_align_up(HAK_SAMPLE_BYTES_MAX, page);
  slot_bytes = slot_block_bytes + page;
  slots = hak_os_map(blocks * sizeof *slots, page);
  size_t bytes = blocks * slot_bytes + 2 * MARGIN;
  char *memory = slots == NULL      ? NULL
                 : HAK_HARD(GUARDS) ? hak_os_map_near(hak_os_random_place(page, bytes), bytes, page, HAK_OS_RESERVED)
                                    : hak_os_reserve(bytes, page);
  if (memory == NULL) {
    if (hak_config.guard_sample != 0)
      hak_print("hakmem: HAKMEM_GUARD_SAMPLE: no memory for the guarded blocks: switched off\n");
    return;
  }
  slot_count = (uint32_t)blocks;
  hak_os_own(memory, bytes);
  hak_os_name(memory, bytes, HAK_NAME_GUARDED);
  figures.table = slots;
  figures.table_bytes = hak_align_up(blocks * sizeof *slots, page);
  hak_os_name(slots, figures.table_bytes, HAK_NAME_TABLES);
  hak_os_random(&random_place, sizeof random_place);
  hak_store_relaxed(&hak_sample_base, (uintptr_t)memory + MARGIN);
  hak_store_release(&hak_sample_bytes, slot_count * slot_bytes);
}

/* Where the next block lies cannot be told from those before. */
static slot *draw_unused(void) {
  random_place += HAK_DRAW_STEP;
  size_t i = hak_draw_scrambled(random_place) % slot_count;
  while (slots[i].state != UNUSED) i = (i + 1) % slot_count;
  hak_store_relaxed(&used_count, used_count + 1);
  return &slots[i];
}

static slot *claim_slot(void) {
  slot *s = NULL;
  hak_lock_take(&hak_sample_lock);
  if (used_count < slot_count) {
    s = draw_unused();
  } else if (first_freed != NONE) {
    s = &slots[first_freed]; /* the one that was freed first */
    first_freed = s->next_freed;
    if (first_freed == NONE) last_freed = NONE;
  }
  if (s != NULL) s->state = CHANGING;
  hak_lock_drop(&hak_sample_lock);
  return s;
}

static void put_freed(slot *s) {
  hak_lock_take(&hak_sample_lock);
  uint32_t i = (uint32_t)(s - slots);
  HAK_ASSERT(s->state == CHANGING && i < slot_count);
  HAK_ASSERT((first_freed == NONE) == (last_freed == NONE));
  s->state = FREED;
  s->next_freed = NONE;
  if (last_freed == NONE)
    first_freed = i;
  else
    slots[last_freed].next_freed = i;
  last_freed = i;
  hak_lock_drop(&hak_sample_lock);
}

void *hak_sample_alloc(size_t size, size_t align) {
  HAK_ASSERT(hak_sample_on() && hak_is_pow2(align));
  if (size > slot_block_bytes || align > hak_os_page_size() || hak_os_refused_lately(&refused)) return NULL;
  size = hak_max_size(size, 1);
  align = hak_max_size(align, HAK_GRANULE);
  slot *s = claim_slot();
  if (s == NULL) return NULL; /* all are live */
  HAK_ASSERT(s->state == CHANGING); /* this thread's until it is live */
  uintptr_t end = slot_end(s);
  s->block = hak_align_down(end - size, align);
  HAK_ASSERT(s->block >= end - slot_block_bytes && s->block + size <= end);
  s->size = size;
  s->tag = 0;
  uintptr_t first = first_page(s);
  record(&s->allocated);
  if (!hak_os_commit((void *)first, end - first)) {
    hak_os_note_refusal(&refused);
    put_freed(s);
    return NULL;
  }
  memset((void *)first, FILL, s->block - first);
  memset((void *)(s->block + size), FILL, end - s->block - size);
  hak_lock_take(&hak_sample_lock);
  s->state = LIVE;
  figures.live_count++;
  figures.live_bytes += size;
  figures.accessible_bytes += end - first;
  hak_lock_drop(&hak_sample_lock);
  return (void *)s->block;
}

void hak_sample_tell(void *p, size_t size, unsigned tag) {
  slot *s = &slots[slot_of(p)];
  size = hak_max_size(size, 1);
  hak_lock_take(&hak_sample_lock);
  HAK_ASSERT(s->state == LIVE && s->block == (uintptr_t)p && size <= s->size);
  memset((char *)p + size, FILL, s->size - size);
  figures.live_bytes -= s->size - size;
  s->size = size;
  s->tag = tag;
  hak_lock_drop(&hak_sample_lock);
}

/* The first byte of [from, to) that is not as it was filled, or NULL. */
static const unsigned char *first_written(uintptr_t from, uintptr_t to) {
  uint64_t word, filled;
  memset(&filled, FILL, sizeof filled);
  const unsigned char *byte = (const unsigned char *)from, *end = (const unsigned char *)to;
  for (; end - byte >= (ptrdiff_t)sizeof word; byte += sizeof word) {
    memcpy(&word, byte, sizeof word);
    if (word != filled) break;
  }
  for (; byte < end; byte++) {
    if (*byte != FILL) return byte;
  }
  return NULL;
}

/* A byte beside the block that the program wrote, or NULL. */
static const unsigned char *damage(const slot *s, const char **what) {
  const unsigned char *before = first_written(first_page(s), s->block);
  *what = before != NULL ? "underflow" : "overflow";
  return before != NULL ? before : first_written(s->block + s->size, slot_end(s));
}

static void check_fill(const slot *s, const char *where) {
  const char *what;
  const unsigned char *byte = damage(s, &what);
  if (HAK_UNLIKELY(byte != NULL)) end_program(what, where, byte, s);
}

void hak_sample_free(void *p) {
  HAK_ASSERT(hak_sample_contains(p));
  slot *s = &slots[slot_of(p)];
  hak_lock_take(&hak_sample_lock);
  uint32_t state = s->state;
  bool good = state == LIVE && s->block == (uintptr_t)p;
  if (good) {
    s->state = CHANGING;
    HAK_ASSERT(figures.live_count > 0 && figures.live_bytes >= s->size);
    figures.live_count--;
    figures.live_bytes -= s->size;
    figures.accessible_bytes -= slot_end(s) - first_page(s);
  }
  hak_lock_drop(&hak_sample_lock);
  if (!good) end_program(state == FREED && s->block == (uintptr_t)p ? "double free" : "invalid free", NULL, p, s);
  check_fill(s, "when the block was freed");
  record(&s->freed);
  void *at = (void *)slot_address((size_t)(s - slots));
  hak_os_decommit(at, slot_block_bytes);
  hak_os_guard(at, slot_block_bytes);
  put_freed(s);
}

unsigned hak_sample_look(const void *p, const char *where) {
  const slot *s = &slots[slot_of(p)];
  check_fill(s, where);
  return s->tag;
}

void hak_sample_look_at_all(const char *where, bool (*may_read)(const void *p, size_t bytes)) {
  /* Who looks may have interrupted who has it */
  if (!hak_sample_on() || !hak_lock_comes_free(&hak_sample_lock)) return;
  for (size_t i = 0; i < slot_count; i++) {
    const char *what;
    const unsigned char *byte = NULL;
    hak_lock_take(&hak_sample_lock); /* nobody frees it meanwhile */
    const slot s = slots[i];
    const slot *there = &slots[i];
    if (s.state == LIVE && may_read((void *)first_page(there), slot_end(there) - first_page(there)))
      byte = damage(there, &what);
    hak_lock_drop(&hak_sample_lock);
    if (HAK_UNLIKELY(byte != NULL)) end_program(what, where, byte, &s);
  }
}

size_t hak_sample_size(const void *p) {
  const slot *s = &slots[slot_of(p)];
  hak_lock_take(&hak_sample_lock);
  size_t size = s->state == LIVE && s->block == (uintptr_t)p ? s->size : 0;
  hak_lock_drop(&hak_sample_lock);
  return size;
}

bool hak_sample_has_been_used(void) { return hak_load_relaxed(&used_count) != 0; }

void hak_sample_read(hak_sample_figures *out) {
  *out = (hak_sample_figures){0};
  if (!hak_sample_on()) return;
  hak_lock_take(&hak_sample_lock);
  *out = figures;
  hak_lock_drop(&hak_sample_lock);
}
