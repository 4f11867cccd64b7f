/* The primitives on Linux. Every function keeps errno: callers of free() may rely on it (POSIX.1-2024). None is a
 * cancellation point, because malloc and free are none. Where a lock may be held, none calls a function of libc that a
 * program may interpose with one that allocates: the system is called directly (os/call.h). What takes pages away from
 * memory that the program has had goes through libc's munmap, mremap, madvise and mmap, with no lock held: those who
 * register memory with a device replace these functions, or write into their code, to hear of it (decision 035). */
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/futex.h>
#include <signal.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/atomic.h"
#include "base/compiler.h"
#include "os/call.h"
#include "os/cpu.h"
#include "os/os.h"

/* Of a function of libc. */
static int error_after(bool failed, int saved) {
  int error = !failed ? 0 : errno != 0 ? errno : EINVAL;
  errno = saved;
  return error;
}

/* --- in a filter of system calls --- */

/* Relaxed: a thread that is about to make a call meanwhile may make it. Only the calls without which there is no
 * allocator are left then: memory's with the flags that C libraries use themselves, and futex. What is missing is known
 * from before, or done without. */
static bool confined, reads_files;
static size_t limits_then[HAK_OS_FILE_SIZE + 1];

bool hak_os_is_confined(void) { return hak_load_relaxed(&confined); }

void hak_os_confine(bool reads) {
  for (int of = 0; of <= HAK_OS_FILE_SIZE && !hak_os_is_confined(); of++)
    limits_then[of] = hak_os_limit((hak_os_resource)of);
  hak_os_cpu_count();
  hak_store_relaxed(&reads_files, reads);
  hak_store_release(&confined, true);
}

void hak_os_leave_confinement(void) { hak_store_relaxed(&confined, false); }

/* --- */

static void *linux_map(void *hint, size_t size, hak_os_access access, bool fixed) {
  /* What is put over a part of a reservation is, as all of that, counted when it is touched: else the two would stay
   * two mappings. */
  bool counted = access == HAK_OS_SEALED || (access == HAK_OS_ACCESSIBLE && !fixed);
  int flags = MAP_PRIVATE | MAP_ANONYMOUS | (fixed ? MAP_FIXED : 0) |
              (counted || hak_os_is_confined() ? 0 : MAP_NORESERVE);
  int rights = access == HAK_OS_ACCESSIBLE ? PROT_READ | PROT_WRITE : PROT_NONE, saved = errno;
  if (!fixed || access == HAK_OS_RESERVED) { /* under locks, too: of what is nobody's nobody has to hear */
    long p = hak_os_call(SYS_mmap, hint, size, rights, flags, -1, 0);
    return hak_os_call_failed(p) ? NULL : (void *)p;
  }
  void *p = mmap(hint, size, rights, flags, -1, 0);
  return error_after(p == MAP_FAILED, saved) != 0 ? NULL : p;
}

static int linux_unmap(void *addr, size_t size) {
  int saved = errno;
  return error_after(munmap(addr, size) != 0, saved);
}

static int linux_unmap_own(void *addr, size_t size) { return hak_os_call_error(hak_os_call(SYS_munmap, addr, size)); }

static int linux_protect(void *addr, size_t size, bool accessible) {
  return hak_os_call_error(hak_os_call(SYS_mprotect, addr, size, accessible ? PROT_READ | PROT_WRITE : PROT_NONE));
}

/* EAGAIN, of a kernel short of memory, is a failure as any other: to ask again at once gets the same answer. */
static int linux_advise(void *addr, size_t size, int advice) {
  if (advice != MADV_DONTNEED && advice != MADV_FREE)
    return hak_os_is_confined() ? EINVAL : hak_os_call_error(hak_os_call(SYS_madvise, addr, size, advice));
  int saved = errno;
  return error_after(madvise(addr, size, advice) != 0, saved);
}

static void *linux_remap(void *addr, size_t old_size, size_t new_size, bool may_move) {
  int saved = errno;
  void *p = mremap(addr, old_size, new_size, may_move ? MREMAP_MAYMOVE : 0);
  return error_after(p == MAP_FAILED, saved) != 0 ? NULL : p;
}

/* Of <linux/prctl.h> since Linux 5.17. */
#ifndef PR_SET_VMA
#define PR_SET_VMA 0x53564d41
#define PR_SET_VMA_ANON_NAME 0
#endif

static int linux_name(void *addr, size_t size, const char *name) {
  return hak_os_is_confined()
             ? ENOSYS
             : hak_os_call_error(hak_os_call(SYS_prctl, PR_SET_VMA, PR_SET_VMA_ANON_NAME, addr, size, name));
}

