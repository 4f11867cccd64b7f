#!/usr/bin/env bash
# A profile-guided build in build/pgo: builds one that counts, trains it on the bench programs and a program in Python (other seeds
# and sizes than those of the suites), builds again by the counts, and runs the API tests on what came of it. Covers libhakmem.so;
# the static archive there is built without the profile. `make pgo` also measures it beside the release build.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/build.sh pgo-generate hakmem
# Counts of an older build would not fit, or count twice.
profile=build/pgo-profile
rm -rf "$profile"

train() { # train PROGRAM ARGUMENT...: it must leave counts at its exit
    touch build/pgo-before
    PYTHONMALLOC=malloc LD_PRELOAD=$PWD/build/pgo-generate/libhakmem.so "$@" >build/pgo-train.log
    if [ -z "$(find "$profile" -name '*.gcda' -newer build/pgo-before -print -quit 2>/dev/null)" ]; then
        echo "training left no counts in $profile: $*" >&2
        exit 1
    fi
}

bench=build/release/bench
seed=7
for work in "4000000 300" "3000000 6000" "2000000 80000"; do
    # shellcheck disable=SC2086  # two arguments
    train $bench/bench_random_mixed $work $seed
done
for size in 16 48 200 800 2000 8192 30000; do train $bench/bench_fixed_size 1000000 $size; done
train $bench/bench_swing 1000000 200 256
train $bench/bench_swing 1000000 1200 1024
train $bench/bench_larson 2 600000
train $bench/bench_larson 8 150000
train $bench/bench_prodcons 1 1 96 500000
train $bench/bench_prodcons 1 1 512 300000
train $bench/bench_thread_churn 600 100
train $bench/bench_mid_large_mt 2 5000
train /usr/bin/python3 lab/hakmem_lab/workloads/programs/objects.py 2 $seed

scripts/build.sh pgo-use hakmem
for name in test_override_api test_override_override; do
    scripts/build.sh pgo-use $name
    test=$(find build/pgo/tests -name $name -type f)
    "$test" >build/pgo-test.log || { cat build/pgo-test.log >&2; exit 1; }
done
echo "build/pgo/libhakmem.so: trained, and passed the API tests"
