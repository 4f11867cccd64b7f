#!/usr/bin/env bash
# The command's own tests or lint, of one of its packages. Without the virtual environment that scripts/setup.sh makes, it exits
# with status 77, which CTest counts as skipped.
#
#   scripts/test-python.sh python|lab lint
#   scripts/test-python.sh python|lab [PYTEST-ARGUMENT...]
set -euo pipefail
cd "$(dirname "$0")/.."

package=$1
shift
if [ ! -x .venv/bin/ruff ]; then
    echo "no .venv: run scripts/setup.sh test"
    exit 77
fi
if [ "${1-}" = lint ]; then
    .venv/bin/ruff check --no-cache --quiet "$package"
    exec .venv/bin/ruff format --no-cache --check --quiet "$package"
fi
# Python compiles what it imports once, not in each of hundreds of processes.
unset PYTHONDONTWRITEBYTECODE
[[ " $* " == *" $package/tests"* || " $* " == *"/$package/tests/"* ]] || set -- "$@" "$package/tests"
# 5: the file has long tests alone.
status=0
.venv/bin/python -m pytest -q -p no:cacheprovider -c "$package/pyproject.toml" "$@" || status=$?
[ "$status" -ne 5 ] || exit 0
exit "$status"
