// Fuzzing of correct use from the very first call on: each input in a forked child where the allocator has not started,
// so that the system may refuse what the start needs, and what cannot be undone: advice, for as long as the process lives.
#include "calls.h"
#include "ledger.h"

namespace {

class Starts : public Calls {
 public:
  explicit Starts(Input input) : Calls(input, OWN) {
    for (unsigned refusals = input_.byte() % 4; refusals > 0; refusals--) refuse();
  }
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
  run_in_child([&](Ledger *) {
    Starts program{Input(data, bytes)};
    run_on_crew(&program);
    program.finish();
  });
  return 0;
}
