/*
 * Starts one program and reports what it cost, as one line of JSON on a file descriptor:
 *
 *   launch --fd N [--cpu LIST] [--preload PATH] [--env NAME=VALUE]... -- PROGRAM [ARG...]
 *
 * The paired runner goes through this small static program because Linux carries the peak resident
 * size of a forked process over exec: started straight from a large interpreter, every small
 * program would seem as large as that. The environment and the CPU are set in the child alone.
 * Exit status: 0 when a report was written, 2 for bad arguments, 1 otherwise.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* What kept the child from becoming the program: error numbers, 0 for none. */
typedef struct {
    int cpu;
    int exec;
} start_errors;

typedef struct {
    int report_fd;
    const char *cpus;
    const char *preload;
    char **environment;
    int environment_count;
    char **command;
} request;

static _Noreturn void die(const char *what, const char *detail) {
    fprintf(stderr, "launch: %s: %s\n", what, detail);
    exit(2);
}

/* A list such as 1 or 0,2-3. */
static cpu_set_t parse_cpus(const char *list) {
    cpu_set_t set;
    CPU_ZERO(&set);
    const char *at = list;
    while (*at != '\0') {
        char *end;
        unsigned long first = strtoul(at, &end, 10), last = first;
        if (end == at) die("--cpu: not a list of CPUs", list);
        if (*end == '-') {
            at = end + 1;
            last = strtoul(at, &end, 10);
            if (end == at) die("--cpu: not a list of CPUs", list);
        }
        if (last < first || last >= CPU_SETSIZE) die("--cpu: not a list of CPUs", list);
        for (unsigned long cpu = first; cpu <= last; cpu++) CPU_SET(cpu, &set);
        if (*end != ',' && *end != '\0') die("--cpu: not a list of CPUs", list);
        at = *end == ',' ? end + 1 : end;
    }
    return set;
}

static request parse(int argc, char **argv) {
    request r = {.report_fd = -1};
    r.environment = calloc((size_t)argc, sizeof *r.environment);
    if (r.environment == NULL) die("out of memory", "arguments");
    int i = 1;
    for (; i < argc && strcmp(argv[i], "--") != 0; i += 2) {
        if (i + 1 >= argc) die("value missing after", argv[i]);
        const char *name = argv[i];
        char *value = argv[i + 1];
        if (strcmp(name, "--fd") == 0)
            r.report_fd = atoi(value);
        else if (strcmp(name, "--cpu") == 0)
            r.cpus = value;
        else if (strcmp(name, "--preload") == 0)
            r.preload = value;
        else if (strcmp(name, "--env") == 0 && strchr(value, '=') != NULL)
            r.environment[r.environment_count++] = value;
        else
            die("unknown or bad option", name);
    }
    if (i + 1 >= argc) die("usage", "launch --fd N [options] -- PROGRAM [ARG...]");
    if (r.report_fd < 0) die("--fd", "a file descriptor is needed");
    r.command = &argv[i + 1];
    return r;
}

static _Noreturn void become_program(const request *r, int error_fd) {
    /* The program ends with us, so that an interrupted run leaves nothing behind. */
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    signal(SIGINT, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
    close(r->report_fd);
    start_errors errors = {0, 0};
    if (r->cpus != NULL) {
        cpu_set_t set = parse_cpus(r->cpus);
        if (sched_setaffinity(0, sizeof set, &set) != 0) errors.cpu = errno;
    }
    if (errors.cpu == 0) {
        for (int i = 0; i < r->environment_count; i++) putenv(r->environment[i]);
        if (r->preload != NULL)
            setenv("LD_PRELOAD", r->preload, 1);
        else
            unsetenv("LD_PRELOAD");
        execvp(r->command[0], r->command);
        errors.exec = errno;
    }
    if (write(error_fd, &errors, sizeof errors) < 0) _exit(126);
    _exit(127);
}

static long long micros(struct timeval t) { return (long long)t.tv_sec * 1000000 + t.tv_usec; }

static long long now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (long long)t.tv_sec * 1000000000 + t.tv_nsec;
}

int main(int argc, char **argv) {
    request r = parse(argc, argv);
    if (r.cpus != NULL) (void)parse_cpus(r.cpus);
    int error_pipe[2];
    if (pipe2(error_pipe, O_CLOEXEC) != 0) {
        perror("launch: pipe");
        return 1;
    }
    /* An interrupt reaches the program too: wait for it and report. */
    signal(SIGINT, SIG_IGN);

    long long start = now_ns();
    pid_t child = fork();
    if (child < 0) {
        perror("launch: fork");
        return 1;
    }
    if (child == 0) become_program(&r, error_pipe[1]);
    close(error_pipe[1]);
    start_errors errors = {0, 0};
    if (read(error_pipe[0], &errors, sizeof errors) < 0) errors.exec = errno;

    int status = 0;
    struct rusage usage;
    while (wait4(child, &status, 0, &usage) < 0) {
        if (errno != EINTR) {
            perror("launch: wait");
            return 1;
        }
    }
    long long wall = now_ns() - start;
    dprintf(r.report_fd,
            "{\"cpu_errno\": %d, \"exec_errno\": %d, \"exit\": %d, \"signal\": %d, \"wall_ns\": %lld, "
            "\"user_us\": %lld, \"system_us\": %lld, \"peak_rss_kb\": %ld, "
            "\"minor_faults\": %ld, \"major_faults\": %ld, "
            "\"voluntary_switches\": %ld, \"involuntary_switches\": %ld}\n",
            errors.cpu, errors.exec, WIFEXITED(status) ? WEXITSTATUS(status) : -1,
            WIFSIGNALED(status) ? WTERMSIG(status) : 0, wall, micros(usage.ru_utime),
            micros(usage.ru_stime), usage.ru_maxrss, usage.ru_minflt, usage.ru_majflt,
            usage.ru_nvcsw, usage.ru_nivcsw);
    return 0;
}
