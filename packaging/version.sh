#!/usr/bin/env bash
# Prints the version of the work tree, or of COMMIT: project(VERSION) in CMakeLists.txt, its one place.
#
#   packaging/version.sh [COMMIT]
set -euo pipefail
cd "$(dirname "$0")/.."

if [ $# -gt 0 ]; then
    text=$(git show "$1:CMakeLists.txt")
else
    text=$(cat CMakeLists.txt)
fi
version=$(sed -n 's/^project(hakmem VERSION \([0-9][0-9.]*\).*/\1/p' <<<"$text")
if [ -z "$version" ]; then
    echo "version.sh: CMakeLists.txt has no line 'project(hakmem VERSION …'" >&2
    exit 1
fi
echo "$version"
