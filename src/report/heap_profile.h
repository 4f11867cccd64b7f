/* Heap profiles as files: what profile/ has recorded, in the formats that tools read. */
#ifndef HAK_REPORT_HEAP_PROFILE_H
#define HAK_REPORT_HEAP_PROFILE_H

#include "report/sink.h"

/* The words of HAKMEM_HEAP_PROFILE_FORMAT, and hakmem_profile_dump's kinds. */
typedef enum hak_profile_format {
  HAK_PROFILE_PPROF,
  HAK_PROFILE_JEMALLOC,
  HAK_PROFILE_JSON,
  HAK_PROFILE_PROTO
} hak_profile_format;

#define HAK_PROFILE_WITHOUT_FILES 0x10000u /* JSON: without what lies in files, the program's path and mappings */

/* Writes the profile as of now; what: bits of HAKMEM_PROFILE_LIVE … (hakmem.h). Sampled allocations and frees of other
 * threads wait meanwhile. */
void hak_heap_profile_render(hak_sink *sink, hak_profile_format format, unsigned what);
/* The same into memory, which is then given away whole, under no lock. 0, or ENOMEM, or what `give` says. */
int hak_heap_profile_give(hak_profile_format format, unsigned what,
                          int (*give)(void *context, const void *data, size_t bytes), void *context);
/* The same into a file, which has its name only when it is whole; a pipe, a device or a link is written to. 0 or an
 * errno value. */
int hak_heap_profile_write(const char *path, hak_profile_format format);

/* pprof.c: pprof's message, profile.proto, uncompressed. Takes the profile's lock for the samples. The sink's error is
 * ENOMEM where there is no memory to count the addresses in. */
void hak_pprof_render(hak_sink *sink, unsigned what);
/* Of what the profile knows, for comments: "of what was allocated since …", behind a prefix. */
#define HAK_SINCE_BYTES 120
void hak_pprof_since(const char *prefix, char text[HAK_SINCE_BYTES]);

#endif
