#!/usr/bin/env bash
# What the tests with the label packaging leave out because it takes minutes: each recipe with every choice of options
# (packaging/README.md). Of the files as they are; BUILD is a built tree.
#
#   packaging/check.sh [BUILD]      build/release unless given
set -euo pipefail
cd "$(dirname "$0")/.."

build=${1:-build/release}
library=$build/libhakmem.so
if [ ! -e "$library" ]; then
    echo "check.sh: no $library: scripts/build.sh release hakmem" >&2
    exit 2
fi
build=$(cd "$build" && pwd)
PACKAGING_TOOLS=$(packaging/tools.sh)
export PACKAGING_TOOLS
for tool in git ninja pkg-config nix-instantiate dpkg-deb; do
    if ! command -v "$tool" >/dev/null; then
        echo "check.sh: $tool is not installed (scripts/setup.sh test)" >&2
        exit 2
    fi
done

export PYTHONDONTWRITEBYTECODE=1
cmake=$(command -v cmake)
release=$(mktemp -d)
trap 'rm -rf "$release"' EXIT
tests=tests/packaging
step() { scripts/step.sh "$1" "build/packaging-check.log" python3 "${@:2}"; }
step "Source release and recipes" $tests/release.py "$release/made"
step "Source release made elsewhere" $tests/source_test.py "$release/made"
step "Conan, every choice of options" $tests/conan_test.py "$release/made" "$cmake" --all
step "Meson, every choice of options" $tests/meson_test.py "$release/made" "$cmake" "$build/libhakmem.so" --all
step "vcpkg's port and Spack's package with stand-ins" $tests/recipes_test.py "$release/made" "$cmake" "$build" --all
step "Nix's recipe with stand-ins" $tests/nix_test.py "$release/made" "$cmake" "$build" --all
step "A release" $tests/dist_test.py "$build/libhakmem.so"
