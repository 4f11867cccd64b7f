/*
 * Replays a trace of 'hakmem record': the same calls, sizes and threads as the recorded program,
 * with nothing in between. Before the clock starts the trace is turned into one list of operations
 * a lane, each naming its block by number; then one thread a lane runs its list. A free or realloc
 * of another thread's block waits until the block is there, and threads stay near each other
 * (pace.h); otherwise they are as free as the program's. One call is one operation. Each block's
 * first and last byte is written. Blocks the program never freed are freed after the clock stopped.
 * With several passes all but the first one find a heap that has been used.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "bench.h"

#include <fcntl.h>
#include <inttypes.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "pace.h"
#include "trace_blocks.h"

/* An event may be two actions (a free that was not recorded comes first), each in a new window. */
enum { SPINS = 64, OPERATIONS_AN_EVENT = 4 };
/* Two windows at an eighth each: memory at most a quarter, or 2 MiB, above the program's own peak.
 * Smaller windows than of 1 MiB make threads wait for each other more than they allocate. */
enum { WINDOW_SHARE_OF_PEAK = 8, WINDOW_BYTES_MIN = 1 << 20, WINDOW_ACTIONS_MIN = 16 };

/* Functions are those of the trace; WINDOW begins the actions of another window. */
enum { OPERATION_WINDOW = 15 };

typedef struct {
    uint64_t size : 48; /* of WINDOW: its number */
    uint64_t function : 4;
    uint64_t alignment_shift : 6;
    uint32_t block;
    uint32_t old_block;
} operation;

typedef struct {
    operation *operations;
    uint64_t count;
    int64_t window; /* the last one it has a part in, -1 before the first */
} lane_list;

static _Atomic(void *) *block_addresses; /* by number; NULL before and after the block's life */
static pace windows;
/* Stands for what malloc(0) returned, when that was NULL. */
static char no_bytes;

static void set_block(uint32_t number, void *block) {
    /* release: pairs with the acquire in take_block, for the touched bytes and the block itself. */
    atomic_store_explicit(&block_addresses[number], block, memory_order_release);
}

static void *take_block(uint32_t number) {
    void *block;
    for (unsigned tries = 0;; tries++) {
        block = atomic_load_explicit(&block_addresses[number], memory_order_acquire);
        if (block != NULL) break;
        if (tries < SPINS)
            bench_pause();
        else
            sched_yield();
    }
    atomic_store_explicit(&block_addresses[number], NULL, memory_order_relaxed);
    return block != &no_bytes ? block : NULL;
}

static void *checked(void *block, const operation *o) {
    if (block == NULL && o->size == 0) return &no_bytes;
    if (block == NULL) bench_fail("the allocator returned NULL");
    if (o->size != 0) bench_touch(block, o->size, o->block);
    return block;
}

static void *allocate_aligned(const operation *o) {
    void *block = NULL;
    size_t alignment = (size_t)1 << o->alignment_shift;
    if (alignment < sizeof(void *)) alignment = sizeof(void *);
    return posix_memalign(&block, alignment, o->size) == 0 ? block : NULL;
}

static void run_lane(void *state) {
    const lane_list *lane = state;
    int64_t window = -1;
    for (const operation *o = lane->operations, *end = o + lane->count; o < end; o++) {
        switch (o->function) {
        case TRACE_MALLOC: set_block(o->block, checked(malloc(o->size), o)); break;
        case TRACE_CALLOC: set_block(o->block, checked(calloc(1, o->size), o)); break;
        case TRACE_ALIGNED: set_block(o->block, checked(allocate_aligned(o), o)); break;
        case TRACE_FREE: free(take_block(o->block)); break;
        case TRACE_REALLOC:
            set_block(o->block, checked(realloc(take_block(o->old_block), o->size), o));
            break;
        default:
            if (window >= 0) pace_end(&windows, (uint32_t)window);
            window = (int64_t)o->size;
            pace_begin(&windows, (uint32_t)window);
        }
    }
    if (window >= 0) pace_end(&windows, (uint32_t)window);
}

