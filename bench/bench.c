/* Arguments, clock, threads and output of the bench programs. See bench.h. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "bench.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static void write_all(int fd, const char *text, size_t length) {
    while (length > 0) {
        ssize_t written = write(fd, text, length);
        if (written < 0) {
            if (errno == EINTR) continue;
            return;
        }
        text += written;
        length -= (size_t)written;
    }
}

static void vprint(int fd, const char *format, va_list list) {
    char line[1024];
    int length = vsnprintf(line, sizeof line, format, list);
    if (length < 0) return;
    size_t bytes = (size_t)length < sizeof line ? (size_t)length : sizeof line - 1;
    write_all(fd, line, bytes);
}

void bench_print(const char *format, ...) {
    va_list list;
    va_start(list, format);
    vprint(STDOUT_FILENO, format, list);
    va_end(list);
}

static void complain(const char *format, ...) {
    va_list list;
    va_start(list, format);
    vprint(STDERR_FILENO, format, list);
    va_end(list);
}

void bench_reject(const bench_arg *arg, const char *why) {
    complain("%s: argument %s: %" PRIu64 " %s\n", program_invocation_short_name, arg->name,
             arg->value, why);
    exit(2);
}

void bench_fail(const char *what) {
    complain("%s: %s\n", program_invocation_short_name, what);
    exit(1);
}

static void print_help(const char *pattern, const bench_arg *args, size_t count) {
    bench_print("usage: %s", program_invocation_short_name);
    for (size_t i = 0; i < count; i++) bench_print(" [%s]", args[i].name);
    bench_print("\n%s\n\n", pattern);
    for (size_t i = 0; i < count; i++)
        bench_print("  %-10s %s (default %" PRIu64 ", %" PRIu64 " to %" PRIu64 ")\n", args[i].name,
                    args[i].help, args[i].value, args[i].min, args[i].max);
}

static void parse_one(bench_arg *arg, const char *text) {
    char *end = NULL;
    errno = 0;
    /* strtoull takes signs and leading blanks; a count has neither. */
    uint64_t value = text[0] >= '0' && text[0] <= '9' ? strtoull(text, &end, 10) : 0;
    if (end == NULL || *end != '\0' || errno != 0 || value < arg->min || value > arg->max) {
        complain("%s: argument %s: '%s' is not a whole number from %" PRIu64 " to %" PRIu64 "\n",
                 program_invocation_short_name, arg->name, text, arg->min, arg->max);
        exit(2);
    }
    arg->value = value;
}

void bench_parse(int argc, char **argv, const char *pattern, bench_arg *args, size_t count) {
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            print_help(pattern, args, count);
            exit(0);
        }
    }
    for (int i = 1; i < argc; i++) {
        if ((size_t)i > count) {
            complain("%s: argument %d: '%s' is one too many (at most %zu, see --help)\n",
                     program_invocation_short_name, i, argv[i], count);
            exit(2);
        }
        parse_one(&args[i - 1], argv[i]);
    }
}

uint64_t bench_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

void *bench_map(size_t bytes) {
    void *memory =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) bench_fail("no memory for the slot array");
    return memory;
}

/* /proc/self/statm would be cheaper, but since Linux 6.2 it is off by up to 64 pages a CPU. */
static uint64_t status_kb(const char *name) {
    char text[4096];
    int fd = open("/proc/self/status", O_RDONLY | O_CLOEXEC);
    if (fd < 0) return 0;
    ssize_t length = read(fd, text, sizeof text - 1);
    close(fd);
    if (length <= 0) return 0;
    text[length] = '\0';
    const char *line = strstr(text, name);
    return line != NULL ? strtoull(line + strlen(name), NULL, 10) : 0;
}

uint64_t bench_resident_kb(void) { return status_kb("VmRSS:"); }

uint64_t bench_peak_kb(void) { return status_kb("VmHWM:"); }

void bench_sleep_us(uint64_t us) {
    struct timespec left = {(time_t)(us / 1000000), (long)(us % 1000000 * 1000)};
    while (nanosleep(&left, &left) != 0 && errno == EINTR) {
    }
}

typedef struct {
    pthread_t thread;
    pthread_barrier_t *all_there;
    void (*work)(void *state);
    void *state;
    uint64_t start_ns;
    uint64_t end_ns;
} runner;

/* Each thread takes its own times: the one that waits for the others may be scheduled late. */
static void *run_one(void *argument) {
    runner *r = argument;
    pthread_barrier_wait(r->all_there);
    r->start_ns = bench_now_ns();
    r->work(r->state);
    r->end_ns = bench_now_ns();
    return NULL;
}

uint64_t bench_run_threads(uint64_t count, void (*work)(void *state), void *states,
                           size_t state_bytes) {
    pthread_barrier_t all_there;
    runner *runners = bench_map(count * sizeof *runners);
    if (pthread_barrier_init(&all_there, NULL, (unsigned)count) != 0)
        bench_fail("cannot make a barrier");
    for (uint64_t t = 0; t < count; t++) {
        runners[t] = (runner){.all_there = &all_there, .work = work,
                              .state = (char *)states + t * state_bytes};
        if (pthread_create(&runners[t].thread, NULL, run_one, &runners[t]) != 0)
            bench_fail("cannot start a thread");
    }
    uint64_t first = UINT64_MAX, last = 0;
    for (uint64_t t = 0; t < count; t++) {
        pthread_join(runners[t].thread, NULL);
        if (runners[t].start_ns < first) first = runners[t].start_ns;
        if (runners[t].end_ns > last) last = runners[t].end_ns;
    }
    pthread_barrier_destroy(&all_there);
    munmap(runners, count * sizeof *runners);
    return last - first;
}

uint64_t bench_seed(uint64_t seed) {
    uint64_t x = seed + 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    x ^= x >> 31;
    return x != 0 ? x : 1;
}

void bench_report(uint64_t ops, uint64_t elapsed_ns, const char *labels_format, ...) {
    char labels[256];
    va_list list;
    va_start(list, labels_format);
    vsnprintf(labels, sizeof labels, labels_format, list);
    va_end(list);
    double seconds = (double)(elapsed_ns != 0 ? elapsed_ns : 1) / 1e9;
    double rate = (double)ops / seconds;
    bench_print("Throughput = %.*f ops/s [%s] time=%.3fs\n", rate < 1000 ? 3 : 0, rate, labels,
                seconds);
}

void bench_report_rest(uint64_t held_kb, uint64_t rest_ms) {
    bench_sleep_us(1000 * rest_ms);
    bench_print("Memory: held_kb=%" PRIu64 " end_kb=%" PRIu64 " peak_kb=%" PRIu64 "\n", held_kb,
                bench_resident_kb(), bench_peak_kb());
}
