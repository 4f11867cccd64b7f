/* Threads resize blocks in place while this one forks: a child has another thread's block in whatever state it was, and exits. Prints
 * how many children did not exit well. */
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#define FORKS 1500

static bool done;

static void *resize(void *argument) {
  size_t size = *(const size_t *)argument;
  char *p = malloc(size);
  for (size_t n = 0; p != NULL && !__atomic_load_n(&done, __ATOMIC_RELAXED); n++) {
    size_t wanted = size + n % 2 * 10;
    p = realloc(p, wanted);
    if (p != NULL) p[wanted - 1] = 1;
  }
  free(p);
  return NULL;
}

int main(void) {
  static const size_t sizes[] = {5000, 300000}; /* either block has more behind the request than what is filled there */
  pthread_t threads[2];
  int faults = 0;
  for (int i = 0; i < 2; i++) {
    if (pthread_create(&threads[i], NULL, resize, (void *)(uintptr_t)&sizes[i]) != 0) return 1;
  }
  for (int n = 0; n < FORKS; n++) {
    pid_t child = fork();
    if (child == 0) exit(0);
    int status = 0;
    faults += child < 0 || waitpid(child, &status, 0) != child || status != 0;
  }
  __atomic_store_n(&done, true, __ATOMIC_RELAXED);
  for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
  printf("%d\n", faults);
  return faults != 0;
}
