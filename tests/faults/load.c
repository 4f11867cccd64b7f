/* The parts of the load, and the checks each block goes through. Its state is global: threads take turns. */
#include "load.h"

#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)
#define BLOCKS_MAX 4096
#define NONE SIZE_MAX /* no block: the request was refused */
#define FAULTS_SHOWN 10

typedef struct block {
  unsigned char *p; /* NULL: freed */
  size_t size;
  unsigned mark;
} block;

static const faults_api *api;
static const char *load_name;
static bool may_fail;
static int faults;
static block blocks[BLOCKS_MAX];
static size_t count;
static unsigned next_mark;

__attribute__((format(printf, 1, 2))) static void fault(const char *format, ...) {
  if (++faults > FAULTS_SHOWN) return;
  va_list args;
  va_start(args, format);
  char text[256];
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  fprintf(stderr, "load %s%s: %s\n", load_name, may_fail ? "" : ", failures over", text);
}

static void check_heap(const char *when) {
  size_t found = api->heap_check();
  if (found != 0) fault("%zu faults in the heap %s", found, when);
}

/* --- blocks --- */

/* Larger blocks are written and read in samples, so that the sweeps are quick. Odd steps meet every byte of a page. */
static size_t step_of(size_t size) {
  if (size <= KIB) return 1;
  if (size <= 256 * KIB) return 509;
  return size <= 32 * MIB ? 256 * KIB - 1 : 16 * MIB - 1;
}

static unsigned char value_at(const block *b, size_t at) { return (unsigned char)(b->mark * 37 + at / 3 + 1); }

static void fill(const block *b) {
  for (size_t at = 0; at < b->size; at += step_of(b->size)) b->p[at] = value_at(b, at);
  b->p[b->size - 1] = value_at(b, b->size - 1);
}

/* The first `end` bytes of b, which are at p now, are those that fill() wrote. */
static void verify(const block *b, const unsigned char *p, size_t end) {
  bool right = end < b->size || p[end - 1] == value_at(b, end - 1);
  size_t at = 0;
  for (; right && at < end; at += step_of(b->size)) right = p[at] == value_at(b, at);
  if (!right) fault("a block of %zu bytes has lost its contents near byte %zu of %zu", b->size, at, end);
}

/* NULL is an answer only while the system refuses, and only with ENOMEM. */
static bool served(const void *p, const char *call, size_t size) {
  if (p != NULL) return true;
  if (errno != ENOMEM) fault("%s of %zu bytes: NULL with errno %d", call, size, errno);
  if (!may_fail) fault("%s of %zu bytes: NULL", call, size);
  return false;
}

static size_t keep(void *p, size_t size) {
  if (count == BLOCKS_MAX) abort();
  blocks[count] = (block){p, size, next_mark++};
  if (api->usable_size(p) < size) fault("%zu bytes were asked for, %zu are usable", size, api->usable_size(p));
  fill(&blocks[count]);
  return count++;
}

static size_t take(size_t size) {
  errno = 0;
  void *p = api->malloc(size);
  return served(p, "malloc", size) ? keep(p, size) : NONE;
}

static void take_many(size_t n, size_t size) {
  for (size_t i = 0; i < n; i++) take(size);
}

static size_t take_zeroed(size_t size) {
  errno = 0;
  const unsigned char *p = api->calloc(1, size);
  if (!served(p, "calloc", size)) return NONE;
  bool zero = p[size - 1] == 0;
  for (size_t at = 0; zero && at < size; at += step_of(size)) zero = p[at] == 0;
  if (!zero) fault("calloc of %zu bytes: not all zero", size);
  return keep((void *)(uintptr_t)p, size);
}

static size_t take_aligned(size_t alignment, size_t size) {
  errno = 0;
  void *p = api->aligned_alloc(alignment, size);
  if (!served(p, "aligned_alloc", size)) return NONE;
  if ((uintptr_t)p % alignment != 0) fault("%p is not aligned to %zu", p, alignment);
  return keep(p, size);
}

