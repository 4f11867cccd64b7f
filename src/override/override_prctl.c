/* prctl: a process that is about to shut itself in a filter of system calls says so, by PR_SET_SECCOMP, or by
 * PR_SET_NO_NEW_PRIVS, without which only root may set one. From the library's own calls nothing could tell: the call
 * that asks for a filter, PR_GET_SECCOMP, may be one that ends the process, and in a container it always says that
 * there is one. A child of vfork that says so before it executes a program says it for its parent too, which then makes
 * fewer calls than it may. */
#include <errno.h>
#include <stdarg.h>
#include <sys/prctl.h>

#include "entry/entry.h"
#include "os/call.h"
#include "os/memory_limits.h"
#include "os/os.h"

static bool enters_filter(int option, unsigned long value) {
  return option == PR_SET_SECCOMP || (option == PR_SET_NO_NEW_PRIVS && value == 1);
}

HAK_EXPORT int prctl(int option, ...) {
  unsigned long values[4];
  va_list list;
  va_start(list, option);
  for (int i = 0; i < 4; i++) values[i] = va_arg(list, unsigned long);
  va_end(list);
  bool enters = enters_filter(option, values[0]) && !hak_os_is_confined();
  if (enters) {
    hak_os_commit_is_limited(); /* is known from then on */
    hak_os_confine(hak_asks_for_files());
  }
  long result = hak_os_call(SYS_prctl, option, values[0], values[1], values[2], values[3]);
  if (!hak_os_call_failed(result)) return (int)result;
  if (enters) hak_os_leave_confinement();
  errno = (int)-result;
  return -1;
}
