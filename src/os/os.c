/* Counting, fallbacks and alignment on top of the primitives of os_linux.c. */
#include "os/os.h"

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>

#include "base/assert.h"
#include "base/atomic.h"
#include "base/bits.h"
#include "base/policy.h"

#if HAK_OS_REPLACEABLE
const struct hak_os_ops *hak_os = &hak_os_linux;
#else
const struct hak_os_ops *const hak_os = &hak_os_linux;
#endif
/* Set once madvise answered ENOMEM: from then on pages are given back by mapping fresh ones over the range. */
static bool advice_disabled;

static void *map_counted(void *hint, size_t size, hak_os_access access, bool fixed) {
  hak_os_count(&hak_os_stats.mmap_total);
  return hak_os->map(hint, size, access, fixed);
}

bool hak_os_unmap(void *addr, size_t size) {
  HAK_ASSERT(addr != NULL && (uintptr_t)addr % hak_os_page_size() == 0 && size > 0);
  hak_os_count(&hak_os_stats.munmap);
  if (hak_os->unmap(addr, size) == 0) return true;
  /* A process at its limit of mappings cannot unmap a piece of one. The addresses are lost then, but their pages go
   * back. */
  hak_os_count(&hak_os_stats.madvise);
  hak_os->advise(addr, size, MADV_DONTNEED);
  return false;
}

bool hak_os_unmap_own(void *addr, size_t size) {
  HAK_ASSERT(addr != NULL && (uintptr_t)addr % hak_os_page_size() == 0 && size > 0);
  hak_os_count(&hak_os_stats.munmap);
  if (hak_os->unmap_own(addr, size) == 0) return true;
  hak_os_count(&hak_os_stats.madvise);
  hak_os_is_locked(addr, size); /* purges the pages unless they are locked */
  return false;
}

/* Maps with slack and trims both ends: mmap itself promises page alignment only. hint: where, if that is free; 0:
 * anywhere. */
void *hak_os_map_near(uintptr_t hint, size_t size, size_t align, hak_os_access access) {
  size_t page = hak_os_page_size();
  HAK_ASSERT(size > 0 && hak_is_pow2(align));
  if (align > PTRDIFF_MAX || size > PTRDIFF_MAX - align) return NULL;
  /* The kernel often returns an aligned address by chance when mappings are large: try that before over-mapping. */
  void *first = map_counted((void *)hint, size, access, false);
  if (first == NULL || ((uintptr_t)first & (align - 1)) == 0) return first;
  if (!hak_os_unmap_own(first, size)) return NULL;
  size_t padded = size + align - page;
  char *raw = (char *)map_counted(NULL, padded, access, false);
  if (raw == NULL) return NULL;
  char *start = (char *)hak_align_up((uintptr_t)raw, align);
  HAK_ASSERT(start + size <= raw + padded);
  size_t head = (size_t)(start - raw), tail = padded - head - size;
  /* A failed trim leaves address space behind, never memory in use; the block itself is good. */
  if (head != 0) hak_os_unmap_own(raw, head);
  if (tail != 0) hak_os_unmap_own(start + size, tail);
  return start;
}

void *hak_os_reserve(size_t size, size_t align) { return hak_os_map_near(0, size, align, HAK_OS_RESERVED); }

/* Left free below the program's libraries, for what it maps there: and so the kernel does not fill holes in regions,
 * absent spans, with that. */
#define MARGIN (16 * HAK_GIB)

/* The highest address with so much room behind it; 0: there is none. */
static uintptr_t highest_place(size_t room) {
  uintptr_t high = (uintptr_t)&hak_os_stats, least = 2 * (room + MARGIN);
  if (high < least) high = (uintptr_t)&room; /* a static program: the stack */
  return high < least ? 0 : high - room - MARGIN;
}

/* The kernel's pages between a program's name and the end of addresses where it draws no addresses: a name has at most
 * one of its own. */
#define NAME_PAGES 3

/* Another value in each process and for each call, without a system call; 0 where the kernel draws no addresses: each
 * process is like the others then. Half of the kernel's bytes hides the other half, which libc's canary is made of. */
static uint64_t draw(void) {
  static uint64_t calls; /* relaxed */
  const void *given = (const void *)hak_os_given(HAK_OS_RANDOM);
  uintptr_t name = hak_os_given(HAK_OS_NAME);
  if (given == NULL || hak_pow2_ceil(name) - name <= NAME_PAGES * hak_os_page_size()) return 0;
  uint64_t words[2], high;
  memcpy(words, given, sizeof words);
  uint64_t low = hak_multiply(words[0] ^ hak_add_relaxed(&calls, 1), words[1] | 1, &high);
  return low ^ high;
}

