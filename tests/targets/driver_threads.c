/* The driver's parts with more than one thread or process. */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "driver.h"

#define MAILBOX_BLOCKS 128
#define THREAD_MAX_BYTES ((size_t)4 << 20)

/* Blocks on their way to another thread. */
struct mailbox {
  pthread_mutex_t mutex;
  struct block blocks[MAILBOX_BLOCKS];
  size_t count;
};
static struct mailbox mailboxes[THREADS_MAX];

struct worker {
  pthread_t thread;
  size_t index;
};

static pthread_t start(void *(*body)(void *), void *argument, const pthread_attr_t *attributes) {
  pthread_t thread;
  int error = pthread_create(&thread, attributes, body, argument);
  if (error != 0) fail("pthread_create: %s", strerror(error));
  return thread;
}

static void post(struct shadow *s) {
  struct mailbox *m = &mailboxes[random_below(&s->random, settings.threads)];
  struct block b = shadow_take(s);
  if (b.p == NULL) return;
  pthread_mutex_lock(&m->mutex);
  int posted = m->count < MAILBOX_BLOCKS;
  if (posted) m->blocks[m->count++] = b;
  pthread_mutex_unlock(&m->mutex);
  if (!posted) block_free(b);
}

/* Half of what came is freed here, far from its heap; the other half lives on in this thread's map. */
static void receive(struct shadow *s, struct mailbox *m) {
  struct block got[MAILBOX_BLOCKS];
  pthread_mutex_lock(&m->mutex);
  size_t n = m->count;
  memcpy(got, m->blocks, n * sizeof got[0]);
  m->count = 0;
  pthread_mutex_unlock(&m->mutex);
  for (size_t i = 0; i < n; i++) {
    if (i % 2 == 0 || !shadow_put(s, got[i])) block_free(got[i]);
  }
}

static void *work(void *argument) {
  struct worker *w = argument;
  struct shadow *s = shadow_new(settings.seed * 1000 + w->index);
  for (size_t i = 0; i < settings.steps / 2; i++) {
    size_t dice = random_below(&s->random, 64);
    if (dice == 0)
      receive(s, &mailboxes[w->index]);
    else if (dice < 8)
      post(s);
    else
      shadow_step(s, THREAD_MAX_BYTES);
  }
  shadow_delete(s);
  return NULL;
}

void part_threads(void) {
  static struct worker workers[THREADS_MAX];
  for (size_t i = 0; i < settings.threads; i++) pthread_mutex_init(&mailboxes[i].mutex, NULL);
  for (size_t i = 0; i < settings.threads; i++) {
    workers[i].index = i;
    workers[i].thread = start(work, &workers[i], NULL);
  }
  for (size_t i = 0; i < settings.threads; i++) pthread_join(workers[i].thread, NULL);
  struct shadow *s = shadow_new(settings.seed);
  for (size_t i = 0; i < settings.threads; i++) receive(s, &mailboxes[i]);
  shadow_delete(s);
}

#define LEFT_BLOCKS 150
#define GENERATIONS 25

/* Written by a thread of one generation, read by one of the next after it was joined. */
static struct block left[THREADS_MAX][LEFT_BLOCKS];
static pthread_key_t key;

static void allocate_in_destructor(void *p) {
  free(p);
  free(malloc(300));
}

static void *leave_blocks(void *argument) {
  struct worker *w = argument;
  struct block *mine = left[w->index];
  pthread_setspecific(key, malloc(200));
  for (size_t i = 0; i < LEFT_BLOCKS; i++) {
    if (mine[i].p != NULL) block_free(mine[i]); /* of a thread that has ended */
    mine[i] = (struct block){NULL, (i * i) % 3000 + (i % 50 == 0 ? 40000 : 0), settings.seed + i};
    mine[i].p = malloc(mine[i].size);
    if (mine[i].p == NULL) fail("malloc(%zu) failed in a short-lived thread", mine[i].size);
    block_fill(&mine[i]);
  }
  return NULL;
}

void part_exits(void) {
  static struct worker workers[THREADS_MAX];
  size_t stack = (size_t)sysconf(_SC_THREAD_STACK_MIN);
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  int error = pthread_attr_setstacksize(&attributes, stack > 16384 ? stack : 16384);
  if (error != 0) fail("pthread_attr_setstacksize: %s", strerror(error));
  if (pthread_key_create(&key, allocate_in_destructor) != 0) fail("pthread_key_create failed");
  for (size_t generation = 0; generation < GENERATIONS; generation++) {
    for (size_t i = 0; i < settings.threads; i++) {
      workers[i].index = (i + generation) % settings.threads; /* so that a thread frees another slot's blocks */
      workers[i].thread = start(leave_blocks, &workers[i], &attributes);
    }
    for (size_t i = 0; i < settings.threads; i++) pthread_join(workers[i].thread, NULL);
  }
  for (size_t i = 0; i < settings.threads; i++) {
    for (size_t k = 0; k < LEFT_BLOCKS; k++) block_free(left[i][k]);
  }
  memset(left, 0, sizeof left);
  pthread_key_delete(key);
  pthread_attr_destroy(&attributes);
}

#define FORKS 60
#define CHILD_SECONDS 60 /* a child that is still there then hangs */

static atomic_bool stop;

static void *allocate_until_stopped(void *argument) {
  struct worker *w = argument;
  struct shadow *s = shadow_new(settings.seed * 7777 + w->index);
  while (!atomic_load(&stop)) shadow_step(s, (size_t)256 << 10);
  shadow_delete(s);
  return NULL;
}

static void *use_inherited(void *argument) {
  struct shadow *s = argument;
  for (size_t i = 0; i < 400; i++) shadow_step(s, (size_t)256 << 10);
  for (struct block b = shadow_take(s); b.p != NULL; b = shadow_take(s)) block_free(b);
  return NULL;
}

static _Noreturn void child(struct shadow *s) {
  alarm(CHILD_SECONDS);
  shadow_verify(s);
  for (size_t i = 0; i < 400; i++) shadow_step(s, (size_t)256 << 10);
  pthread_join(start(use_inherited, s, NULL), NULL);
  check_heap("in a forked child");
  _exit(0);
}

static void expect_success(pid_t pid, size_t n) {
  int status = 0;
  while (waitpid(pid, &status, 0) < 0) {
    if (errno != EINTR) fail("waitpid: %s", strerror(errno));
  }
  if (WIFSIGNALED(status))
    fail("child %zu %s signal %d", n, WTERMSIG(status) == SIGALRM ? "hung: it ended by" : "ended by", WTERMSIG(status));
  if (WEXITSTATUS(status) != 0) fail("child %zu ended with status %d", n, WEXITSTATUS(status));
}

void part_fork(void) {
  static struct worker workers[THREADS_MAX];
  atomic_store(&stop, 0);
  for (size_t i = 0; i < settings.threads; i++) {
    workers[i].index = i;
    workers[i].thread = start(allocate_until_stopped, &workers[i], NULL);
  }
  struct shadow *s = shadow_new(settings.seed);
  for (size_t n = 0; n < FORKS; n++) {
    for (size_t i = 0; i < 300; i++) shadow_step(s, (size_t)256 << 10);
    pid_t pid = fork();
    if (pid == 0) child(s);
    if (pid < 0) fail("fork: %s", strerror(errno));
    expect_success(pid, n);
    shadow_verify(s);
  }
  atomic_store(&stop, 1);
  for (size_t i = 0; i < settings.threads; i++) pthread_join(workers[i].thread, NULL);
  shadow_delete(s);
}
