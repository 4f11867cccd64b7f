/* Under preload, with little of one resource: runs every part of the load, in which NULL with ENOMEM is an answer;
 * then, with the limit gone, every part again, in which it is not. 77: this machine does not allow the setting.
 *
 * usage: scarce address-space|data MIB        MiB more than the process has when main begins
 *        scarce address-space-from-start|data-from-start MIB
 *        scarce recover MIB                   of address space: what huge blocks held serves small ones again
 *        scarce memlock-from-start|memlock-future|memlock-all MIB
 *                                             before the allocator starts, or after
 *        scarce maps LEFT                     all but LEFT of the mappings a process may have are in use
 *        scarce guarded-first|guarded-last    the program makes a page of each of its blocks inaccessible, until it may have no
 *                                             mapping more: growing what is accessible takes none, so all is served
 *        scarce guarded-early                 the same of pages that are no blocks, before the first malloc
 *        scarce maps-huge                     huge blocks are freed when the process may have no mapping more
 *        scarce commit                        all memory that the system promises is promised (overcommit_memory 2) */
#include <errno.h>
#include <malloc.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../support/proc_status.h"
#include "load.h"

#define MIB ((size_t)1 << 20)
#define SKIPPED 77
#define NOBODY 65534

static const faults_api *api;

/* --- the loads --- */

static int run_loads(bool may_fail, const char *except) {
  int faults = 0;
  for (size_t i = 0; faults_load_name(i) != NULL; i++) {
    if (except == NULL || strcmp(faults_load_name(i), except) != 0)
      faults += faults_run_load(api, faults_load_name(i), may_fail);
  }
  return faults;
}

static int skip(const char *what) {
  printf("SKIPPED: %s: %s\n", what, strerror(errno));
  return SKIPPED;
}

static int verdict(int faults) {
  if (faults != 0) printf("%d faults\n", faults);
  return faults == 0 ? 0 : 1;
}

/* --- what /proc says --- */

static size_t read_number(const char *path) {
  FILE *f = fopen(path, "re");
  unsigned long long n = 0;
  if (f == NULL) return 0;
  if (fscanf(f, "%llu", &n) != 1) n = 0;
  fclose(f);
  return (size_t)n;
}

/* --- resource limits --- */

/* The hard limit stays, so that the soft one can be lifted again. */
static bool limit(int resource, size_t bytes) {
  struct rlimit r;
  if (getrlimit(resource, &r) != 0) return false;
  r.rlim_cur = bytes < r.rlim_max ? bytes : r.rlim_max;
  return setrlimit(resource, &r) == 0;
}

static void lift(int resource) { limit(resource, SIZE_MAX); }

static int with_limit(int resource, size_t bytes) {
  if (!limit(resource, bytes)) return skip("setrlimit");
  int faults = run_loads(true, NULL);
  lift(resource);
  return verdict(faults + run_loads(false, NULL));
}

/* The limit holds from the first instruction of the program that is started here: this one, with another first word. */
static int from_start(int resource, size_t bytes, const char *mode, char **argv) {
  if (!limit(resource, bytes)) return skip("setrlimit");
  argv[1] = (char *)(uintptr_t)mode;
  execv("/proc/self/exe", argv);
  perror("exec");
  return 1;
}

/* Blocks of `size` bytes until there are no more; all are freed again. */
static size_t fill_with(size_t size) {
  void **chain = NULL;
  size_t n = 0;
  for (void **p; (p = malloc(size)) != NULL; n++) {
    *p = chain;
    chain = p;
  }
  while (chain != NULL) {
    void **p = chain;
    chain = *p;
    free(p);
  }
  return n;
}

/* How many fit a process of its own, in which huge blocks have been freed before. */
static size_t fit_after(size_t huge_size, size_t size) {
  static size_t *shared;
  if (shared == NULL) shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  *shared = 0;
  pid_t child = fork();
  if (child == 0) {
    for (int i = 0; huge_size != 0 && i < 2; i++) fill_with(huge_size);
    *shared = fill_with(size);
    _exit(0);
  }
  while (child > 0 && waitpid(child, NULL, 0) < 0 && errno == EINTR) {
  }
  return *shared;
}

