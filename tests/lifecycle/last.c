/* All threads of the program end, the first one before the others, and nobody calls exit: libc does, with the last of them. Threads
 * of the allocator are to make no difference. The argument: how many threads there are besides. */
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

static void at_exit(void) {
  free(malloc(5000));
  if (write(1, "the end\n", 8) != 8) _exit(1);
}

static void *work(void *unused) {
  usleep(20000); /* the first thread is gone */
  for (int i = 0; i < 10000; i++) free(malloc((size_t)i));
  return unused;
}

int main(int argc, char **argv) {
  alarm(20); /* no thread of the program may be left to take it: then ctest's limit ends this */
  atexit(at_exit);
  free(malloc(10));
  for (int i = argc > 1 ? atoi(argv[1]) : 0; i > 0; i--) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, work, NULL) != 0) return 1;
  }
  pthread_exit(NULL);
}
