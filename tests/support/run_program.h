// Runs a program and collects what it printed.
#ifndef HAKMEM_TESTS_RUN_PROGRAM_H
#define HAKMEM_TESTS_RUN_PROGRAM_H

#include <string>
#include <vector>

struct ProgramResult {
  int exit_code;  // -1: ended by `signal`
  int signal;
  std::string out, err;
};

// The environment of the child is ours without any HAKMEM_… variable, plus `environment` (NAME=value).
ProgramResult run_program(const std::vector<std::string> &command, const std::vector<std::string> &environment = {});

// Runs `body` in a forked child, with stderr collected in err. exit_code is what body returned.
ProgramResult run_forked(int (*body)());

#endif
