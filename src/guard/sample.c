#include "guard/sample.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "base/bits.h"
#include "config/config.h"
#include "os/os.h"
#include "os/print.h"
#include "profile/unwind.h"
#include "region/size_class.h"

#define SLOTS 1024
#define FRAMES 16
#define FILL 0xa5 /* between the block's end and the page's, where alignment leaves a few bytes */

enum { UNUSED, CHANGING, LIVE, FREED };

typedef struct stack {
  int thread;
  unsigned depth;
  uintptr_t frames[FRAMES];
} stack;

/* Lock: hak_sample_lock. A slot that is CHANGING belongs to one thread, which makes its system call without the lock. */
typedef struct slot {
  uint32_t state;
  uint32_t next_freed; /* while FREED: the one freed after it, SLOTS: none */
  uintptr_t block;
  size_t size;
  stack allocated, freed;
} slot;

uintptr_t hak_sample_base;
size_t hak_sample_bytes;
hak_lock hak_sample_lock;

static slot *slots; /* of a mapping of their own */
static size_t slot_block_bytes, slot_bytes; /* whole pages; the second with the guard */
static hak_os_refusal refused; /* accessible pages */
static uint32_t unused_from, first_freed = SLOTS, last_freed = SLOTS;
static size_t live_count, live_bytes, accessible_bytes;

static void record(stack *s) {
  s->thread = hak_os_tid();
  s->depth = hak_unwind(s->frames, FRAMES);
  HAK_ASSERT(s->depth <= FRAMES);
}

static uintptr_t slot_address(size_t i) { return hak_sample_base + i * slot_bytes; }

static size_t slot_of(const void *p) { return ((uintptr_t)p - hak_sample_base) / slot_bytes; }

/* --- reports --- */

static void print_stack(const char *title, const stack *s) {
  if (s->depth == 0) return;
  hak_print("hakmem: %s by thread %d:\n", title, s->thread);
  for (unsigned i = 0; i < s->depth; i++) {
    void *pc = (void *)s->frames[i];
    Dl_info at;
    if (dladdr(pc, &at) == 0 || at.dli_fname == NULL)
      hak_print("hakmem:   #%u %p\n", i, pc);
    else
      hak_print("hakmem:   #%u %p %s+%#zx %s\n", i, pc, at.dli_fname,
                (size_t)(s->frames[i] - (uintptr_t)at.dli_fbase), at.dli_sname == NULL ? "" : at.dli_sname);
  }
}

static void report(const char *what, const void *p, const slot *s) {
  intptr_t distance = (intptr_t)((uintptr_t)p - s->block);
  const char *place = distance < 0 ? "before" : (size_t)distance < s->size ? "inside" : "behind";
  size_t bytes = distance < 0 ? (size_t)-distance : (size_t)distance < s->size ? (size_t)distance : (size_t)distance - s->size;
  hak_print("hakmem: %s: %p, %zu bytes %s the %s block %p of %zu bytes [process %d, thread %d]\n", what, p, bytes, place,
            s->state == FREED ? "freed" : "allocated", (void *)s->block, s->size, hak_os_pid(), hak_os_tid());
  print_stack("allocated", &s->allocated);
  if (s->state == FREED) print_stack("freed", &s->freed);
}

__attribute__((noreturn)) static HAK_COLD void end_program(const char *what, const void *p, const slot *s) {
  report(what, p, s);
  abort();
}

/* An address between two blocks belongs to the one it is nearer to: behind the last, or before the next. */
static const slot *nearest(const void *p) {
  size_t i = slot_of(p);
  const slot *s = &slots[i];
  HAK_ASSERT(i < SLOTS);
  bool guard = (uintptr_t)p - slot_address(i) >= slot_block_bytes;
  if (guard && s->state == UNUSED && i + 1 < SLOTS) return &slots[i + 1];
  return s;
}

bool hak_sample_explain(const void *p) {
  if (!hak_sample_contains(p) || nearest(p)->state < LIVE) return false;
  const slot *s = nearest(p);
  report(s->state == FREED ? "use after free" : "access outside of a block", p, s);
  return true;
}

/* --- blocks --- */

void hak_sample_start(void) {
  if (hak_config.guard_sample == 0 || hak_sample_on()) return;
  size_t page = hak_os_page_size();
  slot_block_bytes = hak_align_up(HAK_SAMPLE_BYTES_MAX, page);
  slot_bytes = slot_block_bytes + page;
  slots = hak_os_map(SLOTS * sizeof *slots, page);
  /* One page more: what is before the first block. */
  char *memory = slots == NULL ? NULL : hak_os_reserve(page + SLOTS * slot_bytes, page);
  if (memory == NULL) {
    hak_print("hakmem: HAKMEM_GUARD_SAMPLE: no memory for the guarded blocks: switched off\n");
    return;
  }
  hak_os_own(memory, page + SLOTS * slot_bytes);
  hak_os_name(memory, page + SLOTS * slot_bytes, HAK_NAME_GUARDED);
  hak_os_name(slots, hak_align_up(SLOTS * sizeof *slots, page), HAK_NAME_TABLES);
  hak_unwind_start();
  hak_store_relaxed(&hak_sample_base, (uintptr_t)memory + page);
  hak_store_relaxed(&hak_sample_bytes, SLOTS * slot_bytes);
}

