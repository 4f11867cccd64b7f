#!/usr/bin/env bash
# Builds with other checks or another compiler than `make test`, and runs the tests that need nothing but the build.
#
#   scripts/test-build.sh NAME [CTEST-ARGUMENT...]
#
# NAME: a test preset (asan, tsan, debug, clang), or a compiler such as gcc-11 or clang-16; as root what is missing is installed.
# DRY_RUN=1 prints the commands.
set -euo pipefail
cd "$(dirname "$0")/.."

name=${1-}
shift || true
run() { if [ -n "${DRY_RUN-}" ]; then echo "$*"; else "$@"; fi; }
# The tests of other labels need programs, a command or figures of the release build.
labels='^(unit|api|lifecycle|death|guard|profile|harden|budget|report|stress|schedule|misuse|memory|faults)$'

compiler() {
    local c=$1 cxx=$2 build=build/$1
    mapfile -t packages < <(sed 's/ *#.*//; /^$/d' scripts/packages-compilers.txt)
    if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then
        run scripts/step.sh "Installing $c" "$build.packages.log" sh -c 'apt-get update && apt-get install -y --no-install-recommends "$@"' \
            install "${packages[@]}" "$3"
    fi
    run scripts/step.sh "Configuring $build" "$build.configure.log" cmake -G Ninja -B "$build" -DCMAKE_BUILD_TYPE=Release \
        -DCMAKE_C_COMPILER="$c" -DCMAKE_CXX_COMPILER="$cxx" -DHAKMEM_BUILD_BENCH=OFF
    run scripts/step.sh "Building $build" "$build.log" cmake --build "$build"
    # Without the command's environment there is no pytest.
    [ -x .venv/bin/python ] || set -- "$@" --exclude-regex '^report\.[a-z_]+$'
    run ctest --test-dir "$build" --output-on-failure --parallel "$(nproc)" --label-exclude '^long$' --label-regex "$labels" "${@:4}"
}

case $name in
asan | tsan | debug | clang)
    run scripts/setup.sh test scripts/build.sh "$name"
    run ctest --preset "$name" --parallel "$(nproc)" --label-exclude '^long$' --label-regex "$labels" "$@"
    ;;
gcc-[0-9]*) compiler "$name" "g++-${name#gcc-}" "g++-${name#gcc-}" "$@" ;;
clang-[0-9]*) compiler "$name" "clang++-${name#clang-}" "$name" "$@" ;;
*)
    echo "usage: scripts/test-build.sh asan|tsan|debug|clang|gcc-N|clang-N [CTEST-ARGUMENT...]" >&2
    exit 2
    ;;
esac
