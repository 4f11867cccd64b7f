/* Parsing of /proc and cgroup files, in buffers of its own: malloc may be called on stacks of a few kilobytes. */
#include "os/memory_limits.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "base/bits.h"
#include "os/lock.h"
#include "os/os.h"

const char *hak_os_files_root = "";

#define PATH_BYTES 1024
#define CGROUPS_BYTES 4096 /* of the file cgroup: a line a hierarchy */

hak_lock hak_memory_limits_lock;
/* Under the lock, which each function of the header takes. */
static struct {
  char path[PATH_BYTES];      /* of the file that is read */
  char cgroup[PATH_BYTES];    /* of this process */
  char directory[PATH_BYTES]; /* of it or one above */
  char cgroups[CGROUPS_BYTES];
  char status[CGROUPS_BYTES]; /* the lines that are read stand behind the list of groups, which may be long */
} buffers;

/* What the two versions call things, and where they are mounted. */
typedef struct version {
  const char *controller, *mounts[2], *limits[2];
  const char *used, *of_files[2]; /* of_files: lines of memory.stat */
} version;
static const version versions[] = {
    {"",
     {"/sys/fs/cgroup", "/sys/fs/cgroup/unified"},
     {"/memory.max", "/memory.high"},
     "/memory.current",
     {"\ninactive_file ", "\nactive_file "}},
    {"memory",
     {"/sys/fs/cgroup/memory"},
     {"/memory.limit_in_bytes"},
     "/memory.usage_in_bytes",
     {"\ntotal_inactive_file ", "\ntotal_active_file "}},
};

/* The file's text, ended by 0; its length, 0 when it cannot be read or its name is too long. */
static size_t read_text(const char *mount, const char *directory, const char *file, char *buf, size_t capacity) {
  hak_assert_held(&hak_memory_limits_lock); /* of the buffers */
  HAK_ASSERT(capacity > 0);
  const char *const parts[] = {hak_os_files_root, mount, directory, file};
  char *path = buffers.path;
  size_t length = 0;
  for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
    size_t n = strlen(parts[i]);
    if (n >= PATH_BYTES - length) return 0;
    memcpy(path + length, parts[i], n);
    length += n;
  }
  path[length] = '\0';
  size_t read = hak_os_read_file(path, buf, capacity - 1);
  HAK_ASSERT(read < capacity);
  buf[read] = '\0';
  return read;
}

/* A file of this process. /proc/self is the first thread's, which may have ended: then it says nothing. */
static size_t read_own(const char *file, char *buf, size_t capacity) {
  size_t read = read_text("/proc/thread-self", "", file, buf, capacity);
  return read != 0 ? read : read_text("/proc/self", "", file, buf, capacity); /* before Linux 3.17 */
}

/* The number at the beginning of the text, SIZE_MAX where there is none ("max") or it is larger than that. */
static size_t parse_number(const char *text) {
  size_t value;
  return hak_os_take_number(text, 10, &value) == text ? SIZE_MAX : value;
}

static size_t read_number(const char *mount, const char *directory, const char *file) {
  char text[64];
  return read_text(mount, directory, file, text, sizeof text) == 0 ? SIZE_MAX : parse_number(text);
}

/* Whether the list between the two colons of a line names `controller`; "" is the line of version 2. */
static bool names_controller(const char *list, size_t length, const char *controller) {
  size_t n = strlen(controller);
  if (n == 0) return length == 0;
  for (const char *at = list; at + n <= list + length; at++) {
    bool begins = at == list || at[-1] == ',', ends = at + n == list + length || at[n] == ',';
    if (begins && ends && memcmp(at, controller, n) == 0) return true;
  }
  return false;
}

/* buffers.cgroup: the path of this process's in the hierarchy of a controller, without the / at its end; false: there
 * is none. */
static bool find_cgroup(const char *controller) {
  hak_assert_held(&hak_memory_limits_lock);
  char *text = buffers.cgroups;
  if (read_own("/cgroup", text, CGROUPS_BYTES) == 0) return false;
  for (char *line = text, *next; line != NULL; line = next) {
    char *end = strchr(line, '\n');
    next = end == NULL ? NULL : end + 1;
    if (end != NULL) *end = '\0';
    char *list = strchr(line, ':'), *path = list == NULL ? NULL : strchr(list + 1, ':');
    if (path == NULL || !names_controller(list + 1, (size_t)(path - list - 1), controller)) continue;
    path++;
    size_t length = strlen(path);
    if (length >= PATH_BYTES) return false;
    while (length > 0 && path[length - 1] == '/') length--;
    path[length] = '\0';
    /* Outside of the part that this process is shown: what is mounted is all there is to see. */
    strcpy(buffers.cgroup, strstr(path, "/..") != NULL ? "" : path);
    return true;
  }
  return false;
}

