/* A library whose destructor allocates and frees. The program needs it before the allocator, so with linking in that order
 * it is torn down after; under LD_PRELOAD likewise. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char *kept;

__attribute__((constructor)) static void start(void) { kept = malloc(1234); }

__attribute__((destructor)) static void end(void) {
  free(kept);
  for (size_t size = 1; size < 10000000; size = size * 3 + 1) {
    char *p = malloc(size);
    if (p == NULL) _exit(30);
    p[0] = p[size - 1] = 1;
    free(p);
  }
  const char text[] = "late destructor\n";
  if (write(STDOUT_FILENO, text, sizeof text - 1) < 0) _exit(31);
}

void late_library_is_needed(void) {}
