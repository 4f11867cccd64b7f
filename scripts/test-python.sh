#!/usr/bin/env bash
# The command's own tests and lint, of both its packages. Arguments go to pytest. Without the
# virtual environment that scripts/setup.sh makes, it exits with status 77, which CTest counts as
# skipped.
set -euo pipefail
cd "$(dirname "$0")/.."

package=$1
shift
if [ ! -x .venv/bin/ruff ]; then
    echo "no .venv: run scripts/setup.sh test"
    exit 77
fi
.venv/bin/ruff check --no-cache --quiet "$package"
.venv/bin/ruff format --no-cache --check --quiet "$package"
exec .venv/bin/python -m pytest -q -p no:cacheprovider -c "$package/pyproject.toml" "$package/tests" "$@"
