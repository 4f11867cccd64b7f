/* gperftools' C interface, for programs that ask tcmalloc for figures or have it give memory back:
 * gperftools/malloc_extension_c.h, and of gperftools/tcmalloc.h what is no alias of ours. What these headers say holds;
 * the comments here say what it comes to. */
#include <limits.h>
#include <string.h>

#include "hakmem/hakmem.h"
#include "hakmem/stats.h"
#include "entry/usage.h"
#include "os/os.h"

/* --- blocks --- */

typedef enum { UNKNOWN_OWNER, OWNED, NOT_OWNED } ownership;
HAK_EXPORT ownership MallocExtension_GetOwnership(const void *p) { return hakmem_is_ours(p) ? OWNED : NOT_OWNED; }

HAK_EXPORT size_t MallocExtension_GetEstimatedAllocatedSize(size_t size) { return hak_usage_size(size, 1); }
HAK_EXPORT size_t MallocExtension_GetAllocatedSize(const void *p) {
  return hakmem_malloc_usable_size((void *)(uintptr_t)p);
}

/* Of gperftools/nallocx.h: the size that a block of such alignment gets; of the flags MALLOCX_LG_ALIGN is looked at. */
HAK_EXPORT size_t tc_nallocx(size_t size, int flags) { return hak_usage_size(size, (size_t)1 << (flags & 63)); }

/* Ours, whatever malloc the program brings. */
HAK_EXPORT void tc_free_sized(void *p, size_t size) { hakmem_free_sized(p, size); }

/* Whether p is NULL or lies in a block of ours; the hardened build ends the program where the block was written
 * beyond. */
HAK_EXPORT int MallocExtension_VerifyMallocMemory(const void *p) {
  return p == NULL || (hakmem_is_ours(p) && (hakmem_malloc_usable_size((void *)(uintptr_t)p) != 0 || HAK_HARDENED));
}
#define ALIAS(own) __attribute__((weak, alias(#own), visibility("default")))
size_t nallocx(size_t, int) ALIAS(tc_nallocx);
int MallocExtension_VerifyNewMemory(const void *) ALIAS(MallocExtension_VerifyMallocMemory);
int MallocExtension_VerifyArrayNewMemory(const void *) ALIAS(MallocExtension_VerifyMallocMemory);

HAK_EXPORT int MallocExtension_VerifyAllMemory(void) { return hakmem_heap_check() == 0; }

/* --- figures --- */

static int as_int(uint64_t n) { return n > INT_MAX ? INT_MAX : (int)n; }

/* histogram[i]: blocks whose usable size is 2^i to 2^(i+1) - 1 bytes. */
HAK_EXPORT int MallocExtension_MallocMemoryStats(int *blocks, size_t *total, int histogram[HAK_USAGE_SIZES]) {
  hak_usage_sizes sizes;
  uint64_t sum = 0;
  hak_usage_count(&sizes);
  for (unsigned i = 0; i < HAK_USAGE_SIZES; i++) {
    sum += sizes.of[i];
    histogram[i] = as_int(sizes.of[i]);
  }
  *blocks = as_int(sum);
  *total = sizes.bytes;
  return 1;
}

HAK_EXPORT void MallocExtension_GetStats(char *buffer, int length) {
  if (length > 0) hak_usage_text(buffer, (size_t)length);
}

/* heap_size = current_allocated_bytes + the bytes of both pageheaps and of the three caches + what is lost between
 * blocks. Clean spans are unmapped ones as far as so much was given back; the rest, accessible ahead of its first use,
 * is not in the heap yet. */
static bool read_figure(const char *name, size_t *value) {
  hakmem_stats t;
  hak_usage_read(&t, NULL, NULL, NULL);
  size_t purged = hak_min_size(t.slab_purged, t.slab_free), given_back = hak_min_size(t.free_clean, t.purged),
         unmapped = given_back + purged;
  size_t mapped = t.free_dirty + t.claimed + t.extents_cached + t.huge_kept;
  size_t heap = t.accessible - t.own - t.guards - (t.free_clean - given_back);
  const struct {
    const char *name;
    size_t value;
  } figures[] = {
      {"generic.current_allocated_bytes", t.live},
      {"generic.heap_size", heap},
      {"generic.total_physical_bytes", heap + t.own - unmapped},
      {"tcmalloc.current_total_thread_cache_bytes", t.slab_cached},
      {"tcmalloc.thread_cache_free_bytes", t.slab_cached},
      {"tcmalloc.transfer_cache_free_bytes", t.slab_depots},
      {"tcmalloc.central_cache_free_bytes", t.slab_free - purged + t.slab_never_allocated + t.heaps_free},
      {"tcmalloc.pageheap_free_bytes", mapped},
      {"tcmalloc.pageheap_unmapped_bytes", unmapped},
      {"tcmalloc.slack_bytes", mapped + unmapped},
      {"tcmalloc.pageheap_committed_bytes", heap - unmapped},
      {"tcmalloc.pageheap_total_commit_bytes", heap - unmapped + t.purged},
      {"tcmalloc.pageheap_total_decommit_bytes", t.purged},
      {"tcmalloc.pageheap_total_reserve_bytes", t.reserved},
      {"tcmalloc.pageheap_commit_count", t.mprotect + t.mmap},
      {"tcmalloc.pageheap_decommit_count", t.madvise},
      {"tcmalloc.pageheap_reserve_count", t.regions},
      {"tcmalloc.pageheap_scavenge_count", t.purges},
      {"tcmalloc.impl.thread_cache_count", t.caches_used},
  };
  for (size_t i = 0; i < sizeof figures / sizeof figures[0]; i++) {
    if (strcmp(name, figures[i].name) != 0) continue;
    *value = figures[i].value;
    return true;
  }
  return false;
}

