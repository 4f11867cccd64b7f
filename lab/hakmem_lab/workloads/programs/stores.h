// What RocksDB and LevelDB are asked: two threads with keys of their own, some of them asked for often, put, get,
// delete, write batches and walk; all of it from the seed, so that both stores have the same result.
#pragma once
#include <atomic>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

template <class Store, class Walk, class Batch> std::string use_store(Store *db, int size, unsigned long long seed) {
    constexpr int THREADS = 2;
    std::vector<unsigned long long> sums(THREADS);
    std::atomic<bool> failed = false;
    std::vector<std::thread> threads;
    for (int t = 0; t < THREADS; t++)
        threads.emplace_back([&, t] {
            std::mt19937_64 chance(seed * THREADS + static_cast<unsigned long long>(t));
            auto number = [&](unsigned long long most) { return chance() % most; };
            std::string own = std::to_string(t) + ":";
            auto key = [&] { return own + "user:" + std::to_string(number(10000) * number(10000) / 100); };
            auto value = [&] {
                size_t size = 20 + number(9) * number(60) + (number(50) ? 0 : number(8000));
                return std::string(size, static_cast<char>('a' + number(26)));
            };
            unsigned long long &sum = sums[static_cast<size_t>(t)];
            for (int i = 0; i < 5000 * size; i++) {
                std::string found;
                switch (number(10)) {
                case 0: case 1: case 2: failed = failed | !db->Put({}, key(), value()).ok(); break;
                case 3: failed = failed | !db->Delete({}, key()).ok(); break;
                case 4: {
                    Batch batch;
                    for (unsigned long long j = 2 + number(20); j; j--) batch.Put(key(), value());
                    failed = failed | !db->Write({}, &batch).ok();
                    break;
                }
                case 5: {
                    if (number(10)) break;
                    std::unique_ptr<Walk> at(db->NewIterator({}));
                    int left = 50;
                    for (at->Seek(key()); at->Valid() && at->key().starts_with(own) && left--; at->Next())
                        sum = sum * 31 + at->value().size();
                    break;
                }
                default: sum = sum * 31 + (db->Get({}, key(), &found).ok() ? found.size() : 7);
                }
            }
        });
    for (auto &thread : threads) thread.join();
    std::string said = failed ? "failed" : "";
    for (auto sum : sums) said += std::to_string(sum) + " ";
    return said;
}
