/* Who asks for memory under a default heap: what the loader and the C++ runtime keep beyond the call must not go with
 * the heap. */
#ifndef HAK_OS_CALLERS_H
#define HAK_OS_CALLERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/atomic.h"

/* Once, before a thread has its first default heap; under no lock: libc may take the loader's. */
void hak_callers_find(void);

/* Return addresses in the loader: thread-local blocks and their tables, what it keeps of libraries. In the functions of
 * libc that keep what they ask for as long as the thread lives: values of keys, and destructors of thread_local
 * objects. And in the functions that make exceptions, which may fly out of the heap's scope, and the texts of the
 * standard ones. */
#define HAK_KEEPERS 6
typedef struct hak_keeper {
  uintptr_t start;
  size_t bytes;
} hak_keeper;
/* Relaxed: whoever has a default heap has found them, and others, for whom they change nothing, may look meanwhile. */
extern hak_keeper hak_keepers[HAK_KEEPERS];
extern hak_keeper hak_keepers_around; /* from the first to the last: programs' own code mostly lies outside */

static inline bool hak_keeper_has(const hak_keeper *keeper, const void *caller) {
  return (uintptr_t)caller - hak_load_relaxed(&keeper->start) < hak_load_relaxed(&keeper->bytes);
}

static inline bool hak_caller_keeps(const void *caller) {
  if (!hak_keeper_has(&hak_keepers_around, caller)) return false;
  bool keeps = false;
  for (int i = 0; i < HAK_KEEPERS; i++) keeps |= hak_keeper_has(&hak_keepers[i], caller);
  return keeps;
}

#endif
