/*
 * False sharing, after the cache tests of Berger, McKinley, Blumofe and Wilson (Hoard, 2000). Each
 * thread allocates a small object, writes it many times, frees it, and again. If the allocator puts
 * two threads' objects into one cache line, every write fetches the line from the other core.
 * Active: each thread starts with nothing, so only the allocator decides who shares a line.
 * Passive: one thread allocates the first objects side by side and hands one to each; a thread that
 * frees its own and is given the same memory again keeps sharing. One operation is one object.
 */
#include "bench.h"

#include <inttypes.h>

typedef struct {
    _Alignas(128) void *handed; /* NULL when active */
} worker_state;

static uint64_t objects_each, writes_each, object_bytes;

static void write_often(void *object) {
    volatile unsigned char *bytes = object;
    size_t at = 0;
    for (uint64_t i = 0; i < writes_each; i++) {
        bytes[at]++;
        at = at + 1 < object_bytes ? at + 1 : 0;
    }
}

static void use_objects(void *state) {
    free(((worker_state *)state)->handed);
    for (uint64_t i = 0; i < objects_each; i++) {
        void *object = bench_block(object_bytes, i);
        write_often(object);
        free(object);
    }
}

int main(int argc, char **argv) {
    bench_arg args[] = {
        {"passive", "0: active; 1: the first objects come from one thread", 0, 0, 1},
        {"threads", "threads", 2, 1, 1024},
        {"objects", "objects per thread", 50000, 1, UINT64_C(1) << 48},
        {"writes", "writes to each object", 1000, 1, UINT64_C(1) << 32},
        {"size", "bytes of each object", 8, 1, UINT64_C(1) << 20},
    };
    bench_parse(argc, argv, "threads write small objects of their own, which may share cache lines",
                args, sizeof args / sizeof args[0]);
    uint64_t passive = args[0].value, threads = args[1].value;
    objects_each = args[2].value;
    writes_each = args[3].value;
    object_bytes = args[4].value;

    worker_state *workers = bench_map(threads * sizeof *workers);
    for (uint64_t t = 0; passive && t < threads; t++)
        workers[t].handed = bench_block(object_bytes, t);

    uint64_t elapsed = bench_run_threads(threads, use_objects, workers, sizeof *workers);

    bench_report(threads * objects_each, elapsed,
                 "passive=%" PRIu64 " threads=%" PRIu64 " objects=%" PRIu64 " writes=%" PRIu64
                 " size=%" PRIu64,
                 passive, threads, objects_each, writes_each, object_bytes);
    return 0;
}