static size_t limit_of(const version *v, const char *mount) {
  size_t least = SIZE_MAX;
  for (size_t i = 0; i < 2 && v->limits[i] != NULL; i++)
    least = hak_min_size(least, read_number(mount, buffers.directory, v->limits[i]));
  return least;
}

/* Pages of files that lie on the lists from which the kernel takes them back. */
static size_t bytes_of_files(const version *v, const char *mount) {
  size_t bytes = 0;
  if (read_text(mount, buffers.directory, "/memory.stat", buffers.status, sizeof buffers.status) == 0) return 0;
  for (size_t i = 0; i < 2; i++) {
    const char *at = strstr(buffers.status, v->of_files[i]);
    size_t part = at == NULL ? SIZE_MAX : parse_number(at + strlen(v->of_files[i]));
    if (part != SIZE_MAX) bytes += part;
  }
  return bytes;
}

/* Bytes of the line "<field>   1234 kB"; SIZE_MAX where there is none. */
static size_t parse_field(const char *text, const char *field) {
  const char *at = strstr(text, field);
  if (at == NULL) return SIZE_MAX;
  at += strlen(field);
  while (*at == ' ' || *at == '\t') at++;
  size_t kib = parse_number(at);
  if (strstr(at, " kB") == NULL) return SIZE_MAX; /* the text ends inside of the number */
  return kib > SIZE_MAX / HAK_KIB ? SIZE_MAX : kib * HAK_KIB;
}

static size_t machine_memory(void) {
  char text[256]; /* it is in the first line */
  return read_text("", "", "/proc/meminfo", text, sizeof text) == 0 ? SIZE_MAX : parse_field(text, "MemTotal:");
}

typedef struct limits {
  size_t machine, cgroup; /* the least of the cgroups' */
  hak_os_bound nearest;   /* of cgroups; UNBOUND unless it is wanted */
} limits;

static void see_group(const version *v, const char *mount, bool wants_nearest, limits *l) {
  size_t limit = limit_of(v, mount);
  l->cgroup = hak_min_size(l->cgroup, limit);
  if (!wants_nearest || limit > l->machine || limit == SIZE_MAX) return;
  size_t used = read_number(mount, buffers.directory, v->used);
  if (used == SIZE_MAX) return;
  used -= hak_min_size(used, bytes_of_files(v, mount));
  l->nearest = hak_os_nearer(l->nearest, (hak_os_bound){limit, used});
}

/* Of each version this process's cgroup and all above it, in buffers.directory. A container may see its host's path,
 * under a mount that begins at its own cgroup: directories that are not there are passed over, and the mount itself
 * comes last. */
static limits read_limits(bool wants_nearest) {
  char *directory = buffers.directory;
  hak_lock_take(&hak_memory_limits_lock);
  limits l = {machine_memory(), SIZE_MAX, HAK_OS_UNBOUND};
  for (size_t i = 0; i < sizeof versions / sizeof versions[0]; i++) {
    const version *v = &versions[i];
    if (!find_cgroup(v->controller)) continue;
    for (size_t m = 0; m < 2 && v->mounts[m] != NULL; m++) {
      strcpy(directory, buffers.cgroup);
      for (char *slash = directory; slash != NULL;) {
        see_group(v, v->mounts[m], wants_nearest, &l);
        slash = strrchr(directory, '/');
        if (slash != NULL) *slash = '\0';
      }
    }
  }
  hak_lock_drop(&hak_memory_limits_lock);
  return l;
}

size_t hak_os_memory_limit(void) {
  limits l = read_limits(false);
  return hak_min_size(l.machine, l.cgroup);
}

size_t hak_os_cgroup_limit(void) {
  limits l = read_limits(false);
  return l.cgroup <= l.machine ? l.cgroup : SIZE_MAX;
}

hak_os_bound hak_os_cgroup_nearest(void) { return read_limits(true).nearest; }

bool hak_os_commit_is_limited(void) {
  static bool limited; /* under the lock; as it was when it could be read last */
  hak_lock_take(&hak_memory_limits_lock);
  size_t mode = read_number("", "", "/proc/sys/vm/overcommit_memory");
  if (mode != SIZE_MAX) limited = mode == 2;
  bool now = limited;
  hak_lock_drop(&hak_memory_limits_lock);
  return now;
}

typedef enum when { NEVER, WHERE_ASKED, ALWAYS } when;

