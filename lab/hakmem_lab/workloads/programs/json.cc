// JSON into trees of maps, vectors and strings and back. Usage: json FILE SIZE
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <sstream>

int main(int, char **argv) {
    std::stringstream text;
    text << std::ifstream(argv[1]).rdbuf();
    size_t sum = 0;
    for (int turn = 0; turn < atoi(argv[2]); turn++) {
        auto all = nlohmann::json::parse(text.str());
        std::map<std::string, nlohmann::json> by_city;
        for (auto &one : all) {
            one["turn"] = turn;
            by_city[one["where"]["city"].get<std::string>()].push_back(one);
        }
        for (auto &[city, found] : by_city) sum += city.size() + found.dump().size();
    }
    std::cout << sum << "\n";
}
