/* Does what it is told on standard input, a command a line, and answers each with a line: allocations that a test knows, dumps,
 * forks, mistakes. It ends with its input. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "hakmem/heap.h"

enum { KEPT = 1 << 25, STACK_BITS = 16 };

static void **kept; /* not from the allocator */
static size_t kept_count;

static int dump(const char *path, int kind) {
  static int (*function)(const char *, int);
  if (function == NULL) *(void **)&function = dlsym(RTLD_DEFAULT, "hakmem_profile_dump");
  return function == NULL ? -1 : function(path, kind);
}

static int start(size_t rate) {
  int (*function)(size_t);
  *(void **)&function = dlsym(RTLD_DEFAULT, "hakmem_profile_start");
  return function == NULL ? -1 : function(rate);
}

/* hakmem_profile_stop or _reset. */
static int call(const char *name) {
  int (*function)(void);
  *(void **)&function = dlsym(RTLD_DEFAULT, name);
  return function == NULL ? -1 : function();
}

/* Allocates, as a handler of a program may. */
static int take(void *fd, const void *data, size_t bytes) {
  void *copy = malloc(bytes);
  memcpy(copy, data, bytes);
  int error = write(*(int *)fd, copy, bytes) == (ssize_t)bytes ? 0 : errno;
  free(copy);
  return error;
}

static void label(uint64_t number) {
  void (*function)(uint64_t);
  *(void **)&function = dlsym(RTLD_DEFAULT, "hakmem_label_set");
  function(number);
}

static int name_label(uint64_t number, const char *text) {
  int (*function)(uint64_t, const char *);
  *(void **)&function = dlsym(RTLD_DEFAULT, "hakmem_label_name");
  return function(number, text);
}

static hakmem_heap *heap; /* the latest */

static void set_default(hakmem_heap *to) {
  hakmem_heap *(*function)(hakmem_heap *);
  *(void **)&function = dlsym(RTLD_DEFAULT, "hakmem_heap_set_default");
  function(to);
}

/* What is allocated from here on is in a new heap. */
static void enter_heap(const char *name) {
  hakmem_heap *(*function)(const hakmem_heap_options *);
  *(void **)&function = dlsym(RTLD_DEFAULT, "hakmem_heap_new");
  hakmem_heap_options options = {.size = sizeof options, .name = name};
  heap = function(&options);
  if (heap == NULL) abort();
  set_default(heap);
}

static void destroy_heap(void) {
  void (*function)(hakmem_heap *);
  *(void **)&function = dlsym(RTLD_DEFAULT, "hakmem_heap_destroy");
  set_default(NULL);
  function(heap);
}

/* what * 8 + format */
static int write_profile(const char *path, long what_and_format) {
  int (*function)(int, int, int (*)(void *, const void *, size_t), void *);
  *(void **)&function = dlsym(RTLD_DEFAULT, "hakmem_profile_write");
  int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0666);
  int error = function == NULL || fd < 0 ? -1 : function((int)what_and_format / 8, (int)what_and_format % 8, take, &fd);
  close(fd);
  return error;
}

static void keep(void *p) {
  if (p == NULL || kept_count == KEPT) abort();
  kept[kept_count++] = p;
}

__attribute__((noinline)) void keeper(long count, size_t size) {
  for (long i = 0; i < count; i++) keep(memset(malloc(size), 1, size));
}

__attribute__((noinline)) static void free_all(void) {
  while (kept_count > 0) free(kept[--kept_count]);
}

/* What is not kept. */
__attribute__((noinline)) void churner(long count) {
  void *slots[64] = {NULL};
  for (long i = 0; i < count; i++) {
    void **slot = &slots[(size_t)i * 2654435761u >> 7 & 63];
    free(*slot);
    *slot = malloc(16 + (size_t)i % 5000);
  }
  for (int i = 0; i < 64; i++) free(slots[i]);
}

/* A stack for each number. */
__attribute__((noinline)) void zero(unsigned bits, int left);
__attribute__((noinline)) void one(unsigned bits, int left);
static void go_on(unsigned bits, int left) {
  if (left == 0) keep(malloc(64));
  else if (bits & 1) one(bits >> 1, left - 1);
  else zero(bits >> 1, left - 1);
  __asm__ volatile("" ::: "memory");
}
void zero(unsigned bits, int left) {
  go_on(bits, left);
  __asm__ volatile("" ::: "memory");
}
void one(unsigned bits, int left) {
  go_on(bits, left);
  __asm__ volatile("" ::: "memory");
}

