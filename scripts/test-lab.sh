#!/usr/bin/env bash
# The lab's own tests and its lint. Arguments go to pytest. Without the virtual environment that
# scripts/setup.sh makes, it exits with status 77, which CTest counts as skipped.
set -euo pipefail
cd "$(dirname "$0")/.."

if [ ! -x .venv/bin/ruff ]; then
    echo "no .venv: run scripts/setup.sh test"
    exit 77
fi
.venv/bin/ruff check --no-cache --quiet lab
.venv/bin/ruff format --no-cache --check --quiet lab
exec .venv/bin/python -m pytest -q -p no:cacheprovider -c lab/pyproject.toml lab/tests "$@"
