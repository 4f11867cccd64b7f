/* Heap profiles as pprof's message, profile.proto, uncompressed. */
#ifndef HAK_REPORT_PPROF_H
#define HAK_REPORT_PPROF_H

#include "report/sink.h"

/* Writes the profile as of now; what: bits of HAKMEM_PROFILE_LIVE … (hakmem.h). Takes the profile's lock for the samples. The sink's error is
 * ENOMEM where there is no memory to count the addresses in. */
void hak_pprof_render(hak_sink *sink, unsigned what);
/* Of what the profile knows, for comments: "of what was allocated since …". */
void hak_pprof_since(hak_sink *sink);

#endif
