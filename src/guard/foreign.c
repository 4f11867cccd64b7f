#include "guard/foreign.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include "config/config.h"
#include "os/mappings.h"
#include "os/os.h"
#include "os/print.h"

#define CALLERS 64          /* distinct callers remembered; later ones are counted in the total only */
#define TOP_CALLERS 5
#define REPORT_THRESHOLD 100 /* the call at which totals are printed unasked, once */

static const char *const call_names[HAK_FOREIGN_CALLS] = {"free", "realloc", "malloc_usable_size"};

/* Relaxed counters; a caller's slot is claimed by one compare-and-swap from NULL and never changes again. */
static uint64_t totals[HAK_FOREIGN_CALLS];
static struct {
  const void *caller;
  uint64_t count;
} callers[CALLERS];

uint64_t hak_foreign_total(void) {
  uint64_t sum = 0;
  for (int i = 0; i < HAK_FOREIGN_CALLS; i++) sum += hak_load_relaxed(&totals[i]);
  return sum;
}

uint64_t hak_foreign_calls(enum hak_foreign_call call) { return hak_load_relaxed(&totals[call]); }

static void count_caller(const void *caller) {
  HAK_ASSERT(caller != NULL); /* NULL marks an empty slot */
  size_t at = ((uintptr_t)caller >> 2) % CALLERS;
  for (size_t probes = 0; probes < CALLERS; probes++, at = (at + 1) % CALLERS) {
    const void *seen = hak_load_relaxed(&callers[at].caller);
    if (seen == NULL && hak_cas_acquire(&callers[at].caller, &seen, caller)) seen = caller;
    if (seen == caller) {
      hak_add_relaxed(&callers[at].count, 1);
      return;
    }
  }
}

/* The line of the file of mappings that covers an address. */
struct search {
  uintptr_t address;
  bool readable; /* the file */
  char line[256];
};

static void compare(void *context, char *line) {
  struct search *s = context;
  hak_mapping m;
  s->readable = true;
  if (!hak_mapping_parse(line, &m) || s->address - m.start >= m.end - m.start) return;
  if (hak_os_has_more_rights()) line += strcspn(line, " "); /* the addresses that the line begins with */
  size_t length = hak_min_size(strlen(line), sizeof s->line - 1);
  memcpy(s->line, line, length);
  s->line[length] = '\0';
}

static const char *find_mapping(const void *p, struct search *s) {
  *s = (struct search){.address = (uintptr_t)p};
  hak_each_mapping(compare, s);
  return s->line[0] != '\0' ? s->line : s->readable ? "not mapped" : "unknown";
}

/* How far p is from being an address at all: what kind of value the program passed. */
static const char *size_band(const void *p) {
  uintptr_t v = (uintptr_t)p;
  if (v < 4096) return "below 4 KiB";
  if (v < (uintptr_t)1 << 32) return "below 4 GiB";
  if (v < (uintptr_t)1 << 47) return "user space";
  return "not a user address";
}

void hak_foreign_note(enum hak_foreign_call call, const void *p, const void *caller) {
  HAK_ASSERT(call < HAK_FOREIGN_CALLS && p != NULL);
  hak_add_relaxed(&totals[call], 1);
  count_caller(caller);
  if (hak_load_relaxed(&hak_config.guard_log)) {
    struct search at;
    hak_print("hakmem: external pointer: %s(%p) from %p, address %s, mapping: %s; left alone\n", call_names[call], p,
              caller, size_band(p), find_mapping(p, &at));
  }
  static bool reported;
  if (hak_foreign_total() >= REPORT_THRESHOLD && !__atomic_exchange_n(&reported, true, __ATOMIC_RELAXED))
    hak_foreign_print();
}

void hak_foreign_print(void) {
  hak_print("[EXTERNAL_GUARD] total=%" PRIu64 " free=%" PRIu64 " realloc=%" PRIu64 " malloc_usable_size=%" PRIu64 "\n",
            hak_foreign_total(), hak_load_relaxed(&totals[HAK_FOREIGN_FREE]),
            hak_load_relaxed(&totals[HAK_FOREIGN_REALLOC]), hak_load_relaxed(&totals[HAK_FOREIGN_USABLE_SIZE]));
  uint64_t counts[CALLERS]; /* of those that are not shown yet */
  for (size_t i = 0; i < CALLERS; i++) counts[i] = hak_load_relaxed(&callers[i].count);
  for (int rank = 0; rank < TOP_CALLERS; rank++) {
    size_t most = 0;
    for (size_t i = 1; i < CALLERS; i++)
      if (counts[i] > counts[most]) most = i;
    if (counts[most] == 0) break;
    HAK_ASSERT(callers[most].caller != NULL);
    struct search at;
    hak_print("[EXTERNAL_GUARD] caller=%p count=%" PRIu64 " mapping: %s\n", callers[most].caller, counts[most],
              find_mapping(callers[most].caller, &at));
    counts[most] = 0;
  }
}
