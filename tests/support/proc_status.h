/* A line of /proc/self/status, for test programs in C. */
#ifndef HAKMEM_TESTS_PROC_STATUS_H
#define HAKMEM_TESTS_PROC_STATUS_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The number behind `field` (such as "VmSize:"), which the kernel gives in KiB; 0 when there is none. */
static inline size_t proc_status_kib(const char *field) {
  FILE *f = fopen("/proc/self/status", "re");
  char line[256];
  size_t kib = 0, length = strlen(field);
  while (f != NULL && fgets(line, sizeof line, f) != NULL) {
    if (strncmp(line, field, length) == 0) kib = strtoull(line + length, NULL, 10);
  }
  if (f != NULL) fclose(f);
  return kib;
}

#endif