/* Address space only: pages come as the list is written. */
static void *map_sparse(size_t bytes) {
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) bench_fail("no memory for the list of operations");
    return memory;
}

/* Before the clock starts, so that they are not counted with the heap's pages. */
static void *map_resident(size_t bytes) {
    void *memory = bench_map(bytes);
    memset(memory, 0, bytes);
    return memory;
}

static void append(lane_list *lane, operation o) { lane->operations[lane->count++] = o; }

static void begin_window(lane_list *lane, uint64_t window) {
    if (lane->window == (int64_t)window) return;
    lane->window = (int64_t)window;
    append(lane, (operation){.function = OPERATION_WINDOW, .size = window});
    pace_add(&windows, (uint32_t)window);
}

/* Cuts the trace into windows: so many actions each, and fewer where they allocate so much that
 * threads which are apart by two windows would hold far more memory than the program ever did. */
typedef struct {
    uint64_t actions_max;
    uint64_t number, actions, bytes; /* of the window that is open */
    uint64_t live_bytes, peak_bytes;
    uint64_t *sizes; /* by block number */
} window_cutter;

static void follow(window_cutter *c, const block_action *action) {
    if (action->kind == BLOCK_FREE) c->live_bytes -= c->sizes[action->block];
    if (action->kind == BLOCK_REALLOC) c->live_bytes -= c->sizes[action->old_block];
    if (action->kind == BLOCK_FREE) return;
    c->sizes[action->block] = action->size;
    c->bytes += action->size;
    c->live_bytes += action->size;
    if (c->live_bytes > c->peak_bytes) c->peak_bytes = c->live_bytes;
}

/* The window of one more action. */
static uint64_t next_window(window_cutter *c, const block_action *action) {
    uint64_t allowance = c->peak_bytes / WINDOW_SHARE_OF_PEAK;
    if (allowance < WINDOW_BYTES_MIN) allowance = WINDOW_BYTES_MIN;
    bool full = c->bytes > allowance && c->actions >= WINDOW_ACTIONS_MIN;
    if (c->actions == c->actions_max || full) {
        c->number++;
        c->actions = c->bytes = 0;
    }
    c->actions++;
    follow(c, action);
    return c->number;
}

static uint64_t make_lists(trace_blocks *blocks, lane_list *lanes, window_cutter *cutter) {
    block_action action;
    uint64_t actions = 0;
    bool paced = blocks->reader->lane_count > 1;
    for (; trace_blocks_next(blocks, &action); actions++) {
        lane_list *lane = &lanes[action.lane];
        if (paced) begin_window(lane, next_window(cutter, &action));
        unsigned function = action.kind == BLOCK_FREE ? TRACE_FREE : action.function;
        append(lane, (operation){.size = action.size,
                                 .function = function,
                                 .alignment_shift = action.alignment_shift,
                                 .block = action.block,
                                 .old_block = action.old_block});
    }
    return actions;
}

static lane_list *map_lists(trace_reader *reader, uint64_t *events) {
    lane_list *lanes = bench_map(reader->lane_count * sizeof *lanes);
    for (uint32_t lane = 0; lane < reader->lane_count; lane++) {
        uint64_t count = trace_count_events(reader, lane);
        *events += count;
        lanes[lane] = (lane_list){.window = -1};
        lanes[lane].operations =
            map_sparse((count * OPERATIONS_AN_EVENT + 1) * sizeof *lanes[lane].operations);
    }
    return lanes;
}

static uint64_t status_kb(const char *field) {
    char text[4096];
    int fd = open("/proc/self/status", O_RDONLY | O_CLOEXEC);
    ssize_t length = fd >= 0 ? read(fd, text, sizeof text - 1) : 0;
    if (fd >= 0) close(fd);
    text[length > 0 ? length : 0] = '\0';
    const char *line = strstr(text, field);
    return line != NULL ? strtoull(line + strlen(field), NULL, 10) : 0;
}

