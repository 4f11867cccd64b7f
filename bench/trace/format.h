/*
 * The trace file: what the recorder writes and the reader reads. bench/trace/README.md describes it
 * in words. One header, then chunks of one size; a chunk holds events of one lane, and a lane is
 * the sequence of events of one thread at a time (a lane passes to the next thread when its thread
 * ends). Nothing in a file is ever rewritten, and a byte that is still 0 where an event's first
 * byte would be is the end of its chunk: whatever was written before a crash can be read.
 */
#ifndef HAKMEM_TRACE_FORMAT_H
#define HAKMEM_TRACE_FORMAT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TRACE_MAGIC "HAKTRACE"

enum {
    TRACE_VERSION = 1,
    TRACE_BYTE_ORDER = 0x01020304,
    TRACE_HEADER_BYTES = 4096,
    TRACE_CHUNK_BYTES = 65536,
    TRACE_CHUNK_MAGIC = 0x4b4e4843, /* "CHNK" */
    TRACE_EVENT_MAX_BYTES = 64,
    TRACE_LANES_MAX = 16384,
};

/* Flags of a header. */
enum { TRACE_FORKED = 1 };

typedef struct {
    char magic[8];
    uint32_t byte_order;
    uint32_t version;
    uint32_t header_bytes;
    uint32_t chunk_bytes;
    uint64_t process;
    uint64_t flags;
    char executable[1024];
    char command[2048]; /* arguments, each with its NUL, cut where they do not fit */
} trace_header;

_Static_assert(sizeof(trace_header) <= TRACE_HEADER_BYTES, "the header fits its page");

/* `stamp` and `address` are what the first event's differences are taken from. */
typedef struct {
    uint32_t magic; /* written last */
    uint32_t lane;
    uint32_t sequence; /* of this lane's chunks, from 0 */
    uint32_t reserved;
    uint64_t stamp;
    uint64_t address;
} trace_chunk;

/* The low bits of an event's first byte; the high bits are the stamp's step less 1, or ESCAPE. */
enum { TRACE_KIND_BITS = 3, TRACE_STEP_ESCAPE = 31 };
enum {
    TRACE_END = 0,
    TRACE_MALLOC = 1,
    TRACE_CALLOC = 2,
    TRACE_ALIGNED = 3,
    TRACE_FREE = 4,
    TRACE_REALLOC = 5,
    TRACE_THREAD = 6,
};

/* Addresses are kept in units of 8 bytes: no allocator here returns less aligned blocks. */
enum { TRACE_ADDRESS_SHIFT = 3 };

/* Seven bits a byte, low ones first, the high bit set on all but the last. */
static inline uint8_t *trace_put(uint8_t *at, uint64_t value) {
    while (value >= 0x80) {
        *at++ = (uint8_t)(value | 0x80);
        value >>= 7;
    }
    *at++ = (uint8_t)value;
    return at;
}

/* False when the value ends behind `end` or is none. */
static inline bool trace_get(const uint8_t **at, const uint8_t *end, uint64_t *value) {
    uint64_t found = 0;
    for (unsigned shift = 0; shift < 64 && *at < end; shift += 7) {
        uint8_t byte = *(*at)++;
        found |= (uint64_t)(byte & 0x7f) << shift;
        if ((byte & 0x80) == 0) {
            *value = found;
            return true;
        }
    }
    return false;
}

/* Small differences of either sign become small numbers. */
static inline uint64_t trace_fold(int64_t difference) {
    return ((uint64_t)difference << 1) ^ (uint64_t)(difference >> 63);
}

static inline int64_t trace_unfold(uint64_t folded) {
    return (int64_t)(folded >> 1) ^ -(int64_t)(folded & 1);
}

#endif
