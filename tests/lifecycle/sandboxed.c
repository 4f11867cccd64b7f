/* Shuts itself in a filter of system calls that ends the process for all but those that docs/deploying.md names for such programs, and those
 * of the program and of glibc; then allocates. usage: sandboxed cold|warm|strict|threads|fork|open [CALL...]: names of calls that are allowed too.
 * open: there is no filter; cold: the first malloc comes behind the filter; strict: madvise knows DONTNEED and FREE alone, and mmap no flags but
 * those of every program. 77: there are no filters here. */
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static struct sock_filter code[256];
static unsigned short length;

static void put(struct sock_filter instruction) { code[length++] = instruction; }
static void load(size_t offset) { put((struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, (unsigned)offset)); }
static void end_with(unsigned verdict) { put((struct sock_filter)BPF_STMT(BPF_RET | BPF_K, verdict)); }
static void allow(unsigned value) {
  put((struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, 0, 1));
  end_with(SECCOMP_RET_ALLOW);
}

/* The call with this argument alone, of which the masked bits count. */
static void allow_with(unsigned call, unsigned argument, unsigned mask, const unsigned *values, unsigned char count) {
  put((struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, (unsigned char)(2 * count + 4)));
  load(offsetof(struct seccomp_data, args) + 8 * argument);
  put((struct sock_filter)BPF_STMT(BPF_ALU | BPF_AND | BPF_K, mask));
  for (unsigned i = 0; i < count; i++) allow(values[i]);
  end_with(SECCOMP_RET_KILL_PROCESS);
  load(offsetof(struct seccomp_data, nr));
}

static const struct named {
  const char *name;
  unsigned number;
} others[] = {{"clone3", SYS_clone3}, {"clone", SYS_clone}, {"rseq", SYS_rseq}, {"set_robust_list", SYS_set_robust_list}, {"rt_sigprocmask", SYS_rt_sigprocmask},
              {"wait4", SYS_wait4}, {"getpid", SYS_getpid}, {"gettid", SYS_gettid}, {"rt_sigaction", SYS_rt_sigaction}, {"capget", SYS_capget}, {"capset", SYS_capset}, {"prctl", SYS_prctl}};

static void filter(int strict, char **more) {
  static const unsigned calls[] = {SYS_munmap, SYS_mremap, SYS_mprotect, SYS_futex, SYS_write, SYS_exit, SYS_exit_group, SYS_clock_nanosleep, SYS_restart_syscall};
  static const unsigned none[] = {0}, advice[] = {MADV_DONTNEED, MADV_FREE};
  load(offsetof(struct seccomp_data, nr));
  for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) allow(calls[i]);
  for (; *more != NULL; more++)
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
      if (strcmp(*more, others[i].name) == 0) allow(others[i].number);
  if (strict) {
    allow_with(SYS_madvise, 2, ~0u, advice, 2);
    allow_with(SYS_mmap, 3, ~(unsigned)(MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_STACK), none, 1);
  } else {
    allow(SYS_madvise);
    allow(SYS_mmap);
  }
  end_with(SECCOMP_RET_KILL_PROCESS);
  struct sock_fprog program = {length, code};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) _exit(77);
  if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program) != 0) _exit(77);
}

static void pause_ms(long ms) {
  struct timespec t = {ms / 1000, ms % 1000 * 1000000};
  clock_nanosleep(CLOCK_MONOTONIC, 0, &t, NULL);
}

static char *filled(size_t size) {
  char *volatile p = malloc(size);
  if (p == NULL) _exit(3);
  memset(p, 1, size);
  return p;
}

/* Small, large and huge blocks, 150 MB of them, some of which are freed, resized, cleared and aligned. */
static void work(void) {
  enum { COUNT = 40000 };
  static __thread char *blocks[COUNT];
  for (size_t i = 0; i < COUNT; i++) blocks[i] = filled(16 + i * 37 % 3000);
  for (size_t i = 0; i < COUNT; i++) free(blocks[i]);
  for (size_t size = 40000; size < 90000000; size *= 3) free(filled(size));
  char *grown = NULL;
  for (size_t size = 4096; size < 80000000; size *= 2) {
    if ((grown = realloc(grown, size)) == NULL) _exit(4);
    grown[size - 1] = 1;
  }
  free(grown);
  char *volatile cleared = calloc(1, 50000000);
  void *aligned = NULL;
  if (cleared == NULL || cleared[49999999] != 0 || posix_memalign(&aligned, 1 << 21, 5 << 20) != 0) _exit(5);
  free(cleared);
  free(aligned);
  static char outside[64];
  void *volatile foreign = outside;
  for (int i = 0; i < 5 && getenv("NO_FOREIGN") == NULL; i++) free(foreign); /* the hardened library ends the program for one */
}

/* Longer than a decay time: what is free goes back. */
static void work_and_rest(int rounds) {
  for (int i = 0; i < rounds; i++) {
    work();
    pause_ms(280);
  }
}

static void *in_thread(void *unused) {
  (void)unused;
  work();
  pause_ms(1100); /* as a thread whose cache is reached meanwhile */
  free(filled(100));
  return NULL;
}

enum { ROUNDS = 5 };

int main(int argc, char **argv) {
  const char *mode = argc > 1 ? argv[1] : "";
  if (strcmp(mode, "cold") != 0) free(filled(100));
  if (strcmp(mode, "open") != 0) filter(strcmp(mode, "strict") == 0, argv + (argc > 1 ? 2 : 1));
  if (strcmp(mode, "threads") == 0 || strcmp(mode, "open") == 0) {
    pthread_t threads[4];
    for (int i = 0; i < 4; i++)
      if (pthread_create(&threads[i], NULL, in_thread, NULL) != 0) return 6;
    work_and_rest(1);
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
  } else if (strcmp(mode, "fork") == 0) {
    pid_t child = fork();
    if (child == 0) {
      work_and_rest(ROUNDS);
      _exit(0);
    }
    int status;
    if (child < 0 || waitpid(child, &status, 0) != child || status != 0) return 7;
  }
  work_and_rest(strcmp(mode, "open") == 0 ? 1 : ROUNDS);
  return 0;
}