/* posix_memalign answers by its result and leaves errno and, on failure, the pointer alone. */
static size_t take_posix_aligned(size_t alignment, size_t size) {
  void *unset = &count, *p = unset;
  errno = ERANGE;
  int error = api->posix_memalign(&p, alignment, size);
  if (errno != ERANGE) fault("posix_memalign of %zu bytes changed errno to %d", size, errno);
  if (error == 0) return keep(p, size);
  if (p != unset) fault("posix_memalign of %zu bytes failed and stored a pointer", size);
  errno = error;
  served(NULL, "posix_memalign", size);
  return NONE;
}

static void resize(size_t i, size_t size) {
  if (i == NONE) return;
  block old = blocks[i];
  errno = 0;
  void *p = api->realloc(old.p, size);
  if (!served(p, "realloc", size)) {
    verify(&old, old.p, old.size);
    return;
  }
  verify(&old, p, old.size < size ? old.size : size);
  blocks[i] = (block){p, size, next_mark++};
  fill(&blocks[i]);
}

static void drop(size_t i) {
  if (i == NONE || blocks[i].p == NULL) return;
  verify(&blocks[i], blocks[i].p, blocks[i].size);
  errno = ERANGE;
  api->free(blocks[i].p);
  if (errno != ERANGE) fault("free of %zu bytes changed errno to %d", blocks[i].size, errno);
  blocks[i].p = NULL;
}

static void drop_each(size_t from, size_t every) {
  for (size_t i = from; i < count; i += every) drop(i);
}

static void drop_all(void) {
  drop_each(0, 1);
  count = 0;
}

/* --- threads --- */

#define STACK_BYTES (256 * KIB)

typedef struct worker {
  pthread_t thread;
  bool alive; /* false: there is no memory for a thread, and its work is done by who asks */
  sem_t go, done;
  void (*work)(void); /* NULL: end */
} worker;

static void *serve(void *argument) {
  worker *w = argument;
  for (;;) {
    while (sem_wait(&w->go) != 0) {
    }
    if (w->work == NULL) return NULL;
    w->work();
    sem_post(&w->done);
  }
}

static void start(worker *w) {
  sem_init(&w->go, 0, 0);
  sem_init(&w->done, 0, 0);
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, STACK_BYTES);
  int error = pthread_create(&w->thread, &attributes, serve, w);
  pthread_attr_destroy(&attributes);
  w->alive = error == 0;
  if (error != 0 && !may_fail) fault("pthread_create: error %d", error);
}

static void ask(worker *w, void (*work)(void)) {
  if (!w->alive) {
    work();
    return;
  }
  w->work = work;
  sem_post(&w->go);
  while (sem_wait(&w->done) != 0) {
  }
}

static void end(worker *w) {
  if (w->alive) {
    w->work = NULL;
    sem_post(&w->go);
    pthread_join(w->thread, NULL);
  }
  sem_destroy(&w->go);
  sem_destroy(&w->done);
}

/* --- the parts --- */

/* Every size class, its twin, and what overflows a magazine. */
static void run_blocks(void) {
  for (size_t size = 16, step = 16; size <= 32 * KIB; size += step) {
    if (size > 128 && (size & (size - 1)) == 0) step = size / 8;
    take(size);
    take(size - 9);
  }
  for (size_t alignment = 32; alignment <= 32 * KIB; alignment *= 2) {
    take_aligned(alignment, alignment);
    take_posix_aligned(alignment, alignment + alignment / 2);
  }
  take_many(300, 48);
  take_many(150, 1024);
  size_t first = count;
  take_many(30, 20 * KIB);
  check_heap("with blocks of every class");
  for (size_t size = 1; size <= 32 * KIB; size = size * 5 + 3) take_zeroed(size);
  for (size_t i = 0; i < first; i += 3) resize(i, blocks[i].size + blocks[i].size / 2 + 1);
  for (size_t i = 1; i < first; i += 3) resize(i, blocks[i].size / 4 + 1);
  drop_each(0, 2);
  take_many(100, 48);
}

