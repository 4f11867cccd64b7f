// Fuzzing of misuse: correct calls with wrong ones among them, each input in a forked child.
//
// What docs/security.md says is seen "at the call" has to end the child there. What it says is seen when a class is flushed
// has to end the child by the last flush, if nothing was allocated since. All else may pass unnoticed; but then only
// the very addresses that were misused may have two owners, and every other block keeps to the rules of correct use.
// Hardened, every wrong free of an address that nobody holds is seen at the call, and so is every question for its size, an overflow when its block is freed,
// and a block that was written to after its free is not handed out again.
#include <algorithm>
#include <cstring>
#include <vector>

#include "calls.h"
#include "finding.h"
#include "hak.h"
#include "ledger.h"

namespace {

constexpr bool kHardened = HAK_HARDENED != 0;
constexpr size_t kStaleMax = 64, kOverflowMax = 64, kLateWriteMax = 4096;

struct Stale {
  Block block;
  uint64_t allocations; /* calls that had allocated when it was freed */
};

class Misuse : public Calls {
 public:
  Misuse(Input input, Ledger *ledger) : Calls(input, OWN), ledger_(ledger) {
    start();
    writes_only_ = kHardened && input_.byte() % 2 == 1;
  }
  void end();

 protected:
  Turn step() override;
  bool is_tainted(const void *p) const override { return ledger_has(ledger_, p); }
  bool zeros_are_sure() const override { return !wrote_late_; }
  bool misused() const override { return ledger_->count > 0 || overflown_ != nullptr; }
  void note_freed(const Block &b) override;

 private:
  void misuse(uint8_t how);
  bool taint(const void *p) { return ledger_enter(ledger_, p); }
  bool pick_trusted(Block *b);
  bool pick_stale(Stale *s);
  void wrong_free(unsigned char *p, size_t size);
  void note_due(const void *p) { due_ = p, due_allocations_ = allocations_; }
  void expect_at_the_call(const void *p, bool documented, const char *what);

  void free_twice_in_a_row();
  void free_stale();
  void free_inside();
  void free_foreign();
  void free_wild();
  void free_with_wrong_size();
  void overflow();
  bool note_overflow(const Block &b, const unsigned char *past, size_t n, uint8_t value);
  void write_late();
  void resize_wrong();
  void ask_wrong();

