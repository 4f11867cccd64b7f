// SQLite in four threads: each has a connection to one database, reads it, and has tables of its own in memory.
// Usage: sqlite FILE fill SIZE SEED, then sqlite FILE PORT SIZE SEED
#include "stay.h"
#include <cstring>
#include <random>
#include <sqlite3.h>
#include <thread>
#include <vector>

using Chance = std::mt19937_64;

static void must(int status, sqlite3 *db) {
    if (status == SQLITE_OK || status == SQLITE_DONE || status == SQLITE_ROW) return;
    fprintf(stderr, "sqlite: %s\n", sqlite3_errmsg(db));
    _exit(1);
}

static sqlite3 *opened(const char *path) {
    sqlite3 *db;
    must(sqlite3_open_v2(path, &db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX, nullptr), db);
    sqlite3_busy_timeout(db, 10000); // the journal's mode is set under a lock, which another thread may have
    const char *settings = "PRAGMA journal_mode = WAL; PRAGMA synchronous = OFF; PRAGMA temp_store = MEMORY;"
                           "PRAGMA cache_size = -8000";
    must(sqlite3_exec(db, settings, nullptr, nullptr, nullptr), db);
    return db;
}

// Runs a statement, with numbers for its parameters; adds what it answers to a sum.
static void run(sqlite3 *db, const char *sql, std::vector<long long> numbers, unsigned long long &sum) {
    sqlite3_stmt *statement;
    must(sqlite3_prepare_v2(db, sql, -1, &statement, nullptr), db);
    for (size_t i = 0; i < numbers.size(); i++) sqlite3_bind_int64(statement, static_cast<int>(i + 1), numbers[i]);
    int status;
    while ((status = sqlite3_step(statement)) == SQLITE_ROW)
        for (int i = 0; i < sqlite3_column_count(statement); i++) {
            const char *text = reinterpret_cast<const char *>(sqlite3_column_text(statement, i));
            for (size_t j = 0, n = text ? strlen(text) : 0; j < n; j++)
                sum = sum * 31 + static_cast<unsigned char>(text[j]);
        }
    must(status, db);
    sqlite3_finalize(statement);
}

static void fill(const char *path, int size, unsigned long long seed) {
    sqlite3 *db = opened(path);
    Chance chance(seed);
    unsigned long long sum = 0;
    run(db, "CREATE TABLE customer (id INTEGER PRIMARY KEY, name TEXT, city TEXT, note TEXT)", {}, sum);
    run(db, "CREATE TABLE sale (id INTEGER PRIMARY KEY, customer INT, article TEXT, price INT, detail TEXT)", {}, sum);
    run(db, "BEGIN", {}, sum);
    for (int i = 0; i < 100 * size; i++) {
        auto below = [&](unsigned long long most) { return static_cast<long long>(chance() % most); };
        run(db, "INSERT INTO customer"
                " VALUES (?1, 'customer ' || ?1, 'city ' || ?2, substr(hex(zeroblob(200)), 1, ?3))",
            {i, below(60), below(300)}, sum);
        for (int j = 0; j < 5; j++)
            run(db, "INSERT INTO sale"
                    " VALUES (NULL, ?1, 'article ' || ?2, ?3, json_object('weight', ?3, 'colour', 'c' || ?2))",
                {i, below(500), below(10000)}, sum);
    }
    run(db, "COMMIT", {}, sum);
    run(db, "CREATE INDEX sale_customer ON sale (customer)", {}, sum);
    run(db, "CREATE INDEX customer_city ON customer (city)", {}, sum);
    run(db, "PRAGMA wal_checkpoint(TRUNCATE)", {}, sum);
    sqlite3_close(db);
}

// What one thread does: many small statements, some large ones, and connections that are made anew.
static unsigned long long work(const char *path, int size, unsigned long long seed) {
    Chance chance(seed);
    unsigned long long sum = 0;
    sqlite3 *db = nullptr;
    for (int i = 0; i < 40 * size; i++) {
        if (i % 1200 == 0) {
            if (db) sqlite3_close(db);
            db = opened(path);
            run(db, "CREATE TEMP TABLE seen (at INTEGER PRIMARY KEY, id INT, text TEXT)", {}, sum);
            run(db, "CREATE INDEX seen_id ON seen (id)", {}, sum);
        }
        long long one = static_cast<long long>(chance() % static_cast<unsigned long long>(100 * size));
        run(db, "SELECT c.name, s.article, s.price, json_extract(s.detail, '$.colour')"
                " FROM customer c JOIN sale s ON s.customer = c.id WHERE c.id = ?1", {one}, sum);
        run(db, "INSERT INTO seen SELECT NULL, id, name || group_concat(note, ',') FROM customer"
                " WHERE id BETWEEN ?1 AND ?1 + 3 GROUP BY id", {one}, sum);
        if (i % 5 == 0) run(db, "SELECT count(*), max(length(text)) FROM seen WHERE id > ?1", {one}, sum);
        if (i % 50 == 0)
            run(db, "SELECT c.city, s.article, sum(s.price), group_concat(s.id)"
                    " FROM customer c JOIN sale s ON s.customer = c.id"
                    " WHERE c.id BETWEEN ?1 AND ?1 + 600 GROUP BY 1, 2 ORDER BY 3 DESC, 1, 2 LIMIT 200", {one}, sum);
    }
    sqlite3_close(db);
    return sum;
}

int main(int, char **argv) {
    const char *path = argv[1];
    int size = atoi(argv[3]);
    unsigned long long seed = strtoull(argv[4], nullptr, 10);
    if (strcmp(argv[2], "fill") == 0) {
        fill(path, size, seed);
        return 0;
    }
    // As an application does that has a database open all the time.
    sqlite3 *held = opened(path);
    work_asked(argv[2], [&] {
        std::vector<unsigned long long> sums(4);
        std::vector<std::thread> threads;
        for (unsigned i = 0; i < 4; i++)
            threads.emplace_back([&, i] { sums[i] = work(path, size, seed * 4 + i); });
        for (auto &thread : threads) thread.join();
        std::string said;
        for (auto sum : sums) said += std::to_string(sum) + " ";
        (void)held;
        return said;
    });
}
