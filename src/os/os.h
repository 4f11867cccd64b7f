/* The OS box: every system call of the allocator goes through here and is counted.
 *
 * Contract: no function changes errno; no function allocates; a failure is returned, never hidden. The
 * primitives sit in a table (struct hak_os_ops) so that a test can put a failing or logging system in their place;
 * the table is read only on slow paths. map where fixed, unmap, remap and the advice that gives pages back take memory
 * away that the program has had, and go through libc's functions: call them with no lock held. In what users get the
 * pointer to the table is constant and lies in memory that the loader makes read-only: a wild write cannot make the
 * allocator call what it likes. */
#ifndef HAK_OS_OS_H
#define HAK_OS_OS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/assert.h"
#include "base/atomic.h"
#include "base/bits.h"
#include "base/policy.h"
#include "base/schedule.h"
#include "os/counters.def"

typedef enum hak_os_access {
  /* Inaccessible. The kernel counts its pages when they are touched, accessible or not by then, and so refuses none of
   * it for its size. */
  HAK_OS_RESERVED,
  HAK_OS_SEALED,     /* inaccessible; what is made accessible of it is counted then, and may be refused for its size */
  HAK_OS_ACCESSIBLE, /* counted likewise */
} hak_os_access;

/* Primitive operations. Pointers are NULL and ints a positive errno value on failure. */
struct hak_os_ops {
  void *(*map)(void *hint, size_t size_bytes, hak_os_access access, bool fixed);
  int (*unmap)(void *addr, size_t size_bytes);
  int (*protect)(void *addr, size_t size_bytes, bool accessible);
  int (*advise)(void *addr, size_t size_bytes, int advice);
  void *(*remap)(void *addr, size_t old_bytes, size_t new_bytes, bool may_move);
  int (*name)(void *addr, size_t size_bytes, const char *name);
  uint64_t (*now_ms)(void);
  int (*unmap_own)(void *addr, size_t size_bytes);
  int (*barrier)(void);
  uint64_t (*touch)(void *page);
};

extern const struct hak_os_ops hak_os_linux;
#if HAK_OS_REPLACEABLE /* builds that tests link */
extern const struct hak_os_ops *hak_os; /* hak_os_linux unless a test replaced it */
#else
extern const struct hak_os_ops *const hak_os;
#endif

/* Counters, relaxed atomics. */
#define HAK_OS_COUNTER_FIELD(name, meaning) uint64_t name;
struct hak_os_stats { HAK_OS_COUNTERS(HAK_OS_COUNTER_FIELD) };
extern struct hak_os_stats hak_os_stats;
void hak_os_count(uint64_t *counter);

/* What the kernel gave the process at exec; 0: nothing. */
typedef enum hak_os_gift {
  HAK_OS_PAGE_SIZE,
  HAK_OS_MORE_RIGHTS,
  HAK_OS_RANDOM, /* where 16 random bytes are; libc has its canaries from them */
  HAK_OS_NAME    /* where the program's name is, at the top of the stack */
} hak_os_gift;
size_t hak_os_given(hak_os_gift what);
size_t hak_os_page_size(void);
#define HAK_HUGE_PAGE (2 * HAK_MIB)

/* Of the mappings that a process may have, 65,530 by default, an eighth: of each thing that splits mappings there are
 * no more. */
#define HAK_OS_MAPPINGS_PART 8192

/* Address space without memory: inaccessible, not counted against overcommit. align_bytes: power of two >= page. */
void *hak_os_reserve(size_t size_bytes, size_t align_bytes);
/* The same, low in a part of the address space, drawn for each process and call, of which `room_bytes` from there on
 * seem to be free: hak_os_extend may reserve more in place. Where there is no such part it is put anywhere. */
void *hak_os_reserve_with_room(size_t size_bytes, size_t align_bytes, size_t room_bytes);
/* Near an address, where that is free; 0: anywhere. */
void *hak_os_map_near(uintptr_t hint, size_t size_bytes, size_t align_bytes, hak_os_access access);
/* An address that nobody can predict, with so much room behind it as long as nobody maps there. 0: the address space is
 * too small. */
