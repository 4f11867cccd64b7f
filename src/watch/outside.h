/* Sampling that is asked for from outside the process: by `hakmem profile PID` and `hakmem serve PID`, which write and
 * read the words below through /proc/PID/mem, and by tracers, which raise the semaphores of the probes of samples. A
 * process nobody asks has no page, no descriptor, no thread and no handler for it: slow paths look at these words. */
#ifndef HAK_WATCH_OUTSIDE_H
#define HAK_WATCH_OUTSIDE_H

#include <stdbool.h>
#include <stdint.h>

#include "os/os.h"
#include "profile/profile.h"

/* Little-endian; the note `hakmem`, type 1, in the ELF file says how far behind its contents they lie. */
typedef struct hak_outside_words {
  char magic[8];
  /* Written by who asks, `rate` before `beat`. beat: another number than before asks for HAK_OUTSIDE_LEASE_MS more, an
   * odd one for an answer too; 0: nobody asks. rate: mean bytes between samples, 0: as the option says. */
  uint32_t beat, unused;
  uint64_t rate;
  /* Written by the thread that answers; sequence: odd meanwhile. The answer is JSON at that address of the process,
   * without the program's path and mappings. error: an errno value. took_ms: what the answer took. */
  uint32_t sequence, error;
  uint64_t answer, bytes;
  uint32_t took_ms, unused_too;
} hak_outside_words;

#define HAK_OUTSIDE_LEASE_MS 5000

extern HAK_HIDDEN hak_outside_words hak_outside;
extern HAK_HIDDEN uint32_t hak_outside_on; /* relaxed; 1: there is sampling for somebody outside */

void hak_outside_serve(uint64_t now_ms);
/* At slow paths, with no lock held. */
HAK_INLINE void hak_outside_look(uint64_t now_ms) {
  if (HAK_UNLIKELY((hak_load_relaxed(&hak_outside.beat) | hak_load_relaxed(&hak_outside_on)) != 0 ||
                   hak_profile_listened()))
    hak_outside_serve(now_ms);
}

/* In the child of a fork, which nobody has asked: what its parent was asked for ends at its first look. */
void hak_outside_fork_child(void);

#endif
