/* A path is followed a name at a time, each by the descriptor of the folder that it is in: what was looked at is what
 * is used, whatever others rename meanwhile. */
#include "os/place.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/magic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statfs.h>

#include "base/assert.h"
#include "os/call.h"

#define LINKS_MOST 40 /* of a path, as the kernel has it */
#define TRIES_MOST 8  /* of a new file's random name: others may have taken a few, not 2⁶⁴ */

typedef struct walk {
  int folder;
  unsigned links;
  char rest[PATH_MAX]; /* of the path */
} walk;

static long open_path(int folder, const char *name, int flags) {
  return hak_os_call(SYS_openat, folder, name, O_PATH | O_CLOEXEC | flags);
}

static int enter(walk *w, const char *name, int flags) {
  long opened = open_path(w->folder, name, O_DIRECTORY | flags);
  if (opened < 0) return (int)-opened;
  if (w->folder >= 0) hak_os_close(w->folder);
  w->folder = (int)opened;
  return 0;
}

/* Of the caller or of root. */
static bool is_trusted(const struct stat *s) { return s->st_uid == 0 || s->st_uid == (uid_t)hak_os_call(SYS_geteuid); }

/* A folder that anybody may write to has others' pipes, where they read what is meant for somebody else. */
static bool may_be_planted(const walk *w, const struct stat *item) {
  struct stat folder;
  if (is_trusted(item)) return false;
  return hak_os_call(SYS_fstat, w->folder, &folder) != 0 || (folder.st_mode & S_IWOTH) != 0;
}

/* What the link says, and then the rest of the path. Nobody can make links in /proc; what some of them lead to has no
 * name. */
static int follow(walk *w, int link, const struct stat *s, hak_os_place *out, const char *behind) {
  struct statfs system;
  if (!is_trusted(s)) return EACCES;
  if (++w->links > LINKS_MOST) return ELOOP;
  int error = hak_os_call_error(hak_os_call(SYS_fstatfs, link, &system));
  if (error != 0) return error;
  if (system.f_type == PROC_SUPER_MAGIC) {
    out->through = *behind == '\0';
    memmove(w->rest, behind, strlen(behind) + 1);
    return out->through ? 0 : enter(w, out->name, 0);
  }
  char target[PATH_MAX];
  long n = hak_os_call(SYS_readlinkat, link, "", target, sizeof target);
  size_t more = strlen(behind) + 1;
  if (n < 0) return (int)-n;
  if ((size_t)n + more > sizeof w->rest) return ENAMETOOLONG;
  memmove(w->rest + n, behind, more);
  memcpy(w->rest, target, (size_t)n);
  return *target == '/' ? enter(w, "/", 0) : 0;
}

static int see(walk *w, int item, hak_os_place *out, const char *behind, bool *found) {
  struct stat s;
  int error = hak_os_call_error(hak_os_call(SYS_fstat, item, &s));
  if (error != 0) return error;
  if (S_ISLNK(s.st_mode)) {
    error = follow(w, item, &s, out, behind);
    *found = out->through;
    return error;
  }
  if (*behind != '\0') {
    memmove(w->rest, behind, strlen(behind) + 1);
    return enter(w, out->name, O_NOFOLLOW);
  }
  if (S_ISDIR(s.st_mode)) return EISDIR;
  out->replaceable = S_ISREG(s.st_mode);
  out->there = (hak_os_identity){s.st_dev, s.st_ino};
  if (out->replaceable) out->written_ms = (uint64_t)s.st_mtim.tv_sec * 1000 + (uint64_t)s.st_mtim.tv_nsec / 1000000;
  *found = true;
  return !out->replaceable && may_be_planted(w, &s) ? EACCES : 0;
}

