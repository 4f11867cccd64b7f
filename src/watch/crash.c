#include "watch/crash.h"

#include <signal.h>
#include <ucontext.h>

#include "entry/where.h"
#include "guard/fault.h"
#include "harden/held.h"
#include "harden/sweep.h"
#include "os/os.h"
#include "os/print.h"
#include "os/stack.h"

#define STACK_WORDS 32

static struct sigaction earlier[2]; /* for SIGSEGV and SIGBUS */

/* The free block of a slab that p points into, or NULL. */
static const void *free_block_of(uintptr_t p, size_t *bytes) {
  /* No lock of large blocks here, which the fault may have interrupted */
  if (hak_region_find((const void *)p) == NULL) return NULL;
  hak_where w = hak_where_is((const void *)p);
  const void *block =
      w.kind != HAK_KIND_SLAB || hak_where_in_heap(&w) ? NULL : hak_where_slab_start(&w, (const void *)p);
  *bytes = w.size;
  return block != NULL && hak_load_relaxed(hak_held_byte(w.region, hak_held_offset(w.region, block))) == HAK_NOT_HELD
             ? block
             : NULL;
}

static void look_at_register(uintptr_t value, const void *fault, bool *told) {
  size_t bytes;
  const void *block = *told ? NULL : free_block_of(value, &bytes);
  if (block == NULL) return;
  *told = true;
  hak_print(
      "hakmem: fault at %p, perhaps a use after free: a register, or the stack, points into block %p (class %zu "
      "bytes), which is free [process %d, thread %d]\n",
      fault, block, bytes, hak_os_pid(), hak_os_tid());
}

static void look_at_registers(const ucontext_t *context, const void *fault) {
  bool told = false;
  const uintptr_t *registers = (const uintptr_t *)(const void *)&context->uc_mcontext;
  for (size_t i = 0; i < sizeof context->uc_mcontext / sizeof *registers; i++)
    look_at_register(registers[i], fault, &told);
  /* Code that was not optimised has its variables there. */
  uintptr_t stack = hak_align_down(hak_stack_of(context), sizeof stack);
  for (unsigned i = 0; i < STACK_WORDS && hak_os_is_readable((const uint32_t *)stack); i++, stack += sizeof stack)
    look_at_register(*(const uintptr_t *)stack, fault, &told);
}

static void on_fault(int number, siginfo_t *info, void *context) {
  HAK_ASSERT(number == SIGSEGV || number == SIGBUS);
  struct sigaction *before = &earlier[number == SIGBUS];
  bool sent = info->si_code <= 0; /* by kill or raise: there is no address, and no instruction that faults again */
  bool told = !sent && hak_fault_explain(info->si_addr);
  if (!told && (before->sa_flags & SA_SIGINFO) != 0) {
    before->sa_sigaction(number, info, context);
    return;
  }
  if (!told && before->sa_handler != SIG_DFL && before->sa_handler != SIG_IGN) {
    before->sa_handler(number);
    return;
  }
  if (sent && before->sa_handler == SIG_IGN) return;
  /* The instruction faults again, or the signal is raised again, and the earlier action follows; as after a fault in
   * this handler. */
  sigaction(number, before, NULL);
  if (sent) raise(number);
  if (HAK_HARD_SWEEP && HAK_HARD(GUARDS) && !sent && !told && before->sa_handler == SIG_DFL) {
    hak_sweep_at_crash();
    look_at_registers(context, info->si_addr);
  }
}

void hak_crash_start(void) {
  static bool done;
  if (done) return;
  done = true;
  struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER};
  sigemptyset(&action.sa_mask);
  sigaction(SIGSEGV, NULL, &earlier[0]); /* the handler may run before the call that installs it returns */
  sigaction(SIGBUS, NULL, &earlier[1]);
  sigaction(SIGSEGV, &action, &earlier[0]);
  sigaction(SIGBUS, &action, &earlier[1]);
}
