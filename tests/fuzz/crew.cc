#include "crew.h"

#include <pthread.h>
#include <semaphore.h>

#include <cerrno>
#include <cstdint>

#include "finding.h"

namespace {

constexpr uintptr_t kLastRound = 4; /* PTHREAD_DESTRUCTOR_ITERATIONS */

class Crew {
 public:
  explicit Crew(Program *program) : program_(program) {
    for (sem_t &s : turns_) sem_init(&s, 0, 0);
  }
  ~Crew() {
    for (sem_t &s : turns_) sem_destroy(&s);
  }

  void run() {
    work(0);
    quitting_ = true;
    for (unsigned t = 1; t < kCrew; t++) {
      if (!alive_[t]) continue;
      sem_post(&turns_[t]);
      pthread_join(threads_[t], nullptr);
    }
  }

 private:
  struct Member {
    Crew *crew;
    unsigned number;
  };

  static void *body(void *memory);

  void pass(unsigned from, unsigned to) {
    if (to != 0 && !alive_[to]) {
      members_[to] = {this, to};
      /* Refused: the one that has the turn keeps it. */
      if (pthread_create(&threads_[to], nullptr, body, &members_[to]) != 0) return;
      alive_[to] = true;
    }
    sem_post(&turns_[to]);
    wait(from);
  }

  void wait(unsigned self) {
    while (sem_wait(&turns_[self]) != 0 && errno == EINTR) {
    }
    if (self == 0 && ended_ != 0) {
      /* Its destructors run now, alone: nobody else goes on before it is gone. */
      pthread_join(threads_[ended_], nullptr);
      alive_[ended_] = false;
      ended_ = 0;
    }
  }

  /* Holds the turn on entry. Thread 0 returns when the program has finished, a worker when it is to end. */
  void work(unsigned self) {
    while (!quitting_) {
      Turn turn = finished_ ? Turn{Turn::FINISH, 0} : program_->step();
      if (turn.kind == Turn::FINISH) {
        finished_ = true;
        if (self == 0) return;
        pass(self, 0);
      } else if (turn.kind == Turn::END_THREAD && self != 0) {
        ended_ = self;
        return;
      } else if (turn.kind == Turn::SWITCH && turn.thread != self) {
        pass(self, turn.thread);
      }
    }
  }

  Program *program_;
  sem_t turns_[kCrew];
  pthread_t threads_[kCrew];
  Member members_[kCrew];
  bool alive_[kCrew] = {true, false, false, false};
  bool quitting_ = false, finished_ = false;
  unsigned ended_ = 0;
};

pthread_key_t end_key;
thread_local Program *ending_program;

void *Crew::body(void *memory) {
  Member *m = static_cast<Member *>(memory);
  ending_program = m->crew->program_;
  pthread_setspecific(end_key, reinterpret_cast<void *>(uintptr_t{1}));
  m->crew->wait(m->number);
  m->crew->work(m->number);
  if (m->crew->ended_ == m->number) sem_post(&m->crew->turns_[0]);
  return nullptr;
}

void at_end(void *value) {
  uintptr_t round = reinterpret_cast<uintptr_t>(value);
  ending_program->at_thread_end(static_cast<unsigned>(round));
  if (round < kLastRound) pthread_setspecific(end_key, reinterpret_cast<void *>(round + 1));
}

void make_key() {
  static bool made;
  if (!made && pthread_key_create(&end_key, at_end) != 0) finding("no pthread key to be had");
  made = true;
}

}  // namespace

void run_on_crew(Program *program) {
  make_key();
  Crew(program).run();
}
