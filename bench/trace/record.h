/* The recorder's entry points that its two files of replaced functions share. */
#ifndef HAKLAB_RECORD_H
#define HAKLAB_RECORD_H

#include <stddef.h>

#define RECORD_EXPORT __attribute__((visibility("default")))

/* Both NULL where the allocator below gives nothing. */
void *record_malloc(size_t size);
void *record_aligned(size_t alignment, size_t size);

#endif
