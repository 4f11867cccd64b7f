/* dlopen, of the shared library alone: RTLD_DEEPBIND is left out while malloc is ours (decision 026). A library opened
 * with it has libc's malloc and free, and ends the program when it frees a block of ours. */
#include <dlfcn.h>
#include <stdlib.h>

#include "entry/entry.h"
#include "os/print.h"

#ifndef RTLD_DEEPBIND
#define RTLD_DEEPBIND 0 /* musl has none */
#endif

enum { MASK, QUIET, KEEP }; /* the words of HAKMEM_DEEPBIND */

typedef void *opener(const char *file, int mode);

/* By what it returns: in a program that is not position-independent the address of malloc is one of its own. */
static bool malloc_is_ours(void) {
  void *p = malloc(1);
  bool ours = hakmem_is_ours(p);
  free(p);
  return ours;
}

static HAK_COLD int without_deepbind(const char *file, int mode) {
  static bool said;
  int64_t wanted = MASK;
  hakmem_option_get("HAKMEM_DEEPBIND", &wanted);
  if (file == NULL || (mode & RTLD_NOLOAD) != 0 || wanted == KEEP || !malloc_is_ours()) return mode;
  if (wanted == MASK && !__atomic_exchange_n(&said, true, __ATOMIC_RELAXED))
    hak_print(
        "hakmem: %s is loaded without RTLD_DEEPBIND, to have the program's malloc (HAKMEM_DEEPBIND=quiet: not said, "
        "keep: not done)\n",
        file);
  return mode & ~RTLD_DEEPBIND;
}

/* dlopen looks for a library as its caller would (RUNPATH, $ORIGIN, namespace), which it tells by its return address:
 * the call has to be a jump, in debug builds too. */
HAK_EXPORT __attribute__((optimize("O2"))) void *dlopen(const char *file, int mode) {
  /* libc's, or that of another preloaded library. Each time anew: kept, it would be a pointer to code in writable
   * memory. */
  opener *next = (opener *)dlsym(RTLD_NEXT, "dlopen");
  if (HAK_UNLIKELY((mode & RTLD_DEEPBIND) != 0)) mode = without_deepbind(file, mode);
  return next == NULL ? NULL : next(file, mode);
}
