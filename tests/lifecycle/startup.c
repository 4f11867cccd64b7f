/* A program that uses the allocator at every moment of its life: from .preinit_array, constructors, main, threads, fork,
 * atexit handlers and destructors that run after the allocator's own. Plain C, so that it can be linked statically.
 * The first call of all is free(NULL). Prints one word a stage; the allocator's names are weak, for the static program
 * and the preloaded one alike. */
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern size_t hakmem_heap_check(void) __attribute__((weak));
extern uint64_t hakmem_served(void) __attribute__((weak));
extern _Bool hakmem_is_ours(const void *p) __attribute__((weak));

static void say(const char *text) {
  /* No stdio: it allocates, and may be closed at the end. */
  if (write(STDOUT_FILENO, text, strlen(text)) < 0) _exit(90);
}

static void die(int code, const char *text) {
  say(text);
  _exit(code);
}

static unsigned char *early_block, *constructor_block, *main_block;
static const size_t sizes[] = {1, 16, 24, 100, 1000, 4000, 30000, 100000, 5000000, 40000000};

static void use_memory(int code) {
  unsigned char *blocks[sizeof sizes / sizeof sizes[0]];
  for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
    blocks[i] = malloc(sizes[i]);
    if (blocks[i] == NULL || (uintptr_t)blocks[i] % 16 != 0) die(code, "no memory\n");
    memset(blocks[i], 1, sizes[i] < 100000 ? sizes[i] : 100000);
  }
  for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
    blocks[i] = realloc(blocks[i], sizes[i] + 50);
    if (blocks[i] == NULL || blocks[i][sizes[i] < 100000 ? sizes[i] - 1 : 99999] != 1) die(code, "realloc\n");
    free(blocks[i]);
  }
  unsigned char *zeros = calloc(100, 30);
  for (int i = 0; i < 3000; i++) {
    if (zeros[i] != 0) die(code, "calloc\n");
  }
  free(zeros);
}

static unsigned char *marked(size_t size) {
  unsigned char *p = malloc(size);
  if (p == NULL) die(2, "no memory\n");
  memset(p, 0x5a, size);
  return p;
}

static void check_and_free(unsigned char *p, size_t size) {
  for (size_t i = 0; i < size; i++) {
    if (p[i] != 0x5a) die(3, "contents\n");
  }
  free(p);
}

/* Before any constructor, of shared libraries too. */
static void preinit(int argc, char **argv, char **envp) {
  (void)argc, (void)argv, (void)envp;
  free(NULL);
  use_memory(10);
  early_block = marked(500);
  say("preinit\n");
}
__attribute__((section(".preinit_array"), used)) static void (*const before_constructors)(int, char **, char **) = preinit;

__attribute__((constructor(101))) static void first_constructor(void) {
  use_memory(11);
  check_and_free(early_block, 500);
  constructor_block = marked(2000);
  say("constructor\n");
}

/* The program's destructors run before those of libraries; the one with priority 101 is the last of them. What runs after
 * the libraries' is an exit handler registered before theirs, in preinit (static program: order of linking). */
static void at_exit(void) {
  use_memory(12);
  say("atexit\n");
}

__attribute__((destructor(101))) static void last_destructor(void) {
  use_memory(13);
  check_and_free(main_block, 700);
  if (hakmem_heap_check != NULL && hakmem_heap_check() != 0) die(14, "heap check\n");
  say("destructor\n");
}

static void *in_thread(void *p) {
  use_memory(15);
  check_and_free(p, 300);
  return marked(400);
}

static void run_threads(int count) {
  for (int i = 0; i < count; i++) {
    pthread_t thread;
    void *result;
    if (pthread_create(&thread, NULL, in_thread, marked(300)) != 0) die(16, "pthread_create\n");
    pthread_join(thread, &result);
    check_and_free(result, 400);
  }
}

static volatile int stop;
static void *keep_busy(void *unused) {
  (void)unused;
  while (!stop) use_memory(17);
  return NULL;
}

static void run_forks(void) {
  pthread_t threads[2];
  for (int i = 0; i < 2; i++) {
    if (pthread_create(&threads[i], NULL, keep_busy, NULL) != 0) die(18, "pthread_create\n");
  }
  for (int i = 0; i < 50; i++) {
    pid_t child = fork();
    if (child == 0) {
      alarm(20);
      use_memory(19);
      run_threads(2);
      if (hakmem_heap_check != NULL && hakmem_heap_check() != 0) _exit(20);
      _exit(0);
    }
    int status;
    if (child < 0 || waitpid(child, &status, 0) != child || status != 0) die(21, "a forked child failed\n");
  }
  stop = 1;
  for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
}

int main(void) {
  if (hakmem_served == NULL || hakmem_served() == 0) die(22, "the allocator under test is not there\n");
  atexit(at_exit);
  use_memory(23);
  check_and_free(constructor_block, 2000);
  run_threads(20);
  run_forks();
  main_block = marked(700);
  if (!hakmem_is_ours(main_block)) die(24, "not ours\n");
  say("main\n");
  return 0;
}
