#!/usr/bin/env bash
# CPython's tests of its sqlite3 module, which Debian's package of the test suite leaves out, from Debian's source package
# of the same version, into FOLDER/test_sqlite3. apt checks what it fetches; no list of the system's is changed.
#
#   tests/real/fetch_sqlite_tests.sh FOLDER
set -euo pipefail

folder=$(realpath -m "$1")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/lists/partial"
# The sources lie where the system's own packages come from.
apt-get indextargets --format 'deb-src $(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' |
    sort -u >"$work/sources.list"
# As root, apt fetches as a user of its own.
[ "$(id -u)" -ne 0 ] || chown -R _apt "$work"
options=(-o "Dir::Etc::sourcelist=$work/sources.list" -o Dir::Etc::sourceparts=- -o "Dir::State::lists=$work/lists")
cd "$work"
apt-get "${options[@]}" update
apt-get "${options[@]}" source --tar-only --download-only python3.11
tar -xf python3.11_*.orig.tar.* --wildcards --strip-components=3 '*/Lib/test/test_sqlite3'
mkdir -p "$folder"
rm -rf "$folder/test_sqlite3"
mv test_sqlite3 "$folder/"
