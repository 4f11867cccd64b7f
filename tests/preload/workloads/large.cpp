// A translation unit that makes the compiler allocate: most of the standard
// library's headers, and many instantiations of containers, variants, tuples
// and regular expressions. It is only compiled; the object files are compared.
#include <algorithm>
#include <any>
#include <array>
#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <future>
#include <iomanip>
#include <iostream>
#include <list>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <variant>
#include <vector>

namespace {

template <std::size_t N>
struct Key {
    std::array<int, N> digits{};
    std::string name;

    bool operator<(const Key &other) const
    {
        return std::tie(digits, name) < std::tie(other.digits, other.name);
    }
};

template <std::size_t N>
using Value = std::variant<int, double, std::string, std::vector<Key<N>>, std::optional<std::tuple<Key<N>, long>>>;

template <std::size_t N>
class Catalogue {
public:
    void add(Key<N> key, Value<N> value)
    {
        order_.push_back(key);
        table_.insert_or_assign(std::move(key), std::move(value));
    }

    std::string describe() const
    {
        std::ostringstream out;
        for (const auto &[key, value] : table_) {
            out << std::setw(static_cast<int>(N)) << key.name << ' ';
            std::visit(
                [&](const auto &held) {
                    using Held = std::decay_t<decltype(held)>;
                    if constexpr (std::is_same_v<Held, std::vector<Key<N>>>) {
                        for (const auto &inner : held) {
                            out << inner.name << ',';
                        }
                    } else if constexpr (std::is_same_v<Held, std::optional<std::tuple<Key<N>, long>>>) {
                        out << (held ? std::get<1>(*held) : 0L);
                    } else {
                        out << held;
                    }
                },
                value);
        }
        return out.str();
    }

    long total()
    {
        std::sort(order_.begin(), order_.end());
        std::list<long> sums;
        std::transform(order_.begin(), order_.end(), std::back_inserter(sums), [](const Key<N> &key) {
            return std::accumulate(key.digits.begin(), key.digits.end(), 0L);
        });
        sums.sort(std::greater<>());
        return std::accumulate(sums.begin(), sums.end(), static_cast<long>(N));
    }

private:
    std::map<Key<N>, Value<N>> table_;
    std::deque<Key<N>> order_;
};

template <std::size_t N>
long exercise(const std::string &text)
{
    Catalogue<N + 1> catalogue;
    std::unordered_map<std::string, std::unique_ptr<Key<N + 1>>> owned;
    std::function<long(long)> scale = [&](long factor) { return factor * static_cast<long>(owned.size() + N); };
    for (std::size_t i = 0; i < text.size(); ++i) {
        Key<N + 1> key;
        key.digits.fill(static_cast<int>(i));
        key.name = text.substr(i, N);
        owned[key.name] = std::make_unique<Key<N + 1>>(key);
        catalogue.add(std::move(key), static_cast<double>(i));
    }
    return scale(catalogue.total()) + static_cast<long>(catalogue.describe().size());
}

template <std::size_t... N>
long exercise_all(const std::string &text, std::index_sequence<N...>)
{
    return (exercise<N>(text) + ...);
}

long words(const std::string &text)
{
    static const std::regex word("([a-z]+)([0-9]{2,}|_[A-Z]*)?", std::regex::optimize);
    std::set<std::string> found;
    for (std::sregex_iterator it(text.begin(), text.end(), word), end; it != end; ++it) {
        found.insert((*it)[1].str());
    }
    return static_cast<long>(found.size());
}

}  // namespace

long run(const std::string &text)
{
    auto later = std::async(std::launch::async, [&] { return words(text); });
    return exercise_all(text, std::make_index_sequence<3>()) + later.get();
}
