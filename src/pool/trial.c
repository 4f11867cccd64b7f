#include "pool/trial.h"

#include "base/atomic.h"
#include "base/bits.h"

#define JUDGE_MS 250
#define REST_FIRST_MS 1000
#define REST_LAST_MS (1024 * 1000)
#define REST_FACTOR 4
#define TRUST_FIRST_MS 4000
#define TRUST_LAST_MS ((uint64_t)1 << 40)
#define VAIN_SHARE 4

static void begin(hak_trial *t, uint64_t now_ms, uint64_t rest_ms, size_t given, size_t vain) {
  hak_store_relaxed(&t->rest_ms, rest_ms);
  hak_store_relaxed(&t->given, given);
  hak_store_relaxed(&t->vain, vain);
  uint64_t trust_ms = hak_max_size(hak_load_relaxed(&t->trust_ms), TRUST_FIRST_MS);
  hak_store_relaxed(&t->until_ms, now_ms + hak_max_size(trust_ms, rest_ms * REST_FACTOR));
}

bool hak_trial_judge(hak_trial *t, hak_trial_least least, uint64_t now_ms, size_t given, size_t vain) {
  uint64_t last = hak_load_relaxed(&t->judged_ms);
  if (now_ms < last + JUDGE_MS || !hak_cas_acquire(&t->judged_ms, &last, now_ms)) return false;
  size_t then_given = hak_load_relaxed(&t->given), then_vain = hak_load_relaxed(&t->vain);
  if (given < then_given || vain < then_vain) return false; /* read long ago: somebody has judged since */
  size_t more_given = given - then_given, more_vain = vain - then_vain;
  uint64_t rest = hak_load_relaxed(&t->rest_ms);
  if (more_given == 0) { /* what is taken again now was given back in trials that have had their verdict */
    if (now_ms < hak_load_relaxed(&t->until_ms))
      hak_store_relaxed(&t->vain, vain);
    else
      begin(t, now_ms, rest, given, vain);
    return false;
  }
  if (more_vain > hak_max_size(least.vain, more_given / VAIN_SHARE)) {
    uint64_t trust_ms = hak_max_size(hak_load_relaxed(&t->trust_ms), TRUST_FIRST_MS);
    hak_store_relaxed(&t->trust_ms, hak_min_size(trust_ms * 2, TRUST_LAST_MS));
    begin(t, now_ms, hak_min_size(hak_max_size(rest * REST_FACTOR, REST_FIRST_MS), REST_LAST_MS), given, vain);
    return true;
  }
  if (now_ms < hak_load_relaxed(&t->until_ms)) return false;
  if (more_given <= least.given) {
    begin(t, now_ms, rest, given - more_given, vain - more_vain); /* too little to say: it goes on */
    return false;
  }
  /* Half of it counts in the next trial: a little that is taken again is no mistake when so much was not. */
  begin(t, now_ms, rest > REST_FIRST_MS ? rest / REST_FACTOR : 0, given - more_given / 2, vain - more_vain / 2);
  return true;
}