/* Runs from the pool and from a thread's stock, resized in place and by moving, up to huge and down to blocks. */
static void run_runs(void) {
  static const size_t sizes[] = {33 * KIB, 64 * KIB, 100 * KIB, MIB, MIB + 1, 5 * MIB, 20 * MIB, 32 * MIB};
  for (int round = 0; round < 3; round++) {
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) take(sizes[i]);
    if (round == 0) check_heap("with runs of every size");
    drop_all();
  }
  size_t a = take(100 * KIB);
  resize(a, 400 * KIB);
  resize(a, 70 * KIB);
  size_t behind = take(64 * KIB);
  resize(a, 2 * MIB);
  resize(a, 100);
  resize(behind, 50);
  resize(behind, 300 * KIB);
  resize(behind, 40 * MIB);
  resize(behind, 200 * KIB);
  for (size_t alignment = 64 * KIB; alignment <= 4 * MIB; alignment *= 2) take_posix_aligned(alignment, 40 * KIB);
  for (size_t size = 40 * KIB; size <= 2 * MIB; size *= 3) take_zeroed(size);
}

/* Mappings of their own: resized by the system, aligned far, kept for reuse and given back. */
static void run_huge(void) {
  take_zeroed(35 * MIB);
  size_t a = take(33 * MIB), b = take(40 * MIB);
  resize(b, 90 * MIB);
  resize(b, 36 * MIB);
  resize(a, MIB);
  take_aligned(64 * MIB, 100);
  take_aligned((size_t)1 << 30, 33 * MIB);
  check_heap("with huge blocks");
  drop_all();
  for (int round = 0; round < 2; round++) {
    take_many(4, 33 * MIB);
    drop_all();
  }
  api->malloc_trim(0);
  take(34 * MIB);
}

/* So many huge blocks that their table grows. */
static void run_table(void) {
  take_many(140, 33 * MIB);
  drop_each(0, 2);
  take_many(20, 34 * MIB);
}

static void take_mixed(void) {
  for (size_t i = 0; i < 300; i++) take(16 + i % 40 * 24);
  take_many(150, 64); /* whole lines: what other threads free may stay with them */
  take_many(150, 48);
}

static void take_few(void) { take_many(20, 200); }
static void take_large_blocks(void) { take_many(200, 16 * KIB); }
static void drop_second(void) { drop_each(0, 2); }

