// LevelDB, as a program holds it that stays up. Usage: leveldb FOLDER PORT SIZE SEED
#include "stay.h"
#include "stores.h"
#include <leveldb/cache.h>
#include <leveldb/db.h>
#include <leveldb/filter_policy.h>
#include <leveldb/write_batch.h>

int main(int, char **argv) {
    leveldb::Options options;
    options.create_if_missing = true;
    options.write_buffer_size = 2 << 20;
    options.block_cache = leveldb::NewLRUCache(16 << 20);
    options.filter_policy = leveldb::NewBloomFilterPolicy(10);
    leveldb::DestroyDB(argv[1], options);
    leveldb::DB *db;
    if (!leveldb::DB::Open(options, argv[1], &db).ok()) return 1;
    work_asked(argv[2], [&] {
        auto use = use_store<leveldb::DB, leveldb::Iterator, leveldb::WriteBatch>;
        return use(db, atoi(argv[3]), strtoull(argv[4], nullptr, 10));
    });
}
