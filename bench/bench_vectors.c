/*
 * Vectors: many arrays grow by realloc, a random one at a time, each to the same maximum, as the
 * vectors of a program do while it reads its input. The new part is written in every cache line; at
 * the end of a round everything written is read back, with the clock stopped, and all is freed. One
 * operation is one realloc.
 */
#include "bench.h"

#include <inttypes.h>

enum { MARK_EVERY_BYTES = 64, FIRST_BYTES = 64 };

typedef struct {
    unsigned char *bytes;
    size_t size;
    uint64_t id;
} vector;

static uint64_t size_max, growth_percent;

static uint64_t mark(const vector *v, size_t at) { return bench_mix(v->id, at); }

static void write_marks(vector *v, size_t from) {
    for (size_t at = from; at < v->size; at += MARK_EVERY_BYTES)
        *(uint64_t *)(v->bytes + at) = mark(v, at);
}

static void check_marks(const vector *v) {
    for (size_t at = 0; at < v->size; at += MARK_EVERY_BYTES)
        if (*(uint64_t *)(v->bytes + at) != mark(v, at)) bench_fail("realloc lost contents");
}

/* Sizes are multiples of the distance between marks, so that the old part ends between two. */
static size_t grown(size_t size) {
    size_t wanted = size == 0 ? FIRST_BYTES : size + size / 100 * (growth_percent - 100) +
                                                   size % 100 * (growth_percent - 100) / 100;
    if (wanted >= size_max) return size_max;
    wanted = wanted / MARK_EVERY_BYTES * MARK_EVERY_BYTES;
    return wanted > size ? wanted : size + MARK_EVERY_BYTES;
}

/* Grows all vectors to the maximum, the next one chosen at random; returns how many reallocs. */
static uint64_t grow_all(vector *vectors, uint64_t count, uint64_t *random_state) {
    uint64_t steps = 0;
    for (uint64_t growing = count; growing > 0; steps++) {
        vector *v = &vectors[bench_below(bench_random(random_state), growing)];
        size_t old_size = v->size;
        v->size = grown(old_size);
        v->bytes = bench_checked(realloc(v->bytes, v->size));
        write_marks(v, old_size);
        if (v->size < size_max) continue;
        vector full = *v;
        *v = vectors[--growing];
        vectors[growing] = full;
    }
    return steps;
}

static uint64_t free_all(vector *vectors, uint64_t count) {
    for (uint64_t i = 0; i < count; i++) check_marks(&vectors[i]);
    uint64_t start = bench_now_ns();
    for (uint64_t i = 0; i < count; i++) {
        free(vectors[i].bytes);
        vectors[i] = (vector){.id = vectors[i].id};
    }
    return bench_now_ns() - start;
}

int main(int argc, char **argv) {
    bench_arg args[] = {
        {"vectors", "vectors growing at a time", 100, 1, UINT64_C(1) << 24},
        {"max", "bytes of a full vector, a multiple of 64", 262144, 64, UINT64_C(1) << 36},
        {"growth", "percent of its size a vector grows to", 150, 101, 1000},
        {"rounds", "times all vectors are grown", 20, 1, UINT64_C(1) << 32},
        {"seed", "of the random numbers", 42, 0, UINT64_MAX},
    };
    bench_parse(argc, argv, "many arrays grow by realloc, interleaved, up to a maximum", args,
                sizeof args / sizeof args[0]);
    uint64_t count = args[0].value, rounds = args[3].value;
    size_max = args[1].value;
    growth_percent = args[2].value;
    if (size_max % MARK_EVERY_BYTES != 0) bench_reject(&args[1], "is not a multiple of 64");
    uint64_t random_state = bench_seed(args[4].value);
    vector *vectors = bench_map(count * sizeof *vectors);
    for (uint64_t i = 0; i < count; i++) vectors[i].id = i;

    uint64_t steps = 0, elapsed = 0;
    for (uint64_t round = 0; round < rounds; round++) {
        uint64_t start = bench_now_ns();
        steps += grow_all(vectors, count, &random_state);
        elapsed += bench_now_ns() - start;
        elapsed += free_all(vectors, count);
    }

    bench_report(steps, elapsed,
                 "vectors=%" PRIu64 " max=%" PRIu64 " growth=%" PRIu64 " rounds=%" PRIu64
                 " reallocs=%" PRIu64,
                 count, size_max, growth_percent, rounds, steps);
    return 0;
}