static void fork_once(void) {
  pid_t child = fork();
  if (child < 0) {
    if (!may_fail) fault("fork: errno %d", errno);
    return;
  }
  if (child == 0) {
    alarm(20);
    faults = 0;
    take_mixed();
    drop_all();
    check_heap("in a forked child");
    _exit(faults == 0 ? 0 : 1);
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (status != 0) fault("a forked child ended with wait status %#x", (unsigned)status);
}

/* Threads that start, adopt, free each other's blocks, sleep over a full inbox, end, and are more than stay warm. */
static void run_threads(void) {
  worker first, second, crowd[10];
  start(&first);
  ask(&first, take_mixed);
  end(&first);
  drop_second(); /* to a heap without owner */
  take_mixed();
  start(&second);
  ask(&second, drop_second); /* to the inbox of this thread, which sends some back when it allocates */
  ask(&second, take_mixed);
  take_mixed();
  ask(&second, take_large_blocks);
  drop_all(); /* more than a sleeping owner's inbox is to hold */
  ask(&second, take_mixed);
  ask(&second, fork_once);
  for (int i = 0; i < 10; i++) start(&crowd[i]);
  for (int i = 0; i < 10; i++) ask(&crowd[i], take_few);
  check_heap("with twelve threads");
  for (int i = 0; i < 10; i++) end(&crowd[i]);
  ask(&second, drop_second);
  end(&second);
  take_mixed();
  api->malloc_trim(0);
}

/* Makes some 75 refills and as many flushes, among which the allocator looks at the clock. */
static void pass_slow_paths(unsigned ms) {
  static void *scratch[300];
  if (api->pass_time != NULL) api->pass_time(ms);
  for (size_t i = 0; i < 300; i++) {
    errno = 0;
    scratch[i] = api->malloc(32 * KIB);
    served(scratch[i], "malloc", 32 * KIB);
  }
  for (size_t i = 0; i < 300; i++) api->free(scratch[i]);
}

/* Memory that goes back at once, again after it was missed, in pieces by and by, and on request. */
static void run_release(void) {
  for (int round = 0; round < 2; round++) {
    take_many(20, 4 * MIB);
    drop_all();
  }
  pass_slow_paths(1500);
  take_many(100, 64 * KIB);
  for (size_t i = 0; i < count; i++) {
    if (i % 16 != 0) drop(i);
  }
  pass_slow_paths(300);
  pass_slow_paths(300);
  check_heap("after memory went back by itself");
  api->malloc_trim(MIB);
  take_many(20, 200 * KIB);
  drop_each(0, 3);
  api->malloc_trim(0);
}

/* More than one step of growth, and more than one small region. */
static void run_growth(void) {
  for (int i = 0; i < 12; i++) {
    take(3 * MIB);
    take_many(25, 30 * KIB);
    take_many(20, 2000);
  }
}

/* Blocks linked through their first word, which fill and empty a front of many magazines. */
static void run_fronts(void) {
  for (size_t size = 16; size <= 32; size += 16) {
    uintptr_t *chain = NULL;
    for (int i = 0; i < 17000; i++) {
      errno = 0;
      uintptr_t *p = api->malloc(size);
      if (!served(p, "malloc", size)) break;
      p[0] = (uintptr_t)chain;
      p[1] = ~(uintptr_t)chain;
      chain = p;
    }
    while (chain != NULL) {
      uintptr_t *p = chain;
      chain = (uintptr_t *)p[0];
      if (p[1] != ~p[0]) fault("a block of %zu bytes has lost its contents", size);
      api->free(p);
    }
  }
}

/* Pointers that are not the allocator's. With HAKMEM_EXTERNAL_GUARD_LOG=1 it looks them up and reports them. */
static void run_foreign(void) {
  static char foreign[64];
  take_few();
  errno = ERANGE;
  api->free(foreign + 16);
  if (errno != ERANGE) fault("free of a foreign pointer changed errno to %d", errno);
  errno = 0;
  void *p = api->realloc(foreign + 16, 100);
  if (p != NULL || errno != EINVAL) fault("realloc of a foreign pointer: %p, errno %d", p, errno);
  if (api->usable_size(foreign + 16) != 0) fault("a foreign pointer has a usable size");
}

static const struct {
  const char *name;
  void (*run)(void);
} loads[] = {
    {"blocks", run_blocks},   {"runs", run_runs},       {"huge", run_huge},
    {"table", run_table},     {"threads", run_threads}, {"release", run_release},
    {"growth", run_growth},   {"fronts", run_fronts},   {"foreign", run_foreign},
};
#define LOADS (sizeof loads / sizeof loads[0])

const char *faults_load_name(size_t i) { return i < LOADS ? loads[i].name : NULL; }

int faults_run_load(const faults_api *use, const char *name, bool allow_failures) {
  api = use;
  load_name = name;
  may_fail = allow_failures;
  faults = 0;
  size_t i = 0;
  while (i < LOADS && strcmp(loads[i].name, name) != 0) i++;
  if (i == LOADS) {
    fault("there is no such load");
    return faults;
  }
  loads[i].run();
  check_heap("with blocks live");
  drop_all();
  check_heap("with everything freed");
  return faults;
}
