/*
 * Reads a trace file and gives its events back in the order of their stamps, whichever lanes they
 * are in. Owns the mapped file and the cursors; takes no memory from malloc.
 *
 * A file that ends early is read up to its end. Other damage stops with a message and status 2.
 */
#ifndef HAKMEM_TRACE_READ_H
#define HAKMEM_TRACE_READ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "format.h"

/* A realloc comes twice: at its first stamp, when its old block is given up, and at its second. */
typedef enum { STEP_ALLOCATE, STEP_FREE, STEP_REALLOC_BEGIN, STEP_REALLOC_END } trace_step_kind;

typedef struct {
    trace_step_kind kind;
    unsigned function; /* TRACE_MALLOC, … */
    unsigned alignment_shift;
    uint32_t lane;
    uint64_t thread;
    uint64_t stamp;
    uint64_t size;
    uint64_t address; /* in units of 8 bytes, as all here */
    uint64_t old_address;
} trace_step;

typedef struct trace_cursor trace_cursor;

typedef struct {
    const trace_header *header;
    const char *name;
    bool truncated;
    uint32_t lane_count;
    uint64_t chunk_count;
    uint64_t event_bytes; /* of all events decoded so far */
    /* The rest is trace_read.c's. */
    const uint8_t *data;
    size_t data_bytes;
    trace_cursor *cursors;
    uint32_t *queue; /* lanes with events left: a heap, the lowest stamp first */
    uint32_t queued;
} trace_reader;

/* Never returns for a file that is no trace. */
void trace_open(trace_reader *reader, const char *name);

/* Events in a lane, each realloc as one. Decodes all of the lane. */
uint64_t trace_count_events(trace_reader *reader, uint32_t lane);

/* False after the last event. */
bool trace_next(trace_reader *reader, trace_step *step);

/* One line that names the program and the file, and status 2. */
_Noreturn void trace_reject(const char *name, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#endif
