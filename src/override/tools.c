/* Says in one line at the start where a tool has to serve malloc itself: a sanitizer that the program is built with, or
 * one of valgrind's tools, which takes malloc over by itself. Of the shared library alone. */
#include <stddef.h>
#include <string.h>

#include "hakmem/hakmem.h"
#include "entry/totals.h"
#include "os/os.h"
#include "os/print.h"
#include "override/serves.h"

/* Of the sanitizers' runtimes. Sanitizers without a malloc (UBSan) have none of these. */
extern void __asan_init(void) __attribute__((weak));
extern void __hwasan_init(void) __attribute__((weak));
extern void __lsan_init(void) __attribute__((weak));
extern void __msan_init(void) __attribute__((weak));
extern void __tsan_init(void) __attribute__((weak));

/* jemalloc's; libhakmem-je.so has one of its own. */
extern int mallctl(const char *name, void *old, size_t *old_bytes, void *fresh, size_t fresh_bytes)
    __attribute__((weak));

typedef struct line {
  const char *text;
  size_t length;
} line;
#define LINE(text) {text, sizeof(text) - 1}
#define BUILT_WITH(name) \
  {LINE("hakmem: the program is built with " name ": hakmem leaves malloc to it\n"), \
   LINE("hakmem: the program is built with " name ", which needs a malloc of its own: start it without hakmem\n")}

static const struct {
  void (*start)(void);
  /* Where the program has the runtime in it, and where the loader has put this library before the runtime */
  line said[2];
} sanitizers[] = {
    {__asan_init, BUILT_WITH("AddressSanitizer")}, {__hwasan_init, BUILT_WITH("HWAddressSanitizer")},
    {__tsan_init, BUILT_WITH("ThreadSanitizer")},  {__msan_init, BUILT_WITH("MemorySanitizer")},
    {__lsan_init, BUILT_WITH("LeakSanitizer")},
};

/* Valgrind preloads a library of the tool's into the program, where the tool replaces malloc: memcheck, massif, dhat,
 * helgrind, drd. */
static bool valgrind_serves(char **variables) {
  static const char preloads[] = "LD_PRELOAD=", own[] = "/vgpreload_", every_tools[] = "core-";
  for (char **e = variables; e != NULL && *e != NULL; e++) {
    if (strncmp(*e, preloads, sizeof preloads - 1) != 0) continue;
    for (const char *at = *e; (at = strstr(at, own)) != NULL;) {
      at += sizeof own - 1;
      if (strncmp(at, every_tools, sizeof every_tools - 1) != 0) return true;
    }
  }
  return false;
}

/* Before the allocator's own (life/init.c), and without a function of libc where there is a sanitizer: it replaces most
 * of them, and AddressSanitizer ends a program in which this library comes before it at the first one called. */
__attribute__((constructor(101))) static void say(int argc, char **argv, char **variables) {
  (void)argc, (void)argv;
  for (size_t i = 0; i < sizeof sanitizers / sizeof sanitizers[0]; i++) {
    if (sanitizers[i].start == NULL) continue;
    const line *said = &sanitizers[i].said[hak_override_serves()];
    hak_os_write_stderr(said->text, said->length);
    return;
  }
  if (valgrind_serves(hak_os_environment(variables)))
    hak_print("hakmem: the program runs under valgrind: hakmem leaves malloc to it\n");
}

/* A program that is linked to jemalloc asks it by mallctl what this library does not tell: few KB, and alarms for
 * nothing. Who looks at figures, or sits at a terminal, is told. After life/init.c, which is linked before: the
 * settings are known. */
__attribute__((constructor)) static void name_interface(void) {
  if (HAK_TOTALS || mallctl == NULL || !hak_override_serves()) return;
  int64_t stats = 0, verbose = 0;
  hakmem_option_get("HAKMEM_STATS", &stats);
  hakmem_option_get("HAKMEM_VERBOSE", &verbose);
  if (stats == 0 && verbose == 0 && !hak_os_is_terminal(2)) return;
  hak_print(
      "hakmem: the program has jemalloc's mallctl, which tells nothing of hakmem's memory: libhakmem-je.so answers it "
      "(docs/migrating.md)\n");
}
