#include "os/print.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/assert.h"
#include "os/os.h"

/* glibc's vsnprintf allocates only for wide or very long conversions; the callers use neither. */
void hak_print(const char *format, ...) {
  int saved = errno;
  char buf[1024];
  va_list args;
  va_start(args, format);
  int n = vsnprintf(buf, sizeof buf, format, args);
  va_end(args);
  if (n < 0) n = 0;
  if ((unsigned)n >= sizeof buf) {
    n = (int)sizeof buf - 1;
    buf[n - 1] = '\n'; /* the next message begins a line */
  }
  hak_os_write_stderr(buf, (size_t)n);
  errno = saved;
}

void hak_assert_failed(const char *condition, const char *file, int line) {
  hak_print("hakmem: %s:%d: does not hold: %s\n", file, line, condition);
  abort();
}
