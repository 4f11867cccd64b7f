/* Output of histograms. See histogram.h. */
#include "histogram.h"

#include <inttypes.h>

#include "bench.h"

void histogram_print(const histogram *h, const char *label) {
    for (uint32_t bucket = 0; bucket < HISTOGRAM_BUCKETS; bucket++)
        if (h->counts[bucket] != 0)
            bench_print("bucket,%s,%" PRIu64 ",%" PRIu64 ",%" PRIu64 "\n", label,
                        histogram_low(bucket), histogram_low(bucket + 1) - 1, h->counts[bucket]);
}
