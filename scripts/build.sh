#!/usr/bin/env bash
# Configures and builds one preset, one line a step.
#
#   scripts/build.sh [PRESET [TARGET]]
set -euo pipefail
cd "$(dirname "$0")/.."

preset=${1:-release}
target=${2:-all}
scripts/step.sh "Configuring $preset" "build/configure-$preset.log" cmake --preset "$preset"
scripts/step.sh "Building $preset" "build/build-$preset.log" cmake --build --preset "$preset" --target "$target"
