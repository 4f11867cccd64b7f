#include "handlers_library.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <unistd.h>

enum { KEPT = 100 };
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void *kept[KEPT];
static int threads;
static pthread_t worker;
static bool has_worker;
static atomic_bool stop_worker;

void handlers_library_use(void) {
  pthread_mutex_lock(&lock);
  for (size_t i = 0; i < KEPT; i++) {
    free(kept[i]);
    kept[i] = malloc(i % 10 == 0 ? 300000 + i * 20000 : i * 100);
  }
  pthread_mutex_unlock(&lock);
}

int handlers_library_threads(void) { return threads; }

static void *start_again(void *unused) {
  (void)unused;
  handlers_library_use();
  return NULL;
}

static void *work(void *unused) {
  (void)unused;
  while (!atomic_load(&stop_worker)) {
    for (size_t size = 1; size < 100000; size *= 3) free(malloc(size));
    usleep(10);
  }
  void *volatile last = malloc(200000);
  free(last);
  return NULL;
}

static void begin_work(void) {
  atomic_store(&stop_worker, false);
  if (pthread_create(&worker, NULL, work, NULL) != 0) abort();
}

void handlers_library_start_worker(void) {
  begin_work();
  has_worker = true;
}

static void before(void) {
  if (has_worker) {
    atomic_store(&stop_worker, true);
    pthread_join(worker, NULL);
  }
  pthread_mutex_lock(&lock);
}
static void after_in_parent(void) {
  pthread_mutex_unlock(&lock);
  if (has_worker) begin_work();
}
static void after_in_child(void) {
  pthread_mutex_unlock(&lock);
  pthread_t thread;
  if (pthread_create(&thread, NULL, start_again, NULL) == 0 && pthread_join(thread, NULL) == 0) threads++;
}

/* As libraries do: its state first, then the handlers. Or no state, so that nothing has been allocated yet. */
__attribute__((constructor)) static void load(void) {
  if (!HANDLERS_FIRST) kept[0] = malloc(100);
  pthread_atfork(before, after_in_parent, after_in_child);
}
