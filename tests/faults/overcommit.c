/* Runs a program while the system promises no more memory than it has (vm.overcommit_memory=2), and puts the settings
 * back. 77: the settings cannot be written here.
 *
 * The limit is some GiB above what is promised now. Most of the room is for privileged processes
 * (vm.admin_reserve_kbytes), so that a program that gives its privileges up and takes all it can get does no harm to the
 * rest of the system.
 *
 * usage: overcommit PROGRAM [ARG…] */
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "guarded.h"

#define GIB_IN_KIB (1UL << 20)
#define ROOM_FOR_ROOT (4 * GIB_IN_KIB)
#define ROOM_FOR_PROGRAM (3 * GIB_IN_KIB)

/* In the order in which they are put back. Writing one of ratio and kbytes sets the other to 0. */
enum { MEMORY, RATIO, KBYTES, ADMIN_RESERVE, SETTINGS };
static const char *const paths[SETTINGS] = {
    "/proc/sys/vm/overcommit_memory",
    "/proc/sys/vm/overcommit_ratio",
    "/proc/sys/vm/overcommit_kbytes",
    "/proc/sys/vm/admin_reserve_kbytes",
};
static unsigned long saved[SETTINGS];

static bool read_setting(int i, unsigned long *value) {
  FILE *f = fopen(paths[i], "re");
  if (f == NULL) return false;
  bool right = fscanf(f, "%lu", value) == 1;
  fclose(f);
  return right;
}

static bool write_setting(int i, unsigned long value) {
  char text[32];
  int length = snprintf(text, sizeof text, "%lu\n", value), fd = open(paths[i], O_WRONLY | O_CLOEXEC);
  if (fd < 0) return false;
  bool right = write(fd, text, (size_t)length) == length;
  close(fd);
  return right;
}

static void put_back(void) {
  write_setting(MEMORY, saved[MEMORY]);
  if (saved[KBYTES] != 0)
    write_setting(KBYTES, saved[KBYTES]);
  else
    write_setting(RATIO, saved[RATIO]);
  write_setting(ADMIN_RESERVE, saved[ADMIN_RESERVE]);
}

static unsigned long promised_kib(void) {
  FILE *f = fopen("/proc/meminfo", "re");
  char line[128];
  unsigned long kib = 0;
  while (f != NULL && fgets(line, sizeof line, f) != NULL) {
    if (sscanf(line, "Committed_AS: %lu", &kib) == 1) break;
  }
  if (f != NULL) fclose(f);
  return kib;
}

static bool restrict_system(void) {
  bool done = write_setting(KBYTES, promised_kib() + ROOM_FOR_ROOT + ROOM_FOR_PROGRAM) &&
              write_setting(ADMIN_RESERVE, ROOM_FOR_ROOT) && write_setting(MEMORY, 2);
  if (!done) printf("SKIPPED: vm.overcommit_memory: %s\n", strerror(errno));
  return done;
}

int main(int argc, char **argv) {
  if (argc < 2) {
    fprintf(stderr, "usage: %s PROGRAM [ARG...]\n", argv[0]);
    return 2;
  }
  for (int i = 0; i < SETTINGS; i++) {
    if (!read_setting(i, &saved[i]) || access(paths[i], W_OK) != 0) {
      printf("SKIPPED: %s: %s\n", paths[i], strerror(errno));
      return SKIPPED;
    }
  }
  if (!guard_start(put_back)) {
    perror("overcommit");
    return 1;
  }
  int status = restrict_system() ? run_command(argv + 1, NULL) : SKIPPED;
  guard_end();
  for (int i = 0; i < SETTINGS; i++) {
    unsigned long now = 0;
    if (read_setting(i, &now) && now == saved[i]) continue;
    printf("%s is %lu and was %lu\n", paths[i], now, saved[i]);
    status = 1;
  }
  return status;
}
