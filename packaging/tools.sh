#!/usr/bin/env bash
# Sees to it that the tools of packaging/requirements.txt are in a virtual environment, and prints its path. Needs PyPI when
# something is missing, and nothing afterwards. PACKAGING_TOOLS names one that is there already.
set -euo pipefail
cd "$(dirname "$0")/.."

if [ -n "${PACKAGING_TOOLS-}" ]; then
    echo "$PACKAGING_TOOLS"
    exit
fi
environment=build/packaging-tools
stamp=$environment/.installed
if [ ! -e "$stamp" ] || [ packaging/requirements.txt -nt "$stamp" ]; then
    python=/usr/bin/python3
    [ -x "$python" ] || python=python3
    make_environment() {
        "$python" -m venv --clear "$environment" &&
            "$environment/bin/python" -m pip install --disable-pip-version-check -r packaging/requirements.txt
    }
    export -f make_environment
    export python environment
    scripts/step.sh "Setting up $environment for packages" build/packaging-tools.log bash -c make_environment >&2
    touch "$stamp"
fi
echo "$PWD/$environment"
