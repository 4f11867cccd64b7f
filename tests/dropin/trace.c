// Writes what a program asks of jemalloc's own interface to the file DROPIN_TRACE, a line a call; preloaded.
//
// "served by LIBRARY" for each process that has one, "mallctl NAME -> ERROR VALUE" for a call by name, "mib NAME" for a name looked up, "uses FUNCTION" at the first call of the
// others. Lines are written whole with O_APPEND, so processes share the file; nothing here allocates.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void tell(const char *format, ...) {
  const char *path = getenv("DROPIN_TRACE");
  char line[400];
  va_list values;
  va_start(values, format);
  int length = vsnprintf(line, sizeof line, format, values);
  va_end(values);
  int file = path ? open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666) : -1;
  if (file < 0) return;
  if (write(file, line, (size_t)length < sizeof line ? (size_t)length : sizeof line - 1) < 0) _exit(99);
  close(file);
}

static void *next(const char *name) {
  void *found = dlsym(RTLD_NEXT, name);
  if (found == NULL) tell("uses %s: NOT THERE\n", name), abort();
  return found;
}

__attribute__((constructor)) static void tell_library(void) {
  Dl_info found;
  void *real = dlsym(RTLD_NEXT, "mallctl");
  if (real != NULL && dladdr(real, &found) != 0) tell("served by %s\n", found.dli_fname);
}

int mallctl(const char *name, void *old, size_t *old_length, void *given, size_t given_length) {
  static int (*real)(const char *, void *, size_t *, void *, size_t);
  if (real == NULL) real = next("mallctl");
  int error = real(name, old, old_length, given, given_length);
  uint64_t value = 0;
  bool is_read = error == 0 && old != NULL && old_length != NULL && *old_length <= sizeof value;
  if (is_read) memcpy(&value, old, *old_length);
  tell(is_read ? "mallctl %s -> %d %llu\n" : "mallctl %s -> %d\n", name, error, (unsigned long long)value);
  return error;
}

int mallctlnametomib(const char *name, size_t *mib, size_t *length) {
  static int (*real)(const char *, size_t *, size_t *);
  if (real == NULL) real = next("mallctlnametomib");
  int error = real(name, mib, length);
  tell("mib %s -> %d\n", name, error);
  return error;
}

// A function of the library, which is called through; its first call is told.
#define THROUGH(type, name, parameters, ...)           \
  type name parameters {                               \
    static type(*real) parameters;                     \
    if (real == NULL) {                                \
      real = next(#name);                              \
      tell("uses %s\n", #name);                        \
    }                                                  \
    return real(__VA_ARGS__);                          \
  }
typedef void written_t(void *, const char *);
THROUGH(int, mallctlbymib, (const size_t *mib, size_t n, void *old, size_t *length, void *given, size_t size), mib, n, old,
        length, given, size)
THROUGH(void, malloc_stats_print, (written_t * write_text, void *with, const char *options), write_text, with, options)
THROUGH(void *, mallocx, (size_t size, int flags), size, flags)
THROUGH(void *, rallocx, (void *block, size_t size, int flags), block, size, flags)
THROUGH(size_t, xallocx, (void *block, size_t size, size_t extra, int flags), block, size, extra, flags)
THROUGH(size_t, sallocx, (const void *block, int flags), block, flags)
THROUGH(void, dallocx, (void *block, int flags), block, flags)
THROUGH(void, sdallocx, (void *block, size_t size, int flags), block, size, flags)
THROUGH(size_t, nallocx, (size_t size, int flags), size, flags)
