/* fork under load: eight threads allocate, free and exchange blocks while the main thread forks as often as it can. Each
 * child checks and frees what it inherited, of all nine threads, and allocates; every eighth starts threads, which use the
 * caches of those that are not there; every thirty-second forks again. A child that hangs ends by alarm.
 * usage: storm seconds|forks NUMBER [SEED]; the CTest tests run some seconds each, by hand `storm forks 100000` takes ten
 * minutes or so. Plain C, so that it can be linked statically; the allocator's names are weak, for the preloaded program
 * and the linked ones alike. */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <malloc.h>

extern size_t hakmem_heap_check(void) __attribute__((weak));
extern uint64_t hakmem_served(void) __attribute__((weak));

enum { THREADS = 8, SLOTS = 64, OWN = 100, CHILD_BLOCKS = 400, CHILD_THREADS = 4, FILLED = 2000, BURST = 200 };

/* What a child's exit code says. */
enum { WELL, HEAP_AT_START, INHERITED_CONTENTS, OWN_CONTENTS, NO_THREAD, GRANDCHILD, HEAP_AT_END, NO_MEMORY, CODES };
static const char *const meanings[CODES] = {
    "ended well", "heap check at the start", "contents of an inherited block", "contents of a block of its own",
    "pthread_create", "its own child", "heap check at the end", "no memory"};

typedef struct block {
  uint32_t size, value;
  unsigned char bytes[];
} block;

/* A block is whole before it is in a slot, and out of it before it is freed: a child may take what it finds. */
static _Atomic(block *) slots[THREADS][SLOTS];
static atomic_bool stop;
static uint64_t seed = 1;

static _Noreturn void die(int code) {
  if (code < CODES) fprintf(stderr, "storm: %s: %s\n", meanings[code], strerror(errno));
  _exit(code);
}

static uint32_t roll(uint64_t *state) {
  *state = *state * 6364136223846793005u + 1442695040888963407u;
  return (uint32_t)(*state >> 32);
}

/* Of every kind: small ones of all classes, extents, mappings of their own. */
static size_t some_size(uint64_t *state) {
  uint32_t kind = roll(state) % 1024, dice = roll(state);
  if (kind == 0) return ((size_t)33 << 20) + dice % (8 << 20);
  if (kind < 12) return dice % (3 << 20);
  if (kind < 64) return dice % 100000;
  if (kind < 300) return dice % 32768;
  return dice % 2000;
}

static block *make_block(size_t size, uint32_t value) {
  block *b = malloc(sizeof *b + size);
  if (b == NULL) die(NO_MEMORY);
  b->size = (uint32_t)size;
  b->value = value & 0xff;
  memset(b->bytes, (int)b->value, size < FILLED ? size : FILLED);
  return b;
}

static bool holds(const block *b) {
  for (size_t i = 0; i < b->size && i < FILLED; i++) {
    if (b->bytes[i] != b->value) return false;
  }
  return true;
}

static void check_and_free(block *b, int code) {
  if (b == NULL) return;
  if (!holds(b)) die(code);
  free(b);
}

/* More of one size than a cache holds, so that the locks of arenas are taken all the time. */
static void burst(uint64_t *state) {
  block *some[BURST];
  size_t size = roll(state) % (roll(state) % 4 == 0 ? 32768 : 1024);
  for (size_t i = 0; i < BURST; i++) some[i] = make_block(size, (uint32_t)i);
  for (size_t i = 0; i < BURST; i++) check_and_free(some[i], INHERITED_CONTENTS);
}

static void *short_life(void *unused) {
  (void)unused;
  free(malloc(100));
  return NULL;
}

static void *churn(void *argument) {
  size_t self = (size_t)(uintptr_t)argument;
  uint64_t state = seed * 1000003 + self;
  /* The forking thread and its children go first: more forks, while this thread is inside some call at each all the same. */
  setpriority(PRIO_PROCESS, (id_t)gettid(), 19);
  while (!atomic_load(&stop)) {
    block *b = make_block(some_size(&state), roll(&state));
    size_t row = roll(&state) % 3 == 0 ? roll(&state) % THREADS : self;
    check_and_free(atomic_exchange(&slots[row][roll(&state) % SLOTS], b), INHERITED_CONTENTS);
    uint32_t rare = roll(&state) % 16384;
    if (rare == 0) malloc_trim(0);
    if (rare % 64 == 2) burst(&state);
    if (rare == 1) {
      pthread_t thread;
      if (pthread_create(&thread, NULL, short_life, NULL) == 0) pthread_join(thread, NULL);
    }
  }
  return NULL;
}

/* --- the child --- */

static block *blocks[CHILD_BLOCKS];

/* Frees what the child's first thread allocated and puts blocks of its own there. */
static void *replace(void *argument) {
  size_t self = (size_t)(uintptr_t)argument;
  for (int round = 0; round < 3; round++) {
    for (size_t i = self; i < CHILD_BLOCKS; i += CHILD_THREADS) {
      check_and_free(blocks[i], OWN_CONTENTS);
      blocks[i] = make_block(1 + (i * 37 + self) % 3000, (uint32_t)i);
    }
  }
  return NULL;
}

static void run_threads(void) {
  pthread_t threads[CHILD_THREADS];
  for (size_t t = 0; t < CHILD_THREADS; t++) {
    if (pthread_create(&threads[t], NULL, replace, (void *)(uintptr_t)t) != 0) die(NO_THREAD);
  }
  for (size_t t = 0; t < CHILD_THREADS; t++) pthread_join(threads[t], NULL);
}