/* --- settings --- */

static const char decay_ms[] = "HAKMEM_DECAY_MS", limit[] = "HAKMEM_LIMIT";
static const char at_once[] = "tcmalloc.aggressive_memory_decommit", limit_mb[] = "tcmalloc.heap_limit_mb";

/* Kept and shown, as programs take it that they can be set: caches adapt, and the heap profile has a rate of its own.
 * Relaxed. */
static struct kept {
  const char *name;
  size_t value; /* at first gperftools' */
} kept[] = {
    {"tcmalloc.max_total_thread_cache_bytes", 32 * HAK_MIB},
    {"tcmalloc.min_per_thread_cache_bytes", 512 * HAK_KIB},
    {"tcmalloc.sample_parameter", 0},
};

static struct kept *find_kept(const char *name) {
  for (size_t i = 0; i < sizeof kept / sizeof kept[0]; i++)
    if (strcmp(name, kept[i].name) == 0) return &kept[i];
  return NULL;
}

static int64_t option(const char *name) {
  int64_t value = 0;
  hakmem_option_get(name, &value);
  return value;
}

HAK_EXPORT int MallocExtension_GetNumericProperty(const char *name, size_t *value) {
  const struct kept *k = find_kept(name);
  if (k != NULL)
    *value = hak_load_relaxed(&k->value);
  else if (strcmp(name, at_once) == 0)
    *value = option(decay_ms) == 0;
  else if (strcmp(name, limit_mb) == 0)
    *value = (size_t)option(limit) / HAK_MIB;
  else
    return read_figure(name, value);
  return 1;
}

/* The others are figures. */
HAK_EXPORT int MallocExtension_SetNumericProperty(const char *name, size_t value) {
  struct kept *k = find_kept(name);
  if (k != NULL) {
    hak_store_relaxed(&k->value, value);
    return 1;
  }
  if (strcmp(name, at_once) == 0) return hak_usage_set(decay_ms, value != 0 ? 0 : HAK_USUAL);
  return strcmp(name, limit_mb) == 0 && value <= INT64_MAX / HAK_MIB &&
         hak_usage_set(limit, (int64_t)(value * HAK_MIB));
}

/* Not in the header of gperftools 2.10, which has them of C++ alone. A rate of 1, the default there, is a decay time of
 * a second, the default here; 10 is a tenth of a second. 0, never, is the longest decay time there is, an hour. */
#define MS_OF_RATE_1 1000.0
#define NEVER_MS 1000000

HAK_EXPORT void MallocExtension_SetMemoryReleaseRate(double rate) {
  double ms = MS_OF_RATE_1 / rate;
  hak_usage_set(decay_ms, rate > 0 && ms < NEVER_MS ? (int64_t)ms : INT64_MAX);
}

HAK_EXPORT double MallocExtension_GetMemoryReleaseRate(void) {
  int64_t ms = option(decay_ms);
  return ms >= NEVER_MS ? 0 : MS_OF_RATE_1 / (double)(ms > 0 ? ms : 1);
}

/* --- giving back --- */

HAK_EXPORT void MallocExtension_ReleaseFreeMemory(void) { hak_usage_release(SIZE_MAX); }
HAK_EXPORT void MallocExtension_ReleaseToSystem(size_t bytes) { hak_usage_release(bytes); }

HAK_EXPORT size_t MallocExtension_GetThreadCacheSize(void) { return hak_usage_cached(); }
HAK_EXPORT void MallocExtension_MarkThreadIdle(void) { hakmem_thread_idle(); }
void MallocExtension_MarkThreadTemporarilyIdle(void) ALIAS(MallocExtension_MarkThreadIdle);
/* A thread's cache fills by itself. */
HAK_EXPORT void MallocExtension_MarkThreadBusy(void) {}

/* --- the rest of gperftools/tcmalloc.h --- */

/* The version of the interface. */
HAK_EXPORT const char *tc_version(int *major, int *minor, const char **patch) {
  if (major != NULL) *major = 2;
  if (minor != NULL) *minor = 10;
  if (patch != NULL) *patch = "";
  return "hakmem " HAKMEM_VERSION_STRING " with the interface of gperftools 2.10";
}

/* malloc calls no handler of operator new, whatever the flag; returns the mode so far, which is that. */
HAK_EXPORT int tc_set_new_mode(int flag) {
  (void)flag;
  return 0;
}
