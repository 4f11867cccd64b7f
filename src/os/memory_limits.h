/* What the system says about memory: this process's share, the limit it lives under, and how scarce memory is. Read
 * from /proc and the cgroup file systems, each call anew; nothing is kept. Same contract as os.h: no errno, no
 * allocation. */
#ifndef HAK_OS_MEMORY_LIMITS_H
#define HAK_OS_MEMORY_LIMITS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "os/lock.h"

/* Held while files are read, by this box alone; no other lock is taken meanwhile. Fork takes it last. */
extern hak_lock hak_memory_limits_lock;

/* Stands before every path read here: "", or a test's tree of made-up files. */
extern const char *hak_os_files_root;

/* The least of the machine's memory and the limits of this process's cgroup and all above it: memory.max and
 * memory.high of version 2, memory.limit_in_bytes of version 1, mounted where they usually are. SIZE_MAX: nothing of it
 * can be read. */
size_t hak_os_memory_limit(void);
/* The cgroups' alone; SIZE_MAX where that is more than the machine has. Some containers are told theirs as the
 * machine's. */
size_t hak_os_cgroup_limit(void);

/* A limit and what is used of it. */
typedef struct hak_os_bound {
  size_t limit, used;
} hak_os_bound;
#define HAK_OS_UNBOUND ((hak_os_bound){SIZE_MAX, 0})
HAK_INLINE size_t hak_os_left(hak_os_bound b) { return b.limit > b.used ? b.limit - b.used : 0; }
HAK_INLINE hak_os_bound hak_os_nearer(hak_os_bound a, hak_os_bound b) {
  return hak_os_left(b) < hak_os_left(a) ? b : a;
}
/* Of the process's cgroup and all above it the one that has the least left, where the machine has no less than its
 * limit. All processes of a group use it; pages of files do not count, as the kernel takes them back before it ends a
 * process. */
hak_os_bound hak_os_cgroup_nearest(void);

/* Whether the system promises no more memory than it has (vm.overcommit_memory is 2): what is accessible counts then,
 * touched or not. Where that cannot be read, as it was when it could. */
bool hak_os_commit_is_limited(void);

/* What else than small pages fresh memory may get (/sys/kernel/mm/transparent_hugepage, THP_enabled of
 * /proc/self/status). What cannot be read is as kernels have it that know huge pages alone. */
typedef struct hak_os_page_sizes {
  bool huge;  /* huge ones, where it is asked to have them at least */
  bool spans; /* pages of 64 KiB where nothing is asked, and no larger ones then */
} hak_os_page_sizes;
hak_os_page_sizes hak_os_read_page_sizes(void);

/* Resident bytes of this process (/proc/self/statm). */
typedef struct hak_os_resident {
  size_t all;       /* as ps shows them */
  size_t anonymous; /* without the pages of files and of memory shared with other processes: the kernel takes clean
                       pages of files back by itself before a cgroup meets its limit */
} hak_os_resident;
/* False: they cannot be read, and are 0. */
bool hak_os_read_resident(hak_os_resident *out);

/* Resident bytes of this process now, and the most they have been since it executed its program or was forked
 * (/proc/self/status). What cannot be read is 0. */
typedef struct hak_os_resident_peak {
  size_t now, peak;
} hak_os_resident_peak;
hak_os_resident_peak hak_os_read_resident_peak(void);

/* Hundredths of a percent of the last 10 seconds in which some thread waited for memory (pressure-stall information),
 * of the process's cgroup where it has the file, else of the machine; 0 where the kernel does not say. */
unsigned hak_os_memory_pressure(void);

#endif
