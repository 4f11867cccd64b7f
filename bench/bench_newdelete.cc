/*
 * C++ containers and objects: a registry of records (map of unique_ptr, an index by name) whose
 * items are objects of several classes behind a base class: strings, growing vectors, arrays and
 * one class with an alignment of its own. Records come, get items and go at random. Everything
 * goes through operator new and delete, mostly the sized ones, also the array and the aligned ones.
 * Modelled on ordinary C++ programs. One operation is one step on one record.
 */
#include "bench.h"

#include <cinttypes>
#include <map>
#include <memory>
#include <new>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace {

constexpr uint64_t kTextMax = 120;
constexpr uint64_t kSamplesMax = 200;
constexpr size_t kMatrixCells = 16;
constexpr size_t kItemsMax = 24;

class Item {
  public:
    virtual ~Item() = default;
    virtual uint64_t digest() const = 0;
};

class Note final : public Item {
  public:
    explicit Note(uint64_t random) : text_(1 + bench_below(random, kTextMax), 'a') {
        text_.back() = static_cast<char>('a' + random % 26);
    }
    uint64_t digest() const override {
        return bench_mix(text_.size(), static_cast<unsigned char>(text_.back()));
    }

  private:
    std::string text_;
};

class Samples final : public Item {
  public:
    explicit Samples(uint64_t random) {
        for (uint64_t i = 0, count = bench_below(random, kSamplesMax); i <= count; i++)
            values_.push_back(static_cast<uint32_t>(random + i));
    }
    uint64_t digest() const override { return bench_mix(values_.size(), values_.back()); }

  private:
    std::vector<uint32_t> values_;
};

class Bytes final : public Item {
  public:
    explicit Bytes(uint64_t random)
        : size_(1 + bench_below(random, 4 * kTextMax)), bytes_(new unsigned char[size_]) {
        bench_touch(bytes_.get(), size_, random);
    }
    uint64_t digest() const override { return bench_mix(size_, bytes_[size_ - 1]); }

  private:
    size_t size_;
    std::unique_ptr<unsigned char[]> bytes_;
};

class alignas(64) Matrix final : public Item {
  public:
    explicit Matrix(uint64_t random) {
        for (size_t i = 0; i < kMatrixCells; i++) cells_[i] = static_cast<double>(random % (i + 7));
        if (reinterpret_cast<uintptr_t>(this) % alignof(Matrix) != 0)
            bench_fail("an object is not aligned as its class asks");
    }
    uint64_t digest() const override {
        return bench_mix(kMatrixCells, static_cast<uint64_t>(cells_[kMatrixCells - 1]));
    }

  private:
    double cells_[kMatrixCells];
};

std::unique_ptr<Item> make_item(uint64_t random) {
    switch (random >> 3 & 7) {
    case 0: return std::make_unique<Matrix>(random);
    case 1:
    case 2: return std::make_unique<Samples>(random);
    case 3: return std::make_unique<Bytes>(random);
    default: return std::make_unique<Note>(random);
    }
}

struct Record {
    std::string name;
    std::vector<std::unique_ptr<Item>> items;
};

/* Invariant: the index holds the name and the key of every record, and nothing else. */
class Registry {
  public:
    /* What one step does depends on the record: make it, add to it, or end it. */
    void step(uint64_t key, uint64_t random) {
        auto found = records_.find(key);
        if (found == records_.end()) {
            add(key, random);
        } else if (random % 8 == 0 || found->second->items.size() == kItemsMax) {
            remove(found);
        } else {
            found->second->items.push_back(make_item(random));
        }
    }

    void clear() {
        while (!records_.empty()) remove(records_.begin());
    }

    uint64_t check() const { return check_; }

  private:
    using Records = std::map<uint64_t, std::unique_ptr<Record>>;

    void add(uint64_t key, uint64_t random) {
        auto record = std::make_unique<Record>();
        record->name = "record number " + std::to_string(key) + std::string(random % 40, '.');
        index_.emplace(record->name, key);
        records_.emplace(key, std::move(record));
    }

    void remove(Records::iterator at) {
        const Record &record = *at->second;
        for (const auto &item : record.items) check_ = bench_mix(check_, item->digest());
        auto entry = index_.find(record.name);
        if (entry == index_.end() || entry->second != at->first)
            bench_fail("the index has lost a record");
        index_.erase(entry);
        records_.erase(at);
    }

    Records records_;
    std::unordered_map<std::string, uint64_t> index_;
    uint64_t check_ = 0;
};

uint64_t run(uint64_t steps, uint64_t records, uint64_t seed) {
    uint64_t state = bench_seed(seed);
    Registry registry;
    for (uint64_t i = 0; i < steps; i++) {
        uint64_t key = bench_below(bench_random(&state), records);
        registry.step(key, bench_random(&state));
    }
    registry.clear();
    return registry.check();
}

}  // namespace

int main(int argc, char **argv) {
    bench_arg args[] = {
        {"steps", "steps on a random record", 350000, 1, UINT64_C(1) << 48},
        {"records", "keys of records; most have one", 2000, 1, UINT64_C(1) << 28},
        {"seed", "of the random numbers", 42, 0, UINT64_MAX},
    };
    bench_parse(argc, argv, "C++ containers and objects through operator new and delete", args,
                sizeof args / sizeof args[0]);
    uint64_t steps = args[0].value, records = args[1].value, check = 0;

    uint64_t start = bench_now_ns();
    try {
        check = run(steps, records, args[2].value);
    } catch (const std::bad_alloc &) {
        bench_fail("operator new threw bad_alloc");
    }
    uint64_t elapsed = bench_now_ns() - start;

    bench_report(steps, elapsed, "steps=%" PRIu64 " records=%" PRIu64 " check=%016" PRIx64, steps,
                 records, check);
    return 0;
}