uintptr_t hak_os_random_place(size_t align_bytes, size_t room_bytes);
/* Reserves these very addresses. False: the system refuses; or *taken, some are somebody else's, and asking again is of
 * no use. */
bool hak_os_extend(void *addr, size_t size_bytes, hak_os_access access, bool *taken);
/* Whether the system refuses any mapping, however small: the process has as many as it may have, or all the
 * addresses. */
bool hak_os_has_all_mappings(void);
/* Makes part of a reservation readable and writable. False: no memory (nothing changed). */
bool hak_os_commit(void *addr, size_t size_bytes);
/* Makes part of a reservation inaccessible again. False: it is not. */
bool hak_os_guard(void *addr, size_t size_bytes);
/* The same by a mark in place of each page, from Linux 6.13 on, which takes no mapping; what the pages held is lost.
 * False: nothing has changed, as the kernel knows no marks, or the memory is locked. Marks outlast a purge and a fork,
 * not another mapping. Not for all guards: gcore leaves a mapping with marks out of what it writes. */
bool hak_os_mark_guard(void *addr, size_t size_bytes);
bool hak_os_unmark_guard(void *addr, size_t size_bytes);
/* Gives the pages of a mapping back, and seals it; its addresses stay taken. False: nothing has changed. */
bool hak_os_seal(void *addr, size_t size_bytes);
/* Names a reservation whose pages will be given back. Nothing else ever is: a range that is not inside one, such as a
 * loaded library's, is refused and counted as madvise_other. Not for two threads at a time. */
void hak_os_own(void *addr, size_t size_bytes);
/* Gives the pages back; the range stays accessible and reads as zero. False: the pages were kept. Where the kernel, or
 * a filter of system calls, refuses the advice, pieces of 2 MiB and more are mapped over, some thousand of them in
 * all. */
bool hak_os_decommit(void *addr, size_t size_bytes);
/* The same for a few pages amid others that stay: by advice alone. Where the kernel refuses, a mapping put in their
 * place would be one more of the process's, which may have 65,530. */
bool hak_os_decommit_piece(void *addr, size_t size_bytes);
/* The same inside a mapping of the caller's, a table's or a block's: there may be more of those than this box notes. */
bool hak_os_decommit_mapping(void *addr, size_t size_bytes);
/* Whether all of it has the same access, advice, lock and memory policy, so that it is one mapping to the kernel. False
 * also where that cannot be told. What lies behind it is mapped, or nobody's. */
bool hak_os_is_one_mapping(void *addr, size_t size_bytes);
/* A new mapping in place of part of a reservation, with no advice, lock or policy that anybody gave that. False: it is
 * as it was. `access`: HAK_OS_ACCESSIBLE, of memory that a program had, with no lock held; HAK_OS_RESERVED, of memory
 * that nobody had, under any. */
bool hak_os_renew(void *addr, size_t size_bytes, hak_os_access access);
/* Leaves the pages to the kernel for when it wants them (MADV_FREE): until then they count as resident and hold what
 * they held, or zeros. False: the kernel does not know this, and nothing has changed. */
bool hak_os_decommit_lazily(void *addr, size_t size_bytes);
/* Before hak_os_decommit_piece: splits the huge page that the piece is of, so that a cgroup is not charged for it
 * whole. */
void hak_os_split_huge(void *addr, size_t size_bytes);
/* Every thread of the process passes a full barrier between the beginning and the end of the call: where it runs, or
 * because it was switched out. False: the system has no such call, or refuses it. */
