/*
 * Starts one program and reports what it cost, as one line of JSON on a file descriptor:
 *
 *   launch --fd N [--cpu LIST] [--preload PATH] [--env NAME=VALUE]... [--idle MS]
 *          -- PROGRAM [ARG...]
 *
 * The paired runner goes through this small static program because Linux carries the peak resident
 * size of a forked process over exec: started straight from a large interpreter, every small
 * program would seem as large as that. The environment and the CPU are set in the child alone,
 * which gets a session of its own: it cannot wait for a terminal, and all of it can be ended.
 * Times and faults are those of the program and of the children it waited for; the peak is that of
 * the largest of them. With --idle the resident size of the whole session is looked at meanwhile:
 * at the end, and after the longest span of at least MS without any CPU time.
 * Exit status: 0 when a report was written, 2 for bad arguments, 1 otherwise.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
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
    int idle_ms;
    char **command;
} request;

enum { LOOK_EACH_MS = 50, LIST_SHARE = 200, PROCESSES_MAX = 256 };

/* What was seen of the program's session, of its first PROCESSES_MAX processes; sizes are -1 when
 * nothing was. */
typedef struct {
    pid_t session;
    pid_t processes[PROCESSES_MAX];
    int count;
    long long next_list_ns;
    unsigned long long ticks;
    long long quiet_since_ns, longest_ns;
    long last_kb; /* at the last look */
    long end_kb, idle_kb;
} watch;

static volatile sig_atomic_t program, asked_to_end;

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
        else if (strcmp(name, "--idle") == 0 && (r.idle_ms = atoi(value)) > 0)
            continue;
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
    setsid();
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

/* Asked to end: the program goes first, with all that stayed in its session's first group. */
static void end_program(int number) {
    (void)number;
    asked_to_end = 1;
    if (program <= 0) return;
    kill(-program, SIGKILL);
    kill(program, SIGKILL); /* it may not lead a group yet */
}

/* The session, CPU ticks and resident size of one process; 0 when it is gone. */
static int read_process(pid_t pid, pid_t *session, unsigned long long *ticks, long *resident_kb) {
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return 0;
    ssize_t length = read(fd, text, sizeof text - 1);
    close(fd);
    if (length <= 0) return 0;
    text[length] = '\0';
    /* The name in brackets may hold anything; proc(5) numbers the fields. */
    const char *rest = strrchr(text, ')');
    unsigned long long user, system;
    long pages;
    int got_session;
    if (rest == NULL || sscanf(rest + 1,
                               " %*c %*d %*d %d %*d %*d %*u %*u %*u %*u %*u %llu %llu %*d %*d %*d "
                               "%*d %*d %*d %*u %*u %ld",
                               &got_session, &user, &system, &pages) != 4)
        return 0;
    *session = got_session;
    *ticks = user + system;
    *resident_kb = pages * (sysconf(_SC_PAGESIZE) / 1024);
    return 1;
}

/* Lists the session's processes anew. Reading all of /proc is slow on a busy machine: the next
 * list is made when this one has cost no more than a small share of the time. */
static void list_session(watch *w) {
    long long start = now_ns();
    DIR *all = opendir("/proc");
    if (all == NULL) return;
    w->count = 0;
    for (struct dirent *entry; (entry = readdir(all)) != NULL && w->count < PROCESSES_MAX;) {
        pid_t pid = atoi(entry->d_name), session;
        unsigned long long ticks;
        long resident;
        if (pid > 0 && read_process(pid, &session, &ticks, &resident) && session == w->session)
            w->processes[w->count++] = pid;
    }
    closedir(all);
    long long end = now_ns();
    w->next_list_ns = end + LIST_SHARE * (end - start);
}

static void look(watch *w, int idle_ms) {
    long long now = now_ns();
    if (now >= w->next_list_ns) list_session(w);
    unsigned long long ticks = 0;
    long resident_kb = 0;
    for (int i = 0; i < w->count; i++) {
        pid_t session;
        unsigned long long own_ticks;
        long own_kb;
        if (!read_process(w->processes[i], &session, &own_ticks, &own_kb)) continue;
        ticks += own_ticks;
        resident_kb += own_kb;
    }
    if (resident_kb == 0) return; /* it has just ended */
    /* A process that ends gives its memory back before a tick of CPU time has passed: the size at
     * rest is that of the look before, the one at the end the larger of the last two. */
    long before_kb = w->last_kb;
    w->last_kb = resident_kb;
    w->end_kb = resident_kb > before_kb ? resident_kb : before_kb;
    if (ticks != w->ticks) {
        w->ticks = ticks;
        w->quiet_since_ns = now;
    }
    long long quiet_ns = now - w->quiet_since_ns;
    if (quiet_ns >= idle_ms * 1000000ll && quiet_ns > w->longest_ns) {
        w->longest_ns = quiet_ns;
        w->idle_kb = before_kb;
    }
}

/* Looks until the program has ended; a system without pidfd (Linux before 5.3) gets no looks. */
static watch watch_program(pid_t child, int idle_ms) {
    watch w = {.session = child, .end_kb = -1, .idle_kb = -1, .quiet_since_ns = now_ns()};
    int ended = idle_ms > 0 ? (int)syscall(SYS_pidfd_open, child, 0) : -1;
    if (ended < 0) return w;
    struct pollfd until = {.fd = ended, .events = POLLIN};
    for (;;) {
        int ready = poll(&until, 1, LOOK_EACH_MS);
        if (ready > 0 || (ready < 0 && errno != EINTR)) break;
        if (ready == 0) look(&w, idle_ms);
    }
    close(ended);
    return w;
}

int main(int argc, char **argv) {
    request r = parse(argc, argv);
    if (r.cpus != NULL) (void)parse_cpus(r.cpus);
    int error_pipe[2];
    if (pipe2(error_pipe, O_CLOEXEC) != 0) {
        perror("launch: pipe");
        return 1;
    }
    /* Whoever started us decides on an interrupt: SIGTERM, also when they are gone. */
    signal(SIGINT, SIG_IGN);
    signal(SIGTERM, end_program);
    prctl(PR_SET_PDEATHSIG, SIGTERM);

    long long start = now_ns();
    pid_t child = fork();
    if (child < 0) {
        perror("launch: fork");
        return 1;
    }
    if (child == 0) become_program(&r, error_pipe[1]);
    program = child;
    if (asked_to_end) end_program(SIGTERM);
    close(error_pipe[1]);
    start_errors errors = {0, 0};
    if (read(error_pipe[0], &errors, sizeof errors) < 0) errors.exec = errno;

    watch seen = watch_program(child, r.idle_ms);
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
            "\"voluntary_switches\": %ld, \"involuntary_switches\": %ld, "
            "\"end_rss_kb\": %ld, \"idle_rss_kb\": %ld}\n",
            errors.cpu, errors.exec, WIFEXITED(status) ? WEXITSTATUS(status) : -1,
            WIFSIGNALED(status) ? WTERMSIG(status) : 0, wall, micros(usage.ru_utime),
            micros(usage.ru_stime), usage.ru_maxrss, usage.ru_minflt, usage.ru_majflt,
            usage.ru_nvcsw, usage.ru_nivcsw, seen.end_kb, seen.idle_kb);
    return 0;
}
