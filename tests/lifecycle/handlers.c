/* fork while another thread allocates under a lock that a library's fork handlers take: the allocator's own locks have to
 * be taken after theirs and be free before them. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <dlfcn.h>

#include "handlers_library.h"

static atomic_bool stop;

static void *use_always(void *unused) {
  (void)unused;
  while (!atomic_load(&stop)) {
    handlers_library_use();
    usleep(10); /* so that fork gets the lock now and then */
  }
  return NULL;
}

int main(int argc, char **argv) {
  int forks = argc > 1 ? atoi(argv[1]) : 0;
  size_t (*check)(void) = (size_t(*)(void))dlsym(RTLD_DEFAULT, "hakmem_heap_check");
  if (check == NULL) return 3;
  alarm(50);
  handlers_library_start_worker();
  pthread_t threads[2];
  for (int i = 0; i < 2; i++) {
    if (pthread_create(&threads[i], NULL, use_always, NULL) != 0) return 4;
  }
  for (int i = 0; i < forks; i++) {
    pid_t child = fork();
    if (child == 0) {
      alarm(20);
      handlers_library_use();
      _exit(handlers_library_threads() == 1 && check() == 0 ? 0 : 5);
    }
    int status;
    if (child < 0 || waitpid(child, &status, 0) != child || status != 0) {
      fprintf(stderr, "fork %d: status %#x\n", i, (unsigned)status);
      return 6;
    }
  }
  atomic_store(&stop, true);
  for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
  return check() == 0 ? 0 : 7;
}
