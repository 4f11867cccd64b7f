/* Blocks that are mappings between guard pages, and what the program finds of mappings and addresses beside them.
 *
 * usage: large blocks           more live blocks than half of the mappings that a process may have: all are served, threads start, and the
 *                               blocks come and go again
 *        large exhausted        the program itself takes all mappings that are left: large blocks are served, and hold what is written
 *        large locked           the same where all memory is locked as it comes: no mapping becomes resident as a whole
 *        large kept             keeps the pages of a block from a fork's child, rounded out to whole pages: the child works and exits well
 *        large kept-small       the same of blocks that share slabs: the child frees those beside them
 *        large protected        the child makes them inaccessible for a while
 *        large distances        prints what an attacker who knows where libc lies does not know
 *        large limited          starts itself as `large addresses` under RLIMIT_AS: blocks that were freed leave addresses to the program
 *
 * 77: this machine does not allow the setting. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)
#define BLOCK_BYTES (300 * KIB)

static void *nothing(void *argument) { return argument; }

static int start_thread(void) {
  pthread_t thread;
  if (pthread_create(&thread, NULL, nothing, NULL) != 0) return 1;
  return pthread_join(thread, NULL);
}

static int fill(char **blocks, size_t count, size_t step) {
  for (size_t i = 0; i < count; i += step) {
    if ((blocks[i] = malloc(BLOCK_BYTES)) == NULL) return printf("block %zu is not to be had\n", i), 1;
    if (i % 1000 == 0 && start_thread() != 0) return printf("no thread beside %zu blocks\n", i), 1;
  }
  return 0;
}

static int many_blocks(void) {
  unsigned long most = 0;
  FILE *f = fopen("/proc/sys/vm/max_map_count", "re");
  if (f == NULL || fscanf(f, "%lu", &most) != 1 || most > 200000) return 77;
  fclose(f);
  size_t count = most / 2 + 1000;
  char **blocks = calloc(count, sizeof *blocks);
  if (blocks == NULL || fill(blocks, count, 1) != 0) return 1;
  for (size_t i = 0; i < count; i += 2) free(blocks[i]);
  if (fill(blocks, count, 2) != 0) return 1;
  for (size_t i = 0; i < count; i++) free(blocks[i]);
  free(blocks);
  return 0;
}

static volatile sig_atomic_t made;

static void refuse(int number, siginfo_t *info, void *context) {
  (void)number, (void)info;
  made = 1;
  ((ucontext_t *)context)->uc_mcontext.gregs[REG_RAX] = -ENOMEM;
}

/* From here on nothing of 4 GiB or more becomes accessible, and who tries is noted. */
static int make_nothing_large(void) {
  struct sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_mprotect, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[1]) + 4),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0, 1, 0),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
  struct sigaction action = {.sa_sigaction = refuse, .sa_flags = SA_SIGINFO};
  return sigaction(SIGSYS, &action, NULL) == 0 && prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

/* Each of the program's mappings becomes two. */
static size_t take_mappings(void) {
  size_t page = (size_t)sysconf(_SC_PAGESIZE), taken = 0;
  for (char *p; taken < 1000000; taken++) {
    p = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED || mprotect(p, page, PROT_NONE) != 0) break;
  }
  return taken;
}

static int locked(void) {
  free(malloc(1));
  if (mlockall(MCL_CURRENT | MCL_FUTURE) != 0 || take_mappings() == 1000000) return 77;
  if (!make_nothing_large()) return 77;
  free(malloc(3 * MIB)); /* NULL, perhaps */
  return made ? printf("64 GiB that are locked become accessible\n"), 1 : 0;
}

static int exhausted(void) {
  enum { COUNT = 40 };
  char **blocks = calloc(COUNT, sizeof *blocks);
  if (blocks == NULL) return 1;
  if (take_mappings() == 1000000) return 77;
  for (size_t i = 0; i < COUNT; i++) {
    size_t bytes = (1 + i % 8) * MIB + 70 * KIB * (i + 1);
    if ((blocks[i] = malloc(bytes)) == NULL) return printf("block %zu of %zu bytes is not to be had\n", i, bytes), 1;
    memset(blocks[i], (int)i, bytes);
  }
  for (size_t i = 0; i < COUNT; i++) {
    if (blocks[i][0] != (char)i || blocks[i][MIB] != (char)i) return printf("block %zu is somebody else's\n", i), 1;
    free(blocks[i]);
  }
  return 0;
}

