/* Numbers for blocks. See trace_blocks.h. */
#include "trace_blocks.h"

#include <sys/mman.h>

#include "bench.h"

enum { FIRST_ENTRIES = 1 << 16 };

/* No block lies at address 0: that marks an empty place. */
struct block_entry {
    uint64_t address;
    uint32_t block;
};

static uint64_t place_of(const trace_blocks *b, uint64_t address) {
    return bench_mix(0, address) & b->entry_mask;
}

static block_entry *find(const trace_blocks *b, uint64_t address) {
    uint64_t at = place_of(b, address);
    while (b->entries[at].address != 0 && b->entries[at].address != address)
        at = (at + 1) & b->entry_mask;
    return &b->entries[at];
}

static void make_entries(trace_blocks *b, uint64_t count) {
    b->entries = bench_map(count * sizeof *b->entries);
    b->entry_mask = count - 1;
}

static void drop_entries(block_entry *entries, uint64_t mask) {
    munmap(entries, (mask + 1) * sizeof *entries);
}

static void grow(trace_blocks *b) {
    block_entry *old = b->entries;
    uint64_t old_mask = b->entry_mask;
    make_entries(b, 2 * (old_mask + 1));
    for (uint64_t at = 0; at <= old_mask; at++)
        if (old[at].address != 0) *find(b, old[at].address) = old[at];
    drop_entries(old, old_mask);
}

/* Moves later entries of the same run of places up, so that no search ends too early. */
static void erase(trace_blocks *b, block_entry *entry) {
    uint64_t hole = (uint64_t)(entry - b->entries), at = hole;
    for (;;) {
        at = (at + 1) & b->entry_mask;
        if (b->entries[at].address == 0) break;
        uint64_t home = place_of(b, b->entries[at].address);
        if (((at - home) & b->entry_mask) >= ((at - hole) & b->entry_mask)) {
            b->entries[hole] = b->entries[at];
            hole = at;
        }
    }
    b->entries[hole].address = 0;
    b->entry_count--;
}

static uint32_t new_block(trace_blocks *b, uint64_t address) {
    if (b->block_count == UINT32_MAX) trace_reject(b->reader->name, "has more than 2^32 blocks");
    if (2 * ++b->entry_count > b->entry_mask) grow(b);
    *find(b, address) = (block_entry){address, b->block_count};
    return b->block_count++;
}

void trace_blocks_open(trace_blocks *blocks, trace_reader *reader) {
    *blocks = (trace_blocks){.reader = reader};
    make_entries(blocks, FIRST_ENTRIES);
    blocks->given_up = bench_map(TRACE_LANES_MAX * sizeof *blocks->given_up);
}

void trace_blocks_close(trace_blocks *blocks) {
    drop_entries(blocks->entries, blocks->entry_mask);
    munmap(blocks->given_up, TRACE_LANES_MAX * sizeof *blocks->given_up);
}

/* Allocations, and the second half of a realloc. False where a free must come first. */
static bool appear(trace_blocks *b, block_action *action) {
    block_entry *entry = find(b, b->step.address);
    if (entry->address != 0) {
        action->kind = BLOCK_FREE;
        action->block = entry->block;
        erase(b, entry);
        b->missing_frees++;
        return false;
    }
    action->kind = BLOCK_ALLOCATE;
    if (b->step.kind == STEP_REALLOC_END) {
        uint64_t old = b->given_up[b->step.lane];
        if (old != 0) {
            action->kind = BLOCK_REALLOC;
            action->old_block = (uint32_t)(old - 1);
        } else {
            action->function = TRACE_MALLOC;
        }
    }
    action->block = new_block(b, b->step.address);
    return true;
}

/* Frees, and the first half of a realloc: the block gives up its address. */
static bool disappear(trace_blocks *b, uint64_t address, uint32_t *block) {
    block_entry *entry = find(b, address);
    if (entry->address == 0 || address == 0) return false;
    *block = entry->block;
    erase(b, entry);
    return true;
}

bool trace_blocks_next(trace_blocks *blocks, block_action *action) {
    for (;;) {
        trace_step *step = &blocks->step;
        if (!blocks->waiting && !trace_next(blocks->reader, step)) return false;
        blocks->waiting = false;
        *action = (block_action){.function = step->function,
                                 .alignment_shift = step->alignment_shift,
                                 .lane = step->lane,
                                 .thread = step->thread,
                                 .stamp = step->stamp,
                                 .size = step->size};
        uint32_t block;
        switch (step->kind) {
        case STEP_ALLOCATE:
        case STEP_REALLOC_END:
            if (step->address == 0) trace_reject(blocks->reader->name, "has a block at address 0");
            blocks->waiting = !appear(blocks, action);
            return true;
        case STEP_FREE:
            action->kind = BLOCK_FREE;
            if (disappear(blocks, step->address, &action->block)) return true;
            blocks->unknown_frees++;
            break;
        case STEP_REALLOC_BEGIN:
            if (disappear(blocks, step->old_address, &block)) {
                blocks->given_up[step->lane] = (uint64_t)block + 1;
            } else {
                blocks->given_up[step->lane] = 0;
                blocks->unknown_reallocs++;
            }
            break;
        }
    }
}
