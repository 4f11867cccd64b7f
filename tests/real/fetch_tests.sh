#!/usr/bin/env bash
# Tests that no Debian package has, from Debian's source package of the installed version, into FOLDER. apt checks what it
# fetches; no list of the system's is changed.
#
#   tests/real/fetch_tests.sh cpython-sqlite3 FOLDER   CPython's tests of its sqlite3 module: FOLDER/test_sqlite3
#   tests/real/fetch_tests.sh sqlite-tests FOLDER      SQLite's tests, and testfixture, which runs them, built
set -euo pipefail

name=$1
folder=$(realpath -m "$2")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# fetch PACKAGE: its upstream source, in the folder $work.
fetch() {
    mkdir -p lists/partial
    # The sources lie where the system's own packages come from.
    apt-get indextargets --format 'deb-src $(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' |
        sort -u >sources.list
    # As root, apt fetches as a user of its own.
    [ "$(id -u)" -ne 0 ] || chown -R _apt .
    local options=(-o "Dir::Etc::sourcelist=$work/sources.list" -o Dir::Etc::sourceparts=- -o "Dir::State::lists=$work/lists")
    apt-get "${options[@]}" update
    apt-get "${options[@]}" source --tar-only --download-only "$1"
}

# The whole of FOLDER appears at once, at the end.
publish() {
    mkdir -p "$(dirname "$folder")"
    rm -rf "$folder"
    mv "$1" "$folder"
}

cd "$work"
case $name in
cpython-sqlite3)
    fetch python3.11
    mkdir tests
    tar -xf python3.11_*.orig.tar.* -C tests --wildcards --strip-components=3 '*/Lib/test/test_sqlite3'
    publish tests
    ;;
sqlite-tests)
    fetch sqlite3
    mkdir source build
    # The databases of SQLite's fuzzers are most of the package; no test of testfixture reads them.
    tar -xf sqlite3_*.orig.tar.* -C source --strip-components=1 --exclude='*/test/fuzzdata*.db'
    (cd build && ../source/configure CFLAGS=-O2 && make -j2 testfixture)
    mkdir -p tests
    mv build/testfixture source/test source/ext tests/
    publish tests
    ;;
*)
    echo "fetch_tests.sh: no tests are called $name" >&2
    exit 2
    ;;
esac
