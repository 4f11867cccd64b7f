// A cache with least recent out, a graph, a priority queue, maps of strings. Usage: containers SIZE SEED
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <list>
#include <map>
#include <queue>
#include <random>
#include <string>
#include <unordered_map>
#include <vector>

static std::mt19937_64 chance;
static uint64_t below(uint64_t bound) { return chance() % bound; }

struct Cache {
    std::list<std::pair<uint64_t, std::string>> order;
    std::unordered_map<uint64_t, decltype(order)::iterator> where;

    bool take(uint64_t key) {
        auto found = where.find(key);
        bool hit = found != where.end();
        if (hit) {
            order.splice(order.begin(), order, found->second);
        } else {
            order.emplace_front(key, std::string(8 + below(200), 'x'));
            where[key] = order.begin();
        }
        if (where.size() > 20000) {
            where.erase(order.back().first);
            order.pop_back();
        }
        return hit;
    }
};

static uint64_t shortest_paths(size_t nodes) {
    std::vector<std::map<uint32_t, uint32_t>> edges(nodes);
    for (size_t i = 0; i < nodes * 4; i++) edges[below(nodes)][below(nodes)] = 1 + below(100);
    std::vector<uint64_t> cost(nodes, UINT64_MAX);
    using Way = std::pair<uint64_t, uint32_t>;
    std::priority_queue<Way, std::deque<Way>, std::greater<>> open;
    open.emplace(cost[0] = 0, 0);
    uint64_t sum = 0;
    while (!open.empty()) {
        auto [so_far, at] = open.top();
        open.pop();
        if (so_far > cost[at]) continue;
        sum += so_far;
        for (auto [next, length] : edges[at])
            if (so_far + length < cost[next]) open.emplace(cost[next] = so_far + length, next);
    }
    return sum;
}

int main(int, char **argv) {
    chance.seed(strtoull(argv[2], nullptr, 10));
    uint64_t sum = 0;
    Cache cache;
    std::map<std::string, std::vector<std::string>> index;
    for (int turn = 0; turn < atoi(argv[1]); turn++) {
        for (int i = 0; i < 60000; i++) sum += cache.take(below(1 + below(60000)));
        sum += shortest_paths(6000);
        for (int i = 0; i < 20000; i++) {
            auto &entry = index["key-of-the-index-" + std::to_string(below(5000))];
            entry.push_back(std::string(below(60), 'v'));
            if (entry.size() > 8) entry.clear();
        }
        std::deque<std::vector<int>> queue;
        for (int i = 0; i < 20000; i++) {
            queue.emplace_back(1 + below(40));
            if (queue.size() > 500) sum += queue.front().size(), queue.pop_front();
        }
    }
    printf("%llu %zu\n", (unsigned long long)sum, index.size());
}
