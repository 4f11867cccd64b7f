#!/usr/bin/env bash
# Every bench program under hakmem and its peers, in paired slices: what `make bench` runs.
#
#   PAIRS=15 scripts/bench.sh
set -euo pipefail
cd "$(dirname "$0")/.."

pairs=${PAIRS:-15}
programs=build/release/bench

pair() { # pair CPU PROGRAM [ARG...]
    local cpu=$1
    shift
    echo
    echo "== $*"
    .venv/bin/hakmem pair --pairs "$pairs" --floor --cpu "$cpu" -- "$programs/$1" "${@:2}"
}

pair auto bench_random_mixed 10000000 400
pair auto bench_random_mixed 6000000 4000
pair auto bench_random_mixed 4000000 100000
for size in 16 32 64 128 256 512 1024 2048 4096 8192; do
    pair auto bench_fixed_size 15000000 "$size"
done
for blocks in 25 100 400 1600; do
    pair auto bench_swing 15000000 "$blocks" 256
done
# Threads: left to the kernel's scheduler.
pair none bench_larson 2 3000000
pair none bench_larson 8 800000
pair none bench_prodcons 1 1 64 3000000
pair none bench_prodcons 1 1 512 2000000
pair none bench_thread_churn 3000 100
pair none bench_mid_large_mt 2 30000
