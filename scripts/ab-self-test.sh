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

# One trial: what ab says, in words and as its verdict. Two sides that are the same are refused: AB_SIDE means nothing to anybody.
trial() { # trial NAME SEED OPTION...
    local name=$1 seed=$2 status=0
    shift 2
    HAKLAB_BUILD=$folder/build .venv/bin/hakmem ab --a-lib "$folder/plain.so" --b-lib "$folder/$name.so" --a AB_SIDE=A --b AB_SIDE=B \
        --seed "$seed" --json "$folder/answer.json" "$@" -- "$folder/build/bench/bench_random_mixed" 10000000 400 \
        >"$folder/answer.txt" || status=$?
    case $status in 0 | 3 | 4) ;; *) cat "$folder/answer.txt" >&2 && exit "$status" ;; esac
    echo "$seed $name: $(head -n 1 "$folder/answer.txt")"
    [ "$(.venv/bin/python -c 'import json, sys; print(json.load(open(sys.argv[1]))["verdict"])' "$folder/answer.json")" = "${right[$name]}" ]
}

declare -A right=([plain]="no difference" [slowed]="no-go") hits=([plain]=0 [slowed]=0) least=([plain]=19 [slowed]=18)
{
    for seed in $(seq "$trials"); do
        for name in plain slowed; do
            ! trial "$name" "$seed" "$@" || hits[$name]=$((hits[$name] + 1))
        done
    done
    passed=0
    for name in plain slowed; do
        echo "plain beside $name: ${hits[$name]} of $trials said '${right[$name]}'; at least ${least[$name]} of 20 must"
        ((hits[$name] * 20 >= least[$name] * trials)) || passed=1
    done
    exit "$passed"
} | tee "$out"