/* How far below the highest place: up to a quarter of it, so that the program, which lies at two thirds of the
 * addresses, is not met. ThreadSanitizer takes what lies lower for its own. */
static uintptr_t gap_below(uintptr_t highest) {
#ifdef __SANITIZE_THREAD__
  (void)highest;
  return 0;
#else
  uint64_t high;
  hak_multiply(draw(), highest / 4, &high);
  return (uintptr_t)high;
#endif
}

/* For a region: so that who knows where a block lies does not know where libraries do. */
static uintptr_t place_apart(size_t align, size_t room) {
  uintptr_t highest = highest_place(room);
  return hak_align_down(highest - gap_below(highest), align);
}

uintptr_t hak_os_random_place(size_t align, size_t room) {
  uintptr_t highest = highest_place(room), drawn;
  if (highest == 0) return 0;
  hak_os_random(&drawn, sizeof drawn);
  HAK_ASSERT(highest > MARGIN + align);
  return hak_align_up(MARGIN + drawn % (highest - MARGIN - align), align);
}

void *hak_os_reserve_with_room(size_t size, size_t align, size_t room) {
  uintptr_t hint = HAK_HARD(GUARDS) ? hak_os_random_place(align, room) : place_apart(align, room);
  return hak_os_map_near(hint, size, align, HAK_OS_RESERVED);
}

/* Without MAP_FIXED_NOREPLACE, which old kernels and emulators take for a hint as well. */
bool hak_os_extend(void *addr, size_t size, hak_os_access access, bool *taken) {
  HAK_ASSERT((uintptr_t)addr % hak_os_page_size() == 0 && size > 0);
  void *p = map_counted(addr, size, access, false);
  *taken = p != NULL && p != addr;
  if (*taken) hak_os_unmap_own(p, size);
  return p == addr;
}

bool hak_os_has_all_mappings(void) {
  void *p = map_counted(NULL, hak_os_page_size(), HAK_OS_RESERVED, false);
  if (p != NULL) hak_os_unmap_own(p, hak_os_page_size());
  /* Under that limit what is reserved has to go back instead */
  return p == NULL && !hak_os_is_limited(HAK_OS_ADDRESS_SPACE);
}

void *hak_os_map(size_t size, size_t align) { return hak_os_map_near(0, size, align, HAK_OS_ACCESSIBLE); }

bool hak_os_commit(void *addr, size_t size) {
  HAK_ASSERT((uintptr_t)addr % hak_os_page_size() == 0 && size > 0);
  hak_os_count(&hak_os_stats.mprotect);
  return hak_os->protect(addr, size, true) == 0;
}

bool hak_os_guard(void *addr, size_t size) {
  HAK_ASSERT((uintptr_t)addr % hak_os_page_size() == 0 && size > 0);
  hak_os_count(&hak_os_stats.mprotect);
  return hak_os->protect(addr, size, false) == 0;
}

bool hak_os_seal(void *addr, size_t size) { return map_counted(addr, size, HAK_OS_SEALED, true) != NULL; }

/* More than there can be regions. */
#define OWNED_MAX 512
static struct {
  uintptr_t base;
  size_t bytes;
} owned[OWNED_MAX];
static uint32_t owned_count; /* release after an entry is complete */

void hak_os_own(void *addr, size_t size) {
  uint32_t n = hak_load_relaxed(&owned_count);
  /* A piece behind a reservation extends its entry: growth in small pieces does not use the entries up. */
  for (uint32_t i = 0; i < hak_min_size(n, OWNED_MAX); i++) {
    if (owned[i].base + owned[i].bytes != (uintptr_t)addr) continue;
    hak_store_release(&owned[i].bytes, owned[i].bytes + size);
    return;
  }
  owned[n % OWNED_MAX].base = (uintptr_t)addr;
  owned[n % OWNED_MAX].bytes = size;
  hak_store_release(&owned_count, n + 1);
}

static bool is_owned(const void *addr, size_t size) {
  uint32_t n = hak_load_acquire(&owned_count);
  for (uint32_t i = 0; i < n && i < OWNED_MAX; i++) {
    uintptr_t offset = (uintptr_t)addr - owned[i].base;
    size_t bytes = hak_load_acquire(&owned[i].bytes);
    if (offset < bytes && size <= bytes - offset) return true;
  }
  return false;
}

