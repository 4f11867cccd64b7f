#include "api/forbid.h"

#include <errno.h>
#include <stdlib.h>

#include "guard/sample.h"
#include "os/os.h"
#include "os/print.h"
#include "profile/unwind.h"
#include "tcache/tcache.h"

#define FRAMES 32
#define REPORTS_MOST 1000

static uint32_t reports; /* relaxed */

/* libc may allocate for the report, which is no call of the program's: the scope is lifted meanwhile. */
HAK_COLD void hak_forbid_report(const char *call, const void *p, size_t size) {
  uint32_t number = hak_add_relaxed(&reports, 1);
  bool ends = hak_load_relaxed(&hak_config.forbid) == HAK_FORBID_ABORT;
  if (number >= REPORTS_MOST && !ends) return;
  int saved = errno;
  hak_tcache_take_back();
  uintptr_t frames[FRAMES];
  unsigned depth = hak_unwind(frames, FRAMES);
  if (p != NULL)
    hak_print("hakmem: forbidden %s of %p [process %d, thread %d]\n", call, p, hak_os_pid(), hak_os_tid());
  else
    hak_print("hakmem: forbidden %s of %zu bytes [process %d, thread %d]\n", call, size, hak_os_pid(), hak_os_tid());
  hak_sample_print_frames(frames, depth);
  if (number + 1 == REPORTS_MOST) hak_print("hakmem: forbidden calls: no more are reported\n");
  if (ends) abort();
  hak_tcache_put_aside();
  errno = saved;
}
