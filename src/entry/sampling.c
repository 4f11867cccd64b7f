#include "entry/sampling.h"

#include <errno.h>
#include <stdlib.h>

#include "guard/sample.h"
#include "harden/trailer.h"
#include "os/os.h"
#include "os/print.h"
#include "profile/unwind.h"
#include "watch/black_box.h"

static bool note_alloc(void *p, void *companion, size_t size, double probability) {
  bool noted = hak_profile_note_alloc(p, companion, size, probability, 0, NULL);
  hak_black_box_note_growth();
  return noted;
}

/* A block in a slab of sampled ones, and for one that would share its pages another in its place: what that pins the
 * profile can tell. */
static void *profiled_block(hak_tcache *t, unsigned c, size_t size, double probability, hak_deferred *d) {
  void *p = hak_arena_alloc_sampled(c);
  if (p == NULL) {
    hak_profile_note_dropped();
    return NULL;
  }
  size_t block_size = hak_class_size(c);
  void *companion = t != NULL && block_size < hak_os_page_size() ? hak_tcache_alloc(t, c, d) : NULL;
  if (note_alloc(p, companion, size, probability)) return p;
  hak_arena_free(p, c, d);
  return companion;
}

void *hak_sampled_alloc(hak_due due, hak_tcache *t, unsigned c, size_t size, size_t align, hak_deferred *d) {
  HAK_ASSERT(due.guard || due.profile);
  /* The guard is behind what the program asked for: a slot knows the size, and needs no trailer. Hardened build: none
   * of no bytes, where one would be usable. */
  bool guarded = due.guard && (!HAK_HARD(CANARY) || size > HAK_TRAILER_BYTES_BUILT);
  void *p = guarded ? hak_sample_alloc(size - HAK_TRAILER_BYTES_BUILT, align) : NULL;
  if (!due.profile) return p;
  if (p == NULL) return profiled_block(t, c, size, due.probability, d);
  note_alloc(p, NULL, size, due.probability);
  return p;
}

void hak_sampled_count_large(void *p, size_t size) {
  if (HAK_LIKELY(hak_count_request(size))) return;
  hak_due due = hak_count_end(size);
  if (due.forbidden) hak_forbid_report("allocation", NULL, size);
  if (due.profile) note_alloc(p, NULL, size, due.probability);
}

void hak_sampled_end(void *p, unsigned c, bool stays, hak_deferred *d) {
  hak_tcache *t = hak_tls.cache;
  void *companion = hak_profile_note_free(p);
  if (companion != NULL && t != NULL)
    hak_tcache_free(t, companion, c, d);
  else if (companion != NULL)
    hak_arena_free(companion, c, d);
  if (!stays) hak_arena_free(p, c, d); /* says what is wrong where it was not live */
}

/* --- forbidden calls --- */

#define REPORTS_MOST 1000

static uint32_t reports; /* relaxed */

/* libc may allocate for the report, which is no call of the program's: the scope is lifted meanwhile. */
HAK_COLD void hak_forbid_report(const char *call, const void *p, size_t size) {
  uint32_t number = hak_add_relaxed(&reports, 1);
  bool ends = hak_load_relaxed(&hak_config.forbid) == HAK_FORBID_ABORT;
  if (number >= REPORTS_MOST && !ends) return;
  int saved = errno;
  hak_tcache_take_back();
  uintptr_t frames[HAK_PROFILE_FRAMES];
  unsigned depth = hak_unwind(frames, HAK_PROFILE_FRAMES);
  if (p != NULL)
    hak_print("hakmem: forbidden %s of %p [process %d, thread %d]\n", call, p, hak_os_pid(), hak_os_tid());
  else
    hak_print("hakmem: forbidden %s of %zu bytes [process %d, thread %d]\n", call, size, hak_os_pid(), hak_os_tid());
  hak_sample_print_frames(frames, depth);
  if (number + 1 == REPORTS_MOST) hak_print("hakmem: forbidden calls: no more are reported\n");
  if (ends) abort();
  hak_tcache_put_aside();
  errno = saved;
}
