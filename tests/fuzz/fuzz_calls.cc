// Differential fuzzing of correct use: every input in this process, whose heap is empty again after each.
#include "calls.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
  Calls calls{Input(data, bytes)};
  run_on_crew(&calls);
  calls.finish();
  return 0;
}
