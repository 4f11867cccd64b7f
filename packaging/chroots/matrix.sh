#!/usr/bin/env bash
# Debian 11, 12 and 13, each in a chroot: the packages are built there, checked, installed, upgraded and purged, and programs are
# run with the installed library preloaded; their output must be that without it, byte for byte, and each must have been served
# (tests/preload). One line a cell, a table at the end; status 1 if a cell failed. Needs root and scripts/packages-deb.txt.
#
#   packaging/chroots/matrix.sh [--suites "SUITE..."] [--wheel FILE] [--programs "NAME..."] [--targets]
#
# --wheel: the same with the wheel in a virtual environment. --targets: also aarch64 under qemu-user and musl, by
# tests/targets/run.sh. The packages are built once for each suite, not once on the oldest: their dependencies, compiler and
# hardening are the suite's, as Debian's own. Logs and packages are in build/matrix/.
set -uo pipefail
cd "$(dirname "$0")/../.."
here=packaging/chroots

suites='bullseye bookworm trixie' wheel='' targets=''
programs='sqlite3 python3 perl git gxx ruby node php gawk redis openssl bash'
usage() {
    echo 'usage: matrix.sh [--suites "SUITE..."] [--wheel FILE] [--programs "NAME..."] [--targets]' >&2
    exit 2
}
while [ $# -gt 0 ]; do
    case $1 in
    --suites | --wheel | --programs)
        [ $# -ge 2 ] || usage
        case $1 in --suites) suites=$2 ;; --wheel) wheel=$2 ;; *) programs=$2 ;; esac
        shift
        ;;
    --targets) targets=yes ;;
    *) usage ;;
    esac
    shift
done
[ "$(id -u)" -eq 0 ] || { echo "matrix.sh: root is needed, for chroots" >&2; exit 2; }
[ -z "$wheel" ] || [ -f "$wheel" ] || { echo "matrix.sh: no wheel at $wheel" >&2; exit 2; }
tests=()
for program in $programs; do
    found=$(grep -l "^def test_$program(" tests/preload/test_*.py) || { echo "matrix.sh: tests/preload has no $program" >&2; exit 2; }
    tests+=("/src/$found::test_$program")
done

logs=build/matrix
mkdir -p "$logs"
work=$(mktemp -d "$(realpath "$logs")/work.XXXXXX")
cleanup() { rm -rf --one-file-system "$work"; }
. "$here/running.sh"
end_with cleanup

rows=() failures=0
# row RESULT SUITE WHAT DETAILS
row() {
    rows+=("$(printf '%-7s %-9s %-28s %s' "$1" "$2" "$3" "$4")")
    printf '%s\n' "${rows[-1]}"
    [ "$1" = passed ] || failures=$((failures + 1))
}

# cell SUITE WHAT LOG COMMAND...
cell() {
    local suite=$1 what=$2 log=$logs/$1-$3.log start=$SECONDS
    shift 3
    if running "$@" >"$log" 2>&1 </dev/null; then
        row passed "$suite" "$what" "$((SECONDS - start)) s"
    else
        row FAILED "$suite" "$what" "see $log: $(grep -a . "$log" | tail -n 1 | cut -c 1-100)"
        return 1
    fi
}

# One with packages that only the tests need; the programs' own are those of tests/preload.
test_packages() { sed -e 's/#.*//' -e '/^gdb$/d' -e '/^cmake$/d' -e '/^curl$/d' tests/preload/packages.txt; echo python3-pytest python3-venv; }

# system NAME SUITE PACKAGE...: a fresh chroot in $work/NAME.
system() {
    local name=$1
    shift
    rm -rf --one-file-system "${work:?}/$name"
    running "$here/make_chroot.sh" "$1" "$work/$name" "${@:2}"
}

enter() { nice "$here/enter.sh" "$@"; }

install_debs() {
    local debs=$1 root=$2
    enter "$root" --bind "$(realpath "$debs"):/debs" -- sh -ec 'apt-get -q update; apt-get -qy install $(ls /debs/*.deb | grep -v dbgsym)
        dpkg-query -W -f "\${Package} \${Version} \${db:Status-Status}\n" "*hakmem*"'
}

