/* The call out of line, in a file of its own, so that the linker can put another one in its place (--wrap). */
#include "os/call.h"

#if HAK_OS_REPLACEABLE
long hak_os_call6(long number, long a, long b, long c, long d, long e, long f) {
  return hak_os_call_inline(number, a, b, c, d, e, f);
}
#endif