static uint64_t linux_now_ms(void) { return hak_os_clock_ns() / 1000000; }

static uint64_t thread_cpu_ns(void) {
  struct timespec t = {0, 0};
  if (!hak_os_is_confined()) hak_os_call(SYS_clock_gettime, CLOCK_THREAD_CPUTIME_ID, &t);
  return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static uint64_t linux_touch(void *page) {
  uint64_t begin = thread_cpu_ns();
  *(volatile char *)page = 0;
  return thread_cpu_ns() - begin;
}

/* Of <linux/membarrier.h> since Linux 4.14. */
#define BARRIER 8
#define BARRIER_REGISTER 16

/* Registered by the first call: of the process, and of a child of it anew. ThreadSanitizer knows no such barrier. */
static int linux_barrier(void) {
#ifdef __SANITIZE_THREAD__
  return ENOSYS;
#else
  int error = hak_os_is_confined() ? ENOSYS : hak_os_call_error(hak_os_call(SYS_membarrier, BARRIER));
  if (error != EPERM) return error;
  error = hak_os_call_error(hak_os_call(SYS_membarrier, BARRIER_REGISTER));
  return error != 0 ? error : hak_os_call_error(hak_os_call(SYS_membarrier, BARRIER));
#endif
}

const struct hak_os_ops hak_os_linux = {
    .map = linux_map,
    .unmap = linux_unmap,
    .protect = linux_protect,
    .advise = linux_advise,
    .remap = linux_remap,
    .name = linux_name,
    .now_ms = linux_now_ms,
    .unmap_own = linux_unmap_own,
    .barrier = linux_barrier,
    .touch = linux_touch,
};

size_t hak_os_given(hak_os_gift what) {
  static const unsigned long types[] = {[HAK_OS_PAGE_SIZE] = AT_PAGESZ,
                                        [HAK_OS_MORE_RIGHTS] = AT_SECURE,
                                        [HAK_OS_RANDOM] = AT_RANDOM,
                                        [HAK_OS_NAME] = AT_EXECFN};
  return (size_t)getauxval(types[what]);
}

size_t hak_os_limit(hak_os_resource of) {
  static const int resources[] = {
      [HAK_OS_ADDRESS_SPACE] = RLIMIT_AS, [HAK_OS_DATA] = RLIMIT_DATA, [HAK_OS_FILE_SIZE] = RLIMIT_FSIZE};
  struct rlimit limit;
  if (hak_load_acquire(&confined)) return limits_then[of]; /* with hak_os_confine's release */
  bool known = hak_os_call(SYS_prlimit64, 0, resources[of], NULL, &limit) == 0;
  return known && limit.rlim_cur != RLIM_INFINITY ? (size_t)limit.rlim_cur : SIZE_MAX;
}

bool hak_os_is_locked(void *addr, size_t size_bytes) {
  /* Under the pool lock: not libc's */
  return hak_os_call_error(hak_os_call(SYS_madvise, addr, size_bytes, MADV_DONTNEED)) == EINVAL;
}

/* Asks to grow it in place by a page: of a part of a mapping the kernel refuses that with one error, and across the
 * end of one with another, which it looks for first. Not libc's function: what comes back here has not been the
 * program's. */
bool hak_os_is_one_mapping(void *addr, size_t size) {
  size_t page = hak_os_given(HAK_OS_PAGE_SIZE);
  hak_os_count(&hak_os_stats.mremap);
  long result = hak_os_call(SYS_mremap, addr, size, size + page, 0, 0);
  if (!hak_os_call_failed(result)) linux_unmap_own((char *)addr + size, page);
  return !hak_os_call_failed(result) || result == -ENOMEM;
}

bool hak_os_identify(int fd, hak_os_identity *out) {
  struct stat file;
  if (fd < 0 || hak_os_call(SYS_fstat, fd, &file) != 0) return false;
  *out = (hak_os_identity){file.st_dev, file.st_ino};
  return true;
}

bool hak_os_is_terminal(int fd) {
  struct winsize size;
  return hak_os_call(SYS_ioctl, fd, TIOCGWINSZ, &size) == 0;
}

#define HIGH_FD 512 /* where the limit of descriptors allows it; else half of that, and so on */

int hak_os_duplicate_high(int fd) {
  int copy = -1;
  for (int lowest = HIGH_FD; lowest > 2 && copy < 0; lowest /= 2)
    copy = (int)hak_os_call(SYS_fcntl, fd, F_DUPFD_CLOEXEC, lowest);
  return copy < 0 ? -1 : copy;
}

static int write_all(int fd, const char *text, size_t length) {
  while (length > 0) {
    long n = hak_os_call(SYS_write, fd, text, length);
    if (n == -EINTR) continue;
    if (n <= 0) return n < 0 ? (int)-n : EIO;
    text += n;
    length -= (size_t)n;
  }
  return 0;
}

uint64_t hak_os_mask_signals(bool more, uint64_t set) {
  uint64_t before = 0;
  hak_os_call(SYS_rt_sigprocmask, more ? SIG_BLOCK : SIG_SETMASK, &set, &before, sizeof before);
  return before;
}

/* Nobody may be reading, or the file may be longer than RLIMIT_FSIZE: what is written is lost then, but the program is
 * not to die of SIGPIPE or SIGXFSZ because of it. */
int hak_os_write(int fd, const char *text, size_t length) {
  const uint64_t broken_pipe = (uint64_t)1 << (SIGPIPE - 1), too_long = (uint64_t)1 << (SIGXFSZ - 1);
  uint64_t before = hak_os_mask_signals(true, broken_pipe | too_long), pending = 0;
  bool known = !hak_os_is_confined() && hak_os_call(SYS_rt_sigpending, &pending, sizeof pending) == 0;
  int error = write_all(fd, text, length);
  const uint64_t sent = error == EPIPE ? broken_pipe : error == EFBIG ? too_long : 0;
  const struct timespec at_once = {0, 0};
  if (sent != 0 && !(known && (pending & sent) != 0))
    hak_os_call(SYS_rt_sigtimedwait, &sent, NULL, &at_once, sizeof sent);
  hak_os_mask_signals(false, before);
  return error;
}

static int move_up(int fd) {
  int moved = hak_os_duplicate_high(fd);
  if (moved < 0) return fd;
  hak_os_close(fd);
  return moved;
}

static int make_shared_file(const char *name, size_t size) {
  if (hak_os_limit(HAK_OS_FILE_SIZE) < size) return -1; /* beyond it ftruncate does not fail but sends SIGXFSZ */
  int fd = (int)hak_os_call(SYS_memfd_create, name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) return -1;
  fd = move_up(fd);
  if (hak_os_call(SYS_ftruncate, fd, size) == 0) return fd;
  hak_os_close(fd);
  return -1;
}

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 16
#endif

/* Whoever may open the file, or inherits it and has fewer rights since, can read it, and no more: a file that became
 * shorter would be SIGBUS here. The mapping that is there already stays writable. Linux before 5.1 lets others
 * write. */
static bool seal(int fd) {
  const int shape = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
  return hak_os_call(SYS_fcntl, fd, F_ADD_SEALS, shape | F_SEAL_FUTURE_WRITE) == 0 ||
         hak_os_call(SYS_fcntl, fd, F_ADD_SEALS, shape) == 0;
}

void *hak_os_share(const char *name, size_t size, size_t ready, void *at, hak_os_shared *shared) {
  int fd = make_shared_file(name, size);
  if (hak_os_identify(fd, &shared->file)) {
    hak_os_count(&hak_os_stats.mmap_total);
    hak_os_count(&hak_os_stats.mprotect);
    long mapped =
        hak_os_call(SYS_mmap, at, size, PROT_NONE, MAP_SHARED | MAP_NORESERVE | (at == NULL ? 0 : MAP_FIXED), fd, 0);
    bool made = !hak_os_call_failed(mapped) && linux_protect((void *)mapped, ready, true) == 0 && seal(fd);
    if (made) {
      hak_os_count(&hak_os_stats.madvise);
      linux_advise((void *)mapped, size, MADV_DONTDUMP); /* gcore would write all of it */
      shared->fd = fd;
      return (void *)mapped;
    }
    if (at == NULL && !hak_os_call_failed(mapped)) hak_os_call(SYS_munmap, mapped, size);
  }
  if (fd >= 0) hak_os_close(fd);
  if (at != NULL) linux_map(at, size, true, true);
  return NULL;
}

/* Opening waits for no reader, for the thread may be in malloc; writing does: a reader that is there gets all of it.
 * Files to write are moved up, as the statistics page's: the program may have closed 0 to 2, and goes on to print. */
int hak_os_open_in(int folder, const char *name, hak_os_use use, int *fd) {
  static const int flags[] = {[HAK_OS_READ] = O_RDONLY,
                              [HAK_OS_NEW] = O_WRONLY | O_CREAT | O_EXCL,
                              [HAK_OS_THERE] = O_WRONLY | O_NOFOLLOW | O_NOCTTY | O_NONBLOCK,
                              [HAK_OS_THROUGH] = O_WRONLY | O_TRUNC | O_NOCTTY | O_NONBLOCK};
  if (use == HAK_OS_READ && hak_os_is_confined() && !hak_load_relaxed(&reads_files)) {
    *fd = -1;
    return EACCES;
  }
  long opened = hak_os_call(SYS_openat, folder, name, flags[use] | O_CLOEXEC, 0600);
  *fd = opened < 0 ? -1 : use == HAK_OS_READ ? (int)opened : move_up((int)opened);
  if (opened >= 0 && (flags[use] & O_NONBLOCK) != 0) hak_os_call(SYS_fcntl, *fd, F_SETFL, 0);
  return opened < 0 ? (int)-opened : 0;
}

int hak_os_open(const char *path) {
  int fd;
  hak_os_open_in(AT_FDCWD, path, HAK_OS_READ, &fd);
  return fd;
}

const char *hak_os_read_link(const char *path, char *buf, size_t capacity) {
  long n = hak_os_call(SYS_readlinkat, AT_FDCWD, path, buf, capacity - 1);
  buf[n < 0 ? 0 : n] = '\0';
  return buf;
}

long hak_os_read_from(int fd, uint64_t offset, void *buf, size_t capacity) {
  long n;
  do
    n = offset == HAK_OS_ON ? hak_os_call(SYS_read, fd, buf, capacity)
                            : hak_os_call(SYS_pread64, fd, buf, capacity, offset);
  while (n == -EINTR);
  return n < 0 ? -1 : n;
}

void hak_os_close(int fd) { hak_os_call(SYS_close, fd); }

bool hak_os_wait(uint32_t *word, uint32_t value, uint32_t ms, bool shared) {
  struct timespec limit = {ms / 1000, (long)(ms % 1000) * 1000000};
  return hak_os_call(SYS_futex, word, shared ? FUTEX_WAIT : FUTEX_WAIT_PRIVATE, value, ms == 0 ? NULL : &limit) == 0;
}

void hak_os_wake(uint32_t *word, bool shared) {
  hak_os_call(SYS_futex, word, shared ? FUTEX_WAKE : FUTEX_WAKE_PRIVATE, 1);
}

/* Wakes nobody, and moves nobody, where the word is 0. A wait that ends at once would give the processor away for each
 * word. The library makes this call anyway: no filter of system calls ends the program for it. */
int hak_os_compare_with_zero(const uint32_t *word) {
  return hak_os_call_error(hak_os_call(SYS_futex, word, FUTEX_CMP_REQUEUE_PRIVATE, 0, 0, word, 0));
}

int hak_os_number(bool of_thread) { return (int)(of_thread ? hak_os_call(SYS_gettid) : hak_os_call(SYS_getpid)); }

void hak_os_random(void *out, size_t size) {
  if (!hak_os_is_confined() && hak_os_call(SYS_getrandom, out, size, GRND_NONBLOCK) == (long)size) return;
  /* An old kernel or a sandbox: sixteen bytes that the kernel gave the process at exec, the time, and the thread. */
  const unsigned char *given = (const unsigned char *)hak_os_given(HAK_OS_RANDOM);
  uint64_t ours = hak_os_clock_ns() ^ (uintptr_t)&given;
  for (size_t i = 0; i < size; i++)
    ((unsigned char *)out)[i] = (unsigned char)((given == NULL ? 0 : given[i % 16]) ^ ours >> i % 8 * 8);
}

void hak_os_name_thread(const char *name) { hak_os_call(SYS_prctl, PR_SET_NAME, name, 0, 0, 0); }

#define FOLLOWING (CAP_TO_MASK(CAP_SETUID) | CAP_TO_MASK(CAP_SETGID))

static bool read_capabilities(int pid, struct __user_cap_data_struct *words) {
  struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, pid};
  return hak_os_call(SYS_capget, &header, words) == 0;
}

/* Nothing is raised: what the thread does not have as effective now the first one may not have either. */
static void drop_capabilities(void) {
  struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
  struct __user_cap_data_struct own[2], first[2], less[2] = {{0}};
  if (!read_capabilities(0, own) || (own[0].permitted | own[1].permitted) == 0) return;
  if (read_capabilities(hak_os_pid(), first)) {
    less[0].permitted = own[0].permitted & first[0].permitted & FOLLOWING;
    less[0].effective = own[0].effective & less[0].permitted;
  }
  if (memcmp(own, less, sizeof own) != 0) hak_os_call(SYS_capset, &header, less);
}

void hak_os_drop_privileges(void) {
  /* By a raw call also the signal by which glibc changes the user: it is not to come between reading and writing. */
  hak_os_call(SYS_prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  uint64_t before = hak_os_mask_signals(false, ~(uint64_t)0);
  drop_capabilities();
  hak_os_mask_signals(false, before);
}
