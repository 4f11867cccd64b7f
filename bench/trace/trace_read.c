/* Decoding and merging of lanes. See trace_read.h. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "trace_read.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bench.h"

enum { NO_CHUNK = 0 }; /* links are chunk number + 1 */

/* Where a lane is read; `next` is its earliest event not given out yet. */
struct trace_cursor {
    uint32_t first_chunk;
    uint32_t last_chunk;
    uint32_t chunk;
    uint32_t sequence;
    const uint8_t *at;
    const uint8_t *end;
    uint64_t last_stamp;
    uint64_t last_address;
    uint64_t thread;
    uint64_t end_stamp; /* of a realloc */
    trace_step next;
};

/* Chunks of one lane are a chain in the order of the file. */
static uint32_t *next_chunks;

void trace_reject(const char *name, const char *format, ...) {
    char line[4096 + 512];
    int length = snprintf(line, sizeof line, "%s: %.4096s: ", program_invocation_short_name, name);
    va_list list;
    va_start(list, format);
    length += vsnprintf(line + length, sizeof line - (size_t)length - 1, format, list);
    va_end(list);
    if (length > (int)sizeof line - 2) length = (int)sizeof line - 2;
    line[length++] = '\n';
    if (write(STDERR_FILENO, line, (size_t)length) < 0) _exit(2);
    exit(2);
}

static void map_file(trace_reader *r) {
    int fd = open(r->name, O_RDONLY | O_CLOEXEC);
    struct stat status;
    if (fd < 0 || fstat(fd, &status) != 0) trace_reject(r->name, "%s", strerror(errno));
    if (!S_ISREG(status.st_mode)) trace_reject(r->name, "is no plain file");
    r->data_bytes = (size_t)status.st_size;
    if (r->data_bytes < TRACE_HEADER_BYTES)
        trace_reject(r->name, "is no trace: %zu bytes, and a header alone has %d", r->data_bytes,
                     TRACE_HEADER_BYTES);
    void *data = mmap(NULL, r->data_bytes, PROT_READ, MAP_PRIVATE, fd, 0);
    if (data == MAP_FAILED) trace_reject(r->name, "%s", strerror(errno));
    close(fd);
    r->data = data;
    r->header = data;
}

static void check_header(const trace_reader *r) {
    const trace_header *h = r->header;
    if (memcmp(h->magic, TRACE_MAGIC, sizeof h->magic) != 0)
        trace_reject(r->name, "is no trace of 'hakmem record' (it does not begin with %s)",
                     TRACE_MAGIC);
    if (h->byte_order != TRACE_BYTE_ORDER)
        trace_reject(r->name, "was written on a machine of another byte order");
    if (h->version != TRACE_VERSION)
        trace_reject(r->name, "has format version %" PRIu32 ", this program reads %d", h->version,
                     TRACE_VERSION);
    if (h->header_bytes != TRACE_HEADER_BYTES || h->chunk_bytes != TRACE_CHUNK_BYTES)
        trace_reject(r->name, "has a damaged header (header %" PRIu32 " bytes, chunk %" PRIu32 ")",
                     h->header_bytes, h->chunk_bytes);
}

static const uint8_t *chunk_start(const trace_reader *r, uint64_t number) {
    return r->data + TRACE_HEADER_BYTES + number * TRACE_CHUNK_BYTES;
}

/* Puts a chunk at the end of its lane's chain. */
static void link_chunk(trace_reader *r, uint64_t number) {
    const trace_chunk *head = (const trace_chunk *)chunk_start(r, number);
    if (head->magic == 0) return; /* made room for, never begun */
    if (head->magic != TRACE_CHUNK_MAGIC || head->lane >= TRACE_LANES_MAX)
        trace_reject(r->name, "chunk %" PRIu64 " is damaged", number);
    trace_cursor *cursor = &r->cursors[head->lane];
    if (head->sequence != cursor->sequence++)
        trace_reject(r->name, "chunk %" PRIu64 " is out of its lane's order", number);
    uint32_t link = (uint32_t)number + 1;
    if (cursor->first_chunk == NO_CHUNK)
        cursor->first_chunk = link;
    else
        next_chunks[cursor->last_chunk - 1] = link;
    cursor->last_chunk = link;
    if (head->lane >= r->lane_count) r->lane_count = head->lane + 1;
}

static void open_chunk(const trace_reader *r, trace_cursor *c, uint32_t link) {
    c->chunk = link;
    c->at = c->end = NULL;
    if (link == NO_CHUNK) return;
    const uint8_t *start = chunk_start(r, link - 1);
    const trace_chunk *head = (const trace_chunk *)start;
    size_t left = (size_t)(r->data + r->data_bytes - start);
    c->at = start + sizeof *head;
    c->end = start + (left < TRACE_CHUNK_BYTES ? left : TRACE_CHUNK_BYTES);
    c->last_stamp = head->stamp;
    c->last_address = head->address;
}

static void rewind_lane(const trace_reader *r, trace_cursor *c) {
    c->thread = 0;
    open_chunk(r, c, c->first_chunk);
}

static bool get_address(trace_cursor *c, const uint8_t **at, uint64_t *address) {
    uint64_t folded;
    if (!trace_get(at, c->end, &folded)) return false;
    *address = c->last_address += (uint64_t)trace_unfold(folded);
    return true;
}

