#include "calls.h"

#include <algorithm>
#include <cstring>

#include "accounting.h"
#include "fake_os.h"
#include "finding.h"
#include "hak.h"

namespace {

constexpr unsigned kStepsMax = 2000;
/* What this machine grants without fail, and what one input may hold and touch. */
constexpr size_t kServed = 48 * HAK_MIB, kServedAlign = 256 * HAK_MIB;
constexpr size_t kLiveBytes = 128 * HAK_MIB, kLiveBlocks = 3000, kTouchBytes = 128 * HAK_MIB;

/* Hardened, all that may be used is what was asked for, and a block from a slab reads as zero. */
constexpr bool kExact = HAK_HARD(CANARY), kZeroed = HAK_HARD(ZERO);

/* What a program does that drops a cache of its own: it frees, and may allocate. */
void under_pressure(size_t, size_t, void *) {
  void *p = hakmem_malloc(200), *q = hakmem_calloc(1, 40000);
  hakmem_free(p);
  hakmem_free(q);
}

/* Goes on from input to input, and from the real one, which was read at start: the allocator's never runs backwards. */
uint64_t clock_ms;

}  // namespace

Calls::Calls(Input input, Process process) : input_(input), process_(process), large_budget_(kTouchBytes) {
  fake_os::reset();
  if (process == SHARED) {
    start();
    static const int64_t target = [] {
      int64_t set_at_start = 0;
      hakmem_option_get("HAKMEM_RSS_TARGET", &set_at_start);
      return set_at_start;
    }();
    hakmem_option_set("HAKMEM_RSS_TARGET", target);
    hakmem_set_pressure_callback(nullptr, nullptr);
  }
  if (clock_ms == 0) clock_ms = hak_os_linux.now_ms();
  clock_ms += 10000;
  fake_os::set_clock(clock_ms);
}

void Calls::start() {
  if (!hak_start()) finding("the allocator does not start");
}

Turn Calls::step() {
  if (input_.done() || ++steps_ > kStepsMax) return {Turn::FINISH, 0};
  if (steps_ == refusals_end_) fake_os::allow_all();
  return call(input_.byte());
}

Turn Calls::call(uint8_t op) {
  op %= 64;
  bool any = shadow_.count() > 0;
  if (op < 10) allocate();
  else if (op < 13) allocate_zeroed();
  else if (op < 17) resize(op == 16);
  else if (op < 23) allocate_aligned(op - 17);
  else if (op == 23) allocate_at_least();
  else if (op < 36) any ? free_block(pick()) : allocate();
  else if (op < 38) any ? free_sized(op == 37) : allocate();
  else if (op < 41) allocate_many();
  else if (op < 44) free_many();
  else if (op < 50) return switch_thread();
  else if (op == 50) return end_thread();
  else if (op < 54) refuse();
  else if (op < 56) advance_clock();
  else if (op == 56) give_back();
  else if (op == 57) check_heap("in between");
  else if (op == 58) query_sizes();
  else if (op == 59) query_totals();
  else if (op == 60) pass_foreign();
  else if (op == 61) report_or_set(input_.byte() % 8);
  else if (op == 62) query_block();
  else overflow_product();
  return {};
}

void Calls::report_or_set(unsigned what) {
  if (what == 0) print_reports();
  else if (what == 1) query_figures();
  else if (what < 4) set_budget();
  else query_options();
}

void Calls::expect_errno(const char *what, int expected) {
  if (left_ != expected) finding("%s left errno %d, not %d", what, left_, expected);
}

/* --- sizes and results --- */

/* Small requests go through as they are; large ones as long as the input's share of memory and time lasts. */
size_t Calls::request() {
  size_t size = input_.size();
  bool full = shadow_.count() >= kLiveBlocks || shadow_.bytes() + std::min(size, kServed) > kLiveBytes;
  if (full) return size % 64;
  if (size <= HAK_SMALL_MAX) return size;
  size_t cost = std::min(size, 2 * kServed);
  if (cost > large_budget_) return size % HAK_SMALL_MAX;
  large_budget_ -= cost;
  return size;
}

