/* fork beside streams. fflush(NULL) holds libc's list of streams while it waits for one, whose reader allocates, and fork waits
 * for the list: the allocator may not hold its own locks by then. Children use streams in a new thread. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static FILE *in;
static int pipe_ends[2];
static atomic_bool stop;

static void *read_line(void *unused) {
  (void)unused;
  char *line = NULL;
  size_t room = 0;
  ssize_t length = getline(&line, &room, in);
  free(line);
  return length == 50000 ? NULL : in;
}

static void *flush_all(void *unused) {
  (void)unused;
  fflush(NULL);
  return NULL;
}

static void *use_streams(void *unused) {
  (void)unused;
  do {
    char *text;
    size_t length;
    FILE *f = open_memstream(&text, &length);
    if (f == NULL) return &stop;
    for (int i = 0; i < 500; i++) fputs("0123456789", f);
    fflush(NULL);
    fclose(f);
    free(text);
  } while (!atomic_load(&stop));
  return NULL;
}

static int well_ended(pid_t child) {
  int status;
  return child > 0 && waitpid(child, &status, 0) == child && status == 0;
}

static void *fork_once(void *unused) {
  (void)unused;
  pid_t child = fork();
  if (child == 0) _exit(0);
  return well_ended(child) ? NULL : in;
}

static pthread_t start(void *(*body)(void *)) {
  pthread_t thread;
  if (pthread_create(&thread, NULL, body, NULL) != 0) _exit(4);
  usleep(200000); /* it waits by then: for the line, for that stream, for the list */
  return thread;
}

static int all_wait_for_each_other(void) {
  if (pipe(pipe_ends) != 0 || (in = fdopen(pipe_ends[0], "r")) == NULL) return 5;
  pthread_t threads[] = {start(read_line), start(flush_all), start(fork_once)};
  static char line[50000];
  memset(line, 'x', sizeof line);
  line[sizeof line - 1] = '\n';
  if (write(pipe_ends[1], line, sizeof line) != sizeof line) return 5;
  int failed = 0;
  for (int i = 0; i < 3; i++) {
    void *result;
    pthread_join(threads[i], &result);
    if (result != NULL) failed = 6;
  }
  return failed;
}

static int children_use_streams(void) {
  pthread_t users[3];
  for (int i = 0; i < 3; i++) {
    if (pthread_create(&users[i], NULL, use_streams, NULL) != 0) return 4;
  }
  int failed = 0;
  for (int i = 0; i < 300 && failed == 0; i++) {
    pid_t child = fork();
    if (child == 0) {
      alarm(20);
      atomic_store(&stop, true);
      pthread_t user;
      void *result = &stop;
      if (pthread_create(&user, NULL, use_streams, NULL) == 0) pthread_join(user, &result);
      _exit(result == NULL && use_streams(NULL) == NULL ? 0 : 1);
    }
    if (!well_ended(child)) failed = 7;
  }
  atomic_store(&stop, true);
  for (int i = 0; i < 3; i++) pthread_join(users[i], NULL);
  return failed;
}

int main(void) {
  alarm(50);
  int failed = all_wait_for_each_other();
  return failed != 0 ? failed : children_use_streams();
}
