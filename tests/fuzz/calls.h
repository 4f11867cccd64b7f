// The differential part: an input as a sequence of calls of every exported function, each result checked against the
// shadow map and against what include/hakmem/hakmem.h promises: overlap, alignment, contents, zeros, usable and good
// sizes, errno; NULL only where the system refused something or the request cannot be served.
//
// The system under the allocator is tests/support/fake_os: it refuses calls when the input says so, and its clock moves
// when the input says so. Budgets are set and lifted on the way; memory goes back by itself, on request, and under pressure.
#ifndef HAKMEM_TESTS_FUZZ_CALLS_H
#define HAKMEM_TESTS_FUZZ_CALLS_H

#include <cerrno>

#include "crew.h"
#include "input.h"
#include "shadow.h"

class Calls : public Program {
 public:
  // Whose the process is: this input's alone, and then what cannot be undone may be done to it; or that of others as well.
  enum Process { SHARED, OWN };
  explicit Calls(Input input, Process process = SHARED);

  Turn step() override;
  void at_thread_end(unsigned round) override;

  // Once all other threads have ended: frees what is live; then nothing may be left anywhere.
  void finish();

 protected:
  // Steps of the input, by their first byte.
  Turn call(uint8_t op);

  // For the misuse mode: whether this address was misused, so that it may have two owners, or any was; whether a large
  // calloc is sure to find what it takes for zero pages; and each block when it is freed.
  virtual bool is_tainted(const void *) const { return false; }
  virtual bool misused() const { return false; }
  virtual bool zeros_are_sure() const { return true; }
  virtual void note_freed(const Block &) {}

  size_t pick() { return input_.below(shadow_.count()); }
  // What a call that allocates returned. It asked for `size` bytes aligned to `align`.
  void receive(void *p, size_t size, size_t align, const char *what);
  void free_block(size_t index);
  void free_everything();
  void stop_refusing();
  void check_nothing_is_left();

  void start();
  // Until some steps later, calls of a kind fail, or the n-th of them does.
  void refuse();

  Input input_;
  Shadow shadow_;
  uint64_t allocations_ = 0;  // calls so far that may have allocated

 private:
  // Runs a call with an errno of ours, and keeps the one it left.
  template <class Body>
  auto with_errno(Body body) {
    errno = kErrno;
    auto result = body();
    left_ = errno;
    return result;
  }
  template <class Body>
  void *allocating(Body body) {
    allocations_++;
    return with_errno(body);
  }
  void expect_errno(const char *what, int expected);
  bool refusing() const { return limited_ || steps_ < refusals_end_; }

  size_t request();
  void check_refusal(const char *what, size_t size, size_t align);
  void receive_zeroed(void *p, size_t size, size_t align);

  void allocate();
  void allocate_zeroed();
  void allocate_aligned(unsigned function);
  void allocate_at_least();
  void allocate_many();
  void expand(Block old, size_t size);
  void resize(bool array);
  void overflow_product();
  void free_sized(bool aligned);
  void free_many();
  Turn switch_thread();
  Turn end_thread();
  void advance_clock();
  void give_back();
  void report_or_set(unsigned what);
  void set_budget();

  // queries.cc: what changes nothing
  void query_sizes();
  void query_block();
  void query_totals();
  void query_options();
  void query_figures();
  void print_reports();
  void pass_foreign();
  void check_heap(const char *when);

  static bool is_from_slab(const void *p);
  void check_extent(const unsigned char *p, size_t size, size_t usable, const char *what);

  static constexpr int kErrno = 9999;
  const Process process_;
  int left_ = 0;
  unsigned steps_ = 0, refusals_end_ = 0;
  unsigned linger_ = 0;     // what a thread that ends does in its destructors
  size_t large_budget_;     // bytes of large blocks this input may still touch
  bool limited_ = false;    // HAKMEM_LIMIT is set
};

#endif