/* 0, or why the pages were kept. */
static int advise_counted(void *addr, size_t size, int advice) {
  HAK_ASSERT((uintptr_t)addr % hak_os_page_size() == 0 && size > 0);
  if (hak_load_relaxed(&advice_disabled)) return ENOMEM;
  hak_os_count(&hak_os_stats.madvise);
  int error = hak_os->advise(addr, size, advice);
  if (error == 0) return 0;
  if (error == ENOMEM) {
    hak_os_count(&hak_os_stats.madvise_enomem);
    hak_os_count(&hak_os_stats.madvise_disabled);
    hak_store_relaxed(&advice_disabled, true);
  } else {
    hak_os_count(&hak_os_stats.madvise_other);
  }
  return error;
}

static bool refuse_foreign(const void *addr, size_t size) {
  bool refused = !is_owned(addr, size);
  if (HAK_UNLIKELY(refused)) hak_os_count(&hak_os_stats.madvise_other);
  return refused;
}

bool hak_os_decommit_lazily(void *addr, size_t size) {
  return !refuse_foreign(addr, size) && advise_counted(addr, size, MADV_FREE) == 0;
}

/* After one refusal the kernel is not asked again: the caller's next call does the work. */
void hak_os_split_huge(void *addr, size_t size) {
  static bool refused; /* relaxed */
  if (hak_load_relaxed(&refused) || refuse_foreign(addr, size)) return;
  if (advise_counted(addr, size, MADV_FREE) != 0) hak_store_relaxed(&refused, true);
}

bool hak_os_decommit_piece(void *addr, size_t size) {
  return !refuse_foreign(addr, size) && advise_counted(addr, size, MADV_DONTNEED) == 0;
}

bool hak_os_decommit_mapping(void *addr, size_t size) { return advise_counted(addr, size, MADV_DONTNEED) == 0; }

/* Each mapping over a piece may split the one around it, and the program needs some itself. So none that is less than a
 * huge page. */
static bool may_map_over(size_t size) {
  static uint32_t count; /* relaxed */
  return size >= HAK_HUGE_PAGE && hak_load_relaxed(&count) < HAK_OS_MAPPINGS_PART &&
         hak_add_relaxed(&count, 1) < HAK_OS_MAPPINGS_PART;
}

bool hak_os_decommit(void *addr, size_t size) {
  if (refuse_foreign(addr, size)) return false;
  int error = advise_counted(addr, size, MADV_DONTNEED);
  if (error == 0) return true;
  if (error == EINVAL) return false; /* locked: fresh pages would be locked too, in a mapping of their own */
  if (!may_map_over(size)) return false;
  /* Fresh pages over the same range: the old ones go, the addresses stay ours. */
  hak_os_count(&hak_os_stats.fallback_mmap);
  return map_counted(addr, size, HAK_OS_ACCESSIBLE, true) != NULL;
}

bool hak_os_renew(void *addr, size_t size, hak_os_access access) {
  if (refuse_foreign(addr, size) || map_counted(addr, size, access, true) == NULL) return false;
  hak_os_name(addr, size, HAK_NAME_HEAP);
  return true;
}

void *hak_os_remap(void *addr, size_t old_size, size_t new_size, bool may_move) {
  HAK_ASSERT(addr != NULL && old_size > 0 && new_size > 0);
  hak_os_count(&hak_os_stats.mremap);
  return hak_os->remap(addr, old_size, new_size, may_move);
}

static void advise_mapping(void *addr, size_t size, int advice) {
  HAK_ASSERT((uintptr_t)addr % hak_os_page_size() == 0);
  hak_os_count(&hak_os_stats.madvise);
  /* EINVAL: the kernel lacks the feature, such as THP. */
  int error = hak_os->advise(addr, size, advice);
  if (error != 0 && error != EINVAL) hak_os_count(&hak_os_stats.madvise_other);
}

void hak_os_small_pages(void *addr, size_t size) { advise_mapping(addr, size, MADV_NOHUGEPAGE); }

void hak_os_huge_pages(void *addr, size_t size) { advise_mapping(addr, size, MADV_HUGEPAGE); }

/* Of <linux/mman.h> since Linux 5.14, and 6.13. */
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MADV_GUARD_INSTALL
#define MADV_GUARD_INSTALL 102
#define MADV_GUARD_REMOVE 103
#endif

static bool advise_guard(void *addr, size_t size, int advice) {
  HAK_ASSERT((uintptr_t)addr % hak_os_page_size() == 0 && size > 0);
  hak_os_count(&hak_os_stats.madvise);
  return hak_os->advise(addr, size, advice) == 0;
}

bool hak_os_mark_guard(void *addr, size_t size) { return advise_guard(addr, size, MADV_GUARD_INSTALL); }

bool hak_os_unmark_guard(void *addr, size_t size) { return advise_guard(addr, size, MADV_GUARD_REMOVE); }