static bool ended_well(pid_t child, const char *who, uint64_t number) {
  int status;
  while (waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) return false;
  }
  if (status == 0) return true;
  int code = WIFEXITED(status) ? WEXITSTATUS(status) : CODES;
  fprintf(stderr, "storm: %s %llu, seed %llu: %s %d%s%s\n", who, (unsigned long long)number, (unsigned long long)seed,
          WIFSIGNALED(status) ? "signal" : "exit code", WIFSIGNALED(status) ? WTERMSIG(status) : code,
          code < CODES ? ", " : "", code < CODES ? meanings[code] : "");
  return false;
}

/* own: what the forking thread itself had allocated, or NULL. Returns the exit code. */
static int live_as_child(block **own, bool with_threads, int depth) {
  alarm(60);
  if (hakmem_heap_check() != 0) die(HEAP_AT_START);
  for (size_t i = 0; own != NULL && i < OWN; i++) check_and_free(own[i], INHERITED_CONTENTS);
  for (size_t row = 0; row < THREADS; row++) {
    for (size_t i = 0; i < SLOTS; i++) check_and_free(atomic_exchange(&slots[row][i], NULL), INHERITED_CONTENTS);
  }
  for (size_t i = 0; i < CHILD_BLOCKS; i++) blocks[i] = make_block(1 + i % 100 * 20, (uint32_t)i);
  free(make_block((size_t)1 << 20, 1));
  free(make_block((size_t)40 << 20, 1));
  if (with_threads) run_threads();
  if (depth > 0) {
    pid_t child = fork();
    if (child == 0) _exit(live_as_child(NULL, with_threads, depth - 1));
    if (child < 0 || !ended_well(child, "grandchild at depth", (uint64_t)depth)) die(GRANDCHILD);
  }
  for (size_t i = 0; i < CHILD_BLOCKS; i++) check_and_free(blocks[i], OWN_CONTENTS);
  return hakmem_heap_check() == 0 ? WELL : HEAP_AT_END;
}

/* --- the parent --- */

typedef struct counts {
  uint64_t forks, with_threads, forked_again;
} counts;

static uint64_t now_ms(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

static bool fork_once(counts *done, block **own) {
  bool with_threads = done->forks % 8 == 0, again = done->forks % 32 == 0;
  pid_t child = fork();
  if (child == 0) _exit(live_as_child(own, with_threads, again ? 2 : 0));
  if (child < 0) {
    perror("storm: fork");
    return false;
  }
  if (!ended_well(child, "child", done->forks)) return false;
  done->forks++;
  done->with_threads += with_threads;
  done->forked_again += again;
  return true;
}

static bool run(bool by_time, uint64_t number) {
  counts done = {0, 0, 0};
  block *own[OWN];
  for (size_t i = 0; i < OWN; i++) own[i] = make_block(40 + i * 11, (uint32_t)i);
  uint64_t end = now_ms() + number * 1000;
  bool well = true;
  while (well && (by_time ? now_ms() < end : done.forks < number)) {
    well = fork_once(&done, own);
    /* Half of them are new, so that the cache of this thread moves on too. */
    for (size_t i = done.forks % 2; i < OWN; i += 2) {
      check_and_free(own[i], INHERITED_CONTENTS);
      own[i] = make_block(40 + i * 11, (uint32_t)(i + done.forks));
    }
  }
  printf("%llu forks, %llu children with threads, %llu that forked again\n", (unsigned long long)done.forks,
         (unsigned long long)done.with_threads, (unsigned long long)done.forked_again);
  for (size_t i = 0; i < OWN; i++) check_and_free(own[i], INHERITED_CONTENTS);
  return well && done.forks > 0;
}

/* Digits only, up to a billion; exits with 2 otherwise. */
static uint64_t number_of(const char *name, const char *text) {
  char *end;
  errno = 0;
  unsigned long long value = strtoull(text, &end, 10);
  if (text[0] < '0' || text[0] > '9' || *end != '\0' || errno != 0 || value == 0 || value > 1000000000) {
    fprintf(stderr, "storm: %s %s is not a number from 1 to 1000000000\n", name, text);
    exit(2);
  }
  return value;
}

int main(int argc, char **argv) {
  bool by_time = argc > 1 && strcmp(argv[1], "seconds") == 0;
  if (argc < 3 || argc > 4 || (!by_time && strcmp(argv[1], "forks") != 0)) {
    fprintf(stderr, "usage: storm seconds|forks NUMBER [SEED]\n");
    return 2;
  }
  uint64_t number = number_of(argv[1], argv[2]);
  if (argc == 4) seed = number_of("SEED", argv[3]);
  for (int i = 0; i < 100; i++) free(malloc(1)); /* a guarded block is not counted as served */
  if (hakmem_served == NULL || hakmem_served() == 0) {
    fprintf(stderr, "storm: the allocator under test is not there\n");
    return 3;
  }
  printf("seed %llu\n", (unsigned long long)seed);
  fflush(stdout);
  pthread_t threads[THREADS];
  for (size_t t = 0; t < THREADS; t++) {
    if (pthread_create(&threads[t], NULL, churn, (void *)(uintptr_t)t) != 0) die(NO_THREAD);
  }
  bool well = run(by_time, number);
  atomic_store(&stop, true);
  for (size_t t = 0; t < THREADS; t++) pthread_join(threads[t], NULL);
  for (size_t i = 0; i < THREADS * SLOTS; i++) check_and_free(slots[i / SLOTS][i % SLOTS], INHERITED_CONTENTS);
  size_t faults = hakmem_heap_check();
  if (faults != 0) printf("%zu faults in the heap\n", faults);
  return well && faults == 0 ? 0 : 1;
}
