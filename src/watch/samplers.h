/* Which samplers are on: guarded blocks (HAKMEM_GUARD_SAMPLE) and the heap profile (HAKMEM_HEAP_PROFILE), by options
 * and from outside. */
#ifndef HAK_WATCH_SAMPLERS_H
#define HAK_WATCH_SAMPLERS_H

#include <stdbool.h>
#include <stdint.h>

#include "os/lock.h"
#include "os/os.h"

/* Once, in the constructor; where there is to be a profile the allocator is ready. */
void hak_sampling_start(void);
/* Does what the options say now, which may have changed. False: no memory for the profile. Not for signal handlers. */
bool hak_sampling_follow(void);

/* The same where somebody outside wants the profile, or no longer does; rate: mean bytes between samples, 0: as the
 * option says. An option that has it on has its own rate. 0, ENOMEM, or EAGAIN: another thread switches samplers. */
int hak_sampling_ask(bool on, uint64_t rate);

/* One that switches samplers at a time: before all locks but those of heaps' ends. */
extern hak_lock hak_sampling_lock;

#endif
