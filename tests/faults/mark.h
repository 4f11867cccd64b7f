/* How a program under `inject` says that failures may begin or have to end: a system call that changes nothing. */
#ifndef TESTS_FAULTS_MARK_H
#define TESTS_FAULTS_MARK_H

#include <stdbool.h>
#include <sys/syscall.h>
#include <unistd.h>

#define FAULTS_MARK_CALL SYS_getppid
#define FAULTS_MARK 0x68616b6dU /* first argument; getppid has none of its own */

static inline void faults_mark(bool begin) { syscall(FAULTS_MARK_CALL, FAULTS_MARK, (unsigned long)begin); }

#endif
