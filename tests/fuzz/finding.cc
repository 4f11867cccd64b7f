#include "finding.h"

#include <unistd.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>

static bool in_child;

void finding(const char *format, ...) {
  char text[512];
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  fprintf(stderr, "fuzz: FINDING: %s\n", text);
  if (in_child) _exit(kFindingExit);
  abort();
}

void findings_end_child() { in_child = true; }