bool hak_os_barrier(void);
/* Readable, writable, zeroed memory of its own. */
void *hak_os_map(size_t size_bytes, size_t align_bytes);
/* What the program has had. No lock may be held: libc's munmap may be the program's, which may allocate. */
bool hak_os_unmap(void *addr, size_t size_bytes);
/* What no program has had: tables, and reservations and mappings that were never handed out. */
bool hak_os_unmap_own(void *addr, size_t size_bytes);
/* Grows or shrinks a mapping from hak_os_map, moving it if needed and allowed. NULL: unchanged. */
void *hak_os_remap(void *addr, size_t old_bytes, size_t new_bytes, bool may_move);
/* Asks for ordinary pages even where the kernel's THP mode is "always". Advice: failure is harmless. */
void hak_os_small_pages(void *addr, size_t size_bytes);
/* Asks for huge pages where a whole one fits. Advice: failure is harmless. */
void hak_os_huge_pages(void *addr, size_t size_bytes);
HAK_INLINE void hak_os_set_pages(void *addr, size_t size_bytes, bool huge) {
  if (huge)
    hak_os_huge_pages(addr, size_bytes);
  else
    hak_os_small_pages(addr, size_bytes);
}

/* Writes a zero to a page that nobody uses: the nanoseconds of processor time that took; 0: they cannot be told. */
HAK_INLINE uint64_t hak_os_touch(void *page) { return hak_os->touch(page); }

/* Makes pages that are accessible resident, whatever is in them. False: there is no memory for them. Nobody else writes
 * there meanwhile. */
bool hak_os_populate(void *addr, size_t size_bytes);

/* Whether dumps of the process's memory have these pages. gcore writes all of them that it is not told to leave out,
 * those of a reservation too. Advice: failure is harmless. */
void hak_os_leave_out_of_dumps(void *addr, size_t size_bytes);
void hak_os_put_into_dumps(void *addr, size_t size_bytes);

/* What /proc/PID/maps calls the pages of a mapping that was just made: "[anon:hakmem: heap]". They keep the name
 * when they are reused, protected or remapped. Advice, from Linux 5.17 on: where it is refused, no name is given any
 * more. */
#define HAK_NAME_HEAP "hakmem: heap"
#define HAK_NAME_TABLES "hakmem: tables"
#define HAK_NAME_HUGE "hakmem: huge blocks"
#define HAK_NAME_GUARDED "hakmem: guarded blocks"
void hak_os_name(void *addr, size_t size_bytes, const char *name);
/* Gives no names from now on. */
void hak_os_leave_unnamed(void);

/* RLIMIT_AS, RLIMIT_DATA, which bounds what is accessible, and RLIMIT_FSIZE, as they are now; SIZE_MAX: none. */
typedef enum hak_os_resource { HAK_OS_ADDRESS_SPACE, HAK_OS_DATA, HAK_OS_FILE_SIZE } hak_os_resource;
size_t hak_os_limit(hak_os_resource of);
HAK_INLINE bool hak_os_is_limited(hak_os_resource of) { return hak_os_limit(of) != SIZE_MAX; }

/* Before the process shuts itself in a filter that ends it for a system call: from then on the library makes none but
 * mmap, munmap, mremap, mprotect, madvise and futex, and those that an option asks for. reads: it asks for files that
 * are read. Any thread. */
void hak_os_confine(bool reads);
/* There is no filter after all. */
void hak_os_leave_confinement(void);
bool hak_os_is_confined(void);

/* Whether memory that nothing was written to yet is locked, and so resident already. What is locked cannot be given
 * back: asking that needs no call that filters of system calls leave out, such as mincore. */
bool hak_os_is_locked(void *addr, size_t size_bytes);

/* Bytes that nobody can predict, as far as the system has them. */
void hak_os_random(void *out, size_t size_bytes);

/* Monotonic, in steps of 1 to 10 ms: neither a system call nor the processor's time counter, see clock.c. */
uint64_t hak_os_now_ms(void);
/* The same in nanoseconds, whatever a test has put in its place. */
uint64_t hak_os_clock_ns(void);

/* When memory was refused last to somebody who can do without; relaxed, 0: never. No slow path, and no sample, asks
 * again before HAK_OS_REFUSED_MS have passed: each would cost a lock and a system call when memory is short already. */
