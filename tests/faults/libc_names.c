/* The table for programs that get the allocator by preloading. */
#include <dlfcn.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>

#include "load.h"

const faults_api *faults_api_of_libc_names(void) {
  static faults_api api = {
      .malloc = malloc,
      .calloc = calloc,
      .realloc = realloc,
      .aligned_alloc = aligned_alloc,
      .posix_memalign = posix_memalign,
      .free = free,
      .malloc_trim = malloc_trim,
      .usable_size = malloc_usable_size,
  };
  api.heap_check = (size_t(*)(void))dlsym(RTLD_DEFAULT, "hakmem_heap_check");
  if (api.heap_check == NULL) {
    fputs("the allocator under test is not loaded\n", stderr);
    exit(3);
  }
  return &api;
}
