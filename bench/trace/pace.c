/* Windows of a replay. See pace.h. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "pace.h"

#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "bench.h"

enum { SPINS = 200 };

void pace_open(pace *p, uint64_t limit) {
    p->parts = bench_map(limit * sizeof *p->parts);
    p->parts_left = bench_map(limit * sizeof *p->parts_left);
}

void pace_add(pace *p, uint32_t window) {
    p->parts[window]++;
    if (window >= p->window_count) p->window_count = window + 1;
}

void pace_restart(pace *p) {
    for (uint32_t window = 0; window < p->window_count; window++)
        atomic_store(&p->parts_left[window], p->parts[window]);
    atomic_store(&p->first_open, 0);
}

void pace_begin(pace *p, uint32_t window) {
    for (unsigned tries = 0;; tries++) {
        unsigned open = atomic_load(&p->first_open);
        if (open + 1 >= window) return;
        if (tries < SPINS) {
            bench_pause();
            continue;
        }
        atomic_fetch_add(&p->sleepers, 1);
        /* The kernel looks at the value again: a step in between is not slept through. */
        syscall(SYS_futex, &p->first_open, FUTEX_WAIT_PRIVATE, open, NULL, NULL, 0);
        atomic_fetch_sub(&p->sleepers, 1);
    }
}

void pace_end(pace *p, uint32_t window) {
    /* All sequentially consistent: of two threads that end neighbouring windows, the later one
     * sees that both are done. */
    if (atomic_fetch_sub(&p->parts_left[window], 1) != 1) return;
    unsigned open = atomic_load(&p->first_open);
    while (open < p->window_count && atomic_load(&p->parts_left[open]) == 0) {
        if (!atomic_compare_exchange_strong(&p->first_open, &open, open + 1)) continue;
        open++;
        if (atomic_load(&p->sleepers) != 0)
            syscall(SYS_futex, &p->first_open, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
    }
}