#define HAK_OS_REFUSED_MS 500
typedef uint64_t hak_os_refusal;
bool hak_os_refused_lately(const hak_os_refusal *refusal);
void hak_os_note_refusal(hak_os_refusal *refusal);

/* Milliseconds since 1970. */
uint64_t hak_os_unix_ms(void);

/* Reports at exit go to the stderr the process started with: keep copies it at the start, use_kept switches to it.
 * Many programs close stderr before destructors run, and its number may then be a file of theirs. */
void hak_os_keep_stderr(void);
void hak_os_use_kept_stderr(void);
void hak_os_write_stderr(const char *text, size_t length);
/* Which file a descriptor is of. False: none. */
typedef struct hak_os_identity {
  uint64_t device, number;
} hak_os_identity;
bool hak_os_identify(int fd, hak_os_identity *out);
/* Whether somebody may be reading there. */
bool hak_os_is_terminal(int fd);
/* Another descriptor of it, with a high number: programs close low ones, and count on them; negative: there is none to
 * be had. */
int hak_os_duplicate_high(int fd);
/* To any descriptor; 0, or the errno value of the write that failed. */
int hak_os_write(int fd, const char *text, size_t length);
/* Memory that other processes can open as /proc/PID/fd/<fd>, and read: a nameless file called `name`, mapped shared,
 * its descriptor moved to a high number. Its first `ready_bytes` are accessible, and what hak_os_commit makes so:
 * mlockall makes accessible pages resident, written to or not. Dumps leave all of it out. At `at`, over a mapping of
 * the same size there, where that is not NULL. NULL: not to be had; at `at` there is private memory then, all
 * accessible. */
typedef struct hak_os_shared {
  int fd;
  hak_os_identity file;
} hak_os_shared;
void *hak_os_share(const char *name, size_t size_bytes, size_t ready_bytes, void *at, hak_os_shared *shared);
/* Closes the descriptor, unless the program has, and put something else in its place. */
void hak_os_close_shared(const hak_os_shared *shared);
/* Installs a handler for a signal, with SA_RESTART. 0, or EBUSY where the program has one or ignores it, or what
 * sigaction says. */
int hak_os_catch(int number, void (*handler)(int));
/* The calling thread's mask is this set, or has this set too; gives the mask before. Bit n - 1 is signal n. */
uint64_t hak_os_mask_signals(bool more, uint64_t set);
/* No handler runs in the calling thread but those of faults, until what this returns is put back. */
uint64_t hak_os_hold_signals(void);
void hak_os_put_signals_back(uint64_t before);
/* Reads a whole small file into buf; returns the bytes read, 0 on any failure. */
size_t hak_os_read_file(const char *path, char *buf, size_t capacity);
/* 0 or an errno value. HAK_OS_NEW: for writing, of the caller alone, EEXIST where there is one; HAK_OS_THERE: for
 * writing what is no link; HAK_OS_THROUGH: what a link may lead to, a file without its contents. src/os/place.h says
 * which file. */
typedef enum hak_os_use { HAK_OS_READ, HAK_OS_NEW, HAK_OS_THERE, HAK_OS_THROUGH } hak_os_use;
int hak_os_open_in(int folder, const char *name, hak_os_use use, int *fd);
/* For reading; negative: it cannot be opened. */
int hak_os_open(const char *path);
/* /proc/self/NAME, for reading. That is the first thread's, of which there is nothing to read once it has ended: the
 * calling thread's is asked first. */
int hak_os_open_own(const char *name);
/* Where the link of that name leads, or "". */
const char *hak_os_read_link(const char *path, char *buf, size_t capacity);
/* The path of the program, or "". */
const char *hak_os_program(char *buf, size_t capacity);
/* From there on, or HAK_OS_ON: from where the last read ended. Negative: an error. */
#define HAK_OS_ON UINT64_MAX
long hak_os_read_from(int fd, uint64_t offset, void *buf, size_t capacity);
HAK_INLINE long hak_os_read(int fd, char *buf, size_t capacity) {
  return hak_os_read_from(fd, HAK_OS_ON, buf, capacity);
}
/* The number that the text begins with, in digits of the base, at most 16; SIZE_MAX where it is larger. Returns what
 * stands behind. */
