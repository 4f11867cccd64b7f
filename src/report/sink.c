#include "report/sink.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "os/os.h"

#define TO_MEMORY (-1)
#define TO_STDERR (-2)
#define COMMIT_BYTES (256 * HAK_KIB)

static void start(hak_sink *s, int fd, char *memory, size_t bytes) {
  HAK_ASSERT(memory != NULL || bytes == 0);
  s->fd = fd;
  s->start = s->at = memory;
  s->end = s->limit = memory + bytes;
  s->ready = NULL;
  s->error = 0;
  s->comma = false;
}

void hak_sink_to_fd(hak_sink *s, int fd) {
  start(s, fd, s->buffer, sizeof s->buffer);
  if (fd < 0) s->error = EBADF;
}

void hak_sink_to_stderr(hak_sink *s) { start(s, TO_STDERR, s->buffer, sizeof s->buffer); }

void hak_sink_to_memory(hak_sink *s, char *memory, size_t bytes) { start(s, TO_MEMORY, memory, bytes); }

void hak_sink_to_reservation(hak_sink *s, char *memory, size_t bytes, size_t *ready) {
  start(s, TO_MEMORY, memory, *ready);
  s->limit = memory + bytes;
  s->ready = ready;
}

/* *ready first: a signal handler may fork in between, and the child makes so much accessible. */
static void lengthen(hak_sink *s) {
  HAK_ASSERT(s->at == s->end && (s->ready != NULL ? s->end <= s->limit : s->end == s->limit));
  size_t more = hak_min_size(COMMIT_BYTES, (size_t)(s->limit - s->end));
  if (more == 0) {
    s->error = ENOSPC;
    return;
  }
  *s->ready += more;
  char *page = (char *)hak_align_down((uintptr_t)s->end, hak_os_page_size());
  if (hak_os_commit(page, (size_t)(s->end + more - page))) {
    s->end += more;
    return;
  }
  *s->ready -= more;
  s->error = ENOMEM;
}

static void empty(hak_sink *s) {
  HAK_ASSERT(s->start <= s->at && s->at <= s->end);
  size_t length = (size_t)(s->at - s->start);
  if (s->error != 0) return;
  if (s->fd == TO_MEMORY) {
    lengthen(s);
    return;
  }
  if (length == 0) return;
  if (s->fd == TO_STDERR)
    hak_os_write_stderr(s->start, length);
  else
    s->error = hak_os_write(s->fd, s->start, length);
  s->at = s->start;
}

int hak_sink_finish(hak_sink *s) {
  if (s->fd != TO_MEMORY) empty(s);
  return s->error;
}

static void put(hak_sink *s, char c) {
  if (s->at == s->end) empty(s);
  if (s->error == 0) *s->at++ = c;
}

void hak_sink_text(hak_sink *s, const char *text) {
  while (*text != '\0') put(s, *text++);
}

void hak_sink_print(hak_sink *s, const char *format, ...) {
  char text[128];
  va_list values;
  va_start(values, format);
  int length = vsnprintf(text, sizeof text, format, values);
  va_end(values);
  HAK_ASSERT(length >= 0 && (size_t)length < sizeof text);
  hak_sink_text(s, text);
}

void hak_sink_bytes(hak_sink *s, const void *bytes, size_t count) {
  for (size_t i = 0; i < count; i++) put(s, ((const char *)bytes)[i]);
}

static void put_digits(hak_sink *s, uint64_t value, unsigned base, unsigned width) {
  char digits[20];
  unsigned n = 0;
  do digits[n++] = "0123456789abcdef"[value % base];
  while ((value /= base) != 0);
  HAK_ASSERT(n <= sizeof digits);
  for (unsigned i = n; i < width; i++) put(s, ' ');
  while (n > 0) put(s, digits[--n]);
}

void hak_sink_column(hak_sink *s, uint64_t value, unsigned width) { put_digits(s, value, 10, width); }

void hak_sink_hex(hak_sink *s, uint64_t value) { put_digits(s, value, 16, 0); }

void hak_sink_number(hak_sink *s, uint64_t value) { hak_sink_column(s, value, 0); }

static void begin(hak_sink *s, const char *name) {
  if (s->comma) put(s, ',');
  s->comma = true;
  if (name == NULL) return;
  put(s, '"');
  hak_sink_text(s, name);
  hak_sink_text(s, "\":");
}

void hak_sink_open(hak_sink *s, const char *name, char bracket) {
  HAK_ASSERT(bracket == '{' || bracket == '[');
  begin(s, name);
  put(s, bracket);
  s->comma = false;
}

void hak_sink_close(hak_sink *s, char bracket) {
  HAK_ASSERT(bracket == '}' || bracket == ']');
  put(s, bracket);
  s->comma = true;
}

void hak_sink_member(hak_sink *s, const char *name, uint64_t value) {
  begin(s, name);
  if (value == HAK_UNKNOWN)
    hak_sink_text(s, "null");
  else
    hak_sink_number(s, value);
}

void hak_sink_bool(hak_sink *s, const char *name, bool value) {
  begin(s, name);
  hak_sink_text(s, value ? "true" : "false");
}

unsigned hak_utf8_length(const char *text) {
  const unsigned char *c = (const unsigned char *)text;
  unsigned length = *c < 0x80 ? 1 : *c < 0xc2 ? 0 : *c < 0xe0 ? 2 : *c < 0xf0 ? 3 : *c < 0xf5 ? 4 : 0;
  for (unsigned i = 1; i < length; i++)
    if ((c[i] & 0xc0) != 0x80) return 0;
  bool longer = (*c == 0xe0 && c[1] < 0xa0) || (*c == 0xf0 && c[1] < 0x90); /* than it has to be */
  /* No character: halves of UTF-16, and beyond the last */
  bool none = (*c == 0xed && c[1] > 0x9f) || (*c == 0xf4 && c[1] > 0x8f);
  return longer || none ? 0 : length;
}

void hak_sink_string(hak_sink *s, const char *name, const char *text) {
  static const char digits[] = "0123456789abcdef";
  begin(s, name);
  put(s, '"');
  while (*text != '\0') {
    unsigned char c = (unsigned char)*text;
    unsigned length = hak_utf8_length(text);
    if (c < ' ' || length == 0) {
      hak_sink_text(s, "\\u00");
      put(s, digits[c >> 4]);
      put(s, digits[c & 15]);
      text++;
      continue;
    }
    if (c == '"' || c == '\\') put(s, '\\');
    hak_sink_bytes(s, text, length);
    text += length;
  }
  put(s, '"');
}

void hak_sink_members(hak_sink *s, const hak_member *m) {
  for (; m->name != NULL; m++) hak_sink_member(s, m->name, m->value);
}

void hak_sink_object(hak_sink *s, const char *name, const hak_member *m) {
  hak_sink_open(s, name, '{');
  hak_sink_members(s, m);
  hak_sink_close(s, '}');
}
