/* Names of mappings: how often the kernel is asked for one, and what /proc/PID/maps then says.
 * usage: named MODE
 *   taken    a filter answers each request for a name with success: what a kernel with names is asked
 *   start    the same, of a process that names what it has at the start (HAKMEM_MAP_NAMES=1, the default)
 *   refused  a filter answers with EPERM: it is asked once
 *   off      a filter ends the process for it: it is not asked (with HAKMEM_MAP_NAMES=0)
 *   real     no filter. 77: this kernel has no names */
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "hakmem/hakmem.h"
#include "hakmem/stats.h"

#define SET_VMA 0x53564d41 /* PR_SET_VMA; its 0 is PR_SET_VMA_ANON_NAME */
#define MIB ((size_t)1 << 20)
#define HUGE_BLOCKS 4

extern __attribute__((weak)) int hakmem_stats_print(int fd, int json);

static int filter(unsigned answer) {
  struct sock_filter code[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_prctl, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[0])),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SET_VMA, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, answer),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  struct sock_fprog program = {sizeof code / sizeof *code, code};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

/* How often the allocator has asked. */
static long asked(void) {
  static char json[1 << 20];
  int fd = (int)syscall(SYS_memfd_create, "named", 0);
  if (hakmem_stats_print == NULL || fd < 0 || hakmem_stats_print(fd, 1) != 0) return -1;
  ssize_t length = pread(fd, json, sizeof json - 1, 0);
  json[length < 0 ? 0 : length] = '\0';
  close(fd);
  const char *at = strstr(json, "\"prctl\":");
  return at == NULL ? -1 : strtol(at + 8, NULL, 10);
}

static int faults;
static void expect(const char *what, long found, long expected) {
  if (found == expected) return;
  printf("%s: %ld, expected %ld\n", what, found, expected);
  faults++;
}

static void *huge[HUGE_BLOCKS];

static void load(const char *mode) {
  int taken = strcmp(mode, "taken") == 0, refused = strcmp(mode, "refused") == 0;
  free(malloc(1));
  expect("at the start", asked(), taken || strcmp(mode, "start") == 0 ? 3 : refused); /* the reservation's tables and spans, and metadata */
  errno = 7;
  for (int i = 0; i < HUGE_BLOCKS; i++) memset(huge[i] = malloc(40 * MIB), 1, 4096);
  expect("errno", errno, 7);
  long before = asked();
  expect("with huge blocks", before, taken ? 3 + HUGE_BLOCKS : strcmp(mode, "start") == 0 ? 3 : refused);
  for (int i = 0; i < 100; i++) {
    free(huge[0]);
    huge[0] = malloc(40 * MIB);
    for (size_t n = 0; n < 1000; n++) free(malloc(n * 30));
  }
  expect("while all is reused", asked(), before);
}

/* The name of the mapping that p lies in. */
static void name_of(const void *p, char name[64]) {
  char line[512];
  FILE *maps = fopen("/proc/self/maps", "r");
  name[0] = '\0';
  while (maps != NULL && fgets(line, sizeof line, maps) != NULL) {
    unsigned long from, to;
    if (sscanf(line, "%lx-%lx %*s %*s %*s %*s %63[^\n]", &from, &to, name) >= 2 && (uintptr_t)p >= from && (uintptr_t)p < to) break;
    name[0] = '\0';
  }
  if (maps != NULL) fclose(maps);
}

static void expect_name(const char *what, const void *p, const char *expected) {
  char name[64];
  name_of(p, name);
  if (strcmp(name, expected) == 0) return;
  printf("%s: named \"%s\", expected \"%s\"\n", what, name, expected);
  faults++;
}

static int look_at_maps(void) {
  void *own = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (prctl(SET_VMA, 0, own, 4096, "own") != 0) {
    puts("SKIPPED: this kernel has no names (CONFIG_ANON_VMA_NAME)");
    return 77;
  }
  void *small = malloc(100), *large = malloc(MIB);
  memset(large, 1, MIB);
  expect_name("a small block", small, "[anon:hakmem: heap]");
  expect_name("a large block", large, "[anon:hakmem: heap]");
  for (int i = 0; i < HUGE_BLOCKS; i++) expect_name("a huge block", huge[i], "[anon:hakmem: huge blocks]");
  expect_name("one that grew", realloc(huge[1], 80 * MIB), "[anon:hakmem: huge blocks]");
  return faults != 0;
}

int main(int argc, char **argv) {
  if (argc < 2) return 2;
  unsigned answer = SECCOMP_RET_ERRNO;
  if (strcmp(argv[1], "refused") == 0) answer |= EPERM;
  if (strcmp(argv[1], "off") == 0) answer = SECCOMP_RET_KILL_PROCESS;
  if (argc == 2 && strcmp(argv[1], "real") != 0) { /* the filter is to be there before the allocator */
    if (!filter(answer)) {
      puts("SKIPPED: no filter of system calls");
      return 77;
    }
    execl("/proc/self/exe", argv[0], argv[1], "filtered", (char *)NULL);
    return 2;
  }
  if (strcmp(argv[1], "real") != 0) {
    load(argv[1]);
    return faults != 0;
  }
  for (int i = 0; i < HUGE_BLOCKS; i++) huge[i] = malloc(40 * MIB);
  return look_at_maps();
}
