/* How long memory has to rest before it is given back, learnt from what is taken again.
 *
 * Where a quarter of what was given back was in vain, memory has to rest four times as long, until that is longer than
 * what the program does in turns. It may rest a shorter time once much has gone to good purpose, but that is not believed
 * before a time which doubles with each mistake: mistakes grow with the logarithm of time. Any thread may call at any
 * time; of several that do, one judges. */
#ifndef HAK_POOL_TRIAL_H
#define HAK_POOL_TRIAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Zeroed at first. Relaxed; but for judged_ms written by the thread that has moved that one. */
typedef struct hak_trial {
  uint64_t judged_ms;
  uint64_t rest_ms;  /* 0: the policy's own time will do */
  uint64_t trust_ms; /* what goes well for less than this says nothing */
  uint64_t until_ms; /* no good verdict before */
  size_t given, vain;
} hak_trial;

/* What is counted in, and how little of it says nothing. */
typedef struct hak_trial_least {
  size_t vain, given;
} hak_trial_least;

/* `given`, `vain`: totals since the start. True: there is a verdict, and a trial begins with this. */
bool hak_trial_judge(hak_trial *trial, hak_trial_least least, uint64_t now_ms, size_t given, size_t vain);

#endif
