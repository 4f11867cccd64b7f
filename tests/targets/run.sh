#!/usr/bin/env bash
# The tests on other targets (tests/targets/README.md): aarch64 under qemu-user with 4 and 64 KiB pages, musl linked and
# preloaded, 16 and 64 KiB pages on this machine, and the kernel's three settings for huge pages.
#
#   tests/targets/run.sh [--build DIR] [aarch64|musl|pages|thp]...
#
# Without a name all of them. --build DIR: a finished release build for pages and thp, instead of build/release. Logs are
# in build/targets/. `make targets` installs what is needed first.
set -uo pipefail
cd "$(dirname "$0")/../.."

release='' targets=()
while [ $# -gt 0 ]; do
    case $1 in
    --build)
        release=${2:-}
        if [ ! -f "$release/CTestTestfile.cmake" ]; then
            echo "run.sh: --build wants a build directory with tests, not \"$release\"" >&2
            exit 2
        fi
        shift
        ;;
    aarch64 | musl | pages | thp) targets+=("$1") ;;
    *)
        echo "run.sh: \"$1\" is not a target (aarch64, musl, pages, thp)" >&2
        exit 2
        ;;
    esac
    shift
done
[ ${#targets[@]} -gt 0 ] || targets=(aarch64 musl pages thp)

logs=build/targets
mkdir -p "$logs"
rows=() failures=0

# row RESULT TITLE DETAILS
row() {
    rows+=("$(printf '%-8s %-46s %s' "$1" "$2" "$3")")
    printf '%s\n' "${rows[-1]}"
    [ "$1" != FAILED ] || failures=$((failures + 1))
}

# build TITLE LOG COMMAND...: a step that later ones need.
build() {
    local title=$1 log=$logs/$2.log
    shift 2
    scripts/step.sh "$title" "$log" "$@" && return
    row FAILED "$title" "see $log"
    return 1
}

# tests TITLE LOG CTEST-ARGUMENT...: passed when at least one test ran and none failed.
tests() {
    local title=$1 log=$logs/$2.log start=$SECONDS status=0 summary
    shift 2
    ctest --output-on-failure --no-tests=error "$@" >"$log" 2>&1 </dev/null || status=$?
    summary=$(grep -E 'tests passed|No tests were found' "$log" | tail -n 1)
    if [ "$status" -eq 0 ]; then
        row passed "$title" "$summary, $((SECONDS - start)) s"
        return
    fi
    row FAILED "$title" "${summary:-ctest ended with status $status}; see $log"
    sed -n '/The following tests FAILED/,$p' "$log"
}

# One regular expression of the names in a list; a # begins the reason.
names_in() { sed -e 's/#.*//' -e 's/[[:space:]]*$//' -e '/^$/d' "$1" | paste -s -d '|' | sed 's/.*/^(&)$/'; }

aarch64() {
    local dir=build/aarch64 skip part page
    build "Configuring aarch64" configure-aarch64 cmake --preset aarch64 || return
    build "Building aarch64" build-aarch64 cmake --build "$dir" --target tests/unit/all tests/api/all tests/death/all tests/profile/all \
        stress targets_driver targets_driver_static || return
    # qemu-user notes every page of a mapping: a reservation of 1 TiB would cost it 8 GB.
    export HAKMEM_RESERVE_MB=4096
    for page in 4096 65536; do
        export QEMU_PAGESIZE=$page
        skip=$(names_in tests/targets/not-under-qemu.txt)
        [ "$page" = 4096 ] || skip+="|$(names_in tests/targets/not-under-qemu-64k.txt)"
        for part in unit api death profile; do
            tests "aarch64, pages of $page: $part" "aarch64-$page-$part" --test-dir "$dir" -L "^$part\$" -E "$skip" -j 2
        done
        tests "aarch64, pages of $page: stress" "aarch64-$page-stress" --test-dir "$dir" -E "$skip" \
            -R '^stress\.(seed_1|checked_steps|small_regions|front_off|tiny_max_class_3)$'
        tests "aarch64, pages of $page: driver" "aarch64-$page-driver" --test-dir "$dir" -R '^targets\.driver(_static)?$'
        one_page_size "$dir" "$page"
    done
    unset QEMU_PAGESIZE HAKMEM_RESERVE_MB
}

# That the emulator's pages have that size, or the runs above proved nothing.
one_page_size() {
    local log=$logs/aarch64-$2-page.log
    if qemu-aarch64 "$1/tests/targets/targets_driver_static" --page-size "$2" page >"$log" 2>&1; then
        row passed "aarch64, pages of $2: the page size" "$(head -n 1 "$log" | sed 's/.*, //')"
    else
        row FAILED "aarch64, pages of $2: the page size" "$(tail -n 1 "$log")"
    fi
}

musl() {
    local dir=build/musl toolchain=$PWD/cmake/toolchains/x86_64-linux-musl.cmake
    build "Configuring musl" configure-musl cmake --preset musl || return
    build "Building musl" build-musl cmake --build "$dir" || return
    build "Installing musl" install-musl cmake --install "$dir" --prefix "$dir/stage" || return
    build "Configuring the tests for musl" configure-musl-tests cmake -G Ninja -S tests/targets/musl -B "$dir/tests" \
        --toolchain "$toolchain" -DCMAKE_PREFIX_PATH="$PWD/$dir/stage" || return
    build "Building the tests for musl" build-musl-tests cmake --build "$dir/tests" || return
    tests "musl: static, linked, preloaded" musl --test-dir "$dir/tests"
}

# What pages and thp run.
release_build() {
    [ -z "$release" ] || return 0
    build "Configuring release" configure-release cmake --preset release &&
        build "Building release" build-release cmake --build --preset release && release=build/release
}

pages() {
    release_build || return
    tests "x86-64 with pages of 16 KiB" pages-16 --test-dir "$release" -R '^targets\.pages_16k_'
    tests "x86-64 with pages of 64 KiB" pages-64 --test-dir "$release" -R '^targets\.(pages_64k_|paged_kernel)'
}

thp() {
    release_build || return
    local log=$logs/thp.log status=0
    tests/targets/thp.sh "$release" >"$log" 2>&1 </dev/null || status=$?
    case $status in
    0) row passed "huge pages always, madvise, never" "$(tail -n 1 "$log")" ;;
    77) row SKIPPED "huge pages always, madvise, never" "$(tail -n 1 "$log" | sed 's/^SKIPPED: //')" ;;
    *)
        row FAILED "huge pages always, madvise, never" "see $log"
        tail -n 20 "$log"
        ;;
    esac
}

for target in "${targets[@]}"; do "$target"; done
printf '\n%s\n' "Results"
printf '%s\n' "${rows[@]}"
[ "$failures" -eq 0 ]
