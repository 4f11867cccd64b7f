// Real threads of which one runs at a time: each step of a program says who takes the next one. So an input fixes the
// order of all calls, and with it what every thread's cache and every depot holds.
//
// Thread 0 is the caller's; 1 to 3 are started when they are first switched to, end when a step says so, and may be
// started again, which is how caches change hands.
#ifndef HAKMEM_TESTS_FUZZ_CREW_H
#define HAKMEM_TESTS_FUZZ_CREW_H

constexpr unsigned kCrew = 4;

struct Turn {
  enum Kind { STAY, SWITCH, END_THREAD, FINISH } kind = STAY;
  unsigned thread = 0;  // of SWITCH
};

class Program {
 public:
  virtual ~Program() = default;
  virtual Turn step() = 0;
  // In each round of a worker's key destructors, 1 to 4; the allocator's own runs in the third.
  virtual void at_thread_end(unsigned round) = 0;
};

// Returns, on the calling thread, when the program has finished and every worker has ended.
void run_on_crew(Program *program);

#endif
