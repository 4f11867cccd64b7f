// A thread that a test leads by the hand.
#ifndef HAKMEM_TESTS_ACTOR_H
#define HAKMEM_TESTS_ACTOR_H

#include <gtest/gtest.h>
#include <semaphore.h>

#include <algorithm>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include "fake_cpu.h"
#include "hak.h"

// Work that leads to the slow path so often that the calling thread's magazine of the class has all its capacity.
inline void grow_capacity(size_t size) {
  unsigned c = hak_class_for(size);
  std::vector<void *> blocks(2 * hak_magazine_usable[c]);
  for (int round = 0; round < 2000 && hak_thread_cache()->bins[c].capacity < hak_magazine_usable[c]; round++) {
    for (void *&p : blocks) p = hakmem_malloc(size);
    for (void *p : blocks) hakmem_free(p);
  }
  EXPECT_EQ(hak_thread_cache()->bins[c].capacity, hak_magazine_usable[c]) << size;
}

// A thread on a CPU of its own that does what it is told, one step after the other, and keeps its cache in between.
class Actor {
 public:
  explicit Actor(uint32_t cpu) {
    sem_init(&go_, 0, 0);
    sem_init(&done_, 0, 0);
    thread_ = std::thread([this, cpu] {
      fake_cpu::number = cpu;
      for (;;) {
        while (sem_wait(&go_) != 0) continue;
        if (!step_) break;
        step_();
        sem_post(&done_);
      }
    });
    run([] { hak_thread_cache(); });
  }
  ~Actor() { end(); }
  void run(std::function<void()> step) {
    begin(std::move(step));
    await();
  }
  // The same in two: the caller goes on meanwhile.
  void begin(std::function<void()> step) {
    step_ = std::move(step);
    sem_post(&go_);
  }
  void await() {
    while (sem_wait(&done_) != 0) continue;
  }
  void end() {
    if (!thread_.joinable()) return;
    step_ = nullptr;
    sem_post(&go_);
    thread_.join();
  }
  std::vector<void *> alloc(size_t size, size_t n) {
    std::vector<void *> blocks(n);
    run([&] {
      for (void *&p : blocks) p = hakmem_malloc(size);
    });
    return blocks;
  }
  void free(const std::vector<void *> &blocks, size_t from = 0, size_t to = SIZE_MAX) {
    run([&] {
      for (size_t i = from; i < std::min(to, blocks.size()); i++) hakmem_free(blocks[i]);
    });
  }
  void flush() {
    run([] {
      hak_deferred d = {};
      hak_tcache_flush(hak_tls.cache, &d);
      hak_slow_exit(&d);
    });
  }

 private:
  sem_t go_, done_;
  std::function<void()> step_;
  std::thread thread_;
};

#endif