static int freed_addresses(void) {
  for (int i = 0; i < 80; i++) {
    char *p = malloc(32 * MIB);
    if (p == NULL) return printf("block %d is not to be had\n", i), 1;
    free(p);
  }
  void *all = mmap(NULL, 1536 * MIB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return all == MAP_FAILED ? printf("no addresses are left\n"), 1 : 0;
}

static int kept_from_child(void) {
  size_t page = (size_t)sysconf(_SC_PAGESIZE), sizes[] = {BLOCK_BYTES - 100, 512 * KIB - page - 8};
  for (int i = 0; i < 2; i++) { /* the trailer is in the last page that is kept, and in the one behind it */
    char *p = aligned_alloc(page, sizes[i]);
    if (p == NULL || madvise(p, (sizes[i] + page - 1) / page * page, MADV_DONTFORK) != 0) return 77;
    memset(p, 1, sizes[i]);
    pid_t child = fork();
    if (child == 0) {
      for (int n = 0; n < 100000; n++) free(malloc((size_t)n % 30000));
      exit(0);
    }
    int status = 0;
    if (waitpid(child, &status, 0) != child || status != 0) return printf("status %x of a child\n", (unsigned)status), 1;
    free(p);
  }
  return 0;
}

#define BESIDE 9

/* Every second one is kept. */
static void work_beside(char *const *blocks, size_t bytes) {
  for (int i = 1; i < BESIDE; i += 2) {
    memset(blocks[i], 2, bytes);
    free(blocks[i]);
  }
  for (int n = 0; n < 60000; n++) free(malloc((size_t)n % 9000));
}

static int work_and_exit(char *const *blocks, size_t bytes, size_t kept, int protect) {
  for (int i = 0; i < BESIDE && protect; i += 2) mprotect(blocks[i], kept, PROT_NONE);
  work_beside(blocks, bytes);
  exit(0);
}

static int slabs_kept_from_child(int protect) {
  size_t page = (size_t)sysconf(_SC_PAGESIZE);
  static const size_t sizes[] = {700, 4096, 6000, 9000, 30000, 90000};
  for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
    char *blocks[BESIDE];
    size_t kept = (sizes[s] + page - 1) / page * page;
    for (int i = 0; i < BESIDE; i++) {
      if (posix_memalign((void **)&blocks[i], page, sizes[s]) != 0) return 1;
      memset(blocks[i], 1, sizes[s]);
    }
    for (int i = 0; i < BESIDE && !protect; i += 2) {
      if (madvise(blocks[i], kept, MADV_DONTFORK) != 0) return 77;
    }
    pid_t child = fork();
    if (child == 0) work_and_exit(blocks, sizes[s], kept, protect);
    int status = 0;
    if (waitpid(child, &status, 0) != child || status != 0) return printf("%zu bytes: status %x of a child\n", sizes[s], (unsigned)status), 1;
    for (int i = 0; i < BESIDE; i++) {
      madvise(blocks[i], kept, MADV_DOFORK); /* what is free serves the next child too */
      free(blocks[i]);
    }
  }
  return 0;
}

static int print_distances(void) {
  char *huge = malloc(3 * MIB), *small = malloc(70), *empty = malloc(0), *libc = (char *)(size_t)&qsort;
  printf("libc %p small %tx huge %tx empty %tx huge-from-small %tx\n", (void *)libc, libc - small, libc - huge, libc - empty, small - huge);
  return 0;
}

static int limited(char **argv) {
  struct rlimit r = {4096 * MIB, 4096 * MIB};
  static char mode[] = "addresses";
  if (setrlimit(RLIMIT_AS, &r) != 0) return 77;
  argv[1] = mode;
  execv("/proc/self/exe", argv);
  return 1;
}

int main(int argc, char **argv) {
  if (argc != 2) return 2;
  if (strcmp(argv[1], "blocks") == 0) return many_blocks();
  if (strcmp(argv[1], "exhausted") == 0) return exhausted();
  if (strcmp(argv[1], "locked") == 0) return locked();
  if (strcmp(argv[1], "kept") == 0) return kept_from_child();
  if (strcmp(argv[1], "kept-small") == 0) return slabs_kept_from_child(0);
  if (strcmp(argv[1], "protected") == 0) return slabs_kept_from_child(1);
  if (strcmp(argv[1], "distances") == 0) return print_distances();
  return strcmp(argv[1], "limited") == 0 ? limited(argv) : freed_addresses();
}
