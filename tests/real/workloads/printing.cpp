// Containers for the debugger to print: it stops in look(), 200 times, where they have changed each time.
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <variant>
#include <vector>

struct Node {
    std::string name;
    std::vector<std::unique_ptr<Node>> children;
    std::variant<int, double, std::string> value;
};

struct State {
    std::map<std::string, std::vector<int>> table;
    std::set<std::string> names;
    std::deque<std::pair<int, std::string>> queue;
    std::unordered_map<int, std::optional<std::string>> notes;
    Node tree;
};

static void grow(Node &node, int depth, int round)
{
    node.name = "node " + std::to_string(depth) + std::string(round % 40, '.');
    if (round % 3 == 0) node.value = round;
    if (round % 3 == 1) node.value = round / 2.0;
    if (round % 3 == 2) node.value = std::string(round % 30, 'v');
    node.children.clear();
    for (int i = 0; depth > 0 && i < 3; i++) {
        node.children.push_back(std::make_unique<Node>());
        grow(*node.children.back(), depth - 1, round + i);
    }
}

__attribute__((noinline)) void look(State &state, int round)
{
    asm volatile("" : : "r"(&state), "r"(round) : "memory");
}

int main()
{
    State state;
    for (int round = 0; round < 200; round++) {
        auto key = "key " + std::to_string(round * 7919 % 61);
        state.table[key].push_back(round);
        if (round % 5 == 4) state.table.erase(state.table.begin());
        state.names.insert(key + std::string(round % 50, 'n'));
        state.queue.emplace_back(round, key);
        if (state.queue.size() > 20) state.queue.pop_front();
        state.notes[round % 17] = round % 2 ? std::optional<std::string>(key) : std::nullopt;
        grow(state.tree, 3, round);
        look(state, round);
    }
    return 0;
}
