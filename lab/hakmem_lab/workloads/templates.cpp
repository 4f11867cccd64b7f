// For the compiler, not to be run: templates and the standard library, as often as SIZE says.
#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#ifndef SIZE
#define SIZE 3
#endif

namespace {

template <int N>
struct Record {
  int number = N;
  std::string name = std::to_string(N);
  std::variant<int, double, std::string> value = N;
  std::tuple<int, std::string, std::vector<int>> parts{N, "part", {N, N + 1}};
  bool operator<(const Record &other) const { return std::tie(number, name) < std::tie(other.number, other.name); }
};

template <int N>
struct Store {
  std::map<Record<N>, std::unique_ptr<Record<N>>> by_record;
  std::unordered_map<std::string, std::vector<Record<N>>> by_name;
  std::function<int(const Record<N> &)> weigh = [](const Record<N> &record) { return record.number * N; };

  int fill(int count) {
    for (int i = 0; i < count; i++) {
      Record<N> record;
      record.number = i;
      by_name[record.name].push_back(record);
      by_record.emplace(record, std::make_unique<Record<N>>(record));
    }
    int sum = 0;
    for (auto &[name, records] : by_name) {
      std::sort(records.begin(), records.end());
      sum += std::accumulate(records.begin(), records.end(), 0,
                             [this](int so_far, const Record<N> &record) { return so_far + weigh(record); });
    }
    return sum;
  }
};

template <int... Numbers>
int fill_all(std::integer_sequence<int, Numbers...>) {
  return (Store<Numbers>{}.fill(Numbers) + ... + 0);
}

}  // namespace

int total() { return fill_all(std::make_integer_sequence<int, SIZE>{}); }
