/* CPUs of the test's making: what the allocator takes for the number of a thread's CPU, and with it which arena the thread uses. */
#ifndef TESTS_STRESS_CPUS_H
#define TESTS_STRESS_CPUS_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* From now on threads are on CPU 0, until they move. After the first allocation, before the first thread. */
void cpus_make_up(void);
void cpus_move_to(uint32_t number);
/* Arenas made so far: one for each number that a thread had, at least. */
uint32_t cpus_arenas(void);

#ifdef __cplusplus
}
#endif

#endif