static slot *claim_slot(void) {
  slot *s = NULL;
  hak_lock_take(&hak_sample_lock);
  if (unused_from < SLOTS) {
    s = &slots[unused_from++];
  } else if (first_freed != SLOTS) {
    s = &slots[first_freed]; /* the one that was freed first */
    first_freed = s->next_freed;
    if (first_freed == SLOTS) last_freed = SLOTS;
  }
  if (s != NULL) s->state = CHANGING;
  hak_lock_drop(&hak_sample_lock);
  return s;
}

static void put_freed(slot *s) {
  hak_lock_take(&hak_sample_lock);
  uint32_t i = (uint32_t)(s - slots);
  HAK_ASSERT(s->state == CHANGING && i < SLOTS);
  HAK_ASSERT((first_freed == SLOTS) == (last_freed == SLOTS));
  s->state = FREED;
  s->next_freed = SLOTS;
  if (last_freed == SLOTS)
    first_freed = i;
  else
    slots[last_freed].next_freed = i;
  last_freed = i;
  hak_lock_drop(&hak_sample_lock);
}

void *hak_sample_alloc(size_t size, size_t align) {
  HAK_ASSERT(hak_sample_on() && hak_is_pow2(align));
  if (size > HAK_SAMPLE_BYTES_MAX || align > hak_os_page_size() || hak_os_refused_lately(&refused)) return NULL;
  size = hak_max_size(size, 1);
  align = hak_max_size(align, HAK_GRANULE);
  slot *s = claim_slot();
  if (s == NULL) return NULL; /* all are live */
  HAK_ASSERT(s->state == CHANGING); /* this thread's until it is live */
  uintptr_t end = slot_address((size_t)(s - slots)) + slot_block_bytes;
  uintptr_t block = hak_align_down(end - size, align);
  HAK_ASSERT(block >= end - slot_block_bytes && block + size <= end);
  uintptr_t first_page = hak_align_down(block, hak_os_page_size());
  record(&s->allocated);
  bool there = hak_os_commit((void *)first_page, end - first_page);
  if (there) memset((void *)(block + size), FILL, end - block - size);
  s->block = block;
  s->size = size;
  if (!there) {
    hak_os_note_refusal(&refused);
    put_freed(s);
    return NULL;
  }
  hak_lock_take(&hak_sample_lock);
  s->state = LIVE;
  live_count++;
  live_bytes += size;
  accessible_bytes += end - first_page;
  hak_lock_drop(&hak_sample_lock);
  return (void *)block;
}

static void check_fill(const slot *s) {
  HAK_ASSERT(s->state == CHANGING && s->size > 0);
  const unsigned char *end = (const unsigned char *)slot_address((size_t)(s - slots)) + slot_block_bytes;
  for (const unsigned char *byte = (const unsigned char *)s->block + s->size; byte < end; byte++) {
    if (*byte != FILL) end_program("overflow, seen when the block was freed", byte, s);
  }
}

void hak_sample_free(void *p) {
  HAK_ASSERT(hak_sample_contains(p));
  slot *s = &slots[slot_of(p)];
  hak_lock_take(&hak_sample_lock);
  uint32_t state = s->state;
  bool good = state == LIVE && s->block == (uintptr_t)p;
  if (good) {
    s->state = CHANGING;
    HAK_ASSERT(live_count > 0 && live_bytes >= s->size);
    live_count--;
    live_bytes -= s->size;
    accessible_bytes -= slot_address((size_t)(s - slots)) + slot_block_bytes - hak_align_down(s->block, hak_os_page_size());
  }
  hak_lock_drop(&hak_sample_lock);
  if (!good) end_program(state == FREED && s->block == (uintptr_t)p ? "double free" : "invalid free", p, s);
  check_fill(s);
  record(&s->freed);
  uintptr_t at = slot_address((size_t)(s - slots));
  hak_os_decommit((void *)at, slot_block_bytes);
  hak_os_guard((void *)at, slot_block_bytes);
  put_freed(s);
}

size_t hak_sample_size(const void *p) {
  HAK_ASSERT(hak_sample_contains(p));
  const slot *s = &slots[slot_of(p)];
  hak_lock_take(&hak_sample_lock);
  size_t size = s->state == LIVE && s->block == (uintptr_t)p ? s->size : 0;
  hak_lock_drop(&hak_sample_lock);
  return size;
}

void hak_sample_read(hak_sample_figures *figures) {
  *figures = (hak_sample_figures){0};
  if (!hak_sample_on()) return;
  hak_lock_take(&hak_sample_lock);
  figures->live_count = live_count;
  figures->live_bytes = live_bytes;
  figures->accessible_bytes = accessible_bytes;
  hak_lock_drop(&hak_sample_lock);
  figures->table = slots;
  figures->table_bytes = hak_align_up(SLOTS * sizeof *slots, hak_os_page_size());
}
