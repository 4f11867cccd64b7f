// Every internal header of the allocator, for C++ tests.
#ifndef HAKMEM_TESTS_HAK_H
#define HAKMEM_TESTS_HAK_H

extern "C" {
#include "api/api.h"
#include "api/harden.h"
#include "api/init.h"
#include "api/sampling.h"
#include "api/slow_exit.h"
#include "api/thread.h"
#include "arena/arena.h"
#include "base/bits.h"
#include "config/config.h"
#include "guard/foreign.h"
#include "guard/sample.h"
#include "hakmem/hakmem.h"
#include "large/huge.h"
#include "large/extent.h"
#include "large/kept.h"
#include "misuse/deferred.h"
#include "misuse/misuse.h"
#include "os/cpu.h"
#include "os/lock.h"
#include "os/memory_limits.h"
#include "os/os.h"
#include "os/print.h"
#include "pool/budget.h"
#include "pool/meta.h"
#include "pool/span_pool.h"
#include "reclaim/decay.h"
#include "reclaim/purge.h"
#include "profile/profile.h"
#include "region/region.h"
#include "region/size_class.h"
#include "report/report.h"
#include "slab/slab.h"
#include "tcache/counted.h"
#include "tcache/draw.h"
#include "tcache/tcache.h"
}

#endif
