#!/usr/bin/env bash
# The tests under each of the kernel's settings for transparent huge pages. The setting is the whole machine's: it is put
# back however this script ends (short of SIGKILL), and only one run at a time may change it.
#
#   tests/targets/thp.sh BUILD
#
# BUILD is a finished release build. Exit status 77: the setting cannot be written here.
set -uo pipefail

setting=/sys/kernel/mm/transparent_hugepage/enabled
build=${1:-}
probe=$build/tests/targets/targets_thp_probe
if [ ! -x "$probe" ]; then
    echo "thp.sh: BUILD wants a finished build, not \"$build\"" >&2
    exit 2
fi

skip() {
    echo "SKIPPED: $1"
    exit 77
}

[ -e "$setting" ] || skip "this kernel has no transparent huge pages"
before=$(sed -n 's/.*\[\(.*\)\].*/\1/p' "$setting")
# Writing back what is there changes nothing, and tells whether it may be written.
{ echo "$before" >"$setting"; } 2>/dev/null || skip "$setting cannot be written"
exec 9<"$setting"
flock -n 9 || skip "another run is changing $setting"

restore() {
    echo "$before" >"$setting"
    echo "restored: $(cat "$setting")"
}
trap restore EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

failures=0 runs=0
run() {
    echo "--- $*"
    runs=$((runs + 1))
    "$@" 9<&- || {
        echo "FAILED with status $?: $*"
        failures=$((failures + 1))
    }
}

for mode in always madvise never; do
    if ! echo "$mode" >"$setting"; then
        echo "FAILED: the kernel does not take $mode"
        failures=$((failures + 1))
        continue
    fi
    echo "=== $(cat "$setting")"
    for option in off auto on; do
        run env HAKMEM_THP=$option "$probe" "$mode"
        run env HAKMEM_THP=$option "$build/tests/stress/stress" --seed 41 --seconds 3
        run env HAKMEM_THP=$option "$build/tests/targets/targets_driver_static" --seed 42 --steps 20000
    done
    run ctest --test-dir "$build" -L '^(unit|api|death)$' --no-tests=error --output-on-failure -j 2
done

trap - EXIT
restore
echo "3 settings, $runs runs, $failures failed"
[ "$failures" -eq 0 ]
