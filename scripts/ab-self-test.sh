#!/usr/bin/env bash
# Whether `hakmem ab` can be trusted on this machine: it compares the library with itself, which
# must give "no difference" in 19 of 20 trials, and with itself behind a malloc that wastes some 3 %,
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

cmake --preset release -B "$folder/build" -DHAKMEM_BUILD_TESTS=OFF >/dev/null
cmake --build "$folder/build" --target hakmem launch bench_random_mixed >/dev/null

# Both through the same wrapper: a call more costs as much as a few multiplications.
wrap() { # wrap NAME STEPS
    cc -O2 -fPIC -shared -fno-builtin -Iinclude -DSTEPS="$2" bench/slowed.c -o "$folder/$1.so" \
        "$folder/build/libhakmem.so" -Wl,-rpath,"$PWD/$folder/build"
}
wrap plain 0
wrap slowed "$steps"

options=()
for option in "$@"; do options+=(--option "$option"); done
HAKLAB_BUILD=$folder/build .venv/bin/hakmem ab-self-test --trials "$trials" \
    --plain "$folder/plain.so" --slowed "$folder/slowed.so" \
    "${options[@]}" -- "$folder/build/bench/bench_random_mixed" 10000000 400 | tee "$out"
