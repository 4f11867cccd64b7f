/* The main thread ends before the others: another frees what it left, starts a thread that adopts its heap, forks, and ends
 * the process. Plain C, because pthread_exit unwinds main. */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <dlfcn.h>

enum { LEFT = 500, BYTES = 700 };
static unsigned char *left[LEFT];
static void *at_exit_block;

static size_t heap_faults(void) {
  size_t (*check)(void) = (size_t(*)(void))dlsym(RTLD_DEFAULT, "hakmem_heap_check");
  return check == NULL ? 1 : check();
}

static int main_has_ended(void) {
  char path[64], state = '?';
  snprintf(path, sizeof path, "/proc/self/task/%d/stat", (int)getpid());
  FILE *f = fopen(path, "re");
  if (f == NULL || fscanf(f, "%*d (%*[^)]) %c", &state) != 1) _exit(1);
  fclose(f);
  return state == 'Z';
}

static void *adopt(void *unused) {
  (void)unused;
  for (size_t size = 1; size < 3000; size++) free(malloc(size));
  return NULL;
}

static void at_exit(void) {
  free(at_exit_block);
  adopt(NULL);
  if (heap_faults() != 0) _exit(2);
}

static void *outlive(void *unused) {
  (void)unused;
  while (!main_has_ended()) usleep(100);
  for (size_t i = 0; i < LEFT; i++) {
    for (size_t k = 0; k < BYTES; k++) {
      if (left[i][k] != (unsigned char)i) _exit(3);
    }
    free(left[i]);
  }
  pthread_t thread;
  if (pthread_create(&thread, NULL, adopt, NULL) != 0) _exit(4);
  pthread_join(thread, NULL);
  pid_t child = fork();
  if (child == 0) {
    adopt(NULL);
    _exit(heap_faults() == 0 ? 0 : 5);
  }
  int status;
  if (child < 0 || waitpid(child, &status, 0) != child || status != 0) _exit(6);
  at_exit_block = malloc(100);
  atexit(at_exit);
  exit(0);
}

int main(void) {
  alarm(30);
  for (size_t i = 0; i < LEFT; i++) {
    left[i] = malloc(BYTES);
    memset(left[i], (int)i, BYTES);
  }
  pthread_t thread;
  if (pthread_create(&thread, NULL, outlive, NULL) != 0) return 7;
  pthread_exit(NULL);
}
