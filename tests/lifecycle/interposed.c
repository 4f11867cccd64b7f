/* A program with functions of its own under libc's names, as libfaketime and profilers bring them along: each allocates
 * before it does what libc's does, and leaves another errno. The allocator is to call none of those that it could call inside its
 * locks, and to survive it where it calls one: munmap, madvise, mremap and a mapping over others are called with no
 * lock held, for each of them asks for all locks. Ends with 1 and a list of what it called, or by SIGALRM where it hangs. */
#include <dlfcn.h>
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "os/call.h"

enum { CLOCK_GETTIME, MMAP, MPROTECT, SYSCALL, GETENV, SECURE_GETENV, NEVER, MMAP_FIXED = NEVER, MUNMAP, MADVISE, MREMAP, KEY, SPECIFIC, ALL };
static const char *const names[] = {"clock_gettime", "mmap", "mprotect", "syscall", "getenv", "secure_getenv",
                                    "mmap over another", "munmap", "madvise", "mremap", "pthread_key_create", "pthread_setspecific"};
static unsigned calls[ALL];
static __thread volatile int inside; /* malloc is declared as one that does not call back */

static void note(int which) {
  static unsigned trims;
  calls[which]++;
  if (inside) return;
  inside = 1;
  for (int i = 0; i < 40; i++) {
    char *volatile p = malloc(20 + (size_t)i * 50);
    if (p != NULL) p[0] = 1;
    free(p);
  }
  free(malloc(200000));
  if (which >= MMAP_FIXED && which <= MREMAP) {
    free(malloc(33 << 20)); /* what is not kept is unmapped, here too */
    if (__atomic_fetch_add(&trims, 1, __ATOMIC_RELAXED) % 50 == 0) malloc_trim(0); /* every lock, but for those of the start */
  }
  errno = ENOTTY;
  inside = 0;
}

#define WRAP(which, type, function, parameters, ...)          \
  type function parameters {                                   \
    note(which);                                               \
    return (type)hak_os_call(SYS_##function, __VA_ARGS__);     \
  }

WRAP(CLOCK_GETTIME, int, clock_gettime, (clockid_t clock, struct timespec *out), clock, out)
WRAP((flags & MAP_FIXED) != 0 ? MMAP_FIXED : MMAP, void *, mmap, (void *at, size_t n, int access, int flags, int fd, off_t from), at, n, access, flags, fd, from)
WRAP(MUNMAP, int, munmap, (void *at, size_t n), at, n)
WRAP(MPROTECT, int, mprotect, (void *at, size_t n, int access), at, n, access)
WRAP(MADVISE, int, madvise, (void *at, size_t n, int advice), at, n, advice)

void *mremap(void *at, size_t old_size, size_t size, int flags, ...) {
  note(MREMAP);
  return (void *)hak_os_call(SYS_mremap, at, old_size, size, flags);
}

long syscall(long number, ...) {
  va_list args;
  va_start(args, number);
  long a[6];
  for (int i = 0; i < 6; i++) a[i] = va_arg(args, long);
  va_end(args);
  note(SYSCALL);
  return hak_os_call(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

char *getenv(const char *name) {
  (void)name;
  note(GETENV);
  return NULL;
}

char *secure_getenv(const char *name) {
  (void)name;
  note(SECURE_GETENV);
  return NULL;
}

int pthread_key_create(pthread_key_t *key, void (*destructor)(void *)) {
  int (*real)(pthread_key_t *, void (*)(void *)) = dlsym(RTLD_NEXT, "pthread_key_create");
  note(KEY);
  return real(key, destructor);
}

int pthread_setspecific(pthread_key_t key, const void *value) {
  int (*real)(pthread_key_t, const void *) = dlsym(RTLD_NEXT, "pthread_setspecific");
  note(SPECIFIC);
  return real(key, value);
}

static int errno_changed;

/* Refills, flushes, new and returned memory, huge blocks that grow. */
static void *work(void *seed) {
  enum { SLOTS = 4096, STEPS = 100000 };
  char **slots = calloc(SLOTS, sizeof *slots);
  unsigned s = (unsigned)(size_t)seed;
  for (int i = 0; i < STEPS; i++) {
    s = s * 1103515245 + 12345;
    char **slot = &slots[(s >> 8) % SLOTS];
    size_t size = (s >> 20) % 100 == 0 ? (s >> 4) % 2000000 : (s >> 10) % 3000;
    errno = EDOM;
    free(*slot);
    if (errno != EDOM) errno_changed = 1;
    *slot = malloc(size + 1);
    memset(*slot, 1, size < 64 ? size : 64);
  }
  for (int i = 0; i < SLOTS; i++) free(slots[i]);
  free(slots);
  char *large = malloc(40 << 20);
  large = realloc(large, 80 << 20);
  errno = EDOM;
  free(large);
  malloc_trim(0);
  if (errno != EDOM) errno_changed = 1;
  return NULL;
}

int main(void) {
  alarm(30);
  pthread_t threads[3];
  for (int round = 0; round < 2; round++) {
    for (size_t i = 0; i < 3; i++) pthread_create(&threads[i], NULL, work, (void *)i);
    work((void *)9);
    for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
  }
  int failed = 0;
  for (int i = 0; i < NEVER; i++) {
    if (calls[i] == 0) continue;
    fprintf(stderr, "%s was called %u times\n", names[i], calls[i]);
    failed = 1;
  }
  /* The hardened library maps over what it quarantines, and moves nothing. */
  for (int i = MUNMAP; i < ALL; i++) {
    if (calls[i] != 0 || i == KEY || (i == MREMAP && calls[MMAP_FIXED] != 0)) continue;
    fprintf(stderr, "%s was not called\n", names[i]);
    failed = 1;
  }
  if (errno_changed) fprintf(stderr, "free or malloc_trim changed errno\n");
  return failed || errno_changed;
}
