/*
 * Where the recorder keeps events: one lane a thread, written straight into the mapped file.
 *
 * Order between threads. Every event takes the next value of one counter (its stamp): an allocation
 * after the allocator below has returned the block, a free before the block is given to it, a
 * realloc one on either side. A block's address can only come back from the allocator after the
 * free that released it was called, and the allocator must synchronise that hand-over itself; so
 * the free's step of the counter happens before the allocation's, and its stamp is the smaller one.
 * Time-stamp counters would need their own argument for every processor; a counter needs none. It
 * costs one contended cache line, which slows threads down and never reorders their events.
 *
 * Loss. Events are stored in pages shared with the file, each event's first byte last. What was
 * stored is in the page cache when the process is killed, execs or calls _exit: there is nothing to
 * flush. A fork leaves the pages behind (the child must not write its parent's file) and zeroes the
 * recorder's state in the child, which starts a file of its own at its first event.
 */
#ifndef HAKLAB_RECORD_LANE_H
#define HAKLAB_RECORD_LANE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct record_lane record_lane;

/* The calling thread's lane, or NULL where nothing is recorded (any more). Keeps errno. */
record_lane *record_lane_enter(void);

/* After the last use of a lane within one call. */
void record_lane_leave(record_lane *lane);

uint64_t record_stamp(void);

void record_allocation(record_lane *lane, unsigned kind, const void *block, size_t size,
                       size_t alignment);
void record_free(record_lane *lane, uint64_t stamp, const void *block);
void record_realloc(record_lane *lane, uint64_t begin, const void *old, const void *block,
                    size_t size);

#endif
