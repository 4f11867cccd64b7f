#include "cpus.h"

#include "arena/arena.h"
#include "os/cpu.h"

static _Thread_local uint32_t number;

void cpus_make_up(void) { hak_os_cpu_offset = (char *)&number - (char *)hak_thread_pointer(); }

void cpus_move_to(uint32_t to) { number = to; }

uint32_t cpus_arenas(void) { return hak_arena_count(); }
