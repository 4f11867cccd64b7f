#include "tcache/draw.h"

#include <string.h>

#define LN2 0.693147180559945309417232121458
#define SQRT_HALF 0.70710678118654752440
#define TRIALS_MAX ((uint64_t)1 << 62)

/* x = m * 2^e with m from sqrt(1/2) to sqrt(2), and ln m = 2 artanh((m - 1) / (m + 1)): an odd series that gains a digit and a
 * half a term there. */
double hak_ln(double x) {
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
  double t = (m - 1) / (m + 1), square = t * t, sum = 0;
  for (int n = 23; n > 0; n -= 2) sum = sum * square + 1.0 / n;
  return 2 * t * sum + exponent * LN2;
}

/* e^-x = (e^(-x/2^k))^(2^k). With y = 1 - e^-z, twice z is 1 - (1 - y)^2 = y (2 - y): no digit is lost. */
double hak_one_minus_exp(double x) {
  if (x > 45) return 1;
  unsigned halvings = 0;
  for (; x > 0.125; x /= 2) halvings++;
  double y = 0;
  for (int n = 10; n > 0; n--) y = x / n * (1 - y);
  for (; halvings > 0; halvings--) y *= 2 - y;
  return y;
}

/* Of (0, 1): 53 bits, the middle of each of 2^53 intervals. */
double hak_draw_exponential(uint64_t random) {
  return -hak_ln(((double)(random >> 11) + 0.5) * 0x1p-53);
}

uint64_t hak_draw_trials(double mean, uint64_t random) {
  double failures = hak_draw_exponential(random) * mean;
  return failures >= (double)(TRIALS_MAX - 1) ? TRIALS_MAX : (uint64_t)failures + 1;
}
