#!/usr/bin/env bash
# Whether `hakmem ab` can be trusted on this machine: it compares the library with itself, which
# must give "no difference" in 19 of 20 trials, and with a build whose malloc is slowed by some 3 %,
# which must be told apart in 18 of 20. Ends with status 1 below that. What it prints also goes to
# a file. Other arguments go to `hakmem ab`.
#
#   scripts/ab-self-test.sh [TRIALS] [--min-effect=2% ...]      (OUT=FILE, STEPS=3)
set -euo pipefail
cd "$(dirname "$0")/.."

trials=20
if [[ ${1:-} =~ ^[0-9]+$ ]]; then
    trials=$1
    shift
fi
folder=build/ab-self-test
out=${OUT:-$folder/report.txt}
# Multiplications that each malloc wastes: 3 cost about 3 % of a step of random mixed on Zen 3.
steps=${STEPS:-3}

build() { # build FOLDER STEPS TARGET...
    cmake --preset release -B "$1" -DHAKMEM_BUILD_TESTS=OFF -DHAKMEM_TEST_SLOWDOWN="$2" >/dev/null
    cmake --build "$1" --target "${@:3}" >/dev/null
}

build "$folder/plain" 0 hakmem launch bench_random_mixed
build "$folder/slowed" "$steps" hakmem

options=()
for option in "$@"; do options+=(--option "$option"); done
HAKLAB_BUILD=$folder/plain .venv/bin/hakmem ab-self-test --trials "$trials" \
    --plain "$folder/plain/libhakmem.so" --slowed "$folder/slowed/libhakmem.so" \
    "${options[@]}" -- "$folder/plain/bench/bench_random_mixed" 10000000 400 | tee "$out"
