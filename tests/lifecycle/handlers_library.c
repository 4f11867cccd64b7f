#include "handlers_library.h"

#include <pthread.h>
#include <stdlib.h>

enum { KEPT = 100 };
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void *kept[KEPT];
static int threads;

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

static void before(void) { pthread_mutex_lock(&lock); }
static void after_in_parent(void) { pthread_mutex_unlock(&lock); }
static void after_in_child(void) {
  pthread_mutex_unlock(&lock);
  pthread_t thread;
  if (pthread_create(&thread, NULL, start_again, NULL) == 0 && pthread_join(thread, NULL) == 0) threads++;
}

/* As libraries do: its state first, then the handlers. It runs before the constructor of a preloaded allocator. */
__attribute__((constructor)) static void load(void) {
  kept[0] = malloc(100);
  pthread_atfork(before, after_in_parent, after_in_child);
}
