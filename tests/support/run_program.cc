#include "run_program.h"

#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

extern char **environ;

namespace {

// Reads both pipes to their ends, then waits.
ProgramResult collect(pid_t child, int out_fd, int err_fd) {
  ProgramResult result = {-1, 0, "", ""};
  pollfd fds[2] = {{out_fd, POLLIN, 0}, {err_fd, POLLIN, 0}};
  std::string *texts[2] = {&result.out, &result.err};
  for (int open_ends = 2; open_ends > 0;) {
    poll(fds, 2, -1);
    for (int i = 0; i < 2; i++) {
      if (fds[i].fd < 0 || fds[i].revents == 0) continue;
      char buf[4096];
      ssize_t n = read(fds[i].fd, buf, sizeof buf);
      if (n > 0) {
        texts[i]->append(buf, static_cast<size_t>(n));
      } else {
        close(fds[i].fd);
        fds[i].fd = -1;
        open_ends--;
      }
    }
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0) {
  }
  if (WIFEXITED(status)) result.exit_code = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) result.signal = WTERMSIG(status);
  return result;
}

template <typename Body>
ProgramResult start(Body body) {
  int out[2], err[2];
  if (pipe(out) != 0 || pipe(err) != 0) abort();
  pid_t child = fork();
  if (child < 0) abort();
  if (child == 0) {
    dup2(out[1], STDOUT_FILENO);
    dup2(err[1], STDERR_FILENO);
    for (int fd : {out[0], out[1], err[0], err[1]}) close(fd);
    body();
  }
  close(out[1]);
  close(err[1]);
  return collect(child, out[0], err[0]);
}

}  // namespace

ProgramResult run_program(const std::vector<std::string> &command, const std::vector<std::string> &environment) {
  std::vector<char *> argv, env;
  for (const std::string &word : command) argv.push_back(const_cast<char *>(word.c_str()));
  for (char **e = environ; *e != nullptr; e++) {
    if (strncmp(*e, "HAKMEM_", 7) != 0) env.push_back(*e);
  }
  for (const std::string &e : environment) env.push_back(const_cast<char *>(e.c_str()));
  argv.push_back(nullptr);
  env.push_back(nullptr);
  return start([&] {
    execvpe(argv[0], argv.data(), env.data());
    _exit(127);
  });
}

ProgramResult run_forked(int (*body)()) {
  return start([&] { _exit(body()); });
}
