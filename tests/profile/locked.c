/* Under preload: mlockall makes all that is accessible resident. The pages that other processes read, and the memory that a
 * profile is rendered into, are small then. 77: this machine does not allow the lock. */
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../support/proc_status.h"

#define SKIPPED 77
#define PAGE_KIB_MOST 4096
#define RENDERED_KIB_MOST 8192

static int faults;

static void expect_at_most(const char *what, size_t kib, size_t most) {
  printf("%s: %zu KiB, at most %zu\n", what, kib, most);
  if (kib > most) faults++;
}

/* Of all mappings of the file; *mappings is how many. */
static size_t resident_kib(const char *file, size_t *mappings) {
  char line[4352];
  size_t kib, sum = 0;
  int inside = 0;
  FILE *smaps = fopen("/proc/self/smaps", "r");
  *mappings = 0;
  while (smaps != NULL && fgets(line, sizeof line, smaps) != NULL) {
    if (line[0] < 'A' || line[0] > 'Z') *mappings += (inside = strstr(line, file) != NULL);
    if (inside && sscanf(line, "Rss: %zu", &kib) == 1) sum += kib;
  }
  if (smaps != NULL) fclose(smaps);
  return sum;
}

static void check_page(const char *file) {
  size_t mappings, kib = resident_kib(file, &mappings);
  if (mappings == 0) printf("%s: not mapped\n", file), faults++;
  expect_at_most(file, kib, PAGE_KIB_MOST);
}

static void check_dump(void) {
  int (*dump)(const char *, int) = (int (*)(const char *, int))dlsym(RTLD_DEFAULT, "hakmem_profile_dump");
  size_t before = proc_status_kib("VmRSS:");
  for (int kind = 0; kind < 3; kind++) {
    int error = dump == NULL ? -1 : dump("/dev/shm/hakmem-locked.heap", kind);
    if (error != 0) printf("a profile of kind %d: error %d\n", kind, error), faults++;
  }
  unlink("/dev/shm/hakmem-locked.heap");
  expect_at_most("what rendering took", proc_status_kib("VmHWM:") - before, RENDERED_KIB_MOST);
}

static void check(void) {
  check_page("hakmem-profile");
  check_page("hakmem-stats");
  check_dump();
}

static void keep(void *block) {
  static void *volatile last;
  if ((last = block) == NULL) faults++;
  (void)last;
}

int main(void) {
  for (int round = 0; round < 2; round++) {
    for (int i = 0; i < 1000; i++) keep(malloc(1000 + (size_t)i));
    if (round == 0 && mlockall(MCL_CURRENT | MCL_FUTURE) != 0) {
      perror("mlockall");
      return SKIPPED;
    }
  }
  check();
  fflush(stdout);
  /* A daemon locks its memory after it forked. */
  pid_t child = fork();
  if (child == 0) {
    if (mlockall(MCL_CURRENT | MCL_FUTURE) != 0) faults++;
    keep(malloc(50000000));
    check();
    fflush(stdout);
    _exit(faults);
  }
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child || status != 0) faults++;
  return faults;
}
