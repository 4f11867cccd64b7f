// Fuzzing of heaps against a model of them: an input is calls of <hakmem/heap.h> and of malloc's kin on 1 to 4 threads, with refusals of the
// system and steps of the clock among them.
//
// The model knows each heap's blocks, bytes, limit and parent. Checked is that blocks overlap none, keep their contents and say which heap they
// are in; that a request is refused exactly where a limit would be passed, whatever is cached; that figures, visits and lists are the
// model's; that the blocks of a heap that was deleted live on; that nothing is left at the end.
#include <pthread.h>

#include <algorithm>
#include <cstring>
#include <cerrno>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "accounting.h"
#include "crew.h"
#include "fake_os.h"
#include "finding.h"
#include "hak.h"
#include "hakmem/heap.h"
#include "input.h"
#include "shadow.h"

namespace {

constexpr unsigned kStepsMax = 2000, kHeapsMax = 24;
constexpr size_t kLiveBytes = 96 * HAK_MIB, kLiveBlocks = 3000, kTouchBytes = 96 * HAK_MIB, kServed = 40 * HAK_MIB;
constexpr bool kExact = HAK_HARD(CANARY);
constexpr int kErrno = 9999;
constexpr unsigned kMain = 0;

struct Model {
  hakmem_heap *heap = nullptr;
  unsigned parent = kMain;
  size_t limit = 0, live = 0, blocks = 0, total = 0, peak = 0;
  uint64_t refused = 0, served_least = 0, served_most = 0; /* a resize may count as a request */
  bool has_callback = false;
  bool is_cached = false; /* the peak is off by what the thread's cache gains or gives … */
  pthread_t user = {};
  bool shared = false; /* … and by what others have cached */
};

/* At most what a request is charged: its class, whole spans, or pages of a mapping; in pieces it may be less. */
size_t charged(size_t size, size_t align) {
  if (size > PTRDIFF_MAX - HAK_SPAN_SIZE) return size;
  if (size > HAK_EXTENT_MAX) return hak_align_up(size, hak_os_page_size());
  if (size > HAK_SHARED_MAX || align > HAK_GRANULE) return hak_align_up(std::max(size, size_t{1}), HAK_SPAN_SIZE);
  return hak_class_size(hak_class_for(size));
}

uint64_t clock_ms;
/* Of the thread that runs; what it was when that heap has ended. */
thread_local unsigned default_heap = kMain;

class Heaps : public Program {
 public:
  explicit Heaps(Input input) : input_(input) {
    fake_os::reset();
    if (!hak_start()) finding("the allocator does not start");
    if (clock_ms == 0) clock_ms = hak_os_linux.now_ms();
    clock_ms += 10000;
    fake_os::set_clock(clock_ms);
    if (hakmem_heap_list(nullptr, nullptr) != 0) finding("there are heaps at the start");
    default_heap = kMain; /* of the caller's thread, which goes on from input to input */
  }
  Turn step() override;
  void at_thread_end(unsigned round) override;
  void finish();

 private:
  bool exists(unsigned id) const { return heaps_.count(id) != 0; }
  bool refusing() const { return steps_ < refusals_end_; }
  /* Without membarrier what other threads have cached counts to limits, and is visited. */
  bool reaches_threads() const { return !refusing() || !refuses_barrier_; }
  unsigned pick_heap();
  size_t request();
  bool has_room(unsigned id, size_t size) const;
  template <class Body>
  void *in_heap(unsigned id, size_t size, size_t align, const char *what, Body body);
  void enter(unsigned id, void *p, size_t size, size_t align, const char *what);
  void check_refusal(unsigned id, size_t more, const char *what, bool for_room = false);
  void charge(unsigned id, size_t bytes);
  void uncharge(unsigned id, size_t bytes);
  void free_block(size_t index, bool sized);
  std::vector<unsigned> within(unsigned id) const;

  void make_heap();
  void allocate();
  void allocate_many();
  void allocate_as_default();
  void expand(Block old, size_t size, bool of_deleted);
  void resize();
  void free_many();
  enum End { DESTROY, DELETE, RESET };
  void end_heap(End how);
  void set_limit();
  void set_callback();
  void set_default();
  void check_stats(unsigned id);
  void check_visit();
  void check_list();
  void check_block();
  void check_wrong_calls();
  void refuse();
  void check_heap(const char *when);
  static void called_back(hakmem_heap *heap, size_t live, void *context);

