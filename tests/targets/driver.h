/* Shared by the files of the driver. */
#ifndef TESTS_TARGETS_DRIVER_H
#define TESTS_TARGETS_DRIVER_H

#include "hakmem/hakmem.h"
#include "shadow.h"

#define THREADS_MAX 16

struct settings {
  uint64_t seed;
  size_t steps, threads, page_size;
};
extern struct settings settings;

/* Walks the heap; fails the test when something is wrong. No other thread may use the allocator meanwhile. */
void check_heap(const char *when);

/* Threads with maps of their own that hand blocks to one another. */
void part_threads(void);
/* Threads that end and leave their blocks to others, on small stacks, with a destructor that allocates. */
void part_exits(void);
/* fork while threads allocate; the children use what they inherited, start a thread and allocate on. */
void part_fork(void);

#endif
