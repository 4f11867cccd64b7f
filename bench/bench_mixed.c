/*
 * Server-like mixture: requests that parse a document, run a script or compile a query, each for a
 * session that keeps the result until its next one. Threads take sessions from a shared table and
 * put them back, so that what one thread left is freed by another. Modelled on application servers;
 * the parts are those of bench_json, bench_vm and bench_mir. One operation is one request.
 */
#include "bench.h"
#include "scenario_server.h"

#include <inttypes.h>
#include <stdatomic.h>

enum { TEXTS = 64 };

typedef struct {
    _Alignas(64) uint64_t random;
    uint64_t sum;
} worker_state;

static _Atomic(server_session *) *sessions; /* NULL: at work in some thread */
static uint64_t session_count, requests_each;
static server_site site;

/* The session at a random place, or the next one that no other thread is working on. */
static server_session *take_session(uint64_t *at) {
    for (;; *at = (*at + 1) % session_count) {
        server_session *found =
            atomic_exchange_explicit(&sessions[*at], NULL, memory_order_acquire);
        if (found != NULL) return found;
    }
}

static void serve(void *state) {
    worker_state *w = state;
    for (uint64_t i = 0; i < requests_each; i++) {
        uint64_t at = bench_below(bench_random(&w->random), session_count);
        server_session *session = take_session(&at);
        session = server_handle(&site, session, &w->random, &w->sum);
        atomic_store_explicit(&sessions[at], session, memory_order_release);
    }
}

int main(int argc, char **argv) {
    bench_arg args[] = {
        {"threads", "threads", 2, 1, 1024},
        {"requests", "requests per thread", 6000, 1, UINT64_C(1) << 48},
        {"sessions", "sessions, at least one a thread", 200, 1, UINT64_C(1) << 24},
        {"bytes", "of each document, about", 2000, 1, UINT64_C(1) << 24},
        {"seed", "of the random numbers", 42, 0, UINT64_MAX},
        {"rest_ms", "after the load, then memory is looked at", 0, 0, 3600000},
    };
    bench_parse(argc, argv, "threads serve requests of several kinds on sessions that survive",
                args, sizeof args / sizeof args[0]);
    uint64_t threads = args[0].value;
    requests_each = args[1].value;
    session_count = args[2].value;
    if (session_count < threads) bench_reject(&args[2], "is below threads");

    uint64_t random_state = bench_seed(args[4].value);
    site = (server_site){.texts = json_write_texts(TEXTS, args[3].value, &random_state),
                         .text_count = TEXTS,
                         .code = vm_write_code(&random_state)};
    sessions = bench_map(session_count * sizeof *sessions);
    for (uint64_t i = 0; i < session_count; i++) atomic_init(&sessions[i], server_open(&site, i));
    worker_state *workers = bench_map(threads * sizeof *workers);
    for (uint64_t t = 0; t < threads; t++)
        workers[t].random = bench_seed(bench_random(&random_state));

    uint64_t elapsed = bench_run_threads(threads, serve, workers, sizeof *workers);

    uint64_t sum = 0;
    for (uint64_t t = 0; t < threads; t++) sum = bench_mix(sum, workers[t].sum);
    bench_report(threads * requests_each, elapsed,
                 "threads=%" PRIu64 " requests=%" PRIu64 " sessions=%" PRIu64 " bytes=%" PRIu64
                 " check=%016" PRIx64,
                 threads, requests_each, session_count, args[3].value, sum);
    uint64_t rest_ms = args[5].value;
    bench_sleep_us(1000 * rest_ms);
    uint64_t held_kb = bench_resident_kb();
    for (uint64_t i = 0; i < session_count; i++) server_close(atomic_load(&sessions[i]));
    if (rest_ms > 0) bench_report_rest(held_kb, rest_ms);
    return 0;
}
