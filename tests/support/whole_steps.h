// Purging as the slow paths of a while do it together: all steps at once.
#ifndef TESTS_WHOLE_STEPS_H
#define TESTS_WHOLE_STEPS_H

#include "hak.h"

namespace whole_steps {

inline void finish() {
  if (hak_decay_step_due()) hak_decay_step(hak_os_now_ms(), true);
}
inline void tick(uint64_t now_ms, hak_deferred *d) {
  hak_decay_tick(now_ms, d);
  finish();
}
inline void excess(hak_deferred *d) {
  hak_decay_excess(d);
  finish();
}

}  // namespace whole_steps

#endif
