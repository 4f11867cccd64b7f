/*
 * Keeps replay threads near each other in the trace. Without it a thread that only allocates could
 * run far ahead of the one that frees, and memory would grow as it never did in the program.
 *
 * The trace is cut into windows of actions that follow each other. A thread begins its part of a window when
 * all parts of all windows but the last one before are done. Some thread always may go on: the one
 * with the earliest action left.
 */
#ifndef HAKMEM_TRACE_PACE_H
#define HAKMEM_TRACE_PACE_H

#include <stdatomic.h>
#include <stdint.h>

typedef struct {
    unsigned *parts;         /* by window: threads that have a part in it */
    atomic_uint *parts_left; /* and those of them that are not done */
    uint32_t window_count;
    _Alignas(64) atomic_uint first_open; /* all windows before this one are done */
    atomic_uint sleepers;
} pace;

/* Windows are numbered below `limit`. */
void pace_open(pace *p, uint64_t limit);

/* Before the threads run: one of them has a part in `window`. */
void pace_add(pace *p, uint32_t window);

/* Before each time the threads run, all windows are to do again. */
void pace_restart(pace *p);

/* Waits until actions of `window` may be done. */
void pace_begin(pace *p, uint32_t window);

/* This thread's part of `window` is done. */
void pace_end(pace *p, uint32_t window);

#endif
