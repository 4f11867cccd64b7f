// RocksDB: writes, reads, ranges, flushes and a compaction, in a folder that is begun anew. Usage: rocks FOLDER SIZE SEED
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <rocksdb/db.h>
#include <string>

int main(int, char **argv) {
    rocksdb::Options options;
    options.create_if_missing = true;
    options.write_buffer_size = 1 << 20;
    options.compression = rocksdb::kNoCompression;
    options.max_background_jobs = 1;
    rocksdb::DestroyDB(argv[1], options);
    rocksdb::DB *opened;
    if (!rocksdb::DB::Open(options, argv[1], &opened).ok()) return 1;
    std::unique_ptr<rocksdb::DB> db(opened);
    std::mt19937_64 chance(strtoull(argv[3], nullptr, 10));
    unsigned long long sum = 0;
    for (int i = 0; i < 10000 * atoi(argv[2]); i++) {
        auto key = "key" + std::to_string(chance() % 200000);
        std::string value;
        if (i % 3 == 0) sum += db->Get({}, key, &value).ok() ? value.size() : 0;
        else if (!db->Put({}, key, std::string(20 + chance() % 400, 'v')).ok()) return 1;
        if (i % 500 == 0) {
            std::unique_ptr<rocksdb::Iterator> at(db->NewIterator({}));
            int left = 50;
            for (at->Seek(key); at->Valid() && left--; at->Next()) sum += at->value().size();
        }
    }
    db->CompactRange({}, nullptr, nullptr);
    printf("%llu\n", sum);
}