static void many_stacks(long count) {
  for (long i = 0; i < count; i++) zero((unsigned)i, STACK_BITS);
}

/* A block of each class, some 30 of them. */
static void classes(long each) {
  for (size_t size = 16; size <= 32768; size += size < 128 ? 16 : size / 4) keeper(each, size);
}

static void misuse(const char *what, size_t size) {
  char *p = malloc(size);
  memset(p, 1, size);
  if (strcmp(what, "double") == 0) {
    free(p);
    free(p);
  } else if (strcmp(what, "later") == 0) { /* others are freed between */
    void *other = malloc(size);
    free(p);
    free(other);
    free(p);
  } else if (strcmp(what, "inside") == 0) {
    free(p + 16);
  } else if (strcmp(what, "realloc") == 0) {
    free(p);
    p = realloc(p, 2 * size + 1);
  } else if (strcmp(what, "overflow") == 0) {
    p[size] = 2;
    free(p);
  } else if (strcmp(what, "written") == 0) {
    free(p);
    p[size / 2] = 3;
    for (int i = 0; i < 1000; i++) free(malloc(size)); /* it leaves the quarantine */
    for (int i = 0; i < 3000; i++) keep(malloc(size));
  }
}

static int fork_child(long count, size_t size) {
  int ready[2]; /* the child has a page of its own, and its blocks */
  char byte = 0;
  if (pipe(ready) != 0) return -1;
  int pid = fork();
  if (pid != 0) {
    close(ready[1]);
    if (read(ready[0], &byte, 1) != 1) pid = -1;
    close(ready[0]);
    return pid;
  }
  free_all();
  keeper(count, size);
  if (write(ready[1], &byte, 1) != 1) _exit(1);
  close(ready[0]);
  close(ready[1]);
  for (;;) pause();
}

static void *serve(void *unused);

/* The first thread ends; the next command is another one's. */
static void leave(void) {
  pthread_t thread;
  dprintf(1, "0\n");
  if (pthread_create(&thread, NULL, serve, NULL) != 0) abort();
  pthread_exit(NULL);
}

static void *serve(void *unused) {
  (void)unused;
  static char line[8192], word[16], text[4096];
  while (fgets(line, sizeof line, stdin) != NULL) {
    long a = 0, b = 0, answer = 0;
    text[0] = '\0';
    if (sscanf(line, "%15s %ld %ld", word, &a, &b) < 2) sscanf(line, "%15s %4095s %ld", word, text, &b);
    if (strcmp(word, "alloc") == 0) keeper(a, (size_t)b);
    else if (strcmp(word, "free") == 0) free_all();
    else if (strcmp(word, "churn") == 0) churner(a);
    else if (strcmp(word, "stacks") == 0) many_stacks(a);
    else if (strcmp(word, "classes") == 0) classes(a);
    else if (strcmp(word, "resize") == 0) kept[0] = realloc(kept[0], (size_t)a);
    else if (strcmp(word, "trim") == 0) malloc_trim(0);
    else if (strcmp(word, "dump") == 0) answer = dump(text, (int)b);
    else if (strcmp(word, "start") == 0) answer = start((size_t)a);
    else if (strcmp(word, "write") == 0) answer = write_profile(text, b);
    else if (strcmp(word, "label") == 0) label((uint64_t)a);
    else if (strcmp(word, "name") == 0) answer = name_label((uint64_t)b, text);
    else if (strcmp(word, "heap") == 0) enter_heap(text);
    else if (strcmp(word, "main") == 0) set_default(NULL);
    else if (strcmp(word, "destroy") == 0) destroy_heap();
    else if (strcmp(word, "call") == 0) answer = call(text);
    else if (strcmp(word, "null") == 0) answer = dump(NULL, 0);
    else if (strcmp(word, "chdir") == 0) answer = chdir(text);
    else if (strcmp(word, "fork") == 0) answer = fork_child(a, (size_t)b);
    else if (strcmp(word, "reap") == 0) answer = kill((int)a, SIGKILL) + waitpid((int)a, NULL, 0);
    else if (strcmp(word, "raise") == 0) answer = raise((int)a);
    else if (strcmp(word, "misuse") == 0) misuse(text, (size_t)b);
    else if (strcmp(word, "leave") == 0) leave();
    else answer = -2;
    dprintf(1, "%ld\n", answer);
  }
  exit(0);
}

int main(int argc, char **argv) {
  (void)argc, (void)argv;
  *(void **)&kept = sbrk(KEPT * sizeof *kept);
  setvbuf(stdin, NULL, _IONBF, 0);
  serve(NULL);
}