/* The next name of the path. */
static int step(walk *w, hak_os_place *out, bool *found) {
  const char *name = w->rest + strspn(w->rest, "/"), *behind = name + strcspn(name, "/");
  if (behind == name) return EISDIR;
  if (behind - name >= HAK_OS_NAME_BYTES) return ENAMETOOLONG;
  memcpy(out->name, name, (size_t)(behind - name));
  out->name[behind - name] = '\0';
  long item = open_path(w->folder, out->name, O_NOFOLLOW);
  if (item == -ENOENT && *behind == '\0') {
    *found = out->replaceable = true;
    return 0;
  }
  if (item < 0) return (int)-item;
  int error = see(w, (int)item, out, behind, found);
  hak_os_close((int)item);
  return error;
}

int hak_os_find_place(const char *path, hak_os_place *out) {
  walk w = {.folder = -1};
  size_t length = strlen(path);
  *out = (hak_os_place){.folder = -1};
  if (length == 0) return ENOENT;
  if (length >= sizeof w.rest) return ENAMETOOLONG;
  memcpy(w.rest, path, length + 1);
  bool found = false;
  long first = open_path(AT_FDCWD, *path == '/' ? "/" : ".", O_DIRECTORY);
  if (first < 0) return (int)-first;
  w.folder = (int)first;
  int error = 0;
  while (error == 0 && !found) error = step(&w, out, &found);
  out->folder = w.folder;
  if (error != 0) hak_os_leave(out);
  return error;
}

void hak_os_leave(const hak_os_place *place) { hak_os_close(place->folder); }

static int create(const hak_os_place *place, const char *name, int *fd) {
  return hak_os_open_in(place->folder, name, HAK_OS_NEW, fd);
}

/* A file of the first name is what a process that was killed left behind: in a container each has the same numbers.
 * Where it is another user's, or comes back, the name is drawn. */
int hak_os_create_beside(const hak_os_place *place, char temporary[HAK_OS_NAME_BYTES], int *fd) {
  int length = snprintf(temporary, HAK_OS_NAME_BYTES, "%s.%d.part", place->name, hak_os_tid());
  if (length >= HAK_OS_NAME_BYTES) return ENAMETOOLONG;
  hak_os_remove_from(place, temporary);
  int error = create(place, temporary, fd);
  for (unsigned tries = 0; error == EEXIST && tries < TRIES_MOST; tries++) {
    uint64_t drawn;
    hak_os_random(&drawn, sizeof drawn);
    length = snprintf(temporary, HAK_OS_NAME_BYTES, "%s.%016llx.part", place->name, (unsigned long long)drawn);
    if (length >= HAK_OS_NAME_BYTES) return ENAMETOOLONG;
    error = create(place, temporary, fd);
  }
  return error;
}

int hak_os_move_into(const hak_os_place *place, const char *temporary) {
  return hak_os_call_error(hak_os_call(SYS_renameat2, place->folder, temporary, place->folder, place->name, 0));
}

void hak_os_remove_from(const hak_os_place *place, const char *name) {
  hak_os_call(SYS_unlinkat, place->folder, name, 0);
}

int hak_os_open_place(const hak_os_place *place, int *fd) {
  hak_os_identity now;
  HAK_ASSERT(!place->replaceable);
  int error = hak_os_open_in(place->folder, place->name, place->through ? HAK_OS_THROUGH : HAK_OS_THERE, fd);
  if (error != 0 || place->through) return error;
  if (hak_os_identify(*fd, &now) && now.device == place->there.device && now.number == place->there.number) return 0;
  hak_os_close(*fd); /* another one by now */
  return EACCES;
}

void hak_os_remove(const char *path) {
  hak_os_place place;
  if (hak_os_find_place(path, &place) != 0) return;
  if (place.replaceable) hak_os_remove_from(&place, place.name);
  hak_os_leave(&place);
}

uint64_t hak_os_written_ms(const char *path) {
  hak_os_place place;
  if (hak_os_find_place(path, &place) != 0) return 0;
  hak_os_leave(&place);
  return place.written_ms;
}
