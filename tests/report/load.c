/* What page_test.py watches: load SECONDS | quiet BYTES COUNT | burst | fork | closed | catches SIGNAL | unparked | spoiled | heaps COUNT. Prints
 * a line when it has reached the state to look at, and goes on when it gets one. */
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define SLOTS 3000
#define PAGES_FD 512 /* the number that the page had */

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* Of the preloaded library. */
typedef struct heap heap;
typedef struct options {
  size_t size;
  const char *name;
  size_t limit;
  heap *parent;
  unsigned flags;
} options;
static heap *(*heap_new)(const options *o);
static void *(*heap_malloc)(heap *h, size_t size);
static void (*heap_destroy)(heap *h);

static void find_heaps(void) {
  heap_new = (heap * (*)(const options *)) dlsym(RTLD_DEFAULT, "hakmem_heap_new");
  heap_malloc = (void *(*)(heap *, size_t))dlsym(RTLD_DEFAULT, "hakmem_heap_malloc");
  heap_destroy = (void (*)(heap *))dlsym(RTLD_DEFAULT, "hakmem_heap_destroy");
}

/* The one numbered i has a block of 64 * (i + 1) bytes. */
static void some_heaps(size_t count) {
  for (size_t i = 0; i < count; i++) {
    char name[64];
    snprintf(name, sizeof name, "heap \"%zu\"\n\xff", i);
    options o = {.size = sizeof o, .name = name};
    if (heap_malloc(heap_new(&o), 64 * (i + 1)) == NULL) abort();
  }
}

static double end_time;
static void *handed[64]; /* blocks that pass from thread to thread */

static void one_step(void **slots, unsigned *seed) {
  unsigned r = *seed = *seed * 1664525u + 1013904223u;
  unsigned i = (r >> 8) % SLOTS;
  if (slots[i] != NULL) {
    free(__atomic_exchange_n(&handed[i % 64], slots[i], __ATOMIC_ACQ_REL));
    slots[i] = NULL;
    return;
  }
  size_t size = (r >> 12) % 3000;
  if ((r & 0xff) == 1) size = 200000 + (r >> 4) % 500000;
  if ((r & 0xffff) == 2) size = (size_t)40 << 20;
  slots[i] = malloc(size);
}

static void *work_in_heaps(void *number) {
  unsigned r = (unsigned)(size_t)number;
  for (; now() < end_time; r = r * 1664525u + 1013904223u) {
    heap *h = heap_new(NULL);
    for (unsigned i = 0; i < (r >> 8) % 5000; i++) {
      void *p = heap_malloc(h, i % 1000 == 999 ? 300000 : (r >> 4) % 700 + i % 30);
      if (i % 7 == 0) free(p);
    }
    heap_destroy(h);
  }
  return NULL;
}

static void *work(void *number) {
  unsigned seed = (unsigned)(size_t)number;
  void **slots = calloc(SLOTS, sizeof *slots);
  for (unsigned n = 0; n % 1000 != 0 || now() < end_time; n++) one_step(slots, &seed);
  for (unsigned i = 0; i < SLOTS; i++) free(slots[i]);
  free(slots);
  return NULL;
}

static void load(double seconds) {
  pthread_t threads[6];
  end_time = now() + seconds;
  find_heaps();
  for (size_t i = 0; i < 6; i++) pthread_create(&threads[i], NULL, i < 4 ? work : work_in_heaps, (void *)(i + 1));
  for (size_t i = 0; i < 6; i++) pthread_join(threads[i], NULL);
}

static void say(const char *text) { (void)!write(STDOUT_FILENO, text, strlen(text)); }
static void wait_for_line(void) {
  char c;
  while (read(STDIN_FILENO, &c, 1) == 1 && c != '\n') {}
}

static void some_blocks(size_t bytes, size_t count) {
  for (size_t i = 0; i < count; i++) {
    char *volatile p = malloc(bytes);
    memset(p, 1, bytes);
  }
}

static int forked(void) {
  some_blocks(1000, 5000);
  say("parent\n");
  wait_for_line();
  fflush(NULL);
  pid_t child = fork();
  if (child == 0) {
    some_blocks(2000, 50000);
    char line[32];
    snprintf(line, sizeof line, "child %d\n", (int)getpid());
    say(line);
    wait_for_line();
    _exit(0);
  }
  int status = -1;
  waitpid(child, &status, 0);
  return status;
}

static pthread_key_t late_key;

/* Allocates in the round of destructors that the value counts down to. */
static void allocate_late(void *value) {
  size_t rounds = (size_t)value;
  if (rounds > 1)
    pthread_setspecific(late_key, (void *)(rounds - 1));
  else
    some_blocks(100, 300);
}

