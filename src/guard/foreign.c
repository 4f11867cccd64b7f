#include "guard/foreign.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include "config/config.h"
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

static int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

static const char *parse_hex(const char *s, uintptr_t *value) {
  *value = 0;
  for (int d; (d = hex_digit(*s)) >= 0; s++) *value = *value << 4 | (unsigned)d;
  return s;
}

/* True when the maps line "lo-hi perms offset dev inode  name" covers p. */
static bool line_covers(const char *line, uintptr_t p) {
  uintptr_t lo, hi;
  const char *s = parse_hex(line, &lo);
  if (*s != '-') return false;
  parse_hex(s + 1, &hi);
  return lo <= p && p < hi;
}

/* The line of the file maps that covers p, without its newline; "not mapped" when none does. Lines are read
 * through a buffer of their own: stdio would allocate. */
static void describe_mapping(const void *p, char *out, size_t capacity) {
  strcpy(out, "not mapped");
  int fd = hak_os_open_own("maps");
  if (fd < 0) {
    strcpy(out, "unknown");
    return;
  }
  char buf[1024], line[256];
  size_t length = 0;
  long n;
  bool found = false;
  while (!found && (n = hak_os_read(fd, buf, sizeof buf)) > 0) {
    for (long i = 0; i < n && !found; i++) {
      if (buf[i] != '\n') {
        if (length < sizeof line - 1) line[length++] = buf[i];
        continue;
      }
      line[length] = '\0';
      length = 0;
      found = line_covers(line, (uintptr_t)p);
    }
  }
  hak_os_close(fd);
  if (found) {
    size_t kept = strnlen(line, capacity - 1);
    HAK_ASSERT(kept < capacity);
    memcpy(out, line, kept);
    out[kept] = '\0';
  }
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
    char mapping[256];
    describe_mapping(p, mapping, sizeof mapping);
    hak_print("hakmem: external pointer: %s(%p) from %p, address %s, mapping: %s; left alone\n", call_names[call], p,
              caller, size_band(p), mapping);
  }
  static bool reported;
  if (hak_foreign_total() >= REPORT_THRESHOLD && !__atomic_exchange_n(&reported, true, __ATOMIC_RELAXED))
    hak_foreign_print();
}

void hak_foreign_print(void) {
  hak_print("[EXTERNAL_GUARD] total=%" PRIu64 " free=%" PRIu64 " realloc=%" PRIu64 " malloc_usable_size=%" PRIu64 "\n",
            hak_foreign_total(), hak_load_relaxed(&totals[HAK_FOREIGN_FREE]),
            hak_load_relaxed(&totals[HAK_FOREIGN_REALLOC]), hak_load_relaxed(&totals[HAK_FOREIGN_USABLE_SIZE]));
  bool shown[CALLERS] = {false};
  for (int rank = 0; rank < TOP_CALLERS; rank++) {
    size_t best = CALLERS;
    uint64_t most = 0;
    for (size_t i = 0; i < CALLERS; i++) {
      uint64_t n = hak_load_relaxed(&callers[i].count);
      if (!shown[i] && n > most) {
        most = n;
        best = i;
      }
    }
    if (best == CALLERS) break;
    shown[best] = true;
    HAK_ASSERT(callers[best].caller != NULL && most > 0);
    char mapping[256];
    describe_mapping(callers[best].caller, mapping, sizeof mapping);
    hak_print("[EXTERNAL_GUARD] caller=%p count=%" PRIu64 " mapping: %s\n", callers[best].caller, most, mapping);
  }
}
