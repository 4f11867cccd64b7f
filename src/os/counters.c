/* What the boxes above and below count. */
#include "base/atomic.h"
#include "base/compiler.h"
#include "os/os.h"

/* In .data: `hakmem run` reads it out of programs that are just being loaded. The loader clears .bss after it has
 * mapped it; until then it reads as what follows .data in the file. */
HAK_ALIGNED(HAK_CACHE_LINE) __attribute__((section(".data"))) struct hak_os_stats hak_os_stats;

void hak_os_count(uint64_t *counter) { hak_add_relaxed(counter, 1); }
