/* Random distances between samples, and what a sample stands for. Pure arithmetic: the allocator has no libm. */
#ifndef HAK_TCACHE_DRAW_H
#define HAK_TCACHE_DRAW_H

#include <stdint.h>

/* Natural logarithm of x > 0, normal; relative error below 1e-14. */
double hak_ln(double x);
/* 1 - e^-x for x >= 0; relative error below 1e-14, also where x is small. */
double hak_one_minus_exp(double x);
#define HAK_CERTAIN 45 /* x from which on that is 1 */

/* How many trials up to and including the first success, where trials come `mean` apart on average, exponentially:
 * success in each has the probability 1 - e^(-1/mean). mean 0: the first. At most 2^62. */
uint64_t hak_draw_trials(double mean, uint64_t random);

/* Of (0, 1): 53 bits, the middle of each of 2^53 intervals. */
double hak_draw_uniform(uint64_t random);
/* Random bits from the places of a counter that advances by HAK_DRAW_STEP. */
#define HAK_DRAW_STEP 0x9e3779b97f4a7c15u
uint64_t hak_draw_scrambled(uint64_t place);

#endif
