/* Work for the allocator that takes each of its ways to the system, in parts by name, for runs in which the system
 * refuses. A part allocates through the table below, verifies every block, and frees all it got. Its threads take
 * turns, so that the system is called in the same order each time. */
#ifndef TESTS_FAULTS_LOAD_H
#define TESTS_FAULTS_LOAD_H

#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct faults_api {
  void *(*malloc)(size_t size);
  void *(*calloc)(size_t count, size_t size);
  void *(*realloc)(void *p, size_t size);
  void *(*aligned_alloc)(size_t alignment, size_t size);
  int (*posix_memalign)(void **out, size_t alignment, size_t size);
  void (*free)(void *p);
  int (*malloc_trim)(size_t pad);
  size_t (*usable_size)(void *p);
  size_t (*heap_check)(void);
  void (*pass_time)(unsigned ms); /* NULL: the clock is the system's, and nobody waits for it */
} faults_api;

/* The allocator that is preloaded or linked as a shared library, under the C names. Ends the program with status 3
 * where there is none. */
const faults_api *faults_api_of_libc_names(void);

/* Name of the i-th part, NULL behind the last one. */
const char *faults_load_name(size_t i);

/* Runs one part. may_fail: NULL with ENOMEM is an answer; otherwise every request has to be served. Wrong contents, a
 * wrong errno, a block that is not as asked for, faults in the heap: each is printed to stderr and counted. Returns
 * their number; a name that is none is one. */
int faults_run_load(const faults_api *api, const char *name, bool may_fail);

#ifdef __cplusplus
}
#endif
#endif
