#include "os/print.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "os/os.h"

/* "0x7f12" becomes "0x?" wherever it stands; an offset, "+0x12", stays. Whoever starts a setuid program reads its
 * stderr, and is not to learn where its memory lies. Returns the new length. */
static int hide_addresses(char *text) {
  char *to = text;
  for (const char *at = text; *at != '\0';) {
    bool address = at[0] == '0' && at[1] == 'x' && (at == text || at[-1] != '+');
    size_t digits = address ? strspn(at + 2, "0123456789abcdef") : 0;
    if (digits == 0) {
      *to++ = *at++;
      continue;
    }
    memmove(to, "0x?", 3); /* as long as the shortest address */
    to += 3;
    at += 2 + digits;
  }
  *to = '\0';
  return (int)(to - text);
}

/* glibc's vsnprintf allocates only for wide or very long conversions; the callers use neither. */
void hak_print(const char *format, ...) {
  int saved = errno;
  char buf[1024];
  va_list args;
  va_start(args, format);
  int n = vsnprintf(buf, sizeof buf, format, args);
  va_end(args);
  if (n < 0) buf[n = 0] = '\0';
  if ((unsigned)n >= sizeof buf) {
    n = (int)sizeof buf - 1;
    buf[n - 1] = '\n'; /* the next message begins a line */
  }
  if (HAK_UNLIKELY(hak_os_has_more_rights())) n = hide_addresses(buf);
  hak_os_write_stderr(buf, (size_t)n);
  errno = saved;
}

void hak_assert_failed(const char *condition, const char *file, int line) {
  hak_print("hakmem: %s:%d: does not hold: %s\n", file, line, condition);
  abort();
}