/* "always [inherit] madvise never" */
static when pages_when(const char *file, when inherited, when unknown) {
  char text[64];
  const char *at = NULL;
  if (read_text("/sys/kernel/mm/transparent_hugepage", "", file, text, sizeof text) != 0) at = strchr(text, '[');
  if (at == NULL) return unknown;
  return at[1] == 'a' ? ALWAYS : at[1] == 'i' ? inherited : at[1] == 'm' ? WHERE_ASKED : NEVER;
}

hak_os_page_sizes hak_os_read_page_sizes(void) {
  hak_lock_take(&hak_memory_limits_lock);
  when all = pages_when("/enabled", ALWAYS, ALWAYS), spans = pages_when("/hugepages-64kB/enabled", all, NEVER);
  when huge = pages_when("/hugepages-2048kB/enabled", all, all);
  hak_os_page_sizes sizes = {.huge = huge != NEVER, .spans = spans == ALWAYS && huge != ALWAYS};
  static const char *const between[] = {"/hugepages-128kB/enabled", "/hugepages-256kB/enabled",
                                        "/hugepages-512kB/enabled", "/hugepages-1024kB/enabled"};
  for (size_t i = 0; sizes.spans && i < sizeof between / sizeof *between; i++)
    sizes.spans = pages_when(between[i], all, NEVER) != ALWAYS;
  if (sizes.spans && read_own("/status", buffers.status, sizeof buffers.status) != 0)
    sizes.spans = strstr(buffers.status, "\nTHP_enabled:\t0") == NULL;
  hak_lock_drop(&hak_memory_limits_lock);
  return sizes;
}

static size_t pages_to_bytes(size_t pages) {
  return pages > SIZE_MAX / hak_os_page_size() ? 0 : pages * hak_os_page_size();
}

bool hak_os_read_resident(hak_os_resident *out) {
  char text[128]; /* in pages: the address space, what of it is resident, what of that is of files and shared memory */
  *out = (hak_os_resident){0, 0};
  hak_lock_take(&hak_memory_limits_lock);
  size_t length = read_own("/statm", text, sizeof text);
  hak_lock_drop(&hak_memory_limits_lock);
  if (length == 0) return false;
  const char *second = strchr(text, ' '), *third = second == NULL ? NULL : strchr(second + 1, ' ');
  out->all = pages_to_bytes(second == NULL ? SIZE_MAX : parse_number(second + 1));
  size_t shared = pages_to_bytes(third == NULL ? SIZE_MAX : parse_number(third + 1));
  out->anonymous = out->all - hak_min_size(out->all, shared);
  HAK_ASSERT(out->anonymous <= out->all);
  return out->all != 0;
}

hak_os_resident_peak hak_os_read_resident_peak(void) {
  size_t now = SIZE_MAX, peak = SIZE_MAX;
  hak_lock_take(&hak_memory_limits_lock);
  if (read_own("/status", buffers.status, sizeof buffers.status) != 0) {
    now = parse_field(buffers.status, "\nVmRSS:");
    peak = parse_field(buffers.status, "\nVmHWM:");
  }
  hak_lock_drop(&hak_memory_limits_lock);
  return (hak_os_resident_peak){now == SIZE_MAX ? 0 : now, peak == SIZE_MAX ? 0 : peak};
}

/* "some avg10=1.23 avg60=…" */
static bool parse_pressure(const char *text, unsigned *hundredths) {
  static const char field[] = "some avg10=";
  const char *at = strstr(text, field);
  if (at == NULL) return false;
  at += strlen(field);
  size_t whole = parse_number(at);
  const char *point = strchr(at, '.');
  if (whole > 100 || point == NULL || parse_number(point + 1) > 99) return false;
  *hundredths = (unsigned)(whole * 100 + parse_number(point + 1));
  HAK_ASSERT(*hundredths <= 10099); /* 100.99 at most */
  return true;
}

unsigned hak_os_memory_pressure(void) {
  char text[256];
  unsigned hundredths = 0;
  hak_lock_take(&hak_memory_limits_lock);
  bool in_group = find_cgroup(""), found = false;
  for (size_t i = 0; in_group && i < 2 && !found; i++)
    found = read_text(versions[0].mounts[i], buffers.cgroup, "/memory.pressure", text, sizeof text) > 0 &&
            parse_pressure(text, &hundredths);
  if (!found && read_text("", "", "/proc/pressure/memory", text, sizeof text) > 0) parse_pressure(text, &hundredths);
  hak_lock_drop(&hak_memory_limits_lock);
  return hundredths;
}