/* A kernel that is older, or a filter of system calls, refuses: then each page is written to, by which a limit of
 * memory may end the process. */
bool hak_os_populate(void *addr, size_t size) {
  HAK_ASSERT((uintptr_t)addr % hak_os_page_size() == 0);
  hak_os_count(&hak_os_stats.madvise);
  int error = hak_os->advise(addr, size, MADV_POPULATE_WRITE);
  if (error == ENOMEM || error == EFAULT) return false;
  for (size_t at = 0; error != 0 && at < size; at += hak_os_page_size()) {
    volatile char *page = (char *)addr + at;
    *page = *page;
  }
  return true;
}

void hak_os_leave_out_of_dumps(void *addr, size_t size) { advise_mapping(addr, size, MADV_DONTDUMP); }

void hak_os_put_into_dumps(void *addr, size_t size) { advise_mapping(addr, size, MADV_DODUMP); }

static bool unnamed; /* relaxed */

void hak_os_leave_unnamed(void) { hak_store_relaxed(&unnamed, true); }

void hak_os_name(void *addr, size_t size, const char *name) {
  HAK_ASSERT(name != NULL && (uintptr_t)addr % hak_os_page_size() == 0);
  if (hak_load_relaxed(&unnamed)) return;
  hak_os_count(&hak_os_stats.prctl);
  if (hak_os->name(addr, size, name) != 0) hak_os_leave_unnamed();
}

bool hak_os_barrier(void) {
  hak_os_count(&hak_os_stats.membarrier);
  return hak_os->barrier() == 0;
}

uint64_t hak_os_now_ms(void) { return hak_os->now_ms(); }

bool hak_os_refused_lately(const hak_os_refusal *refusal) {
  uint64_t at = hak_load_relaxed(refusal);
  return HAK_UNLIKELY(at != 0) && hak_os_now_ms() - at < HAK_OS_REFUSED_MS; /* a clock that went back begins anew */
}

void hak_os_note_refusal(hak_os_refusal *refusal) { hak_store_relaxed(refusal, hak_os_now_ms()); }

/* --- what the kernel gave the process --- */

size_t hak_os_page_size(void) {
  static size_t cached; /* same value whoever writes it */
  size_t size = hak_load_relaxed(&cached);
  if (size == 0) {
    size = hak_os_given(HAK_OS_PAGE_SIZE);
    if (size == 0) size = 4096;
    hak_store_relaxed(&cached, size);
  }
  return size;
}

bool hak_os_has_more_rights(void) { return hak_os_given(HAK_OS_MORE_RIGHTS) != 0; }

/* --- waits and words --- */

/* By a call that the library makes anyway. */
void hak_os_sleep_ms(uint32_t ms) {
  uint32_t nobody = 0; /* wakes it */
  hak_os_wait(&nobody, 0, ms, false);
}

bool hak_os_is_readable(const uint32_t *word) { return hak_os_compare_with_zero(word) != EFAULT; }

bool hak_os_is_not_zero(const uint32_t *word) { return hak_os_compare_with_zero(word) == EAGAIN; }

/* --- stderr --- */

/* Written before main. */
static int kept_stderr = -1;
static bool keep_asked, first_stderr_known;
static hak_os_identity first_stderr;
static int stderr_now = 2;

void hak_os_keep_stderr(void) {
  if (keep_asked) return;
  keep_asked = true;
  first_stderr_known = hak_os_identify(2, &first_stderr);
  kept_stderr = hak_os_duplicate_high(2);
}

static bool is_file(int fd, const hak_os_identity *file) {
  hak_os_identity now;
  return hak_os_identify(fd, &now) && now.device == file->device && now.number == file->number;
}

static bool is_first_stderr(int fd) { return first_stderr_known && is_file(fd, &first_stderr); }

/* A program that closes every number may have a file of its own under the copy's by now, or under 2: then to
 * neither. */
void hak_os_use_kept_stderr(void) {
  if (!keep_asked) return;
  stderr_now = is_first_stderr(kept_stderr) ? kept_stderr : is_first_stderr(2) ? 2 : -1;
}

void hak_os_write_stderr(const char *text, size_t length) { hak_os_write(stderr_now, text, length); }

/* --- signals --- */

int hak_os_catch(int number, void (*handler)(int)) {
  int saved = errno;
  struct sigaction before, action = {.sa_handler = handler, .sa_flags = SA_RESTART};
  sigemptyset(&action.sa_mask);
  int error = sigaction(number, NULL, &before) == 0 ? 0 : errno;
  if (error == 0 && ((before.sa_flags & SA_SIGINFO) != 0 || before.sa_handler != SIG_DFL)) error = EBUSY;
  if (error == 0 && sigaction(number, &action, NULL) != 0) error = errno;
  errno = saved;
  return error;
}

