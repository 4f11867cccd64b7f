#!/bin/sh
# The load on redis-server: requests of seven kinds, then a fixed set of keys, whose digest is printed.
#
#   redis.sh FOLDER REQUESTS
set -eu
cli="redis-cli -s $1/redis.sock"
redis-benchmark -s "$1/redis.sock" -n "$2" -c 20 -P 16 -d 200 -r 50000 -t set,get,incr,lpush,sadd,hset,zadd --csv >"$1/rates"
$cli flushall sync >"$1/said"
$cli --pipe <"$1/commands" >"$1/said"
$cli debug digest
