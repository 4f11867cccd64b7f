/* Runs a program in a control group of its own with little memory (cgroup v1 or v2), and says how much it took at most.
 * 77: no such group can be made here.
 *
 * usage: group MIB PROGRAM [ARG…] */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <mntent.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "guarded.h"

#define MIB ((size_t)1 << 20)

typedef struct version {
  const char *type, *limit, *peak, *killed;
  const char *no_swap, *no_swap_value;
} version;
static const version versions[] = {
    {"cgroup", "memory.limit_in_bytes", "memory.max_usage_in_bytes", "memory.oom_control", "memory.swappiness", "0"},
    {"cgroup2", "memory.max", "memory.peak", "memory.events", "memory.swap.max", "0"},
};

static const version *used;
static char group[PATH_MAX];

static bool write_file(const char *directory, const char *name, const char *text) {
  char path[PATH_MAX + 64];
  snprintf(path, sizeof path, "%s/%s", directory, name);
  int fd = open(path, O_WRONLY | O_CLOEXEC);
  if (fd < 0) return false;
  bool right = write(fd, text, strlen(text)) == (ssize_t)strlen(text);
  close(fd);
  return right;
}

/* The number behind `word` in a file of the group, or the file's first one where word is NULL. */
static unsigned long long read_file(const char *name, const char *word) {
  char path[PATH_MAX + 64], line[256];
  snprintf(path, sizeof path, "%s/%s", group, name);
  FILE *f = fopen(path, "re");
  unsigned long long value = 0;
  while (f != NULL && fgets(line, sizeof line, f) != NULL) {
    size_t length = word == NULL ? 0 : strlen(word);
    if (word != NULL && (strncmp(line, word, length) != 0 || line[length] != ' ')) continue;
    value = strtoull(line + length, NULL, 10);
    break;
  }
  if (f != NULL) fclose(f);
  return value;
}

/* A new group below `parent` with the limit set; false where it has no such file, or we no right. */
static bool make_below(const char *parent, const char *bytes) {
  if (snprintf(group, sizeof group, "%s/hakmem-test-%d", parent, (int)getpid()) >= (int)sizeof group) return false;
  if (mkdir(group, 0755) != 0) return false;
  if (write_file(group, used->limit, bytes)) {
    write_file(group, used->no_swap, used->no_swap_value);
    return true;
  }
  rmdir(group);
  return false;
}

/* Our own group's path in the hierarchy of `used`. */
static bool own_path(char *path, size_t capacity) {
  FILE *f = fopen("/proc/self/cgroup", "re");
  char line[PATH_MAX];
  bool found = false;
  while (f != NULL && !found && fgets(line, sizeof line, f) != NULL) {
    line[strcspn(line, "\n")] = '\0';
    bool v2 = strcmp(used->type, "cgroup2") == 0;
    char *controllers = strchr(line, ':'), *at = controllers == NULL ? NULL : strchr(controllers + 1, ':');
    found = at != NULL && (v2 ? strncmp(line, "0::", 3) == 0 : strncmp(controllers, ":memory:", 8) == 0);
    if (found) snprintf(path, capacity, "%s", at + 1);
  }
  if (f != NULL) fclose(f);
  return found;
}

/* At the top of a hierarchy, where a group may have processes and children; else inside our own group. */
static bool make_group(const char *bytes) {
  FILE *mounts = setmntent("/proc/self/mounts", "re");
  bool made = false;
  for (struct mntent *m; mounts != NULL && !made && (m = getmntent(mounts)) != NULL;) {
    for (size_t i = 0; i < sizeof versions / sizeof versions[0] && !made; i++) {
      used = &versions[i];
      if (strcmp(m->mnt_type, used->type) != 0 || (i == 0 && hasmntopt(m, "memory") == NULL)) continue;
      char own[PATH_MAX], below[2 * PATH_MAX];
      made = make_below(m->mnt_dir, bytes);
      if (made || !own_path(own, sizeof own)) continue;
      snprintf(below, sizeof below, "%s%s", m->mnt_dir, own);
      made = make_below(below, bytes);
    }
  }
  if (mounts != NULL) endmntent(mounts);
  return made;
}

static bool enter_group(void) {
  if (write_file(group, "cgroup.procs", "0")) return true;
  printf("SKIPPED: %s: %s\n", group, strerror(errno));
  return false;
}

/* The command's end and that of its parent may come together. */
static void remove_group(void) {
  for (int tries = 0; tries < 250 && rmdir(group) != 0 && errno == EBUSY; tries++) usleep(20000);
}

int main(int argc, char **argv) {
  char *rest = NULL, bytes[32];
  size_t mib = argc < 3 ? 0 : strtoull(argv[1], &rest, 10);
  if (argc < 3 || mib == 0 || *rest != '\0') {
    fprintf(stderr, "usage: %s MIB PROGRAM [ARG...]\n", argv[0]);
    return 2;
  }
  snprintf(bytes, sizeof bytes, "%zu", mib * MIB);
  if (!make_group(bytes)) {
    puts("SKIPPED: no control group for memory can be made here");
    return SKIPPED;
  }
  if (!guard_start(remove_group)) {
    perror("group");
    rmdir(group);
    return 1;
  }
  int status = run_command(argv + 2, enter_group);
  printf("%s: limit %zu MiB, most %llu MiB, killed %llu\n", used->type, mib, read_file(used->peak, NULL) / MIB,
         read_file(used->killed, "oom_kill"));
  guard_end();
  if (access(group, F_OK) == 0) {
    printf("%s is still there\n", group);
    status = 1;
  }
  return status;
}
