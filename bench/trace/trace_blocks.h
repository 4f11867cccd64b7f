/*
 * From addresses to blocks: gives every allocation of a trace a number of its own, and every free
 * and realloc the number of the block it is about. Addresses are used again and again by the
 * program; numbers never are.
 *
 * What a trace cannot tell is counted, not guessed. A free of a block whose allocation is not in
 * the trace (from before a fork, or lost with the end of a file) is left out; a realloc of one is
 * an allocation. An address allocated while it is still in use had a free that was not recorded:
 * that free is put before the allocation.
 */
#ifndef HAKMEM_TRACE_BLOCKS_H
#define HAKMEM_TRACE_BLOCKS_H

#include <stdbool.h>
#include <stdint.h>

#include "trace_read.h"

typedef enum { BLOCK_ALLOCATE, BLOCK_FREE, BLOCK_REALLOC } block_action_kind;

typedef struct {
    block_action_kind kind;
    unsigned function;
    unsigned alignment_shift;
    uint32_t lane;
    uint32_t block;
    uint32_t old_block; /* of a realloc */
    uint64_t thread;
    uint64_t stamp;
    uint64_t size;
} block_action;

typedef struct block_entry block_entry;

typedef struct {
    trace_reader *reader;
    uint64_t unknown_frees;
    uint64_t unknown_reallocs;
    uint64_t missing_frees;
    uint32_t block_count;
    /* The rest is trace_blocks.c's. */
    block_entry *entries; /* address to block: a hash table with linear probing */
    uint64_t entry_mask;
    uint64_t entry_count;
    uint64_t *given_up; /* by lane: the old block of a realloc under way, + 1 */
    bool waiting;
    trace_step step;
} trace_blocks;

void trace_blocks_open(trace_blocks *blocks, trace_reader *reader);
void trace_blocks_close(trace_blocks *blocks);

/* The next action in the order of the stamps; false after the last. */
bool trace_blocks_next(trace_blocks *blocks, block_action *action);

#endif