void Calls::check_refusal(const char *what, size_t size, size_t align) {
  expect_errno(what, ENOMEM);
  if (!refusing() && size <= kServed && align <= kServedAlign)
    finding("%s: %zu bytes aligned to %zu refused, though the system refused nothing", what, size, align);
}

void Calls::receive(void *memory, size_t size, size_t align, const char *what) {
  if (memory == nullptr) {
    check_refusal(what, size, align);
    return;
  }
  expect_errno(what, kErrno);
  auto *p = static_cast<unsigned char *>(memory);
  if (size > PTRDIFF_MAX) finding("%s granted %zu bytes", what, size);
  size_t usable = hakmem_malloc_usable_size(p);
  if (is_tainted(p)) {
    shadow_.spoil(p, std::max(size, usable)); /* calloc and realloc have written to it */
    shadow_.add({p, size, usable, 0, true, true});
    return;
  }
  align = std::max(align, size_t{16});
  if (reinterpret_cast<uintptr_t>(p) % align != 0) finding("%s: %p is not aligned to %zu", what, memory, align);
  check_extent(p, size, usable, what);
  /* Short of memory, a block that is aligned by chance stays where it is. */
  size_t good = hak_usage_size(size, std::strcmp(what, "realloc") == 0 ? HAK_GRANULE : align);
  if (usable < good) finding("%s(%zu aligned to %zu): %zu usable bytes, good_size says %zu", what, size, align, usable, good);
  shadow_.add({p, size, usable, 0, false, false});
}

bool Calls::is_from_slab(const void *p) {
  const hak_region *r = hak_region_find(p);
  return r != nullptr && hak_code_is_class(hak_region_code(r, p));
}

void Calls::check_extent(const unsigned char *p, size_t size, size_t usable, const char *what) {
  if (usable < size || (kExact && usable != size)) finding("%s: %zu usable bytes of %zu", what, usable, size);
  if (!hakmem_is_ours(p) || (usable > 0 && !hakmem_is_ours(p + usable - 1)))
    finding("%s: %p is not ours", what, static_cast<const void *>(p));
}

void Calls::receive_zeroed(void *p, size_t size, size_t align) {
  if (p != nullptr && !is_tainted(p) && (size <= HAK_SMALL_MAX || zeros_are_sure()))
    verify_zero(static_cast<unsigned char *>(p), size);
  receive(p, size, align, "calloc");
}

/* --- allocation --- */

void Calls::allocate() {
  size_t size = request();
  void *p = allocating([&] { return hakmem_malloc(size); });
  /* Larger blocks may lie in a mapping of their own instead of a run, or in one that was kept; where some are sampled, which are exact, any may be larger. */
  if (p != nullptr && is_from_slab(p) && !is_tainted(p)) {
    size_t usable = hakmem_malloc_usable_size(p), good = hakmem_good_size(size);
    if (usable != good && !hak_sample_on())
      finding("malloc(%zu): %zu usable bytes, good_size says %zu", size, usable, good);
    if (kZeroed) verify_zero(static_cast<unsigned char *>(p), std::min<size_t>(size, HAK_ZEROED_BYTES));
  }
  receive(p, size, 16, "malloc");
}

void Calls::allocate_zeroed() {
  size_t size = request(), count = 1;
  for (size_t factor : {16, 7, 3, 2}) {
    if (size == 0 || size % factor != 0) continue;
    count = factor;
    break;
  }
  receive_zeroed(allocating([&] { return hakmem_calloc(count, size / count); }), size, 16);
}

void Calls::overflow_product() {
  /* The true product is just above SIZE_MAX, so that what is left of it is small. */
  size_t factor = size_t{2} << input_.byte() % 62, other = SIZE_MAX / factor + 1 + input_.byte();
  if (allocating([&] { return hakmem_calloc(factor, other); }) != nullptr) finding("calloc(%zu, %zu)", factor, other);
  expect_errno("calloc", ENOMEM);
  Block b = {};
  if (shadow_.count() > 0) b = shadow_.at(pick());
  if (allocating([&] { return hakmem_reallocarray(b.p, other, factor); }) != nullptr)
    finding("reallocarray(%zu, %zu)", other, factor);
  expect_errno("reallocarray", ENOMEM);
  if (b.p != nullptr) verify(b);
}

