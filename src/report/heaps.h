/* A line for each heap, in the JSON and in the text. Each is of a moment of its own. No state and no lock of its own, no memory but the caller's
 * stack: heaps come and go while others are written. */
#ifndef HAK_REPORT_HEAPS_H
#define HAK_REPORT_HEAPS_H

#include "report/sink.h"

#define HAK_HEAPS_IN_PAGE 100
#define HAK_HEAPS_IN_TEXT 20

/* The members `heaps` and `heaps_left_out`: all heaps; `in_page`: the largest, with the heaps below them: one that has a
 * limit for others is not hidden by them. Oldest first. */
void hak_heaps_json(hak_sink *sink, bool in_page);
/* A table of the largest in this sense; nothing where there is no heap. */
void hak_heaps_text(hak_sink *sink);

#endif
