/* A program that brings settings along (CONF, where there is one), compiled with hidden visibility. Prints what HAKMEM_… options are not at
 * their default, as NAME=value|origin. With an argument, what each step of a case shows: live.
 *
 * What is counted is the allocator's own: dirty bytes, and threads of the process by /proc. */
#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "hakmem/hakmem.h"
#include "hakmem/stats.h"

#ifdef CONF
const char *hakmem_conf = CONF;
#endif

#define MIB ((size_t)1 << 20)
#define BLOCK ((size_t)60000)

static bool print(const hakmem_option *o, void *unused) {
  (void)unused;
  if (o->origin != HAKMEM_ORIGIN_DEFAULT) printf("%s=%s|%d\n", o->name, o->value, o->origin);
  return true;
}

static size_t dirty(void) {
  static hakmem_stats stats;
  hakmem_stats_get(&stats, sizeof stats);
  return stats.free_dirty;
}

static void fill_and_free(size_t mib) {
  static char *blocks[1024];
  size_t count = mib * MIB / BLOCK;
  for (size_t i = 0; i < count; i++) memset(blocks[i] = hakmem_malloc(BLOCK), 1, BLOCK);
  for (size_t i = 0; i < count; i++) hakmem_free(blocks[i]);
}

static unsigned threads(void) {
  unsigned count = 0;
  DIR *directory = opendir("/proc/self/task");
  for (struct dirent *d; (d = readdir(directory)) != NULL;) count += d->d_name[0] != '.';
  closedir(directory);
  return count;
}

/* Whether there come to be so many threads; no longer than a test may take. */
static bool come_to(unsigned wanted) {
  for (int tries = 0; tries < 3000 && threads() != wanted; tries++) usleep(10000);
  return threads() == wanted;
}

/* Of a start with a long decay time. */
static void decay_case(void) {
  fill_and_free(24);
  printf("long: %d\n", dirty() >= 20 * MIB);
  int error = hakmem_option_set("DECAY_MS", 0);
  printf("set %d: %zu\n", error, dirty());
  fill_and_free(24);
  printf("at once: %zu\n", dirty());
  error = hakmem_option_set("DECAY_MS", 3600000);
  fill_and_free(24);
  printf("set %d, long again: %d\n", error, dirty() >= 20 * MIB);
}

static void helper(int on) {
  int error = hakmem_option_set("BACKGROUND", on);
  printf("%d, set %d: %d\n", on, error, come_to(1 + (unsigned)on));
}

static void *switch_on_and_off(void *unused) {
  for (int i = 0; i < 2000; i++) hakmem_option_set("BACKGROUND", i & 1);
  return unused;
}

static void background_case(void) {
  printf("none: %d\n", threads() == 1);
  helper(1);
  helper(1);
  fill_and_free(24);
  for (int tries = 0; tries < 3000 && dirty() != 0; tries++) usleep(10000);
  printf("it purges: %zu\n", dirty());
  sleep(2); /* it sleeps by now, or will soon */
  helper(0);
  pthread_t switching[4];
  for (int i = 0; i < 4; i++) pthread_create(&switching[i], NULL, switch_on_and_off, NULL);
  for (int i = 0; i < 4; i++) pthread_join(switching[i], NULL);
  helper(1);
  helper(0);
}

int main(int argc, char **argv) {
  setvbuf(stdout, NULL, _IONBF, 0);
  if (argc == 1)
    hakmem_option_list(print, NULL);
  else if (strcmp(argv[1], "decay") == 0)
    decay_case();
  else
    background_case();
  return 0;
}
