#include "tcache/draw.h"

#include <string.h>

#include "tcache/cache.h"

#define LN2 0.693147180559945309417232121458
#define SQRT_HALF 0.70710678118654752440
#define TRIALS_MAX ((uint64_t)1 << 62)

/* x = m * 2^e with m from sqrt(1/2) to sqrt(2), and ln m = 2 artanh((m - 1) / (m + 1)): an odd series that gains a
 * digit and a half a term there. */
double hak_ln(double x) {
  HAK_ASSERT(x > 0);
  uint64_t bits;
  memcpy(&bits, &x, sizeof bits);
  int exponent = (int)(bits >> 52 & 0x7ff) - 1022;
  bits = (bits & 0xfffffffffffff) | (uint64_t)1022 << 52; /* from 1/2 to 1 */
  double m;
  memcpy(&m, &bits, sizeof m);
  if (m < SQRT_HALF) {
    m *= 2;
    exponent--;
  }
  static const double terms[] = {1. / 23, 1. / 21, 1. / 19, 1. / 17, 1. / 15, 1. / 13,
                                 1. / 11, 1. / 9,  1. / 7,  1. / 5,  1. / 3,  1};
  double t = (m - 1) / (m + 1), square = t * t, sum = 0;
  for (size_t i = 0; i < sizeof terms / sizeof *terms; i++) sum = sum * square + terms[i];
  return 2 * t * sum + exponent * LN2;
}

/* e^-x = (e^(-x/2^k))^(2^k). With y = 1 - e^-z, twice z is 1 - (1 - y)^2 = y (2 - y): no digit is lost. */
double hak_one_minus_exp(double x) {
  HAK_ASSERT(x >= 0);
  if (x >= HAK_CERTAIN) return 1;
  if (x < 0x1p-10) return x * (1 - x * (1. / 2 - x * (1. / 6 - x * (1. / 24 - x * (1. / 120)))));
  unsigned halvings = 0;
  for (; x > 0.125; x /= 2) halvings++;
  double y = 0;
  for (int n = 10; n > 0; n--) y = x / n * (1 - y);
  for (; halvings > 0; halvings--) y *= 2 - y;
  return y;
}

double hak_draw_uniform(uint64_t random) { return ((double)(random >> 11) + 0.5) * 0x1p-53; }

uint64_t hak_draw_trials(double mean, uint64_t random) {
  HAK_ASSERT(mean >= 0);
  double failures = -hak_ln(hak_draw_uniform(random)) * mean;
  return failures >= (double)(TRIALS_MAX - 1) ? TRIALS_MAX : (uint64_t)failures + 1;
}

uint64_t hak_draw_scrambled(uint64_t x) {
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}
