/* A program whose file descriptors are gone when reports and warnings are due. The word says which:
 *   none     keeps them all
 *   012      closes 0, 1 and 2 before anything else, then works
 *   all      closes every number, the copy of stderr that reports at exit go to included
 *   misuse   closes every number, then frees a block twice
 *   pipe     makes stderr a pipe that nobody reads, then works
 *   file F   closes every number and opens F under each, so that the copy of stderr is a file of the program's now
 * Exits with 0 when all of its own checks hold; what it cannot print it says by its exit status. */
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <dlfcn.h>

/* The compiler knows that some of these frees are wrong. */
static void *hide(void *p) {
  void *volatile hidden = p;
  return hidden;
}

static void *work(void *unused) {
  (void)unused;
  for (size_t size = 1; size < 60000000; size = size * 3 + 1) {
    char *p = malloc(size);
    if (p == NULL) _exit(10);
    p[0] = p[size - 1] = 1;
    free(p);
  }
  return NULL;
}

/* More than a hundred pointers that are not the allocator's: the warning that comes unasked is among what is due. */
static void warnings_are_due(void) {
  static char outside[64];
  for (int i = 0; i < 150; i++) free(hide(outside));
}

static int close_and_work(int first, int last) {
  for (int fd = first; fd <= last; fd++) close(fd);
  work(NULL);
  warnings_are_due();
  pthread_t thread;
  if (pthread_create(&thread, NULL, work, NULL) != 0) return 11;
  pthread_join(thread, NULL);
  pid_t child = fork();
  if (child == 0) {
    work(NULL);
    exit(0); /* with the reports at exit */
  }
  int status;
  if (child < 0 || waitpid(child, &status, 0) != child || status != 0) return 12;
  size_t (*check)(void) = (size_t(*)(void))dlsym(RTLD_DEFAULT, "hakmem_heap_check");
  return check != NULL && check() == 0 ? 0 : 13;
}

static int open_everywhere(const char *path) {
  for (int fd = 0; fd < 256; fd++) close(fd);
  int fd = open(path, O_RDWR);
  for (int copy = 0; copy < 256; copy++) {
    if (fd < 0 || dup2(fd, copy) != copy) return 15;
  }
  return 0;
}

/* Once more from the start, so that the copy for reports at exit is of that pipe too. */
static int work_unread(void) {
  int ends[2];
  if (pipe(ends) != 0 || dup2(ends[1], STDERR_FILENO) < 0) return 16;
  close(ends[0]);
  close(ends[1]);
  execl("/proc/self/exe", "closed", "none", (char *)NULL);
  return 17;
}

int main(int argc, char **argv) {
  const char *word = argc == 2 ? argv[1] : "";
  if (argc == 3 && strcmp(argv[1], "file") == 0) return open_everywhere(argv[2]);
  if (strcmp(word, "pipe") == 0) return work_unread();
  if (strcmp(word, "none") == 0) return close_and_work(1, 0);
  if (strcmp(word, "012") == 0) return close_and_work(0, 2);
  if (strcmp(word, "all") == 0) return close_and_work(0, 1023);
  if (strcmp(word, "misuse") == 0) {
    close_and_work(0, 1023);
    char *p = malloc(100);
    free(p);
    free(hide(p));
    return 14;
  }
  fprintf(stderr, "usage: closed none|012|all|misuse|pipe | file FILE\n");
  return 2;
}
