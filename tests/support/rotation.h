/* A sweep tries one step after the other, hundreds of them. `make test` sets TEST_DAY, the number of the day: then the first few
 * and one in ROTATION_SHARE of the others are tried, other ones each day. Without it (`make test-long`, a test by hand) all are. */
#pragma once

#include <stdbool.h>
#include <stdlib.h>

enum { ROTATION_SHARE = 8 };

static inline bool rotation_has(unsigned step) {
  const char *day = getenv("TEST_DAY");
  return day == NULL || *day == '\0' || step <= ROTATION_SHARE || (strtoul(day, NULL, 10) + step) % ROTATION_SHARE == 0;
}