/* What follows an event's first byte and its step. */
static bool get_rest(trace_cursor *c, const uint8_t **at, unsigned kind) {
    trace_step *next = &c->next;
    uint64_t gap;
    switch (kind) {
    case TRACE_ALIGNED:
        if (*at >= c->end) return false;
        next->alignment_shift = *(*at)++;
        if (next->alignment_shift > 47) return false;
        /* fall through */
    case TRACE_MALLOC:
    case TRACE_CALLOC:
        next->kind = STEP_ALLOCATE;
        return trace_get(at, c->end, &next->size) && get_address(c, at, &next->address);
    case TRACE_FREE:
        next->kind = STEP_FREE;
        return get_address(c, at, &next->address);
    case TRACE_REALLOC:
        next->kind = STEP_REALLOC_BEGIN;
        if (!trace_get(at, c->end, &gap)) return false;
        c->end_stamp = c->last_stamp += gap + 1;
        return trace_get(at, c->end, &next->size) && get_address(c, at, &next->old_address) &&
               get_address(c, at, &next->address);
    default:
        return false;
    }
}

/* An event that is cut off, or is none. Only the end of a truncated file excuses it. */
static bool broken(trace_reader *r, trace_cursor *c) {
    if (c->end != r->data + r->data_bytes || !r->truncated)
        trace_reject(r->name, "chunk %" PRIu32 " has a damaged event at byte %zu", c->chunk - 1,
                     (size_t)(c->at - chunk_start(r, c->chunk - 1)));
    c->chunk = NO_CHUNK;
    return false;
}

/* Decodes the lane's next event into `next`; false at its end. */
static bool advance(trace_reader *r, trace_cursor *c) {
    while (c->chunk != NO_CHUNK) {
        if (c->at >= c->end || *c->at == TRACE_END) {
            open_chunk(r, c, next_chunks[c->chunk - 1]);
            continue;
        }
        const uint8_t *at = c->at;
        uint8_t first = *at++;
        unsigned kind = first & ((1u << TRACE_KIND_BITS) - 1);
        if (kind == TRACE_THREAD) {
            if (!trace_get(&at, c->end, &c->thread)) return broken(r, c);
        } else {
            uint64_t step = first >> TRACE_KIND_BITS, more = 0;
            if (step == TRACE_STEP_ESCAPE && !trace_get(&at, c->end, &more)) return broken(r, c);
            c->last_stamp += step + more + 1;
            c->next.stamp = c->last_stamp;
            c->next.function = kind;
            c->next.alignment_shift = 0;
            c->next.thread = c->thread;
            c->next.size = 0;
            if (!get_rest(c, &at, kind) || c->next.size >> 47 != 0) return broken(r, c);
        }
        r->event_bytes += (uint64_t)(at - c->at);
        c->at = at;
        if (kind != TRACE_THREAD) return true;
    }
    return false;
}

uint64_t trace_count_events(trace_reader *reader, uint32_t lane) {
    trace_cursor copy = reader->cursors[lane];
    uint64_t bytes = reader->event_bytes, count = 0;
    rewind_lane(reader, &copy);
    while (advance(reader, &copy)) count++;
    reader->event_bytes = bytes;
    return count;
}

static bool earlier(const trace_reader *r, uint32_t a, uint32_t b) {
    return r->cursors[r->queue[a]].next.stamp < r->cursors[r->queue[b]].next.stamp;
}

static void sink(trace_reader *r, uint32_t at) {
    for (;;) {
        uint32_t least = at, left = 2 * at + 1, right = 2 * at + 2;
        if (left < r->queued && earlier(r, left, least)) least = left;
        if (right < r->queued && earlier(r, right, least)) least = right;
        if (least == at) return;
        uint32_t lane = r->queue[at];
        r->queue[at] = r->queue[least];
        r->queue[least] = lane;
        at = least;
    }
}

static void start_queue(trace_reader *r) {
    for (uint32_t lane = 0; lane < r->lane_count; lane++) {
        rewind_lane(r, &r->cursors[lane]);
        r->cursors[lane].next.lane = lane;
        if (advance(r, &r->cursors[lane])) r->queue[r->queued++] = lane;
    }
    for (uint32_t at = r->queued; at-- > 0;) sink(r, at);
}

void trace_open(trace_reader *reader, const char *name) {
    *reader = (trace_reader){.name = name};
    map_file(reader);
    check_header(reader);
    size_t bytes = reader->data_bytes - TRACE_HEADER_BYTES;
    reader->truncated = bytes % TRACE_CHUNK_BYTES != 0;
    reader->chunk_count = bytes / TRACE_CHUNK_BYTES;
    if (bytes % TRACE_CHUNK_BYTES > sizeof(trace_chunk)) reader->chunk_count++;
    if (reader->chunk_count >= UINT32_MAX) trace_reject(name, "is too large");
    next_chunks = bench_map((reader->chunk_count + 1) * sizeof *next_chunks);
    reader->cursors = bench_map(TRACE_LANES_MAX * sizeof *reader->cursors);
    reader->queue = bench_map(TRACE_LANES_MAX * sizeof *reader->queue);
    for (uint64_t number = 0; number < reader->chunk_count; number++) link_chunk(reader, number);
    start_queue(reader);
}

bool trace_next(trace_reader *reader, trace_step *step) {
    if (reader->queued == 0) return false;
    trace_cursor *cursor = &reader->cursors[reader->queue[0]];
    *step = cursor->next;
    if (step->kind == STEP_REALLOC_BEGIN) {
        cursor->next.kind = STEP_REALLOC_END;
        cursor->next.stamp = cursor->end_stamp;
    } else if (!advance(reader, cursor)) {
        reader->queue[0] = reader->queue[--reader->queued];
    }
    sink(reader, 0);
    return true;
}
