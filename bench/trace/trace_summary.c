/*
 * What is in a trace, as lines for `hakmem replay --summary`: one `name=value` a line, then the
 * histograms of requested sizes (bytes) and of lifetimes (allocations between a block's own and
 * its free). A realloc is one allocation and the end of its old block.
 */
#include "bench.h"

#include <inttypes.h>

#include "histogram.h"
#include "trace_blocks.h"

enum { TEXT_SHOWN_BYTES = 900 };

typedef struct {
    uint64_t size;
    uint64_t born; /* allocations before it */
    uint64_t thread;
} block_life;

typedef struct {
    uint64_t calls[TRACE_THREAD];
    uint64_t allocations, frees, other_thread_frees;
    uint64_t live_bytes, live_blocks, peak_bytes, peak_blocks, total_bytes;
    uint64_t threads;
    histogram *sizes;
    histogram *lifetimes;
} totals;

static void end_life(totals *t, const block_life *life, uint64_t thread) {
    histogram_add(t->lifetimes, t->allocations - life->born - 1);
    t->live_bytes -= life->size;
    t->live_blocks--;
    t->frees++;
    if (life->thread != thread) t->other_thread_frees++;
}

static void begin_life(totals *t, block_life *life, const block_action *action) {
    *life = (block_life){action->size, t->allocations, action->thread};
    histogram_add(t->sizes, action->size);
    t->allocations++;
    t->total_bytes += action->size;
    t->live_bytes += action->size;
    t->live_blocks++;
    if (t->live_bytes > t->peak_bytes) t->peak_bytes = t->live_bytes;
    if (t->live_blocks > t->peak_blocks) t->peak_blocks = t->live_blocks;
}

static void count(totals *t, block_life *lives, const block_action *action) {
    t->calls[action->kind == BLOCK_FREE ? TRACE_FREE : action->function]++;
    if (action->thread > t->threads) t->threads = action->thread;
    if (action->kind == BLOCK_FREE) {
        end_life(t, &lives[action->block], action->thread);
        return;
    }
    if (action->kind == BLOCK_REALLOC) end_life(t, &lives[action->old_block], action->thread);
    begin_life(t, &lives[action->block], action);
}

/* Text from the file on one line: the NULs between arguments become blanks. */
static void print_text(const char *name, const char *text, size_t bytes) {
    char line[TEXT_SHOWN_BYTES + 1];
    size_t length = bytes < TEXT_SHOWN_BYTES ? bytes : TEXT_SHOWN_BYTES;
    while (length > 0 && text[length - 1] == '\0') length--;
    for (size_t at = 0; at < length; at++)
        line[at] = (unsigned char)text[at] < ' ' ? ' ' : text[at];
    line[length] = '\0';
    bench_print("%s=%s\n", name, line);
}

static void print_totals(const totals *t, const trace_blocks *blocks) {
    static const char *const names[] = {[TRACE_MALLOC] = "malloc", [TRACE_CALLOC] = "calloc",
                                        [TRACE_ALIGNED] = "aligned", [TRACE_FREE] = "free",
                                        [TRACE_REALLOC] = "realloc"};
    const trace_reader *r = blocks->reader;
    print_text("executable", r->header->executable, sizeof r->header->executable);
    print_text("command", r->header->command, sizeof r->header->command);
    for (unsigned function = TRACE_MALLOC; function < TRACE_THREAD; function++)
        bench_print("%s=%" PRIu64 "\n", names[function], t->calls[function]);
    const struct {
        const char *name;
        uint64_t value;
    } lines[] = {
        {"process", r->header->process},
        {"forked", r->header->flags & TRACE_FORKED},
        {"truncated", r->truncated},
        {"event_bytes", r->event_bytes},
        {"lanes", r->lane_count},
        {"threads", t->threads},
        {"allocations", t->allocations},
        {"frees", t->frees},
        {"other_thread_frees", t->other_thread_frees},
        {"total_bytes", t->total_bytes},
        {"peak_bytes", t->peak_bytes},
        {"peak_blocks", t->peak_blocks},
        {"left_blocks", t->live_blocks},
        {"left_bytes", t->live_bytes},
        {"unknown_frees", blocks->unknown_frees},
        {"unknown_reallocs", blocks->unknown_reallocs},
        {"missing_frees", blocks->missing_frees},
    };
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++)
        bench_print("%s=%" PRIu64 "\n", lines[i].name, lines[i].value);
}

int main(int argc, char **argv) {
    if (argc != 2 || argv[1][0] == '-')
        trace_reject("arguments", "the file of one trace is needed, and nothing else");
    trace_reader reader;
    trace_open(&reader, argv[1]);
    uint64_t events = 0;
    for (uint32_t lane = 0; lane < reader.lane_count; lane++)
        events += trace_count_events(&reader, lane);
    block_life *lives = bench_map((events + 1) * sizeof *lives);
    totals t = {.sizes = bench_map(sizeof *t.sizes), .lifetimes = bench_map(sizeof *t.lifetimes)};

    trace_blocks blocks;
    trace_blocks_open(&blocks, &reader);
    block_action action;
    while (trace_blocks_next(&blocks, &action)) count(&t, lives, &action);
    print_totals(&t, &blocks);
    histogram_print(t.sizes, "size");
    histogram_print(t.lifetimes, "lifetime");
    return 0;
}
