#!/usr/bin/env bash
# Compares the libraries of a build, the public headers and the options with those of the last release (packaging/abi/last-release.txt):
# names may be added, none may go or change (CONTRIBUTING.md, Versions).
#
#   scripts/abi.sh [BUILD]             build/release unless given; status 1 where something that programs rely on is gone
#   scripts/abi.sh --update [BUILD]    writes the list anew: at a release, when this tree becomes the last release
set -euo pipefail
cd "$(dirname "$0")/.."

update=()
if [ "${1-}" = --update ]; then
    update=(--update "$(packaging/version.sh)")
    shift
fi
build=${1:-build/release}
if [ $# -gt 1 ] || [ ! -e "$build/libhakmem.so" ] || [ ! -e "$build/libhakmem-hardened.so" ]; then
    echo "usage: scripts/abi.sh [--update] [BUILD]   (BUILD, or build/release, with libhakmem.so and libhakmem-hardened.so)" >&2
    exit 2
fi
exec python3 -B packaging/abi/abi.py "$build" packaging/abi/last-release.txt ${update[@]+"${update[@]}"}