/* Lets the peak begin anew at what is resident now; false where the kernel does not. */
static bool forget_peak(void) {
    int fd = open("/proc/self/clear_refs", O_WRONLY | O_CLOEXEC);
    bool done = fd >= 0 && write(fd, "5", 1) == 1;
    if (fd >= 0) close(fd);
    return done;
}

static uint64_t faults(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (uint64_t)usage.ru_minflt + (uint64_t)usage.ru_majflt;
}

static uint64_t free_rest(uint32_t block_count) {
    uint64_t live = 0;
    for (uint32_t number = 0; number < block_count; number++)
        if (atomic_load_explicit(&block_addresses[number], memory_order_relaxed) != NULL) {
            free(take_block(number));
            live++;
        }
    return live;
}

/* The time of all passes, each from a heap without the trace's blocks to the trace's end. */
static uint64_t run_passes(const trace_blocks *blocks, lane_list *lanes, uint64_t passes,
                           uint64_t *left) {
    uint64_t elapsed = 0;
    for (uint64_t pass = 0; pass < passes; pass++) {
        pace_restart(&windows);
        elapsed += bench_run_threads(blocks->reader->lane_count, run_lane, lanes, sizeof *lanes);
        *left = free_rest(blocks->block_count);
    }
    return elapsed;
}

static void run(trace_blocks *blocks, lane_list *lanes, uint64_t actions, uint64_t passes) {
    uint32_t lane_count = blocks->reader->lane_count;
    uint64_t resident_kb = bench_resident_kb(), faults_before = faults();
    bool peak_known = forget_peak();
    uint64_t live = 0, elapsed = run_passes(blocks, lanes, passes, &live);
    uint64_t peak_kb = status_kb("VmHWM:"), faults_after = faults();
    bench_report(actions * passes, elapsed,
                 "events=%" PRIu64 " threads=%" PRIu32 " passes=%" PRIu64, actions, lane_count,
                 passes);
    bench_print("replay: faults=%" PRIu64 " left_blocks=%" PRIu64, faults_after - faults_before,
                live);
    if (peak_known && peak_kb > resident_kb)
        bench_print(" heap_peak_kb=%" PRIu64, peak_kb - resident_kb);
    bench_print(" unknown_frees=%" PRIu64 " unknown_reallocs=%" PRIu64 " missing_frees=%" PRIu64
                " truncated=%d\n",
                blocks->unknown_frees, blocks->unknown_reallocs, blocks->missing_frees,
                blocks->reader->truncated);
}

int main(int argc, char **argv) {
    bench_arg args[] = {
        {"passes", "times the whole trace is replayed, one after the other", 1, 1, 1000000},
        {"window", "most actions that threads may be apart, twice over", 16384,
         WINDOW_ACTIONS_MIN, UINT32_MAX},
    };
    const char *name = argc > 1 ? argv[1] : "--help";
    /* What follows the file is as in all benchmarks; a first --help stays for the parser. */
    int skipped = argc > 1 && name[0] != '-';
    bench_parse(argc - skipped, argv + skipped,
                "FILE first: replays the trace that 'hakmem record' wrote to it", args,
                sizeof args / sizeof args[0]);
    if (!skipped) trace_reject("argument 1", "the file of a trace is needed (see --help)");

    trace_reader reader;
    trace_open(&reader, name);
    uint64_t events = 0;
    lane_list *lanes = map_lists(&reader, &events);
    if (events == 0) trace_reject(name, "holds no events");
    pace_open(&windows, OPERATIONS_AN_EVENT * events / WINDOW_ACTIONS_MIN + 1);
    window_cutter cutter = {.actions_max = args[1].value};
    cutter.sizes = bench_map((events + 1) * sizeof *cutter.sizes);
    trace_blocks blocks;
    trace_blocks_open(&blocks, &reader);
    uint64_t actions = make_lists(&blocks, lanes, &cutter);
    trace_blocks_close(&blocks);
    munmap(cutter.sizes, (events + 1) * sizeof *cutter.sizes);
    block_addresses = map_resident((blocks.block_count + 1ul) * sizeof *block_addresses);
    run(&blocks, lanes, actions, args[0].value);
    return 0;
}