void Calls::allocate_aligned(unsigned function) {
  size_t size = request(), page = hak_os_page_size();
  if (function < 2) {
    size_t align = input_.alignment();
    bool zeroed = steps_ % 3 == 0;
    void *p = allocating([&] { return zeroed ? hakmem_aligned_calloc(align, 1, size) : hakmem_aligned_alloc(align, size); });
    if (hak_is_pow2(align)) {
      zeroed ? receive_zeroed(p, size, align) : receive(p, size, align, "aligned_alloc");
    } else {
      if (p != nullptr) finding("aligned_alloc(%zu, %zu) succeeded", align, size);
      expect_errno("aligned_alloc", EINVAL);
    }
  } else if (function == 2) {
    size_t align = input_.alignment();
    void *const mark = &left_, *p = mark;
    allocations_++;
    int result = with_errno([&] { return hakmem_posix_memalign(&p, align, size); });
    expect_errno("posix_memalign", kErrno);
    bool valid = hak_is_pow2(align) && align % sizeof(void *) == 0;
    if (result != 0 && p != mark) finding("posix_memalign failed and stored a pointer");
    if (valid ? result != 0 && result != ENOMEM : result != EINVAL)
      finding("posix_memalign(%zu, %zu) returned %d", align, size, result);
    left_ = result == 0 ? kErrno : result;
    if (valid) receive(result == 0 ? p : nullptr, size, align, "posix_memalign");
  } else if (function == 3) {
    size_t align = input_.alignment();
    void *p = allocating([&] { return hakmem_memalign(align, size); });
    if (align <= SIZE_MAX / 2 + 1) {
      receive(p, size, hak_pow2_ceil(std::max(align, size_t{1})), "memalign");
    } else {
      if (p != nullptr) finding("memalign(%zu, %zu) succeeded", align, size);
      expect_errno("memalign", EINVAL);
    }
  } else if (function == 4) {
    receive(allocating([&] { return hakmem_valloc(size); }), size, page, "valloc");
  } else {
    void *p = allocating([&] { return hakmem_pvalloc(size); });
    /* Of a size that cannot be rounded up nothing more is expected than that it fails. */
    receive(p, size > PTRDIFF_MAX ? size : hak_align_up(std::max(size, size_t{1}), page), page, "pvalloc");
  }
}

void Calls::allocate_at_least() {
  size_t size = request(), actual = 1;
  void *p = allocating([&] { return hakmem_alloc_at_least(size, &actual); });
  if (actual != (p == nullptr ? 0 : hakmem_malloc_usable_size(p)))
    finding("alloc_at_least(%zu) stored %zu for %p", size, actual, p);
  receive(p, size, 16, "alloc_at_least");
}

/* As many as it takes for magazines to fill, stack up and overflow: few of the larger ones. */
void Calls::allocate_many() {
  size_t size = input_.size() % (HAK_SMALL_MAX + 1);
  size_t most = 8 + 256 * HAK_KIB / std::max(size, size_t{16});
  for (size_t n = std::min(input_.byte() + size_t{1}, most); n > 0; n--) {
    if (shadow_.count() >= kLiveBlocks || shadow_.bytes() + size > kLiveBytes) return;
    receive(allocating([&] { return hakmem_malloc(size); }), size, 16, "malloc");
  }
}

/* In place, at least as large as it was. */
void Calls::expand(Block old, size_t size) {
  void *p = allocating([&] { return hakmem_expand(old.p, size); });
  if (p == nullptr) {
    if (size <= old.usable) finding("expand(%p, %zu) failed where %zu may be used", static_cast<void *>(old.p), size, old.usable);
    expect_errno("expand", ENOMEM);
    verify(old);
    old.usable = hakmem_malloc_usable_size(old.p);
    shadow_.add(old); /* what may be used, and so what is filled, may be more by now */
    return;
  }
  if (p != old.p) finding("expand(%p, %zu) returned %p", static_cast<void *>(old.p), size, p);
  verify(old);
  receive(p, std::max(size, old.size), 16, "expand");
}

