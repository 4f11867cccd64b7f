#!/usr/bin/env bash
# tools.sh [NAME]: sees to it that the tools of packaging/requirements.txt, or packaging/NAME/requirements.txt, are in a virtual
# environment, and prints its path. Needs PyPI when something is missing, and nothing afterwards. PACKAGING_TOOLS names one for
# packaging/requirements.txt that is there already.
set -euo pipefail
cd "$(dirname "$0")/.."

name=${1-}
if [ -z "$name" ] && [ -n "${PACKAGING_TOOLS-}" ]; then
    echo "$PACKAGING_TOOLS"
    exit
fi
requirements=packaging/${name:+$name/}requirements.txt environment=build/packaging-tools${name:+-$name}
stamp=$environment/.installed
if [ ! -e "$stamp" ] || [ "$requirements" -nt "$stamp" ]; then
    python=/usr/bin/python3
    [ -x "$python" ] || python=python3
    make_environment() {
        "$python" -m venv --clear "$environment" &&
            "$environment/bin/python" -m pip install --disable-pip-version-check -r "$requirements"
    }
    export -f make_environment
    export python environment requirements
    scripts/step.sh "Setting up $environment for packages" "$environment.log" bash -c make_environment >&2
    touch "$stamp"
fi
echo "$PWD/$environment"