  Ledger *ledger_;
  std::vector<Stale> stale_;
  bool writes_only_ = false; /* hardened, any wrong free would end the child before it is seen what was written */
  bool wrote_late_ = false;
  const void *overflown_ = nullptr; /* hardened: has to be reported when it is freed */
  /* Misused and not reported; has to be by the end if no call allocates any more. */
  const void *due_ = nullptr;
  uint64_t due_allocations_ = 0;
};

bool is_small(const void *p) {
  hak_region *r = hak_region_find(p);
  return r != nullptr && hak_code_is_class(hak_region_code(r, p));
}

/* Even of a request for nothing there are that many. */
size_t inside_bytes(const Block &b) { return std::max(b.usable, size_t{HAK_GRANULE}); }

Turn Misuse::step() {
  if (input_.done()) return {Turn::FINISH, 0};
  uint8_t op = input_.byte();
  if (op < 192) return Calls::call(op);
  misuse(op);
  return {};
}

void Misuse::misuse(uint8_t how) {
  if (writes_only_) return how % 4 == 0 ? write_late() : overflow();
  switch (how % 16) {
    case 0:
    case 1:
      return free_twice_in_a_row();
    case 2:
    case 3:
    case 4:
    case 5:
      return free_stale();
    case 6:
    case 7:
      return free_inside();
    case 8:
      return free_wild();
    case 9:
      return free_with_wrong_size();
    case 10:
    case 11:
      return overflow();
    case 12:
      return write_late();
    case 13:
      return free_foreign();
    case 14:
      return resize_wrong();
    default:
      return ask_wrong();
  }
}

void Misuse::note_freed(const Block &b) {
  if (stale_.size() == kStaleMax) stale_.erase(stale_.begin());
  stale_.push_back({b, allocations_});
}

bool Misuse::pick_trusted(Block *b) {
  if (shadow_.count() == 0) return false;
  *b = shadow_.at(pick());
  return !b->shared;
}

bool Misuse::pick_stale(Stale *s) {
  if (stale_.empty()) return false;
  *s = stale_[stale_.size() - 1 - input_.below(stale_.size())];
  return true;
}

void Misuse::expect_at_the_call(const void *p, bool documented, const char *what) {
  if (documented) finding("%s of %p was not reported at the call", what, p);
}

/* Frees an address that must not be freed, by one of the ways there are. */
void Misuse::wrong_free(unsigned char *p, size_t size) {
  shadow_.share(p); /* the block that starts there, if any, is gone */
  switch (input_.byte() % 4) {
    case 0:
      return hakmem_free_sized(p, size);
    case 1:
      return hakmem_free_aligned_sized(p, 16, size);
    default:
      return hakmem_free(p);
  }
}

void Misuse::free_twice_in_a_row() {
  if (shadow_.count() == 0) return;
  size_t at = pick();
  Block b = shadow_.at(at);
  if (b.shared || !taint(b.p)) return;
  shadow_.take(at);
  bool huge = hak_region_find(b.p) == nullptr, small = is_small(b.p);
  hakmem_free(b.p);
  hakmem_free(b.p);
  expect_at_the_call(b.p, !huge, "a second free in a row");
  if (small) note_due(b.p);
}

void Misuse::free_stale() {
  Stale s;
  if (!pick_stale(&s) || !taint(s.block.p)) return;
  bool fresh = s.allocations == allocations_, huge = hak_region_find(s.block.p) == nullptr;
  bool small = is_small(s.block.p), held = shadow_.starts_at(s.block.p);
  wrong_free(s.block.p, 1);
  expect_at_the_call(s.block.p, kHardened && !huge && !held, "a second free");
  if (!fresh || huge) return;
  expect_at_the_call(s.block.p, s.block.usable > HAK_SMALL_MAX, "a second free of a run");
  if (small) note_due(s.block.p);
}

void Misuse::free_inside() {
  Block b;
  if (!pick_trusted(&b)) return;
  unsigned char *p = b.p + 1 + input_.number(3) % (inside_bytes(b) - 1);
  if (!taint(p)) return;
  bool small = is_small(p), huge = hak_region_find(p) == nullptr;
  wrong_free(p, 1);
  expect_at_the_call(p, (kHardened || !small) && !huge, "a free inside a block");
  if (small) note_due(p);
}

/* The program's own memory, and what is nobody's; the default build leaves it alone. */
void Misuse::free_foreign() {
  static unsigned char fixed[64];
  unsigned char local[64];
  unsigned char *const addresses[] = {fixed, local, reinterpret_cast<unsigned char *>(input_.number(2)), fixed + 8, local + 1};
  unsigned char *p = addresses[input_.byte() % std::size(addresses)];
  if (p == nullptr || !taint(p)) return;
  wrong_free(p, 1);
  expect_at_the_call(p, kHardened, "a free of what is no block");
}

/* Any address below the limit of the region: tables, free spans, the gaps of slabs, blocks in caches. */
void Misuse::free_wild() {
  auto *p = reinterpret_cast<unsigned char *>(hak_main_base + input_.number(5) % hak_main_limit);
  const Block *b = shadow_.around(p);
  if ((b != nullptr && b->p == p) || (kHardened && shadow_.starts_at(p)) || !taint(p)) return;
  bool small = is_small(p);
  wrong_free(p, 1);
  expect_at_the_call(p, kHardened || !small, "a free in free memory or inside a block");
  note_due(p);
}

void Misuse::free_with_wrong_size() {
  Block b;
  if (!pick_trusted(&b) || !taint(b.p)) return;
  size_t size = b.usable + 1 + input_.number(input_.byte() % 9);
  if (kHardened && input_.byte() % 2 == 0 && b.size > 0) size %= b.size; /* hardened, one too small is as wrong */
  if (kHardened ? size == b.size : size <= b.usable) return;
  if (input_.byte() % 2 == 0)
    hakmem_free_sized(b.p, size);
  else
    hakmem_free_aligned_sized(b.p, 64, size);
  finding("free_sized(%p, %zu) of a block of %zu bytes was not reported", static_cast<void *>(b.p), size, b.usable);
}

/* What follows the request and is watched: up to 32 bytes, or the word at the block's end where there are none. */
size_t watched_bytes(const Block &b) {
  size_t behind = hak_block_size(b.p) - sizeof(uint64_t) - b.usable;
  return behind == 0 ? sizeof(uint64_t) : std::min<size_t>(behind, 32);
}

/* Past the end of a small block, into its neighbour, live or free, or into what is left at the end of the slab. */
void Misuse::overflow() {
  Block b;
  if (!pick_trusted(&b) || !is_small(b.p)) return;
  const hak_span *slab = hak_region_span(hak_region_find(b.p), b.p);
  uintptr_t end = hak_align_down(slab->start, HAK_SPAN_SIZE) + slab->span_count * HAK_SPAN_SIZE;
  unsigned char *past = b.p + b.usable;
  size_t n = std::min<size_t>(1 + input_.byte() % kOverflowMax, end - reinterpret_cast<uintptr_t>(past));
  uint8_t value = input_.byte();
  if (kHardened && !note_overflow(b, past, n, value)) return;
  std::memset(past, value, n);
  shadow_.spoil(past, n);
}

/* False: not this one. What was once written to must not be made good again. */
bool Misuse::note_overflow(const Block &b, const unsigned char *past, size_t n, uint8_t value) {
  if (ledger_has_written(ledger_, b.p, hak_block_size(b.p)) || ledger_has_written(ledger_, past, n) ||
      !ledger_enter_written(ledger_, past, n))
    return false;
  const unsigned char *end = past + std::min(n, watched_bytes(b));
  if (std::any_of(past, end, [value](unsigned char byte) { return byte != value; })) overflown_ = b.p;
  return true;
}

/* Into a freed block, whoever holds that memory now. */
void Misuse::write_late() {
  Stale s;
  if (!pick_stale(&s) || hak_region_find(s.block.p) == nullptr) return;
  size_t n = std::min(s.block.usable, kLateWriteMax);
  if (!ledger_enter_written(ledger_, s.block.p, n)) return;
  std::memset(s.block.p, input_.byte(), n);
  shadow_.spoil(s.block.p, n);
  wrote_late_ = true;
}

void Misuse::resize_wrong() {
  unsigned char *p;
  Stale s;
  Block b;
  if (input_.byte() % 2 == 0) {
    if (!pick_stale(&s)) return;
    p = s.block.p;
  } else {
    if (!pick_trusted(&b)) return;
    p = b.p + 1 + input_.byte() % (inside_bytes(b) - 1);
  }
  if (!taint(p)) return;
  bool documented = kHardened && hak_region_find(p) != nullptr && !shadow_.starts_at(p);
  shadow_.share(p);
  size_t size = input_.number(3) % (256 * HAK_KIB);
  allocations_++;
  void *q = hakmem_realloc(p, size);
  expect_at_the_call(p, documented, "a realloc");
  if (q == nullptr) return;
  size_t usable = hakmem_malloc_usable_size(q);
  bool shared = is_tainted(q);
  shadow_.spoil(q, usable);
  shadow_.add({static_cast<unsigned char *>(q), std::min(size, usable), shared ? 0 : usable, 0, true, shared});
}

void Misuse::ask_wrong() {
  Stale s;
  unsigned char *p = reinterpret_cast<unsigned char *>(hak_main_base + input_.number(5) % hak_main_limit);
  if (pick_stale(&s) && input_.byte() % 2 == 0) p = s.block.p;
  hakmem_is_ours(p);
  bool is_block = shadow_.starts_at(p);
  if (kHardened && !is_block && !taint(p)) return;
  hakmem_malloc_usable_size(p);
  expect_at_the_call(p, kHardened && !is_block, "malloc_usable_size");
}

void Misuse::end() {
  if (!misused()) return finish(); /* stray writes alone harm no owner but the blocks they hit */
  stop_refusing();
  bool is_due = due_ != nullptr && due_allocations_ == allocations_;
  if (is_due) {
    hakmem_malloc_trim(0);
    finding("the wrong free of %p was not reported by the last flush", due_);
  }
  free_everything();
  if (overflown_ != nullptr) finding("%p was freed, and the bytes written behind it were not reported", overflown_);
  hakmem_malloc_trim(0);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
  run_in_child([&](Ledger *ledger) {
    Misuse program{Input(data, bytes), ledger};
    run_on_crew(&program);
    program.end();
  });
  return 0;
}