/* reallocarray where `array`; of some, with an alignment. Without a live block it is malloc. */
void Calls::resize(bool array) {
  size_t size = request();
  uint8_t how = input_.byte();
  Block old = {};
  if (shadow_.count() > 0 && how % 16 != 0) old = shadow_.take(pick());
  if (old.p != nullptr) verify(old);
  /* Half to twice of what it was: within a class, a run or a mapping, or just out of it. */
  if (how % 2 == 1 && old.usable <= 4 * HAK_MIB) size = old.size / 2 + old.size * input_.byte() / 170;
  if (old.p != nullptr && !old.shared && how >= 224) return expand(old, size);
  size_t align = how >= 192 ? size_t{32} << how % 13 : 16;
  void *p = allocating([&] {
    return align > 16 ? hakmem_aligned_realloc(old.p, align, size) : array ? hakmem_reallocarray(old.p, size, 1) : hakmem_realloc(old.p, size);
  });
  if (old.p == nullptr) {
    receive(p, size, align, "realloc");
    return;
  }
  if (p == nullptr && old.shared) return; /* its other owner has freed it */
  if (size == 0) {
    if (p != nullptr) finding("realloc(%p, 0) returned %p", static_cast<void *>(old.p), p);
    expect_errno("realloc", kErrno);
    note_freed(old);
    return;
  }
  if (p == nullptr) {
    bool is_aligned = reinterpret_cast<uintptr_t>(old.p) % align == 0;
    if (size <= old.size && is_aligned) finding("realloc from %zu to %zu bytes was refused: shrinking never is", old.size, size);
    check_refusal("realloc", size, align);
    verify(old);
    shadow_.put_back(old);
    return;
  }
  if (!is_tainted(p)) verify_prefix(old, static_cast<unsigned char *>(p), std::min(old.size, size));
  if (p != old.p) note_freed(old);
  receive(p, size, align, "realloc");
}

/* --- free --- */

void Calls::free_block(size_t index) {
  Block b = shadow_.take(index);
  verify(b);
  if (!b.shared && b.usable > 0) b.p[0] = static_cast<unsigned char>(~b.p[0]); /* a stale pattern must not pass for the next one */
  note_freed(b);
  with_errno([&] {
    hakmem_free(b.p);
    return 0;
  });
  expect_errno("free", kErrno);
}

void Calls::free_sized(bool aligned) {
  Block b = shadow_.take(pick());
  verify(b);
  note_freed(b);
  with_errno([&] {
    aligned ? hakmem_free_aligned_sized(b.p, 16, b.size) : hakmem_free_sized(b.p, b.size);
    return 0;
  });
  expect_errno("free_sized", kErrno);
}

void Calls::free_many() {
  uint8_t order = input_.byte();
  for (unsigned n = input_.byte() + 1; n > 0 && shadow_.count() > 0; n--) {
    size_t count = shadow_.count();
    free_block(order % 3 == 0 ? count - 1 : order % 3 == 1 ? n * 7919 % count : std::min<size_t>(n, count - 1));
  }
}

/* --- threads, system, clock --- */

Turn Calls::switch_thread() { return {Turn::SWITCH, input_.byte() % kCrew}; }

Turn Calls::end_thread() {
  linger_ = input_.byte();
  return {Turn::END_THREAD, 0};
}

/* Programs allocate and free in destructors of their own, before the allocator's ran and after. */
void Calls::at_thread_end(unsigned round) {
  if ((linger_ >> round & 1) == 0) return;
  /* A known limit: a thread whose first call of all comes in a late round gets a cache that nobody empties. */
  if (round > 1 && hak_tls.phase == HAK_THREAD_FRESH) return;
  if (shadow_.count() > 0) free_block(linger_ % shadow_.count());
  size_t size = size_t{24} << (linger_ >> 5 & 7);
  receive(allocating([&] { return hakmem_malloc(size); }), size, 16, "malloc in a destructor");
}