/* Freed mappings that are kept for reuse must not be what other sizes lack. */
static int recover(void) {
  static const size_t sizes[] = {200, 5000, 30000, 100000, 3 * MIB};
  int faults = 0;
  for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
    size_t fresh = fit_after(0, sizes[i]), after = fit_after(33 * MIB, sizes[i]);
    printf("%zu bytes: %zu blocks, %zu after huge ones were freed\n", sizes[i], fresh, after);
    if (fresh == 0 || after < fresh - fresh / 20) faults++;
  }
  lift(RLIMIT_AS);
  return verdict(faults + run_loads(false, NULL));
}

/* --- locked memory --- */

/* A privileged process may lock what it likes; the limit holds once its privileges are gone. */
static int with_locked_memory(size_t bytes, int flags, bool started) {
  if (started) free(malloc(1));
  if (!limit(RLIMIT_MEMLOCK, bytes)) return skip("setrlimit");
  if (mlockall(flags) != 0) return skip("mlockall");
  if (geteuid() == 0 && (setresgid(NOBODY, NOBODY, NOBODY) != 0 || setresuid(NOBODY, NOBODY, NOBODY) != 0))
    return skip("setresuid");
  int faults = run_loads(true, NULL);
  munlockall();
  return verdict(faults + run_loads(false, NULL));
}

/* --- mappings --- */

static char *crowd;
static size_t crowd_bytes;

/* Uses up all mappings a process may have but `left`, by pages of alternating protection. */
static bool use_up_mappings(size_t left) {
  size_t most = read_number("/proc/sys/vm/max_map_count"), page = (size_t)sysconf(_SC_PAGESIZE), at = page;
  if (most == 0 || most > 4000000) {
    errno = ERANGE;
    return false;
  }
  crowd_bytes = (most + 2) * page;
  crowd = mmap(NULL, crowd_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (crowd == MAP_FAILED) return false;
  while (mprotect(crowd + at, page, PROT_READ) == 0) at += 2 * page;
  /* Each page that is as its neighbours again gives two mappings back. */
  for (; left >= 2; left -= 2) {
    at -= 2 * page;
    mprotect(crowd + at, page, PROT_NONE);
  }
  return true;
}

static int with_few_mappings(size_t left) {
  if (!use_up_mappings(left)) return skip("vm.max_map_count");
  int faults = run_loads(true, NULL);
  munmap(crowd, crowd_bytes);
  return verdict(faults + run_loads(false, NULL));
}

/* Not threads, whose stacks are mappings of their own, nor what the hardened library ends a program for. */
static int run_loads_of_one_thread(void) {
  static const char *const names[] = {"blocks", "runs", "huge", "table", "release", "growth"};
  int faults = 0;
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) faults += faults_run_load(api, names[i], false);
  return faults;
}

/* Guards as of coroutines' stacks. */
static int with_guards(bool last) {
  enum { STACKS_MAX = 70000 };
  static char *stacks[STACKS_MAX];
  size_t bytes = 64 << 10, page = (size_t)sysconf(_SC_PAGESIZE), n = 0;
  for (bool refused = false; !refused; n++) {
    if (n == STACKS_MAX) return skip("vm.max_map_count");
    if (posix_memalign((void **)&stacks[n], page, bytes) != 0) break;
    refused = mprotect(stacks[n] + (last ? bytes - page : 0), page, PROT_NONE) != 0;
  }
  int faults = run_loads_of_one_thread();
  while (n-- > 0) {
    mprotect(stacks[n], bytes, PROT_READ | PROT_WRITE);
    free(stacks[n]);
  }
  return verdict(faults + run_loads_of_one_thread());
}

static int with_few_mappings_early(void) {
  if (!use_up_mappings(0)) return skip("vm.max_map_count");
  int faults = run_loads_of_one_thread();
  munmap(crowd, crowd_bytes);
  return verdict(faults + run_loads_of_one_thread());
}

/* Neighbouring blocks are one mapping to the kernel, and unmapping one in the middle would make two of it. */
static int huge_blocks_without_mappings(void) {
  enum { BLOCKS = 8 };
  char *blocks[BLOCKS];
  size_t before = proc_status_kib("VmRSS:") * 1024;
  for (int i = 0; i < BLOCKS; i++) {
    blocks[i] = malloc(40 * MIB);
    if (blocks[i] == NULL) return skip("malloc");
    memset(blocks[i], i + 1, 40 * MIB);
  }
  if (!use_up_mappings(0)) return skip("vm.max_map_count");
  for (int i = 1; i < BLOCKS; i += 2) free(blocks[i]);
  munmap(crowd, crowd_bytes);
  bool kept = true;
  for (int i = 0; i < BLOCKS; i += 2) {
    kept = kept && blocks[i][0] == i + 1 && blocks[i][40 * MIB - 1] == i + 1;
    free(blocks[i]);
  }
  malloc_trim(0);
  size_t after = proc_status_kib("VmRSS:") * 1024;
  printf("resident: %zu MiB before, %zu MiB after\n", before / MIB, after / MIB);
  int faults = (kept ? 0 : 1) + (after < before + 16 * MIB ? 0 : 1);
  return verdict(faults + run_loads(false, NULL));
}

