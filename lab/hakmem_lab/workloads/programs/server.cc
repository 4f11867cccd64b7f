// A server within a process: requests as text go through a queue to workers, which parse them, look up and change a shared
// store, and hand answers back to be freed by the first thread. Usage: server SIZE SEED WORKERS
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <memory>
#include <mutex>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

template <class T> class Queue {
    std::mutex lock;
    std::condition_variable change;
    std::deque<T> items;

  public:
    void put(T item) {
        { std::lock_guard hold(lock); items.push_back(std::move(item)); }
        change.notify_one();
    }
    T take() {
        std::unique_lock hold(lock);
        change.wait(hold, [&] { return !items.empty(); });
        T item = std::move(items.front());
        items.pop_front();
        return item;
    }
};

struct Answer { std::vector<std::string> lines; };
using Request = std::unique_ptr<std::string>;
static Queue<std::vector<Request>> requests;
static Queue<std::vector<std::unique_ptr<Answer>>> answers;
static std::mutex store_lock;
static std::unordered_map<std::string, std::string> store;

static std::unique_ptr<Answer> serve(const std::string &text) {
    std::istringstream in(text);
    auto answer = std::make_unique<Answer>();
    std::string word;
    std::vector<std::string> words;
    while (in >> word) words.push_back(word);
    for (auto &one : words) answer->lines.push_back("<" + one + ">" + std::string(one.size() * 3, '.'));
    std::lock_guard hold(store_lock);
    store[words[0]] = words.back();
    return answer;
}

static void work() {
    for (;;) {
        auto batch = requests.take();
        if (batch.empty()) return;
        std::vector<std::unique_ptr<Answer>> done;
        for (auto &request : batch) done.push_back(serve(*request));
        answers.put(std::move(done));
    }
}

int main(int, char **argv) {
    std::mt19937_64 chance(strtoull(argv[2], nullptr, 10));
    std::vector<std::thread> workers;
    for (int i = 0; i < atoi(argv[3]); i++) workers.emplace_back(work);
    size_t sum = 0;
    int batches = atoi(argv[1]) * 100, open = 0;
    for (int i = 0; i < batches || open; i++) {
        if (i < batches) {
            std::vector<Request> batch;
            for (int j = 0; j < 40; j++) {
                std::string text = "key" + std::to_string(chance() % 20000);
                for (int k = chance() % 12; k >= 0; k--) text += " word-" + std::to_string(chance() % 100000);
                batch.push_back(std::make_unique<std::string>(std::move(text)));
            }
            requests.put(std::move(batch));
            open++;
        }
        if (open > 50 || i >= batches) {
            for (auto &answer : answers.take()) for (auto &line : answer->lines) sum += line.size();
            open--;
        }
    }
    for (size_t i = 0; i < workers.size(); i++) requests.put({});
    for (auto &worker : workers) worker.join();
    printf("%zu %zu\n", sum, store.size());
}