void Calls::refuse() {
  auto which = static_cast<fake_os::Call>(input_.byte() % fake_os::CALLS);
  uint8_t when = input_.byte();
  static const int errors[] = {ENOMEM, EPERM, ENOSYS, EAGAIN, EINVAL};
  int error = errors[input_.byte() % 5];
  /* One ENOMEM turns advice off for the rest of the process; nothing of it would be seen again. */
  if (which == fake_os::ADVISE && error == ENOMEM && process_ == SHARED) error = EPERM;
  if (when % 4 == 0)
    fake_os::fail_all(which, error);
  else
    fake_os::fail_nth(which, when / 4 % 8 + 1, when / 32 + 1, error);
  refusals_end_ = std::max(refusals_end_, steps_ + 1 + input_.byte() % 32);
}

void Calls::advance_clock() {
  static const unsigned steps_ms[] = {1, 60, 250, 300, 1000, 5000};
  clock_ms += steps_ms[input_.byte() % 6];
  fake_os::set_clock(clock_ms);
}

void Calls::give_back() {
  uint8_t how = input_.byte();
  if (how >= 192) {
    int error = hakmem_reserve(how % 32 * HAK_MIB, how / 32 % 2 == 0 ? 0 : HAKMEM_RESERVE_POPULATE);
    if (error != 0 && (error != ENOMEM || (!refusing() && !limited_))) finding("reserve returned %d", error);
  } else if (how % 4 < 2)
    hakmem_malloc_trim(how * 64 * HAK_KIB);
  else if (how % 4 == 2)
    hakmem_thread_idle();
  else if (hakmem_purge() % hak_os_page_size() != 0)
    finding("purge gave back parts of pages");
}

/* This process is above any such target, so that the budget goes through all of its levels as the clock moves on. */
void Calls::set_budget() {
  uint8_t which = input_.byte();
  if (which % 2 == 0) {
    hakmem_set_pressure_callback(which % 4 == 0 ? under_pressure : nullptr, nullptr);
    if (hakmem_option_set("HAKMEM_RSS_TARGET", which % 8 < 4 ? HAK_MIB : 0) != 0) finding("a target was refused");
    return;
  }
  limited_ = which % 4 == 1;
  if (hakmem_option_set("HAKMEM_LIMIT", limited_ ? which * 256 * HAK_KIB : 0) != 0) finding("a limit was refused");
}

/* --- the end --- */

/* What the system refused to unmap is nobody's: the allocator has let go of it. */
void Calls::stop_refusing() {
  fake_os::allow_all();
  hakmem_option_set("HAKMEM_LIMIT", 0);
  limited_ = false;
  refusals_end_ = std::min(refusals_end_, steps_);
  for (const fake_os::Event &e : fake_os::log()) {
    if (e.call == fake_os::UNMAP && e.error != 0) hak_os->unmap(reinterpret_cast<void *>(e.addr), e.size_bytes);
  }
}

void Calls::free_everything() {
  while (shadow_.count() > 0) free_block(shadow_.count() - 1);
}

/* Some dirty memory stays for the next input: fresh pages would cost more than the calls. */
void Calls::check_nothing_is_left() {
  hakmem_malloc_trim(kLiveBytes / 2);
  check_heap("after everything was freed");
  if (accounting_check_nothing_live() != 0) finding("something is live after everything was freed");
  for (const std::string &violation : fake_os::violations()) finding("the system saw %s", violation.c_str());
}

void Calls::finish() {
  stop_refusing();
  if (refusals_end_ > 0) {
    /* Memory is to be had again, of each kind, whatever was refused before. */
    for (size_t size : {size_t{24}, size_t{20000}, size_t{200000}, 33 * HAK_MIB})
      receive(allocating([&] { return hakmem_malloc(size); }), size, 16, "malloc after the refusals");
  }
  free_everything();
  check_nothing_is_left();
}
