/* Of the archive alone: the constructor runs before those of shared libraries too, as the shared library's does. The
 * linker takes this file where it is asked to (--undefined=hakmem_first), which only programs may ask: a library cannot
 * have a .preinit_array. */
#include "life/init.h"

__attribute__((section(".preinit_array"), used)) void (*const hakmem_first)(int, char **, char **) = hak_start_first;
