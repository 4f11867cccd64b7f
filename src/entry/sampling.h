/* What the countdown in malloc finds (tcache/counted.h): sampled blocks among the program's, guarded ones
 * (HAKMEM_GUARD_SAMPLE) and those of the heap profile (HAKMEM_HEAP_PROFILE); and calls in scopes in which a thread may
 * neither allocate nor free (hakmem_forbid). The fast path tests nothing for these: in a scope every request ends its
 * countdown, and no free finds a cache (tcache/tcache.h), so the slow path sees each. */
#ifndef HAK_ENTRY_SAMPLING_H
#define HAK_ENTRY_SAMPLING_H

#include "profile/profile.h"
#include "tcache/counted.h"
#include "tcache/tcache.h"

/* A call that is forbidden: reports it with its stack, or ends the program (HAKMEM_FORBID). */
void hak_forbid_report(const char *call, const void *p, size_t size);
/* The same, where the thread is in a scope, of a call that has taken a slow path, and ended no countdown. */
HAK_INLINE void hak_forbid_look(const char *call, const void *p, size_t size) {
  if (HAK_UNLIKELY(hak_tls.phase == HAK_THREAD_FORBIDDEN)) hak_forbid_report(call, p, size);
}
/* The thread ends. */
HAK_INLINE void hak_forbid_end(void) {
  if (HAK_UNLIKELY(hak_tls.phase == HAK_THREAD_FORBIDDEN)) hak_tcache_take_back();
}

/* A block that is due, guarded or the profile's; NULL: there is none to be had. cache: NULL where the thread has none.
 * align: power of two. */
void *hak_sampled_alloc(hak_due due, hak_tcache *cache, unsigned class_code, size_t size, size_t align,
                        hak_deferred *deferred);
/* Counts p, no block of a slab, which has been allocated, or resized, with `size` bytes … */
void hak_sampled_count_large(void *p, size_t size);
/* … and is about to be freed or resized. */
HAK_INLINE void hak_sampled_forget(const void *p) {
  if (hak_profile_has_samples()) hak_profile_note_free(p);
}

/* The same, and it is freed: by a thread that may not, perhaps. */
HAK_INLINE void hak_sampled_note_free(const void *p) {
  hak_forbid_look("free", p, 0);
  hak_sampled_forget(p);
}

/* p, in a slab of sampled blocks of the class, is no sample any more, and is freed; or `stays`, to be freed after the
 * quarantine. */
void hak_sampled_end(void *p, unsigned class_code, bool stays, hak_deferred *deferred);

#endif
