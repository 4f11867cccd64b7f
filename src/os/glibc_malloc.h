/* <malloc.h> as glibc 2.33 has it. Other C libraries (musl) lack the types and numbers of glibc's statistics, and older
 * glibc lacks mallinfo2; those are declared here, so that every function exists under each C library and no other file
 * asks which one it is. */
#ifndef HAK_OS_GLIBC_MALLOC_H
#define HAK_OS_GLIBC_MALLOC_H

#include <malloc.h>
#include <stddef.h>

#ifndef __GLIBC__
#define HAK_LACKS_MALLINFO2 1
#elif !__GLIBC_PREREQ(2, 33)
#define HAK_LACKS_MALLINFO2 1
#endif

#ifdef HAK_LACKS_MALLINFO2
struct mallinfo2 {
  size_t arena, ordblks, smblks, hblks, hblkhd, usmblks, fsmblks, uordblks, fordblks, keepcost;
};
/* <hakmem/hakmem.h> declares it only where glibc has the type. */
struct mallinfo2 hakmem_mallinfo2(void);
#endif

#ifndef __GLIBC__

struct mallinfo {
  int arena, ordblks, smblks, hblks, hblkhd, usmblks, fsmblks, uordblks, fordblks, keepcost;
};

#define M_MXFAST 1
#define M_TRIM_THRESHOLD (-1)
#define M_TOP_PAD (-2)
#define M_MMAP_THRESHOLD (-3)
#define M_MMAP_MAX (-4)
#define M_CHECK_ACTION (-5)
#define M_PERTURB (-6)
#define M_ARENA_TEST (-7)
#define M_ARENA_MAX (-8)

struct mallinfo hakmem_mallinfo(void);

#endif
#endif
