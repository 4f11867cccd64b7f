// Every way C++ asks for memory, with results that do not depend on addresses
// or timing. Prints one line per check; the test compares them with glibc's.
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <limits>
#include <map>
#include <memory>
#include <memory_resource>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace {

// Read through a volatile, so that the compiler cannot see an impossible size.
volatile std::size_t huge_bytes = static_cast<std::size_t>(std::numeric_limits<std::ptrdiff_t>::max()) - 4096;

void report(const char *what, long value) { std::printf("%s: %ld\n", what, value); }

template <std::size_t Alignment>
struct alignas(Alignment) Aligned {
    char bytes[Alignment];
};

template <std::size_t Alignment>
long aligned_blocks()
{
    long bad = 0;
    std::vector<std::unique_ptr<Aligned<Alignment>>> single;
    std::vector<std::unique_ptr<Aligned<Alignment>[]>> many;
    for (int i = 0; i < 40; ++i) {
        single.push_back(std::make_unique<Aligned<Alignment>>());
        many.push_back(std::make_unique<Aligned<Alignment>[]>(static_cast<std::size_t>(i % 3 + 1)));
        bad += reinterpret_cast<std::uintptr_t>(single.back().get()) % Alignment != 0;
        bad += reinterpret_cast<std::uintptr_t>(many.back().get()) % Alignment != 0;
        if (i % 2 == 0) {
            single.erase(single.begin());
        }
    }
    return bad;
}

int handler_calls;

void give_up_after_three_calls()
{
    if (++handler_calls == 3) {
        std::set_new_handler(nullptr);
    }
}

void failures()
{
    report("nothrow new of a huge size is null", ::operator new(huge_bytes, std::nothrow) == nullptr);
    report("nothrow new[] of a huge size is null", ::operator new[](huge_bytes, std::nothrow) == nullptr);
    report("nothrow aligned new of a huge size is null",
           ::operator new(huge_bytes, std::align_val_t(4096), std::nothrow) == nullptr);
    try {
        ::operator delete(::operator new(huge_bytes));
        report("new of a huge size returned", 1);
    } catch (const std::bad_alloc &) {
        report("new of a huge size threw bad_alloc", 1);
    }
    try {
        volatile std::size_t count = std::numeric_limits<std::size_t>::max() / 4;
        delete[] new long[count];
        report("new[] with an overflowing size returned", 1);
    } catch (const std::bad_array_new_length &) {
        report("new[] with an overflowing size threw bad_array_new_length", 1);
    }
    std::set_new_handler(give_up_after_three_calls);
    try {
        ::operator delete(::operator new(huge_bytes));
    } catch (const std::bad_alloc &) {
        report("calls of the new handler before bad_alloc", handler_calls);
    }
    handler_calls = 0;
    std::set_new_handler(give_up_after_three_calls);
    void *none = ::operator new(huge_bytes, std::nothrow);
    report("nothrow with a handler is null", none == nullptr);
    report("calls of the new handler before null", handler_calls);
    std::set_new_handler([] { throw std::bad_alloc(); });
    report("nothrow with a throwing handler is null", ::operator new(huge_bytes, std::nothrow) == nullptr);
    std::set_new_handler(nullptr);
}

struct Node {
    std::string name;
    std::unique_ptr<Node> next;
};

long exceptions(int depth)
{
    std::vector<std::string> held(static_cast<std::size_t>(depth % 7 + 1), std::string(100, 'e'));
    if (depth == 0) {
        throw std::runtime_error("bottom " + held[0].substr(0, 3));
    }
    return exceptions(depth - 1) + static_cast<long>(held.size());
}

// Freed by the C++ runtime while the thread ends, after its last statement.
thread_local std::map<int, std::string> leftovers;

long thread_work(int seed, std::vector<std::unique_ptr<Node>> &outbox)
{
    long sum = 0;
    for (int i = 0; i < 2000; ++i) {
        auto node = std::make_unique<Node>();
        node->name = std::string(static_cast<std::size_t>((i * seed) % 300), 'n');
        if (!outbox.empty() && i % 3 == 0) {
            node->next = std::move(outbox.back());
            outbox.pop_back();
        }
        sum += static_cast<long>(node->name.size());
        outbox.push_back(std::move(node));
        leftovers[i % 50] = std::string(static_cast<std::size_t>(i % 100), 't');
        try {
            if (i % 200 == 0) {
                exceptions(i % 9);
            }
        } catch (const std::runtime_error &error) {
            sum += static_cast<long>(std::string(error.what()).size());
        }
    }
    return sum;
}

void threads()
{
    constexpr int count = 4;
    std::vector<std::unique_ptr<Node>> outboxes[count];
    long sums[count] = {};
    for (int round = 0; round < 5; ++round) {
        std::vector<std::thread> running;
        for (int i = 0; i < count; ++i) {
            // Each round frees what another thread allocated in the one before.
            auto &outbox = outboxes[(i + round) % count];
            running.emplace_back([&sums, &outbox, i] { sums[i] += thread_work(i + 1, outbox); });
        }
        for (auto &thread : running) {
            thread.join();
        }
    }
    for (long sum : sums) {
        report("sum of a thread", sum);
    }
    std::exception_ptr carried;
    std::thread([&] {
        try {
            exceptions(20);
        } catch (...) {
            carried = std::current_exception();
        }
    }).join();
    try {
        std::rethrow_exception(carried);
    } catch (const std::runtime_error &error) {
        std::printf("carried between threads: %s\n", error.what());
    }
}

long sized_and_plain()
{
    long sum = 0;
    for (std::size_t size = 0; size < 200000; size = size * 5 / 4 + 1) {
        char *a = static_cast<char *>(::operator new(size));
        char *b = static_cast<char *>(::operator new[](size, std::nothrow));
        if (size > 0) {
            a[0] = b[0] = 1;
            a[size - 1] = b[size - 1] = 2;
            sum += a[0] + b[size - 1];
        }
        sum += a != b;
        ::operator delete(a, size);
        ::operator delete[](b, size);
    }
    return sum;
}

long memory_resources()
{
    std::pmr::synchronized_pool_resource pool(std::pmr::new_delete_resource());
    std::pmr::map<int, std::pmr::string> table(&pool);
    for (int i = 0; i < 5000; ++i) {
        table[i % 700].append(static_cast<std::size_t>(i % 40), 'p');
    }
    long sum = 0;
    for (const auto &entry : table) {
        sum += static_cast<long>(entry.second.size());
    }
    return sum;
}

}  // namespace

int main()
{
    report("misaligned, 32", aligned_blocks<32>());
    report("misaligned, 64", aligned_blocks<64>());
    report("misaligned, 4096", aligned_blocks<4096>());
    report("misaligned, 65536", aligned_blocks<65536>());
    report("misaligned, 1 MiB", aligned_blocks<1048576>());
    failures();
    threads();
    report("sized and plain", sized_and_plain());
    report("memory resources", memory_resources());
    return 0;
}
