#!/usr/bin/env bash
# The first step of each job of .github/workflows: makes a container's checkout usable. Git refuses a tree of another user, which is
# what a container's root finds; and no package may ask a question.
#
#   scripts/ci.sh
set -euo pipefail
cd "$(dirname "$0")/.."

git config --global --get-all safe.directory 2>/dev/null | grep -qxF "$PWD" || git config --global --add safe.directory "$PWD"
[ -z "${GITHUB_ENV-}" ] || echo DEBIAN_FRONTEND=noninteractive >>"$GITHUB_ENV"
git log -1 --format='%H %cI' HEAD
nproc
