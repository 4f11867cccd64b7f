#!/usr/bin/env bash
# Sees to it that everything `make run`, `make test` or a benchmark needs is there: Debian packages,
# and the virtual environment of the lab. Silent when nothing is missing.
#
#   scripts/setup.sh run|test|test-long|bench|programs|targets|real|dist|deb [COMMAND [ARG...]]
#
# COMMAND, a build, needs the packages alone: it runs while the virtual environments are made. As root it installs what is missing; otherwise it names the one command that does, and exits
# with status 2. For `real`, WITHOUT="NAME..." leaves the packages out that only these programs need.
set -euo pipefail
cd "$(dirname "$0")/.."

goal=${1:-}
[ $# -eq 0 ] || shift
case $goal in
run) lists=(scripts/packages-run.txt) ;;
test | test-long) lists=(scripts/packages-run.txt scripts/packages-test.txt tests/preload/packages.txt) ;;
bench) lists=(scripts/packages-run.txt scripts/packages-bench.txt) ;;
programs) lists=(scripts/packages-run.txt scripts/packages-programs.txt) ;;
real) lists=(scripts/packages-run.txt tests/preload/packages.txt scripts/packages-real.txt) ;;
dist) lists=(scripts/packages-run.txt scripts/packages-test.txt scripts/packages-dist.txt scripts/packages-deb.txt) ;;
deb) lists=(scripts/packages-deb.txt) ;;
targets) lists=(scripts/packages-run.txt scripts/packages-targets.txt) ;;
*)
    echo "usage: scripts/setup.sh run|test|test-long|bench|programs|targets|real|dist|deb [COMMAND [ARG...]]" >&2
    exit 2
    ;;
esac

wanted_packages() {
    awk -v without=" ${WITHOUT-} " '
        { only = $0; if (sub(/.*# only /, "", only) && index(without, " " only " ")) next }
        { sub(/#.*/, ""); if (NF) print $1 }' "${lists[@]}"
}

# A package that another installed one of the list provides is there: NodeSource's nodejs has npm in it.
missing_packages() {
    comm -23 <(wanted_packages | sort -u) <(
        dpkg-query -W -f '${db:Status-Status} ${Package}, ${Provides}\n' $(wanted_packages) 2>/dev/null |
            sed -n 's/^installed //p' | tr ',' '\n' | awk 'NF { print $1 }' | sort -u
    )
}

# Services of the packages (redis-server) must not start because somebody ran our tests: Debian
# asks this file before it starts one. An existing policy is left alone.
install_packages() {
    local policy=/usr/sbin/policy-rc.d ours='' status=0
    if [ ! -e "$policy" ]; then
        printf '#!/bin/sh\nexit 101\n' >"$policy"
        chmod 755 "$policy"
        ours=yes
    fi
    DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=600 install -y --no-install-recommends "$@" || status=$?
    [ -z "$ours" ] || rm -f "$policy"
    return "$status"
}

# Lists may be absent or out of date: they are fetched when a first attempt fails.
install_or_update() {
    install_packages "$@" && return
    echo "updating the package lists"
    apt-get update
    install_packages "$@"
}
export -f install_packages install_or_update

without_dpkg() {
    local tool absent=()
    for tool in gcc g++ cmake ninja python3; do
        command -v "$tool" >/dev/null || absent+=("$tool")
    done
    [ ${#absent[@]} -eq 0 ] && return
    echo "setup: not a Debian system; please install: ${absent[*]}" >&2
    exit 2
}

mkdir -p build
if command -v dpkg-query >/dev/null; then
    mapfile -t missing < <(missing_packages)
    if [ ${#missing[@]} -gt 0 ]; then
        if [ "$(id -u)" -ne 0 ]; then
            echo "setup: packages are missing; as root: apt-get install --no-install-recommends ${missing[*]}" >&2
            exit 2
        fi
        scripts/step.sh "Installing ${missing[*]}" build/packages.log \
            bash -c 'install_or_update "$@"' install "${missing[@]}"
    fi
else
    without_dpkg
fi

# The stamp is newer than the lists of dependencies as long as the environment fits it.
stamp=.venv/.lab-installed
make_environments() {
    if [ ! -e "$stamp" ] || [ lab/pyproject.toml -nt "$stamp" ] || [ python/pyproject.toml -nt "$stamp" ]; then
        python=/usr/bin/python3
        [ -x "$python" ] || python=python3
        # uv installs in a tenth of pip's processor time, which the build beside needs; it knows pip's index only if it is told.
        # Where it is not to be had or refuses, pip does it.
        make_venv() {
            local wanted=(-e 'python[test]' -e 'lab[test]') pip=(.venv/bin/python -m pip --disable-pip-version-check) index
            "$python" -m venv --clear .venv || return
            # A release is built with files that have the hashes of a list (packaging/lock.sh).
            if [ "${HAKMEM_LOCKED-}" = 1 ]; then
                .venv/bin/python -m pip --disable-pip-version-check install --require-hashes --only-binary :all: -r scripts/setup-requirements.lock &&
                    .venv/bin/python -m pip --disable-pip-version-check install --no-deps --no-build-isolation -e python -e lab
                return
            fi
            index=${PIP_INDEX_URL:-$("${pip[@]}" config get global.index-url 2>/dev/null)}
            "${pip[@]}" --retries 1 --timeout 20 install uv && UV_DEFAULT_INDEX=${UV_DEFAULT_INDEX:-$index} .venv/bin/uv pip install --python .venv "${wanted[@]}" ||
                "${pip[@]}" install "${wanted[@]}"
        }
        export -f make_venv
        export python
        scripts/step.sh "Setting up .venv for the command" build/venv.log bash -c make_venv
        touch "$stamp"
    fi
    if [ "$goal" = test-long ] || [ "$goal" = dist ]; then
        packaging/tools.sh >/dev/null
    fi
}

# `set -e` holds in a process of its own, not in what `wait` or an `if` asks for.
(make_environments) &
environments=$!
status=0
[ $# -eq 0 ] || "$@" || status=$?
wait "$environments"
[ "$status" -eq 0 ] || exit "$status"

# fetch_tests NAME FOLDER: tests that no package has, unless they are there or the program NAME is left out.
fetch_tests() {
    [ -e "$2" ] || [[ " ${WITHOUT-} " == *" $1 "* ]] ||
        scripts/step.sh "Fetching the tests of $1" "build/fetch-$1.log" tests/real/fetch_tests.sh "$1" "$2"
}

if [ "$goal" = real ] && command -v apt-get >/dev/null; then
    fetch_tests cpython-sqlite3 build/real/python-tests
    fetch_tests sqlite-tests build/real/sqlite-tests
fi
