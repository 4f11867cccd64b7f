/* Prints what its environment can change: every option's value and whether the kernel calls this program privileged
 * (setuid, setgid). Then gives the options occasion to show: foreign pointers, threads, fork, an exit with reports. Linked
 * with the allocator, because nothing is preloaded into a privileged program. */
#include <inttypes.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/auxv.h>
#include <sys/wait.h>
#include <unistd.h>

#include "hakmem/hakmem.h"

static void *work(void *unused) {
  (void)unused;
  for (size_t size = 1; size < 60000000; size = size * 3 + 1) {
    char *p = malloc(size);
    if (p == NULL || !hakmem_is_ours(p)) _exit(10);
    p[0] = p[size - 1] = 1;
    free(p);
  }
  return NULL;
}

static void print_option(const char *name) {
  int64_t value;
  if (hakmem_option_get(name, &value) == 0) printf("%s=%" PRId64 "\n", name, value);
}

int main(void) {
  printf("privileged=%d\n", getauxval(AT_SECURE) != 0);
  static const char *const names[] = {
      "HAKMEM_PROFILE", "HAKMEM_VERBOSE", "HAKMEM_TINY_MAX_CLASS", "HAKMEM_TINY_HOT_RING_ENABLE", "HAKMEM_TINY_HOT_RING_C5",
      "HAKMEM_TINY_PREWARM_ALL", "HAKMEM_TINY_PREWARM_C3", "HAKMEM_TINY_FRONT_METRICS", "HAKMEM_TINY_FRONT_DUMP",
      "HAKMEM_SS_OS_STATS", "HAKMEM_EXTERNAL_GUARD_LOG", "HAKMEM_EXTERNAL_GUARD_STATS", "HAKMEM_RESERVE_MB", "HAKMEM_THP"};
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) print_option(names[i]);
  static char outside[64];
  void *volatile foreign = outside;
  for (int i = 0; i < 5; i++) free(foreign);
  work(NULL);
  pthread_t thread;
  if (pthread_create(&thread, NULL, work, NULL) != 0) return 11;
  pthread_join(thread, NULL);
  fflush(stdout);
  pid_t child = fork();
  if (child == 0) {
    work(NULL);
    _exit(0);
  }
  int status;
  if (child < 0 || waitpid(child, &status, 0) != child || status != 0) return 12;
  return hakmem_heap_check() == 0 ? 0 : 13;
}
