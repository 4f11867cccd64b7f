// Runs the tests of jemalloc's own files against a shared library: stands for test/src/test.c.
//
// jemalloc's unit tests are linked with its objects; here only what libjemalloc.so.2 exports is theirs. Each test runs
// in a child of its own, so one that reaches for an internal function, which the link made address 0, ends alone. The
// options that tests read as variables are filled through mallctl. Prints "NAME: pass|skip|fail|signal text" lines.
#include <stdio.h>
#include <stdarg.h>
#include "test/jemalloc_test.h"
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>

enum { LIMIT_S = 60 };

typedef struct {
  char name[100], why[400];
  int status;
} told_t;
static told_t *told;

void p_test_init(const char *name) {
  snprintf(told->name, sizeof told->name, "%s", name);
  told->status = test_status_pass;
}

void p_test_fini(void) {}

bool test_is_reentrant(void) { return false; }

static void tell(test_status_t status, const char *format, va_list values) {
  if (told->status != test_status_fail) vsnprintf(told->why, sizeof told->why, format, values);
  told->status = status;
}

void test_skip(const char *format, ...) {
  va_list values;
  va_start(values, format);
  tell(test_status_skip, format, values);
  va_end(values);
}

void test_fail(const char *format, ...) {
  va_list values;
  va_start(values, format);
  tell(test_status_fail, format, values);
  va_end(values);
}

void p_test_fail(const char *prefix, const char *message) { test_fail("%s%s", prefix, message); }

// The first line of what failed, without the folder of the file.
static const char *short_why(void) {
  told->why[strcspn(told->why, "\n")] = '\0';
  const char *file = strstr(told->why, "test/");
  return file ? file : told->why;
}

static test_status_t run_each(bool initialize, test_t *one, va_list rest) {
  told = mmap(NULL, sizeof *told, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (told == MAP_FAILED) return test_status_fail;
  for (int place = 1; one; one = va_arg(rest, test_t *), place++) {
    *told = (told_t){.status = test_status_fail};
    snprintf(told->name, sizeof told->name, "number %d", place);
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
      alarm(LIMIT_S);
      if (initialize && nallocx(1, 0) == 0) _exit(1);
      one();
      fflush(NULL);
      _exit(0);
    }
    int ended = 0;
    if (child < 0 || waitpid(child, &ended, 0) != child) return test_status_fail;
    static const char *const words[] = {"pass", "skip", "fail"};
    const char *word = WIFSIGNALED(ended) ? strsignal(WTERMSIG(ended)) : ended ? "exited" : words[told->status];
    printf("RESULT %s: %s: %s\n", told->name, word, short_why());
  }
  fflush(NULL);
  return test_status_pass;
}

#define RUN(name, initialize)               \
  test_status_t name(test_t *one, ...) {   \
    va_list rest;                           \
    va_start(rest, one);                   \
    run_each(initialize, one, rest);       \
    va_end(rest);                           \
    return test_status_pass;                \
  }
RUN(p_test, true)
RUN(p_test_no_reentrancy, true)
RUN(p_test_no_malloc_init, false)

#ifdef JEMALLOC_UNIT_TEST
bool tsd_global_slow(void) { return false; }

unsigned ncpus, opt_narenas;
bool opt_hpa, opt_junk_alloc, opt_junk_free, opt_prof, opt_prof_active, opt_prof_stats, opt_prof_sys_thread_name;
bool opt_retain, opt_tcache;
size_t lg_prof_sample, opt_oversize_threshold, opt_san_guard_large, opt_san_guard_small, opt_tcache_max;
size_t opt_tcache_gc_incr_bytes;
ssize_t opt_prof_recent_alloc_max;
int64_t opt_stats_interval;
percpu_arena_mode_t opt_percpu_arena = percpu_arena_disabled;

static void fill(const char *name, void *value, size_t length) {
  if (mallctl(name, value, &length, NULL, 0) != 0) memset(value, 0, length);
}
#define FILL(name) fill("opt." #name, &opt_##name, sizeof opt_##name)

__attribute__((constructor)) static void fill_options(void) {
  ncpus = (unsigned)sysconf(_SC_NPROCESSORS_ONLN);
  fill("opt.lg_prof_sample", &lg_prof_sample, sizeof lg_prof_sample);
  FILL(narenas), FILL(hpa), FILL(prof), FILL(prof_active), FILL(prof_stats), FILL(prof_sys_thread_name);
  FILL(retain), FILL(tcache), FILL(tcache_max), FILL(oversize_threshold), FILL(san_guard_large);
  FILL(san_guard_small), FILL(stats_interval), FILL(prof_recent_alloc_max);
  const char *junk = "";
  size_t length = sizeof junk;
  mallctl("opt.junk", &junk, &length, NULL, 0);
  opt_junk_alloc = strcmp(junk, "true") == 0 || strcmp(junk, "alloc") == 0;
  opt_junk_free = strcmp(junk, "true") == 0 || strcmp(junk, "free") == 0;
}
#endif