autopkgtests() {
    local debs=$1 root=$2 names='preload drop-in development'
    [ -z "$(ls "$debs"/hakmem_*.deb 2>/dev/null)" ] || names+=' command'
    enter "$root" --bind "$(realpath "$debs"):/debs" -- sh -ec '
        # One at a time: of several names autopkgtest 5.16 (Debian 11) heeds the last. Status 8: a test was skipped; none may be.
        for name in $1; do
            autopkgtest --test-name="$name" /debs/*.dsc $(ls /debs/*.deb | grep -v dbgsym) -- null
        done' autopkgtests "$names"
}

# programs_with SUITE WHAT ROOT LIBRARY: a row for each program.
programs_with() {
    local suite=$1 what=$2 root=$3 library=$4 log=$logs/$1-$2-programs.log name result detail
    rm -f "$root/tmp/results.xml"
    running enter "$root" --bind "$PWD:/src" -- env HAKMEM_SO="$library" PYTHONDONTWRITEBYTECODE=1 python3 -m pytest -q \
        -p no:cacheprovider --rootdir=/src/tests/preload --basetemp=/tmp/preload --junitxml=/tmp/results.xml "${tests[@]}" >"$log" 2>&1 </dev/null
    for name in $programs; do
        read -r result detail < <(python3 "$here/junit_result.py" "$root/tmp/results.xml" "test_$name")
        [ "$result" = passed ] || detail="$detail (see $log)"
        row "$result" "$suite" "$what: $name" "$detail"
    done
}

debian_cells() {
    local suite=$1 debs=$logs/$1/debs old=$logs/$1/old
    rm -rf "$logs/$suite"
    mkdir -p "$logs/$suite"
    cell "$suite" "deb: build twice, lintian" build packaging/debian/check.sh --suite "$suite" "$debs" || return
    cell "$suite" "deb: an older version" old packaging/debian/build.sh --suite "$suite" --version 0.0.1 "$old" &&
        system upgrade "$suite" &&
        cell "$suite" "deb: install, upgrade, purge" upgrade enter "$work/upgrade" --bind "$(realpath "$old"):/old" \
            --bind "$(realpath "$debs"):/new" --bind "$PWD/$here:/chroots" -- bash /chroots/upgrade_purge.sh /old /new
    system autopkgtest "$suite" autopkgtest dpkg-dev &&
        cell "$suite" "deb: autopkgtests" autopkgtest autopkgtests "$debs" "$work/autopkgtest"
    rm -rf --one-file-system "$work/upgrade" "$work/autopkgtest"
    system programs "$suite" $(test_packages) || { row FAILED "$suite" "deb: programs" "no chroot"; return; }
    cell "$suite" "deb: install" install install_debs "$debs" "$work/programs" &&
        programs_with "$suite" deb "$work/programs" "/usr/lib/$(dpkg-architecture -qDEB_HOST_MULTIARCH)/libhakmem.so.0"
    cell "$suite" "containers: Debian's fragment" container packaging/containers/test.sh --debs "$debs" "$suite"
}

# How this machine's pip reaches its index holds inside as well.
wheel_in_venv() {
    local root=$1 name
    mkdir -p "$root/wheel"
    cp "$wheel" "$root/wheel/"
    cp --remove-destination /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/ca-certificates.crt"
    for name in /etc/pip.conf "$HOME/.config/pip/pip.conf"; do [ ! -f "$name" ] || cp "$name" "$root/etc/pip.conf"; done
    enter "$root" -- env ${PIP_INDEX_URL:+"PIP_INDEX_URL=$PIP_INDEX_URL"} sh -ec 'python3 -m venv /venv
        # Debian 11s pip does not know the platform tags of today.
        /venv/bin/pip -q install --upgrade pip
        /venv/bin/pip install /wheel/*.whl
        /venv/bin/hakmem --version
        # None of it may come from elsewhere.
        cd / && /venv/bin/hakmem run --proof --strict -- perl -e "my @a = map { q(x) x \$_ } 1 .. 3000"
        /venv/bin/hakmem compare --rounds 3 --json /tmp/compare.json -- perl -e "my @a = map { q(x) x \$_ } 1 .. 3000"
        test -s /tmp/compare.json'
}

wheel_cells() {
    local suite=$1 library
    system wheel "$suite" $(test_packages) || { row FAILED "$suite" "wheel" "no chroot"; return; }
    cell "$suite" "wheel: install, run, compare" wheel wheel_in_venv "$work/wheel" || return
    library=$(enter "$work/wheel" -- /venv/bin/python -c \
        'import hakmem.cli, pathlib; print(pathlib.Path(hakmem.cli.__file__).parent / "lib/libhakmem.so")')
    programs_with "$suite" wheel "$work/wheel" "$library"
}

for suite in $suites; do
    debian_cells "$suite"
    [ -z "$wheel" ] || wheel_cells "$suite"
    rm -rf --one-file-system "${work:?}"/*
done
if [ -n "$targets" ]; then
    # Their own tables are in the logs.
    cell all "aarch64 under qemu-user" aarch64 tests/targets/run.sh aarch64
    cell all "musl: static, linked, preloaded" musl tests/targets/run.sh musl
fi

printf '\nResults\n'
printf '%s\n' "${rows[@]}"
echo "${#rows[@]} cells, $failures failed"
[ "$failures" -eq 0 ]
