/* What a walk up the stack has to know of the machine: its registers, how a signal handler's frame looks. Nothing here
 * allocates, locks or touches errno. */
#ifndef HAK_OS_STACK_H
#define HAK_OS_STACK_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <ucontext.h>

#include "base/compiler.h"

/* The registers that are followed. All but the last are saved by the function that changes them: the frame pointer, the
 * one that holds the return address (x86-64 has none; its number stands for the return address on the stack) and one
 * that assembly code of libc uses in place of the frame pointer (_dl_runtime_resolve of x86-64). */
enum { HAK_REGISTER_FP, HAK_REGISTER_RA, HAK_REGISTER_OTHER, HAK_REGISTER_SP, HAK_REGISTERS };

typedef struct hak_registers {
  uintptr_t pc;
  uintptr_t at[HAK_REGISTERS];
} hak_registers;

#if defined(__x86_64__)

/* Of DWARF's numbers in the x86-64 ABI; HAK_REGISTERS: not followed. */
HAK_INLINE unsigned hak_register_of_dwarf(uint64_t number) {
  switch (number) {
    case 3: return HAK_REGISTER_OTHER; /* rbx */
    case 6: return HAK_REGISTER_FP;
    case 7: return HAK_REGISTER_SP;
    case 16: return HAK_REGISTER_RA;
    default: return HAK_REGISTERS;
  }
}

/* Reads the registers of the function that this is inlined into, at `pc`; the function then has a frame pointer. The
 * compiler may put an output into one of these registers: the function saved that one before, and its call frame
 * information says where. */
HAK_INLINE void hak_registers_capture(hak_registers *now) {
  __asm__ volatile("leaq 0f(%%rip), %0\n0: movq %%rsp, %1\nmovq %%rbx, %2"
                   : "=&r"(now->pc), "=&r"(now->at[HAK_REGISTER_SP]), "=&r"(now->at[HAK_REGISTER_OTHER]));
  now->at[HAK_REGISTER_FP] = (uintptr_t)__builtin_frame_address(0);
  now->at[HAK_REGISTER_RA] = 0;
}

HAK_INLINE uintptr_t hak_without_signature(uintptr_t return_address) { return return_address; }

/* Whether a handler that returns to `pc` returns from a signal: mov $SYS_rt_sigreturn, %rax; syscall. */
#define HAK_SIGRETURN_BYTES 9
HAK_INLINE bool hak_is_sigreturn(const void *pc) {
  return memcmp(pc, "\x48\xc7\xc0\x0f\x00\x00\x00\x0f", 8) == 0 && ((const unsigned char *)pc)[8] == 0x05;
}
/* Offsets of the interrupted registers from the stack pointer at that instruction: in the order above, then pc. */
#define HAK_SIGRETURN_OFFSETS {120, 168, 128, 160, 168}

/* Whether a call ends at `pc`; the longest has HAK_CALL_BYTES. */
#define HAK_CALL_BYTES 7
HAK_INLINE bool hak_follows_call(const unsigned char *pc) {
  if (pc[-5] == 0xe8) return true;
  for (int length = 2; length <= HAK_CALL_BYTES; length++) {
    if (pc[-length] == 0xff && (pc[1 - length] & 0x38) == 0x10) return true; /* through a register or memory */
  }
  return false;
}

#elif defined(__aarch64__)

HAK_INLINE unsigned hak_register_of_dwarf(uint64_t number) {
  switch (number) {
    case 19: return HAK_REGISTER_OTHER;
    case 29: return HAK_REGISTER_FP;
    case 30: return HAK_REGISTER_RA;
    case 31: return HAK_REGISTER_SP;
    default: return HAK_REGISTERS;
  }
}

HAK_INLINE void hak_registers_capture(hak_registers *now) {
  __asm__ volatile("adr %0, 0f\n0: mov %1, sp\nmov %2, x19\nmov %3, x30"
                   : "=&r"(now->pc), "=&r"(now->at[HAK_REGISTER_SP]), "=&r"(now->at[HAK_REGISTER_OTHER]),
                     "=&r"(now->at[HAK_REGISTER_RA]));
  now->at[HAK_REGISTER_FP] = (uintptr_t)__builtin_frame_address(0);
}

/* Return addresses may carry a signature in their upper bits. xpaclri, written as the hint that older processors
 * skip. */
HAK_INLINE uintptr_t hak_without_signature(uintptr_t return_address) {
  register uintptr_t x30 __asm__("x30") = return_address;
  __asm__("hint #7" : "+r"(x30));
  return x30;
}

/* mov x8, #SYS_rt_sigreturn; svc #0 */
#define HAK_SIGRETURN_BYTES 8
HAK_INLINE bool hak_is_sigreturn(const void *pc) {
  return memcmp(pc, "\x68\x11\x80\xd2\x01\x00\x00\xd4", HAK_SIGRETURN_BYTES) == 0;
}
#define HAK_SIGRETURN_OFFSETS {544, 552, 464, 560, 568}

#define HAK_CALL_BYTES 4
HAK_INLINE bool hak_follows_call(const unsigned char *pc) {
  uint32_t instruction;
  memcpy(&instruction, pc - HAK_CALL_BYTES, sizeof instruction);
  bool direct = (instruction & 0xfc000000) == 0x94000000;
  return direct || (instruction & 0xfefff000) == 0xd63f0000; /* blr, and those that check a signature */
}

#else /* nothing is known: a walk ends where it begins */

HAK_INLINE unsigned hak_register_of_dwarf(uint64_t number) { return (void)number, HAK_REGISTERS; }
HAK_INLINE void hak_registers_capture(hak_registers *now) { *now = (hak_registers){0}; }
HAK_INLINE uintptr_t hak_without_signature(uintptr_t return_address) { return return_address; }
#define HAK_SIGRETURN_BYTES 1
HAK_INLINE bool hak_is_sigreturn(const void *pc) { return (void)pc, false; }
#define HAK_SIGRETURN_OFFSETS {0}
#define HAK_CALL_BYTES 1
HAK_INLINE bool hak_follows_call(const unsigned char *pc) { return (void)pc, false; }

#endif

/* The stack pointer of a thread that a signal has interrupted; 0: not known here. */
HAK_INLINE uintptr_t hak_stack_of(const ucontext_t *context) {
#if defined __x86_64__
  return (uintptr_t)context->uc_mcontext.gregs[15]; /* REG_RSP, a name of GNU's */
#elif defined __aarch64__
  return (uintptr_t)context->uc_mcontext.sp;
#else
  return (void)context, (uintptr_t)0;
#endif
}

/* The smallest page size. */
#define HAK_PAGE_LEAST ((uintptr_t)4096)

#endif
