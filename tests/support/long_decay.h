// As long as it lives, what is free stays: for tests that count it, and must not depend on how long they take.
#pragma once

#include <cstdint>

#include <hakmem/hakmem.h>

class LongDecay {
public:
  LongDecay() {
    hakmem_option_get("HAKMEM_DECAY_MS", &before);
    hakmem_option_set("HAKMEM_DECAY_MS", 3600000);
  }
  ~LongDecay() { hakmem_option_set("HAKMEM_DECAY_MS", before); }
  LongDecay(const LongDecay &) = delete;
  LongDecay &operator=(const LongDecay &) = delete;

private:
  int64_t before = 0;
};
