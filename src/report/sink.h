/* Where a report is written: a descriptor, through a small buffer, or memory, which may become accessible as it is
 * needed. Numbers and text; nothing allocates. */
#ifndef HAK_REPORT_SINK_H
#define HAK_REPORT_SINK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "os/print.h"

typedef struct hak_sink {
  int fd;           /* -1: memory */
  char *at, *end;   /* where the next byte goes, and the end of what there is */
  char *start;      /* of the memory, or of the buffer */
  char *limit;      /* memory: up to here more can be made accessible */
  size_t *ready;    /* memory: bytes that are accessible */
  int error;        /* errno value of a write that failed; ENOSPC: the memory is too small. What follows is dropped */
  bool comma;       /* JSON: something stands before the next member */
  char buffer[512]; /* unused for memory */
} hak_sink;

void hak_sink_to_fd(hak_sink *sink, int fd);
void hak_sink_to_stderr(hak_sink *sink); /* as hak_print: to the kept one, at exit */
void hak_sink_to_memory(hak_sink *sink, char *memory, size_t bytes);
/* To `bytes` of a reservation from `memory` on, of which *ready_bytes are accessible: the sink commits more when those
 * are full, and counts in *ready_bytes what it is about to commit. */
void hak_sink_to_reservation(hak_sink *sink, char *memory, size_t bytes, size_t *ready_bytes);
/* Writes what is buffered; 0 or the first error. */
int hak_sink_finish(hak_sink *sink);

void hak_sink_text(hak_sink *sink, const char *text);
void hak_sink_print(hak_sink *sink, const char *format, ...) HAK_PRINTF(2, 3); /* at most 127 bytes */
void hak_sink_bytes(hak_sink *sink, const void *bytes, size_t count);
void hak_sink_number(hak_sink *sink, uint64_t value);
void hak_sink_hex(hak_sink *sink, uint64_t value);
/* Right-aligned in so many columns. */
void hak_sink_column(hak_sink *sink, uint64_t value, unsigned width);

/* JSON. name NULL: an element of a list. HAK_UNKNOWN is written as null. */
#define HAK_UNKNOWN UINT64_MAX
void hak_sink_open(hak_sink *sink, const char *name, char bracket);
void hak_sink_close(hak_sink *sink, char bracket);
void hak_sink_member(hak_sink *sink, const char *name, uint64_t value);
void hak_sink_bool(hak_sink *sink, const char *name, bool value);
/* Any bytes; those that are no UTF-8 as \u0080 to \u00ff */
void hak_sink_string(hak_sink *sink, const char *name, const char *text);

/* Several members, which texts write too. */
typedef struct hak_member {
  const char *name; /* NULL: the last one */
  uint64_t value;
} hak_member;
#define HAK_MEMBERS(...) (const hak_member[]){__VA_ARGS__, {NULL, 0}}
#define HAK_FIELD(object, field) {#field, (object)->field} /* named like the field of a structure */
void hak_sink_members(hak_sink *sink, const hak_member *members);
void hak_sink_object(hak_sink *sink, const char *name, const hak_member *members);

/* Bytes of the character of UTF-8 that the text begins with; 0: it begins with none. */
unsigned hak_utf8_length(const char *text);

#endif
