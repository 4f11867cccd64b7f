// RocksDB as a server holds it: cache, filters, threads that compact. Usage: rocks-threads FOLDER PORT SIZE SEED
#include "stay.h"
#include "stores.h"
#include <rocksdb/cache.h>
#include <rocksdb/db.h>
#include <rocksdb/filter_policy.h>
#include <rocksdb/table.h>
#include <rocksdb/write_batch.h>

int main(int, char **argv) {
    rocksdb::BlockBasedTableOptions table;
    table.block_cache = rocksdb::NewLRUCache(16 << 20);
    table.filter_policy.reset(rocksdb::NewBloomFilterPolicy(10));
    table.cache_index_and_filter_blocks = true;
    rocksdb::Options options;
    options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
    options.create_if_missing = true;
    options.write_buffer_size = 4 << 20;
    options.max_background_jobs = 2;
    rocksdb::DestroyDB(argv[1], options);
    rocksdb::DB *db;
    if (!rocksdb::DB::Open(options, argv[1], &db).ok()) return 1;
    work_asked(argv[2], [&] {
        auto use = use_store<rocksdb::DB, rocksdb::Iterator, rocksdb::WriteBatch>;
        return use(db, atoi(argv[3]), strtoull(argv[4], nullptr, 10));
    });
}