const char *hak_os_take_number(const char *text, unsigned base, size_t *value);
/* All `bytes` from there on, or false. */
bool hak_os_read_at(int fd, uint64_t offset, void *buf, size_t bytes);
/* negative: an error, or no descriptor */
void hak_os_close(int fd);
/* While the word has the value, for so many milliseconds at most; 0: without end. shared: the word is in shared memory.
 * True: somebody woke it, perhaps of another process. */
bool hak_os_wait(uint32_t *word, uint32_t value, uint32_t ms, bool shared);
void hak_os_wake(uint32_t *word, bool shared);
HAK_INLINE void hak_os_futex_wait(uint32_t *word, uint32_t value) { hak_os_wait(word, value, 0, false); }
HAK_INLINE void hak_os_futex_wait_ms(uint32_t *word, uint32_t value, uint32_t ms) {
  hak_os_wait(word, value, ms, false);
}
HAK_INLINE bool hak_os_futex_wait_shared(uint32_t *word, uint32_t value, uint32_t ms) {
  return hak_os_wait(word, value, ms, true);
}
HAK_INLINE void hak_os_futex_wake(uint32_t *word) { hak_os_wake(word, false); }
HAK_INLINE void hak_os_futex_wake_shared(uint32_t *word) { hak_os_wake(word, true); }
void hak_os_sleep_ms(uint32_t ms);
/* 0: the word is 0; EAGAIN: it is not; EFAULT: it cannot be read. */
int hak_os_compare_with_zero(const uint32_t *word);
/* Whether the word may be read: false where its page is not mapped, or not accessible. */
bool hak_os_is_readable(const uint32_t *word);
/* Whether it can be read, and is not 0: of memory that the program has made inaccessible it is not told. */
bool hak_os_is_not_zero(const uint32_t *word);
/* libc's lock over the list of all streams, which fork takes for itself after the fork handlers; the thread that has it
 * may take it again. Nothing where libc has none of these names. */
typedef enum hak_os_streams_call {
  HAK_OS_STREAMS_LOCK,
  HAK_OS_STREAMS_UNLOCK,
  HAK_OS_STREAMS_RESET /* in the child of a fork */
} hak_os_streams_call;
void hak_os_streams(hak_os_streams_call call);
/* The environment, for a constructor that may run before libc's own: `given` is what the loader passed it as main's
 * third argument, of use where the loader passes one. NULL: libc has none yet. */
char **hak_os_environment(char **given);
/* False where there may be other threads. */
bool hak_os_single_threaded(void);
/* Threads of the process; UINT_MAX: not known. */
unsigned hak_os_threads(void);
/* The calling thread's. pthread_setname_np opens a file of /proc, whose directories the kernel looks through when the
 * process ends: a program that forks often would wait for that. */
void hak_os_name_thread(const char *name);
/* For a thread that runs nothing of the program. The thread loses its capabilities, and may gain none by executing a
 * file. It keeps those to change user and group for as long as the process's first thread has them: glibc's setuid
 * changes all threads, and aborts where one may not. Called again, it follows the first thread. */
void hak_os_drop_privileges(void);
/* Whether the process has rights that who started it has not, as a setuid program: secure_getenv says nothing then. */
bool hak_os_has_more_rights(void);
/* The calling thread's name, or "". */
const char *hak_os_thread_name(char *buf, size_t capacity);
/* The number of the process, or of the calling thread. */
int hak_os_number(bool of_thread);
HAK_INLINE int hak_os_pid(void) { return hak_os_number(false); }
HAK_INLINE int hak_os_tid(void) { return hak_os_number(true); }

#endif
