/* Runs a program under a filter of system calls that kills for all but those that docs/deploying.md names as the
 * allocator's, those of glibc's own start and end, and those of the program itself.
 * usage: filtered LIBRARY PROGRAM [ARG...]; the library is preloaded into the program. */
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__x86_64__)
#define THIS_ARCH AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define THIS_ARCH AUDIT_ARCH_AARCH64
#endif

static const int allowed[] = {
    /* the allocator's */
    SYS_mmap, SYS_munmap, SYS_mremap, SYS_mprotect, SYS_madvise, SYS_futex, SYS_clock_gettime, SYS_getrandom,
    SYS_gettid, SYS_membarrier, SYS_openat,
    SYS_read, SYS_close, SYS_rt_sigaction, SYS_rt_sigprocmask, SYS_write, SYS_rt_sigpending, SYS_rt_sigtimedwait,
    SYS_fcntl, SYS_fstat, SYS_newfstatat, SYS_getpid, SYS_memfd_create, SYS_ftruncate, SYS_prlimit64, SYS_clone3,
    SYS_clone, SYS_rseq, SYS_set_robust_list, SYS_prctl, SYS_pread64, SYS_capget,
    SYS_capset, SYS_renameat2, SYS_unlinkat, SYS_readlinkat,
    /* of a program's start and end */
    SYS_execve, SYS_brk, SYS_faccessat, SYS_set_tid_address, SYS_exit_group, SYS_exit,
    /* of the program: its clocks, signals, forks and waits */
    SYS_wait4, SYS_setitimer, SYS_ioctl, SYS_setpriority, SYS_sched_yield, SYS_clock_nanosleep, SYS_rt_sigreturn,
    SYS_tgkill, SYS_restart_syscall, SYS_sched_getaffinity,
#if defined(__x86_64__)
    SYS_access, SYS_arch_prctl, SYS_alarm,
#endif
};

enum { ALLOWED = sizeof allowed / sizeof allowed[0] };

static void filter(void) {
  struct sock_filter code[ALLOWED + 6], *at = code;
  *at++ = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch));
  *at++ = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, THIS_ARCH, 1, 0);
  *at++ = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
  *at++ = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
  for (int i = 0; i < ALLOWED; i++)
    *at++ = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)allowed[i], (unsigned char)(ALLOWED - i), 0);
  *at++ = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
  *at++ = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
  struct sock_fprog program = {(unsigned short)(at - code), code};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0) return;
  perror("filtered: no filter");
  exit(77);
}

int main(int argc, char **argv) {
  if (argc < 3) {
    fprintf(stderr, "usage: %s LIBRARY PROGRAM [ARG...]\n", argv[0]);
    return 2;
  }
  setenv("LD_PRELOAD", argv[1], 1);
  filter();
  execv(argv[2], argv + 2);
  fprintf(stderr, "filtered: %s: %s\n", argv[2], strerror(errno));
  return 2;
}
