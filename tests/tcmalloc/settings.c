/* What a program that is written to tcmalloc can set, and what it is then. */
#include <malloc.h>
#include <stdio.h>

#include "hakmem/hakmem.h"

int MallocExtension_GetNumericProperty(const char *property, size_t *value);
int MallocExtension_SetNumericProperty(const char *property, size_t value);
void MallocExtension_SetMemoryReleaseRate(double rate);

int main(void) {
  size_t limit = 0;
  int64_t ms = -1;
  MallocExtension_SetMemoryReleaseRate(5);
  mallopt(M_TRIM_THRESHOLD, -1);
  int decommit = MallocExtension_SetNumericProperty("tcmalloc.aggressive_memory_decommit", 1);
  int limited = MallocExtension_SetNumericProperty("tcmalloc.heap_limit_mb", 256);
  MallocExtension_GetNumericProperty("tcmalloc.heap_limit_mb", &limit);
  hakmem_option_get("DECAY_MS", &ms);
  printf("decommit %d limit %d decay %d limit_mb %zu\n", decommit, limited, (int)ms, limit);
  return 0;
}
