#include "watch/outside.h"

#include <errno.h>

#include "hakmem/hakmem.h"
#include "base/sequence.h"
#include "os/os.h"
#include "report/heap_profile.h"
#include "watch/samplers.h"

#define ANSWER_BYTES (64 * HAK_MIB) /* of address space */

/* The note names it in assembler: see os/probe.h. */
__attribute__((used)) hak_outside_words hak_outside = {.magic = {'h', 'a', 'k', 'm', 'e', 'm', 'A', '1'}};
__asm__(
    ".pushsection .note.hakmem,\"a\",%note\n"
    ".balign 4\n"
    ".long 7, 8, 1\n"
    ".asciz \"hakmem\"\n"
    ".balign 4\n"
    ".quad hak_outside - .\n"
    ".popsection\n");

uint32_t hak_outside_on;
static uint32_t turn; /* 1: a thread is at it. Taking is an acquire, dropping a release */
/* Written by the thread that is at it, relaxed. */
static uint32_t seen; /* the latest beat */
static uint64_t until_ms;
static char *memory; /* of the answer; NULL: none yet */
static size_t ready;
static hak_os_refusal refused;

static bool is_renewed(uint32_t beat) { return beat != 0 && beat != hak_load_relaxed(&seen); }

static bool is_leased(uint32_t beat, uint64_t now_ms) {
  return is_renewed(beat) || (beat != 0 && now_ms < hak_load_relaxed(&until_ms));
}

static bool is_listened(void) { return hak_profile_listened() && !hak_os_refused_lately(&refused); }

static bool is_news(uint64_t now_ms) {
  uint32_t beat = hak_load_acquire(&hak_outside.beat);
  return is_renewed(beat) || (is_leased(beat, now_ms) || is_listened()) != (hak_load_relaxed(&hak_outside_on) != 0) ||
         (hak_load_relaxed(&memory) != NULL && !is_leased(beat, now_ms));
}

static void answer(int error) {
  uint64_t begun_ms = hak_os_now_ms();
  hak_sequence_begin(&hak_outside.sequence);
  if (error == 0 && memory == NULL) {
    ready = 0;
    hak_store_relaxed(&memory, (char *)hak_os_reserve(ANSWER_BYTES, hak_os_page_size()));
    if (memory == NULL) error = ENOMEM;
  }
  hak_outside.bytes = 0;
  if (error == 0) {
    hak_sink sink;
    hak_sink_to_reservation(&sink, memory, ANSWER_BYTES, &ready);
    hak_heap_profile_render(&sink, HAK_PROFILE_JSON, HAKMEM_PROFILE_ALL | HAK_PROFILE_WITHOUT_FILES);
    error = hak_sink_finish(&sink);
    hak_outside.bytes = (uint64_t)(sink.at - memory);
  }
  hak_outside.answer = (uint64_t)(uintptr_t)memory;
  hak_outside.error = (uint32_t)error;
  hak_outside.took_ms = (uint32_t)(hak_os_now_ms() - begun_ms);
  hak_sequence_end(&hak_outside.sequence);
}

/* Forgotten first: another thread may fork in between, and another mapping have the address by then. */
static void drop_answer(void) {
  char *dropped = memory;
  if (dropped == NULL) return;
  hak_store_relaxed(&memory, NULL);
  hak_os_unmap_own(dropped, ANSWER_BYTES);
}

static void serve_in_turn(void) {
  uint64_t now_ms = hak_os_now_ms(); /* who came by may have waited for a processor since */
  uint32_t beat = hak_load_acquire(&hak_outside.beat);
  bool renewed = is_renewed(beat), leased = is_leased(beat, now_ms), wanted = leased || is_listened();
  int error = hak_sampling_ask(wanted, leased ? hak_load_relaxed(&hak_outside.rate) : 0);
  if (error == EAGAIN) return; /* somebody else is switching: at the next look once more */
  if (renewed) {
    hak_store_relaxed(&seen, beat);
    hak_store_relaxed(&until_ms, now_ms + HAK_OUTSIDE_LEASE_MS);
  }
  if (error != 0) {
    hak_os_note_refusal(&refused);
    hak_store_relaxed(&until_ms, 0);
  }
  if (renewed && beat % 2 != 0) answer(error);
  if (!leased || error != 0) drop_answer();
  hak_store_relaxed(&hak_outside_on, wanted && error == 0);
}

/* In any thread of the program, at any allocation: no handler of the program's runs meanwhile, none of libc's locks is
 * taken (before glibc 2.35: the loader's, once, see hak_unwind_start), and no file is opened, for which a sandbox may
 * end the process. */
HAK_COLD void hak_outside_serve(uint64_t now_ms) {
  uint32_t expected = 0;
  if (!is_news(now_ms) || hak_inside_own_fork()) return;
  uint64_t before = hak_os_hold_signals();
  if (hak_cas_acquire(&turn, &expected, 1)) {
    serve_in_turn();
    hak_store_release(&turn, 0);
  }
  hak_os_put_signals_back(before);
}

/* No thread is at it: signals are held, so that no handler forks in the middle, and other threads are not in the child.
 * One of them may have been about to make more of the answer's memory accessible, or to say that it had switched
 * sampling on. */
void hak_outside_fork_child(void) {
  drop_answer();
  if (hak_load_relaxed(&turn) != 0) hak_store_relaxed(&hak_outside_on, 1);
  hak_store_relaxed(&turn, 0);
  hak_store_relaxed(&seen, hak_load_relaxed(&hak_outside.beat));
  hak_store_relaxed(&until_ms, 0);
}