uint64_t hak_os_hold_signals(void) {
  static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS};
  uint64_t held = ~(uint64_t)0;
  for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++) held &= ~((uint64_t)1 << (faults[i] - 1));
  return hak_os_mask_signals(true, held);
}

void hak_os_put_signals_back(uint64_t before) { hak_os_mask_signals(false, before); }

/* --- files --- */

bool hak_os_read_at(int fd, uint64_t offset, void *buf, size_t bytes) {
  return hak_os_read_from(fd, offset, buf, bytes) == (long)bytes;
}

void hak_os_close_shared(const hak_os_shared *shared) {
  if (is_file(shared->fd, &shared->file)) hak_os_close(shared->fd);
}

int hak_os_open_own(const char *name) {
  static const char *const directories[] = {"/proc/thread-self/", "/proc/self/"}; /* the former from Linux 3.17 on */
  char path[64];
  int fd = -1;
  for (unsigned i = 0; i < 2 && fd < 0; i++) {
    size_t length = strlen(directories[i]);
    if (length + strlen(name) >= sizeof path) return -1;
    strcpy(path, directories[i]);
    strcpy(path + length, name);
    fd = hak_os_open(path);
  }
  return fd;
}

size_t hak_os_read_file(const char *path, char *buf, size_t capacity) {
  int fd = hak_os_open(path);
  if (fd < 0) return 0;
  size_t total = 0;
  while (total < capacity) {
    long n = hak_os_read(fd, buf + total, capacity - total);
    if (n <= 0) break;
    total += (size_t)n;
  }
  hak_os_close(fd);
  return total;
}

const char *hak_os_program(char *buf, size_t capacity) {
  const char *path = hak_os_read_link("/proc/thread-self/exe", buf, capacity);
  return *path != '\0' ? path : hak_os_read_link("/proc/self/exe", buf, capacity); /* before Linux 3.17 */
}

const char *hak_os_thread_name(char *buf, size_t capacity) {
  size_t n = hak_os_read_file("/proc/thread-self/comm", buf, capacity - 1);
  while (n > 0 && (buf[n - 1] == '\n' || buf[n - 1] == '\0')) n--;
  buf[n] = '\0';
  return buf;
}

/* The kernel counts a first thread that has ended among them. */
unsigned hak_os_threads(void) {
  static const char field[] = "\nThreads:\t";
  char text[4096];
  size_t length = hak_os_read_file("/proc/self/status", text, sizeof text - 1), count = 0;
  text[length] = '\0';
  const char *line = strstr(text, field);
  if (line != NULL) hak_os_take_number(line + sizeof field - 1, 10, &count);
  return count == 0 ? UINT_MAX : (unsigned)count;
}

const char *hak_os_take_number(const char *at, unsigned base, size_t *value) {
  for (*value = 0;; at++) {
    unsigned digit = *at >= '0' && *at <= '9'   ? (unsigned)(*at - '0')
                     : *at >= 'a' && *at <= 'f' ? (unsigned)(*at - 'a' + 10)
                                                : base;
    if (digit >= base) return at;
    *value = *value > (SIZE_MAX - digit) / base ? SIZE_MAX : *value * base + digit;
  }
}

/* --- what libc has --- */

/* glibc's, since 2.2.5. */
extern void _IO_list_lock(void) __attribute__((weak));
extern void _IO_list_unlock(void) __attribute__((weak));
extern void _IO_list_resetlock(void) __attribute__((weak));

void hak_os_streams(hak_os_streams_call call) {
  if (_IO_list_lock == NULL || _IO_list_unlock == NULL || _IO_list_resetlock == NULL) return;
  if (call == HAK_OS_STREAMS_LOCK) _IO_list_lock();
  if (call == HAK_OS_STREAMS_UNLOCK) _IO_list_unlock();
  if (call == HAK_OS_STREAMS_RESET) _IO_list_resetlock();
}

extern char **environ;

char **hak_os_environment(char **given) {
#ifdef __GLIBC__
  if (given != NULL) return given;
#else
  (void)given; /* whatever the register holds */
#endif
  return environ;
}

/* Of glibc since 2.32 (<sys/single_threaded.h>). Weak: a library built for an older glibc, and musl's, find none. */
extern __attribute__((weak)) char __libc_single_threaded;

bool hak_os_single_threaded(void) { return &__libc_single_threaded != NULL && __libc_single_threaded; }
