#!/usr/bin/env bash
# What the hardened build costs, feature by feature: one library for each feature of src/base/policy.h and one with all of
# them, measured beside the default library and glibc in one rotation.
#
#   scripts/hardening.sh [SUITE [BENCH-OPTION...]]      (SUITE: core; see `hakmem bench --list`)
set -euo pipefail
cd "$(dirname "$0")/.."

suite=${1:-core}
shift || true
libraries=()
while read -r name number; do
    folder=build/hardening/$name
    scripts/step.sh "Configuring $name" "$folder.log" cmake --preset release -B "$folder" -DHAKMEM_HARDENING="$number" \
        -DHAKMEM_BUILD_TESTS=OFF -DHAKMEM_BUILD_BENCH=OFF
    scripts/step.sh "Building $name" "$folder.log" cmake --build "$folder" --target hakmem_hardened
    libraries+=(--lib "$name=$folder/libhakmem-hardened.so")
done < <(sed -nE 's/^#define HAK_HARD_([A-Z_]+) ([0-9]+) .*/\1 \2/p' src/base/policy.h | tr 'A-Z_' 'a-z-'; echo "all 63")
.venv/bin/hakmem bench "$suite" --mode preload --with hakmem,glibc "${libraries[@]}" "$@"
