#include "os/cpu.h"

#include <sched.h>
#include <sys/auxv.h>
#include <unistd.h>

#include "base/bits.h"
#include "os/call.h"
#include "os/lock.h"

/* glibc 2.35 and later; absent elsewhere. */
extern const ptrdiff_t __rseq_offset __attribute__((weak));
extern const unsigned int __rseq_size __attribute__((weak));

/* struct rseq of the kernel's ABI. */
#define RSEQ_CPU_ID 4
#define RSEQ_MM_CID 24
#define RSEQ_MM_CID_END 28
#ifndef AT_RSEQ_FEATURE_SIZE
#define AT_RSEQ_FEATURE_SIZE 27
#endif

#define L2_USUAL (512 * HAK_KIB)

ptrdiff_t hak_os_cpu_offset;
size_t hak_os_l2_bytes = L2_USUAL;

static uint32_t cpus, threads_seen; /* relaxed; cpus 0: not asked for yet */

void hak_os_cpu_start(void) {
  long l2 = sysconf(_SC_LEVEL2_CACHE_SIZE);
  if (l2 > 0) hak_os_l2_bytes = (size_t)l2;
  if (&__rseq_offset == NULL || &__rseq_size == NULL || __rseq_size == 0) return;
  int has_cid = getauxval(AT_RSEQ_FEATURE_SIZE) >= RSEQ_MM_CID_END;
  hak_os_cpu_offset = __rseq_offset + (has_cid ? RSEQ_MM_CID : RSEQ_CPU_ID);
}

static uint32_t count_cpus(void) {
  cpu_set_t set;
  CPU_ZERO(&set);
  hak_os_call(SYS_sched_getaffinity, 0, sizeof set, &set);
  return (uint32_t)hak_max_size((size_t)CPU_COUNT(&set), 1);
}

uint32_t hak_os_cpu_count(void) {
  if (hak_load_relaxed(&cpus) == 0) hak_store_relaxed(&cpus, count_cpus());
  return hak_load_relaxed(&cpus);
}

#define NUMBERS_MOST UINT16_MAX
static HAK_TLS uint16_t number; /* 0: none yet */

uint32_t hak_os_cpu_slow(void) {
  uint32_t most = (uint32_t)hak_min_size(hak_os_cpu_count(), NUMBERS_MOST);
  if (number == 0) number = (uint16_t)(1 + hak_add_relaxed(&threads_seen, 1) % most);
  return number - 1u;
}

/* Any thread-local address tells threads apart; glibc has little room for a library's that dlopen loads. */
const void *hak_thread_mark(void) { return &number; }