static void *begin_late(void *rounds) {
  pthread_setspecific(late_key, rounds);
  return NULL;
}

static void *end_by_system_call(void *unused) {
  some_blocks(100, 300);
  syscall(SYS_exit, 0);
  return unused;
}

/* Runs a thread on a stack, thread-local variables included, that is unmapped as soon as the thread has ended. */
static void run_on_own_stack(void *(*body)(void *), void *argument) {
  const size_t bytes = 1 << 20;
  void *stack = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstack(&attributes, stack, bytes);
  pthread_t thread;
  pthread_create(&thread, &attributes, body, argument);
  pthread_join(thread, NULL);
  pthread_attr_destroy(&attributes);
  munmap(stack, bytes);
}

/* Threads that leave their heaps without parking them. */
static void end_unparked(void) {
  some_blocks(100, 1);
  pthread_key_create(&late_key, allocate_late); /* behind the allocator's: its destructor has run in each round before */
  for (size_t round = 1; round <= 4; round++) run_on_own_stack(begin_late, (void *)round);
  run_on_own_stack(end_by_system_call, NULL);
}

/* Of a child, on the page that it has inherited open. Returns how many of the ways there are to spoil it succeed. */
static int spoil(void) {
  int ways = 0;
  for (int fd = 3; fd <= PAGES_FD; fd++) {
    char path[40], target[64] = "";
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (readlink(path, target, sizeof target - 1) < 0 || strstr(target, "hakmem-stats") == NULL) continue;
    ways += ftruncate(fd, 0) == 0;
    ways += ftruncate(fd, (off_t)1 << 30) == 0;
    ways += write(fd, "spoiled", 7) == 7;
    ways += fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 1 << 20) == 0;
    ways += mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) != MAP_FAILED;
    return ways;
  }
  return -1;
}

static int spoiled(void) {
  some_blocks(1000, 5000);
  pid_t child = fork();
  if (child == 0) {
    char line[32];
    int length = snprintf(line, sizeof line, "%d ways\n", spoil());
    _exit(write(STDOUT_FILENO, line, (size_t)length) == length ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  some_blocks(1000000, 100); /* writes the page anew */
  say("ready\n");
  wait_for_line();
  return status;
}

static void ours(int number) {
  (void)number;
  say("the program's\n");
}

int main(int argc, char **argv) {
  const char *what = argc < 2 ? "" : argv[1];
  if (strcmp(what, "load") == 0) {
    load(atof(argv[2]));
  } else if (strcmp(what, "quiet") == 0) {
    some_blocks(strtoul(argv[2], NULL, 10), strtoul(argv[3], NULL, 10));
    nanosleep(&(struct timespec){0, 300000000}, NULL);
    some_blocks(16, 400); /* slow paths enough for one more look at the clock */
    say("ready\n");
    wait_for_line();
  } else if (strcmp(what, "nothing") == 0) { /* it has not allocated */
    wait_for_line();
  } else if (strcmp(what, "burst") == 0) {
    say("ready\n");
    wait_for_line();
    some_blocks(1000000, 100);
    some_blocks(60000, 1000);
    say("ready\n");
    wait_for_line();
  } else if (strcmp(what, "fork") == 0) {
    return forked();
  } else if (strcmp(what, "closed") == 0) {
    for (int fd = 3; fd < 1024; fd++) close(fd);
    FILE *mine = tmpfile();
    if (dup2(fileno(mine), PAGES_FD) != PAGES_FD) return 1;
    load(1);
    pid_t child = fork();
    if (child == 0) {
      load(0.5); /* the child makes a page of its own, and lets go of its parent's */
      _exit(write(PAGES_FD, "still there", 11) == 11 ? 0 : 1);
    }
    int status = -1;
    waitpid(child, &status, 0);
    if (status != 0 || write(PAGES_FD, "still there", 11) != 11) return 1;
    say("fine\n");
  } else if (strcmp(what, "heaps") == 0) {
    find_heaps();
    some_heaps(strtoul(argv[2], NULL, 10));
    nanosleep(&(struct timespec){0, 300000000}, NULL);
    some_blocks(16, 400);
    say("ready\n");
    wait_for_line();
  } else if (strcmp(what, "spoiled") == 0) {
    return spoiled();
  } else if (strcmp(what, "unparked") == 0) {
    end_unparked();
    for (int i = 0; i < 20; i++) some_blocks(200000, 10); /* more is held each time: the page is written anew */
    say("ready\n");
    wait_for_line();
  } else if (strcmp(what, "catches") == 0) {
    signal(atoi(argv[2]), ours);
    say("ready\n");
    wait_for_line();
    some_blocks(5000, 1000);
  } else {
    return 2;
  }
  return 0;
}