/* --- promised memory --- */

/* Takes promises in pieces until there are no more, and gives a few back. */
static int without_promises(void) {
  enum { PIECES_MAX = 1024, GIVEN_BACK = 2 };
  static char *pieces[PIECES_MAX];
  size_t bytes = 32 * MIB, n = 0;
  if (read_number("/proc/sys/vm/overcommit_memory") != 2) {
    puts("SKIPPED: vm.overcommit_memory is not 2 (run this by `overcommit`)");
    return SKIPPED;
  }
  /* What the system keeps for root is not touched. */
  if (geteuid() == 0 && (setresgid(NOBODY, NOBODY, NOBODY) != 0 || setresuid(NOBODY, NOBODY, NOBODY) != 0))
    return skip("setresuid");
  for (; n < PIECES_MAX; n++) {
    pieces[n] = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pieces[n] == MAP_FAILED) break;
  }
  if (n == PIECES_MAX || n < GIVEN_BACK) {
    printf("%zu MiB were promised: no limit was met\n", n * bytes / MIB);
    return 1;
  }
  for (int i = 0; i < GIVEN_BACK; i++) munmap(pieces[--n], bytes);
  int faults = run_loads(true, "table");
  while (n > 0) munmap(pieces[--n], bytes);
  return verdict(faults + run_loads(false, "table"));
}

static int run(const char *mode, size_t number, bool has_number, char **argv) {
  size_t bytes = number * MIB;
  if (!has_number) {
    if (strcmp(mode, "maps-huge") == 0) return huge_blocks_without_mappings();
    if (strcmp(mode, "guarded-first") == 0) return with_guards(false);
    if (strcmp(mode, "guarded-last") == 0) return with_guards(true);
    if (strcmp(mode, "guarded-early") == 0) return with_few_mappings_early();
    return strcmp(mode, "commit") == 0 ? without_promises() : 2;
  }
  if (strcmp(mode, "address-space") == 0) return with_limit(RLIMIT_AS, proc_status_kib("VmSize:") * 1024 + bytes);
  if (strcmp(mode, "data") == 0) return with_limit(RLIMIT_DATA, proc_status_kib("VmData:") * 1024 + bytes);
  if (strcmp(mode, "address-space-from-start") == 0) return from_start(RLIMIT_AS, bytes, "address-space-now", argv);
  if (strcmp(mode, "address-space-now") == 0) return with_limit(RLIMIT_AS, bytes);
  if (strcmp(mode, "data-from-start") == 0) return from_start(RLIMIT_DATA, bytes, "data-now", argv);
  if (strcmp(mode, "data-now") == 0) return with_limit(RLIMIT_DATA, bytes);
  if (strcmp(mode, "recover") == 0) return from_start(RLIMIT_AS, bytes, "recover-now", argv);
  if (strcmp(mode, "recover-now") == 0) return recover();
  if (strcmp(mode, "memlock-from-start") == 0) return with_locked_memory(bytes, MCL_FUTURE, false);
  if (strcmp(mode, "memlock-future") == 0) return with_locked_memory(bytes, MCL_FUTURE, true);
  if (strcmp(mode, "memlock-all") == 0) return with_locked_memory(bytes, MCL_CURRENT | MCL_FUTURE, true);
  return strcmp(mode, "maps") == 0 ? with_few_mappings(number) : 2;
}

int main(int argc, char **argv) {
  char *rest = NULL;
  size_t number = argc == 3 ? strtoull(argv[2], &rest, 10) : 0;
  if (argc < 2 || argc > 3 || (rest != NULL && (*rest != '\0' || rest == argv[2]))) {
    fprintf(stderr, "usage: %s MODE [NUMBER]\n", argv[0]);
    return 2;
  }
  api = faults_api_of_libc_names();
  int status = run(argv[1], number, argc == 3, argv);
  if (status == 2) fprintf(stderr, "scarce: %s %s: no such mode\n", argv[1], argc == 3 ? argv[2] : "without a number");
  return status;
}