  Input input_;
  Shadow shadow_;
  std::map<const void *, unsigned> owner_;
  std::set<const void *> of_deleted_; /* of the main heap, once of a heap that was deleted: with usable sizes of heaps */
  std::map<unsigned, Model> heaps_;
  std::map<hakmem_heap *, unsigned> ids_;
  unsigned next_id_ = 1, steps_ = 0, refusals_end_ = 0, linger_ = 0;
  size_t large_budget_ = kTouchBytes;
  bool refuses_barrier_ = false; /* while refusing() */
  bool in_callback_ = false, callback_frees_ = false;
  int left_ = 0;
};

unsigned Heaps::pick_heap() {
  if (heaps_.empty()) return kMain;
  auto at = heaps_.begin();
  std::advance(at, static_cast<long>(input_.below(heaps_.size())));
  return at->first;
}

/* All heaps of the tree below `id`, itself included. */
std::vector<unsigned> Heaps::within(unsigned id) const {
  std::vector<unsigned> all;
  for (const auto &[other, m] : heaps_) {
    for (unsigned at = other; at != kMain; at = heaps_.at(at).parent)
      if (at == id) all.push_back(other);
  }
  return all;
}

size_t Heaps::request() {
  size_t size = input_.size();
  if (shadow_.count() >= kLiveBlocks || shadow_.bytes() + std::min(size, kServed) > kLiveBytes) return size % 64;
  if (size <= HAK_SMALL_MAX) return size;
  size_t cost = std::min(size, 2 * kServed);
  if (cost > large_budget_) return size % HAK_SMALL_MAX;
  large_budget_ -= cost;
  return size;
}

/* Whether so many bytes pass no limit. */
bool Heaps::has_room(unsigned id, size_t size) const {
  for (; id != kMain; id = heaps_.at(id).parent) {
    const Model &m = heaps_.at(id);
    if (m.limit != 0 && (size > m.limit || m.total > m.limit - size)) return false;
  }
  return true;
}

void note_user(Model *m) {
  if (m->user != pthread_t{} && !pthread_equal(m->user, pthread_self())) m->shared = true;
  m->user = pthread_self();
}

/* A thread's cache of a heap has no more. */
size_t cached_most() {
  size_t sum = 0;
  for (unsigned c = 0; c < HAK_CLASS_COUNT; c++) sum += std::max<size_t>(HAK_SPAN_SIZE, 2 * hak_align_up(hak_class_size(c), HAK_SPAN_SIZE));
  return sum;
}

/* Of the peak. */
size_t most_of(const Model &m) { return !m.is_cached ? m.peak : m.shared ? SIZE_MAX / 2 : m.peak + cached_most(); }

void Heaps::charge(unsigned id, size_t bytes) {
  Model &own = heaps_.at(id);
  own.live += bytes;
  own.blocks++;
  note_user(&own);
  own.peak = std::max(own.peak, own.live);
  for (; id != kMain; id = heaps_.at(id).parent) heaps_.at(id).total += bytes;
}

void Heaps::uncharge(unsigned id, size_t bytes) {
  Model &own = heaps_.at(id);
  note_user(&own);
  own.live -= bytes;
  own.blocks--;
  for (; id != kMain; id = heaps_.at(id).parent) heaps_.at(id).total -= bytes;
}

/* What the program got; shadow_ checks that it overlaps none. */
void Heaps::enter(unsigned id, void *memory, size_t size, size_t align, const char *what) {
  auto *p = static_cast<unsigned char *>(memory);
  size_t usable = hakmem_malloc_usable_size(p);
  if (size > PTRDIFF_MAX) finding("%s granted %zu bytes", what, size);
  if (usable < size || (kExact && id == kMain && of_deleted_.count(p) == 0 && usable != size)) finding("%s: %zu usable bytes of %zu", what, usable, size);
  /* Short of memory, a resized block that is aligned by chance stays where it is. */
  size_t good = hak_usage_size(size, std::strcmp(what, "realloc") == 0 ? HAK_GRANULE : align);
  if (usable < good) finding("%s(%zu aligned to %zu): %zu usable bytes, good_size says %zu", what, size, align, usable, good);
  if (reinterpret_cast<uintptr_t>(p) % std::max(align, size_t{16}) != 0) finding("%s: %p is not aligned to %zu", what, memory, align);
  hakmem_heap *heap = id == kMain ? nullptr : heaps_.at(id).heap;
  if (hakmem_heap_of(p) != heap) finding("%s: %p is in heap %p, not %p", what, memory, static_cast<void *>(hakmem_heap_of(p)), static_cast<void *>(heap));
  shadow_.add({p, size, usable, 0, false, false});
  owner_[p] = id;
  if (id == kMain) return;
  if (!has_room(id, usable)) finding("%s: %zu bytes more, beyond a limit", what, usable);
  charge(id, usable);
}

/* The request for `more` bytes was refused. Which limit refused it is the limit's to say. for_room: none may have. */
void Heaps::check_refusal(unsigned id, size_t more, const char *what, bool for_room) {
  if (left_ != ENOMEM) finding("%s left errno %d", what, left_);
  uint64_t refused = 0;
  for (unsigned at = id; at != kMain; at = heaps_.at(at).parent) {
    Model &m = heaps_.at(at);
    hakmem_heap_stats s;
    hakmem_heap_get_stats(m.heap, &s, sizeof s);
    if (s.refused < m.refused) finding("refusals were %zu and are %zu", static_cast<size_t>(m.refused), static_cast<size_t>(s.refused));
    if (s.refused > m.refused && m.limit == 0) finding("a heap of no limit has refused");
    refused += s.refused - m.refused;
    m.refused = s.refused;
  }
  if (refused > 1) finding("%s: %zu limits say that they refused it", what, static_cast<size_t>(refused));
  if (refused == 0 && !for_room && !refusing() && more <= kServed) finding("%s: %zu bytes refused, and no limit did", what, more);
  if (refused == 1 && reaches_threads() && has_room(id, more)) finding("%s: %zu bytes refused, and there is room for them", what, more);
}

template <class Body>
void *Heaps::in_heap(unsigned id, size_t size, size_t align, const char *what, Body body) {
  errno = kErrno;
  void *p = body();
  left_ = errno;
  if (p != nullptr) {
    if (left_ != kErrno) finding("%s left errno %d", what, left_);
    enter(id, p, size, align, what);
    if (id != kMain) heaps_.at(id).served_least++, heaps_.at(id).served_most++;
    return p;
  }
  if (id == kMain) {
    if (!refusing() && size <= kServed) finding("%s: %zu bytes refused in the main heap", what, size);
    return p;
  }
  check_refusal(id, charged(size, align), what);
  return p;
}

void Heaps::called_back(hakmem_heap *heap, size_t live, void *context) {
  auto *self = static_cast<Heaps *>(context);
  auto at = self->ids_.find(heap);
  if (at == self->ids_.end()) finding("a callback of no heap");
  const Model &m = self->heaps_.at(at->second);
  if (!m.has_callback) finding("a callback that was unset");
  if (m.limit != 0 && live > m.limit) finding("a callback at %zu bytes of %zu", live, m.limit);
  if (self->in_callback_) return;
  self->in_callback_ = true;
  int error = errno;
  hakmem_heap_stats s;
  hakmem_heap_get_stats(heap, &s, sizeof s);
  if (self->callback_frees_ && self->shadow_.count() > 0) self->free_block(self->shadow_.count() - 1, false);
  void *p = hakmem_malloc(50);
  if (default_heap != kMain && self->exists(default_heap)) {
    Model &own = self->heaps_.at(default_heap);
    own.served_most++;
    for (unsigned id = default_heap; p == nullptr && id != kMain; id = self->heaps_.at(id).parent) {
      hakmem_heap_get_stats(self->heaps_.at(id).heap, &s, sizeof s);
      self->heaps_.at(id).refused = s.refused;
    }
    own.peak = std::max(own.peak, own.live + hakmem_malloc_usable_size(p));
  }
  hakmem_free(p);
  errno = error;
  self->in_callback_ = false;
}

Turn Heaps::step() {
  if (input_.done() || ++steps_ > kStepsMax) return {Turn::FINISH, 0};
  if (steps_ == refusals_end_) fake_os::allow_all();
  uint8_t op = input_.byte() % 64;
  bool any = shadow_.count() > 0;
  if (op < 4) make_heap();
  else if (op < 18) allocate();
  else if (op < 22) allocate_many();
  else if (op < 25) allocate_as_default();
  else if (op < 29) resize();
  else if (op < 37) any ? free_block(input_.below(shadow_.count()), op == 36) : allocate();
  else if (op < 40) free_many();
  else if (op < 42) end_heap(op == 41 ? DELETE : steps_ % 2 == 0 ? DESTROY : RESET);
  else if (op < 44) set_limit();
  else if (op == 44) set_callback();
  else if (op < 47) set_default();
  else if (op < 49) check_stats(pick_heap());
  else if (op == 49) check_visit();
  else if (op == 50) check_list();
  else if (op == 51) check_block();
  else if (op == 52) check_wrong_calls();
  else if (op < 58) return {Turn::SWITCH, input_.byte() % kCrew};
  else if (op == 58) {
    linger_ = input_.byte();
    return {Turn::END_THREAD, 0};
  } else if (op == 59) refuse();
  else if (op < 62) {
    static const unsigned steps_ms[] = {1, 60, 250, 300, 1000, 5000};
    fake_os::set_clock(clock_ms += steps_ms[input_.byte() % 6]);
  } else if (op == 62) {
    switch (input_.byte() % 3) {
      case 0: hakmem_malloc_trim(0); break;
      case 1: hakmem_thread_idle(); break;
      default: hakmem_purge();
    }
  } else check_heap("in between");
  return {};
}

void Heaps::make_heap() {
  if (heaps_.size() >= kHeapsMax) return end_heap(input_.byte() % 2 == 0 ? DESTROY : DELETE);
  hakmem_heap_options options = {};
  options.size = sizeof options;
  uint8_t how = input_.byte();
  unsigned parent = how % 3 == 0 ? pick_heap() : kMain;
  if (parent != kMain) options.parent = heaps_.at(parent).heap;
  if (how / 4 % 2 == 0) options.limit = 1 + input_.number(how / 8 % 4);
  options.flags = how / 32 % 4 == 0 ? HAKMEM_HEAP_UNCACHED : 0;
  options.name = how / 128 == 0 ? "fuzzed" : nullptr;
  hakmem_heap *heap = hakmem_heap_new(&options);
  if (heap == nullptr) {
    if (!refusing()) finding("no new heap");
    return;
  }
  Model m;
  m.heap = heap;
  m.parent = parent;
  m.limit = options.limit;
  m.is_cached = options.flags == 0;
  if (!ids_.emplace(heap, next_id_).second) finding("a new heap is one that there is");
  heaps_[next_id_] = m;
  if (hakmem_heap_parent(heap) != options.parent) finding("the parent is another");
  check_stats(next_id_++);
}

void Heaps::allocate() {
  unsigned id = pick_heap();
  if (id == kMain) return;
  hakmem_heap *heap = heaps_.at(id).heap;
  size_t size = request();
  uint8_t how = input_.byte() % 8;
  if (how < 4) {
    in_heap(id, size, 16, "heap_malloc", [&] { return hakmem_heap_malloc(heap, size); });
  } else if (how == 4) {
    in_heap(id, size, 16, "heap_calloc", [&] {
      void *p = hakmem_heap_calloc(heap, 1, size);
      if (p != nullptr) verify_zero(static_cast<unsigned char *>(p), size);
      return p;
    });
  } else if (how < 7) {
    size_t align = input_.alignment();
    if (align > 4 * HAK_MIB) align %= 4 * HAK_MIB;
    if (hak_is_pow2(align)) {
      in_heap(id, size, align, "heap_aligned_alloc", [&] { return hakmem_heap_aligned_alloc(heap, align, size); });
      return;
    }
    errno = kErrno;
    if (hakmem_heap_aligned_alloc(heap, align, size) != nullptr || errno != EINVAL) finding("heap_aligned_alloc(%zu): no EINVAL", align);
  } else {
    in_heap(id, size, 16, "heap_realloc", [&] { return hakmem_heap_realloc(heap, nullptr, size); });
  }
}

/* Until magazines and pieces are full. */
void Heaps::allocate_many() {
  unsigned id = pick_heap();
  if (id == kMain) return;
  hakmem_heap *heap = heaps_.at(id).heap;
  size_t size = input_.size() % (HAK_SMALL_MAX + 1), most = 8 + 512 * HAK_KIB / std::max(size, size_t{16});
  for (size_t n = std::min(2 * (input_.byte() + size_t{1}), most); n > 0; n--) {
    if (shadow_.count() >= kLiveBlocks || shadow_.bytes() + size > kLiveBytes || !exists(id)) return;
    if (in_heap(id, size, 16, "heap_malloc", [&] { return hakmem_heap_malloc(heap, size); }) == nullptr) return;
  }
}

void Heaps::allocate_as_default() {
  if (!exists(default_heap)) default_heap = kMain;
  hakmem_heap *now = hakmem_heap_get_default();
  if (now != (default_heap == kMain ? nullptr : heaps_.at(default_heap).heap)) finding("the default is %p", static_cast<void *>(now));
  size_t size = request();
  uint8_t how = input_.byte() % 4;
  if (how < 2) in_heap(default_heap, size, 16, "malloc", [&] { return hakmem_malloc(size); });
  else if (how == 2) in_heap(default_heap, size, 16, "calloc", [&] { return hakmem_calloc(size, 1); });
  else in_heap(default_heap, size, 64, "aligned_alloc", [&] { return hakmem_aligned_alloc(64, size); });
}

/* In place; a limit holds for what it has more. */
void Heaps::expand(Block old, size_t size, bool of_deleted) {
  unsigned id = owner_.at(old.p);
  owner_.erase(old.p);
  errno = kErrno;
  void *p = hakmem_expand(old.p, size);
  left_ = errno;
  if (of_deleted) of_deleted_.insert(old.p);
  size_t usable = hakmem_malloc_usable_size(old.p);
  if (p == nullptr) {
    if (size <= old.usable) finding("expand(%p, %zu) failed where %zu may be used", static_cast<void *>(old.p), size, old.usable);
    if (id != kMain && usable != old.usable) finding("expand(%p, %zu) failed, and changed it", static_cast<void *>(old.p), size);
    verify(old);
    old.usable = usable;
    shadow_.add(old); /* what may be used, and so what is filled, may be more by now */
    owner_[old.p] = id;
    if (id == kMain) {
      if (left_ != ENOMEM) finding("expand left errno %d", left_);
    } else {
      check_refusal(id, charged(size, HAK_GRANULE) - std::min(old.usable, charged(size, HAK_GRANULE)), "expand", true);
    }
    return;
  }
  if (p != old.p) finding("expand(%p, %zu) returned %p", static_cast<void *>(old.p), size, p);
  if (left_ != kErrno) finding("expand left errno %d", left_);
  if (usable < std::max(size, old.usable)) finding("expand(%p, %zu): %zu usable", p, size, usable);
  verify(old);
  if (id == kMain || usable == old.usable) {
    if (id != kMain) uncharge(id, old.usable);
    std::vector<std::pair<unsigned, size_t>> limits; /* what is unchanged may be beyond one that was set below it */
    for (unsigned at = id; at != kMain; at = heaps_.at(at).parent) limits.emplace_back(at, std::exchange(heaps_.at(at).limit, 0));
    enter(id, p, std::max(size, old.size), 16, "expand");
    for (auto [at, limit] : limits) heaps_.at(at).limit = limit;
    return;
  }
  heaps_.at(id).served_most++;
  uncharge(id, old.usable);
  enter(id, p, std::max(size, old.size), 16, "expand");
}

void Heaps::resize() {
  if (shadow_.count() == 0) return allocate();
  size_t size = request();
  uint8_t how = input_.byte();
  Block old = shadow_.take(input_.below(shadow_.count()));
  verify(old);
  if (how % 2 == 1 && old.usable <= 4 * HAK_MIB) size = old.size / 2 + old.size * input_.byte() / 170;
  unsigned id = owner_.at(old.p);
  /* While it is resized nobody may free it, and it counts as it did. */
  owner_.erase(old.p);
  bool of_deleted = of_deleted_.erase(old.p) != 0;
  hakmem_heap *other = heaps_.empty() ? nullptr : heaps_.at(pick_heap()).heap;
  if (how >= 224) {
    owner_[old.p] = id;
    return expand(old, size, of_deleted);
  }
  size_t align = how >= 192 ? size_t{32} << how % 13 : 16;
  errno = kErrno;
  void *p = align > 16                          ? hakmem_aligned_realloc(old.p, align, size)
            : how % 4 < 3 || other == nullptr ? hakmem_realloc(old.p, size)
                                              : hakmem_heap_realloc(other, old.p, size);
  left_ = errno;
  if (size == 0) {
    if (p != nullptr || left_ != kErrno) finding("realloc(%p, 0) returned %p", static_cast<void *>(old.p), p);
    if (id != kMain) uncharge(id, old.usable);
    return;
  }
  if (p == nullptr) {
    bool is_aligned = reinterpret_cast<uintptr_t>(old.p) % align == 0;
    if (size <= old.size && is_aligned) finding("realloc from %zu to %zu bytes was refused: shrinking never is", old.size, size);
    verify(old);
    shadow_.put_back(old);
    owner_[old.p] = id;
    if (of_deleted) of_deleted_.insert(old.p);
    if (id == kMain) {
      if (!refusing() && size <= kServed) finding("realloc to %zu bytes refused in the main heap", size);
      return;
    }
    check_refusal(id, charged(size, align), "realloc"); /* both blocks count, while it is copied */
    return;
  }
  if (left_ != kErrno) finding("realloc left errno %d", left_);
  verify_prefix(old, static_cast<unsigned char *>(p), std::min(old.size, size));
  if (of_deleted) of_deleted_.insert(p);
  if (id != kMain) {
    Model &m = heaps_.at(id);
    m.served_most++;
    size_t usable = hakmem_malloc_usable_size(p);
    m.peak = std::max(m.peak, m.live + usable); /* both, while it is copied */
    bool shrinks = usable <= old.usable;
    uncharge(id, old.usable);
    if (shrinks) { /* beyond a limit that was set below it */
      std::vector<std::pair<unsigned, size_t>> limits;
      for (unsigned at = id; at != kMain; at = heaps_.at(at).parent) limits.emplace_back(at, std::exchange(heaps_.at(at).limit, 0));
      enter(id, p, size, align, "realloc");
      for (auto [at, limit] : limits) heaps_.at(at).limit = limit;
      return;
    }
  }
  enter(id, p, size, align, "realloc");
}

void Heaps::free_block(size_t index, bool sized) {
  Block b = shadow_.take(index);
  verify(b);
  if (b.usable > 0) b.p[0] = static_cast<unsigned char>(~b.p[0]);
  unsigned id = owner_.at(b.p);
  owner_.erase(b.p);
  of_deleted_.erase(b.p);
  int before = errno;
  errno = kErrno;
  sized ? hakmem_free_sized(b.p, b.size) : hakmem_free(b.p);
  if (errno != kErrno) finding("free left errno %d", errno);
  errno = before;
  if (id != kMain) uncharge(id, b.usable);
}

void Heaps::free_many() {
  uint8_t order = input_.byte();
  for (unsigned n = 2 * (input_.byte() + 1); n > 0 && shadow_.count() > 0; n--) {
    size_t count = shadow_.count();
    free_block(order % 3 == 0 ? count - 1 : order % 3 == 1 ? n * 7919 % count : std::min<size_t>(n, count - 1), false);
  }
}

void Heaps::end_heap(End how) {
  unsigned id = pick_heap();
  if (id == kMain) return;
  std::vector<unsigned> ending = within(id);
  std::set<unsigned> gone(ending.begin(), ending.end());
  for (size_t i = shadow_.count(); i-- > 0;) {
    const Block &b = shadow_.at(i);
    auto at = owner_.find(b.p);
    if (gone.count(at->second) == 0) continue;
    verify(b);
    if (how != DELETE) {
      owner_.erase(at);
      shadow_.take(i);
    } else {
      at->second = kMain;
      of_deleted_.insert(b.p);
    }
  }
  size_t total = heaps_.at(id).total;
  for (unsigned at = heaps_.at(id).parent; at != kMain; at = heaps_.at(at).parent) heaps_.at(at).total -= total;
  hakmem_heap *heap = heaps_.at(id).heap;
  how == DESTROY ? hakmem_heap_destroy(heap) : how == DELETE ? hakmem_heap_delete(heap) : hakmem_heap_reset(heap);
  for (unsigned at : ending) {
    if (how == RESET && at == id) {
      Model &m = heaps_.at(id);
      Model again;
      again.heap = m.heap;
      again.parent = m.parent;
      again.limit = m.limit;
      again.has_callback = m.has_callback;
      again.is_cached = m.is_cached;
      m = again;
      check_stats(id);
      continue;
    }
    ids_.erase(heaps_.at(at).heap);
    heaps_.erase(at);
  }
}

void Heaps::set_limit() {
  unsigned id = pick_heap();
  if (id == kMain) return;
  Model &m = heaps_.at(id);
  uint8_t how = input_.byte();
  m.limit = how % 4 == 0 ? 0 : how % 4 == 1 ? 1 + m.total / 2 + input_.number(1) : how % 4 == 2 ? m.total + input_.number(2) : input_.number(3);
  hakmem_heap_set_limit(m.heap, m.limit);
}

void Heaps::set_callback() {
  unsigned id = pick_heap();
  if (id == kMain) return;
  Model &m = heaps_.at(id);
  uint8_t how = input_.byte();
  unsigned percent = how % 128;
  callback_frees_ = how / 128 != 0;
  int result = hakmem_heap_set_callback(m.heap, percent, how % 5 == 0 ? nullptr : called_back, this);
  bool valid = percent >= 1 && percent <= 100;
  if (how % 5 == 0 && result == 0) m.has_callback = false;
  if (how % 5 != 0 && valid != (result == 0)) finding("a callback at %u percent: %d", percent, result);
  if (how % 5 != 0 && valid) m.has_callback = true;
}

void Heaps::set_default() {
  unsigned id = input_.byte() % 3 == 0 ? kMain : pick_heap();
  if (!exists(default_heap)) default_heap = kMain;
  hakmem_heap *before = default_heap == kMain ? nullptr : heaps_.at(default_heap).heap, *wanted = id == kMain ? nullptr : heaps_.at(id).heap;
  errno = kErrno;
  hakmem_heap *said = hakmem_heap_set_default(wanted);
  if (said != before) finding("the default before was %p, not %p", static_cast<void *>(before), static_cast<void *>(said));
  if (errno == ENOMEM) {
    if (!refusing()) finding("the default was refused");
    return;
  }
  default_heap = id;
  if (hakmem_heap_get_default() != wanted) finding("the default is not what it was set to");
}

void Heaps::check_stats(unsigned id) {
  if (id == kMain) return;
  Model &m = heaps_.at(id);
  hakmem_heap_stats s;
  hakmem_heap_get_stats(m.heap, &s, sizeof s);
  const struct {
    const char *what;
    uint64_t is, should;
  } figures[] = {{"live", s.live, m.live}, {"blocks", s.blocks, m.blocks}, {"total", s.total, m.total}, {"limit", s.limit, m.limit}};
  for (const auto &f : figures)
    if (f.is != f.should) finding("%s of a heap is %zu, not %zu", f.what, static_cast<size_t>(f.is), static_cast<size_t>(f.should));
  if (s.requests < m.served_least || s.requests > m.served_most)
    finding("%zu requests, not %zu to %zu", static_cast<size_t>(s.requests), static_cast<size_t>(m.served_least), static_cast<size_t>(m.served_most));
  if (s.refused != m.refused) finding("%zu refusals, not %zu", static_cast<size_t>(s.refused), static_cast<size_t>(m.refused));
  if (s.held < s.live) finding("%zu bytes are held, and %zu live", s.held, s.live);
  if (s.peak < s.live || s.peak > most_of(m)) finding("the peak is %zu, %zu are live, and at most %zu were", s.peak, s.live, most_of(m));
}

void Heaps::check_visit() {
  unsigned id = pick_heap();
  if (id == kMain) return;
  struct Seen {
    std::map<const void *, size_t> blocks;
    size_t left;
  } seen;
  seen.left = input_.byte() < 200 ? SIZE_MAX : 1 + input_.byte();
  size_t wanted = std::min(heaps_.at(id).blocks, seen.left);
  size_t visited = hakmem_heap_visit(heaps_.at(id).heap, [](void *p, size_t size, void *context) {
    auto *s = static_cast<Seen *>(context);
    if (!s->blocks.emplace(p, size).second) finding("visited %p twice", p);
    return --s->left > 0;
  }, &seen);
  if (!reaches_threads()) return;
  if (visited != wanted || seen.blocks.size() != wanted) finding("%zu blocks visited, not %zu", visited, wanted);
  for (size_t i = 0; i < shadow_.count(); i++) {
    const Block &b = shadow_.at(i);
    auto at = seen.blocks.find(b.p);
    if (at == seen.blocks.end()) continue;
    if (owner_.at(b.p) != id || at->second != b.usable) finding("visited %p of another heap or size", static_cast<void *>(b.p));
    wanted--;
  }
  if (wanted != 0) finding("%zu blocks visited that there are not", wanted);
}

void Heaps::check_list() {
  struct Seen {
    std::vector<hakmem_heap *> heaps;
    size_t left;
  } seen;
  seen.left = 1 + input_.byte() % 30;
  size_t wanted = std::min(heaps_.size(), seen.left);
  size_t listed = hakmem_heap_list([](hakmem_heap *heap, void *context) {
    static_cast<Seen *>(context)->heaps.push_back(heap);
    return --static_cast<Seen *>(context)->left > 0;
  }, &seen);
  if (listed != wanted || seen.heaps.size() != wanted) finding("%zu heaps listed, not %zu", listed, wanted);
  auto at = heaps_.begin();
  for (hakmem_heap *heap : seen.heaps)
    if ((at++)->second.heap != heap) finding("heaps are listed in another order");
  if (hakmem_heap_list(nullptr, nullptr) != heaps_.size()) finding("%zu heaps, not %zu", hakmem_heap_list(nullptr, nullptr), heaps_.size());
}

void Heaps::check_block() {
  if (shadow_.count() == 0) return;
  const Block &b = shadow_.at(input_.below(shadow_.count()));
  verify(b);
  unsigned id = owner_.at(b.p);
  const unsigned char *inside = b.p + input_.number(3) % std::max(b.usable, size_t{1});
  if (hakmem_heap_of(inside) != (id == kMain ? nullptr : heaps_.at(id).heap)) finding("%p is in another heap", static_cast<const void *>(inside));
  if (hakmem_malloc_usable_size(b.p) != b.usable) finding("usable size of %p has changed", static_cast<void *>(b.p));
  if (!hakmem_is_ours(inside)) finding("%p is not ours", static_cast<const void *>(inside));
}

void Heaps::check_wrong_calls() {
  hakmem_heap_options options = {};
  options.size = sizeof options;
  uint8_t how = input_.byte();
  if (how % 2 == 0) options.flags = 2u << how % 30;
  else options.size = how % sizeof options;
  errno = kErrno;
  if (hakmem_heap_new(&options) != nullptr || errno != EINVAL) finding("wrong options were taken");
  unsigned id = pick_heap();
  if (id == kMain) return;
  size_t factor = size_t{2} << how % 62, other = SIZE_MAX / factor + 1 + how;
  errno = kErrno;
  if (hakmem_heap_calloc(heaps_.at(id).heap, factor, other) != nullptr || errno != ENOMEM) finding("heap_calloc(%zu, %zu)", factor, other);
}

void Heaps::at_thread_end(unsigned round) {
  if ((linger_ >> round & 1) == 0 || (round > 1 && hak_tls.phase == HAK_THREAD_FRESH)) return;
  if (shadow_.count() > 0) free_block(linger_ % shadow_.count(), false);
  if (heaps_.empty()) return;
  auto at = heaps_.begin();
  std::advance(at, linger_ % static_cast<long>(heaps_.size()));
  size_t size = size_t{24} << (linger_ >> 5 & 7);
  in_heap(at->first, size, 16, "heap_malloc in a destructor", [&] { return hakmem_heap_malloc(at->second.heap, size); });
}

void Heaps::refuse() {
  auto which = static_cast<fake_os::Call>(input_.byte() % fake_os::CALLS);
  uint8_t when = input_.byte();
  static const int errors[] = {ENOMEM, EPERM, ENOSYS, EAGAIN, EINVAL};
  int error = errors[input_.byte() % 5];
  if (which == fake_os::ADVISE && error == ENOMEM) error = EPERM; /* it would turn advice off for good */
  refuses_barrier_ = which == fake_os::BARRIER || (refuses_barrier_ && refusing());
  if (when % 4 == 0) fake_os::fail_all(which, error);
  else fake_os::fail_nth(which, when / 4 % 8 + 1, when / 32 + 1, error);
  refusals_end_ = std::max(refusals_end_, steps_ + 1 + input_.byte() % 32);
}

void Heaps::check_heap(const char *when) {
  size_t faults = hakmem_heap_check();
  if (faults != 0) finding("%zu faults in the heap %s", faults, when);
}

void Heaps::finish() {
  fake_os::allow_all();
  refusals_end_ = 0;
  for (const fake_os::Event &e : fake_os::log())
    if (e.call == fake_os::UNMAP && e.error != 0) hak_os->unmap(reinterpret_cast<void *>(e.addr), e.size_bytes);
  if (!exists(default_heap)) default_heap = kMain;
  hakmem_heap_set_default(nullptr);
  for (const auto &[id, m] : heaps_) check_stats(id);
  check_heap("at the end");
  /* Some freed before their heaps go, some with them, some after. */
  for (size_t i = 0; i < shadow_.count() / 3; i++) free_block(shadow_.count() - 1, false);
  while (!heaps_.empty()) end_heap(heaps_.size() % 2 == 0 ? DESTROY : DELETE);
  while (shadow_.count() > 0) free_block(shadow_.count() - 1, false);
  if (hakmem_heap_list(nullptr, nullptr) != 0) finding("there are heaps at the end");
  hakmem_malloc_trim(kLiveBytes / 2);
  check_heap("after everything was freed");
  if (accounting_check_nothing_live() != 0) finding("something is live after everything was freed");
  for (const std::string &violation : fake_os::violations()) finding("the system saw %s", violation.c_str());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
  Heaps heaps{Input(data, bytes)};
  run_on_crew(&heaps);
  heaps.finish();
  return 0;
}
