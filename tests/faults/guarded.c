#include "guarded.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static int life_pipe; /* closed by our end, however it comes */
static int done_pipe; /* at its end when everything is back */

static void wait_for_end(int pipe_end) {
  char c;
  while (read(pipe_end, &c, 1) < 0 && errno == EINTR) {
  }
}

/* A process of its own session, child of init: it outlives us, and whoever ends all our children. */
bool guard_start(void (*put_back)(void)) {
  int life[2], done[2];
  if (pipe2(life, O_CLOEXEC) != 0 || pipe2(done, O_CLOEXEC) != 0) return false;
  pid_t first = fork();
  if (first < 0) return false;
  if (first == 0) {
    setsid();
    if (fork() != 0) _exit(0);
    for (int s = 1; s < 32; s++) signal(s, SIG_IGN);
    close(life[1]);
    close(done[0]);
    wait_for_end(life[0]);
    put_back();
    _exit(0);
  }
  close(life[0]);
  close(done[1]);
  waitpid(first, NULL, 0);
  life_pipe = life[1];
  done_pipe = done[0];
  return true;
}

void guard_end(void) {
  close(life_pipe);
  wait_for_end(done_pipe);
}

int run_command(char **command, bool (*enter)(void)) {
  fflush(NULL);
  pid_t child = fork();
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (enter != NULL && !enter()) {
      fflush(stdout);
      _exit(SKIPPED);
    }
    execvp(command[0], command);
    perror(command[0]);
    _exit(127);
  }
  int status = 0;
  while (child > 0 && waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (child > 0 && WIFEXITED(status)) return WEXITSTATUS(status);
  if (child > 0) printf("%s was ended by signal %d\n", command[0], WTERMSIG(status));
  return 1;
}
