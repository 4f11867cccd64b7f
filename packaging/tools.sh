#!/usr/bin/env bash
# tools.sh [NAME]: sees to it that the tools of packaging/requirements.lock, or packaging/NAME/requirements.lock, are in a virtual
# environment, and prints its path; files that have not the lock's hashes are refused (packaging/lock.sh writes it). Needs PyPI when something is missing, and nothing afterwards. PACKAGING_TOOLS names one for
# packaging/requirements.lock that is there already.
set -euo pipefail
cd "$(dirname "$0")/.."

name=${1-}
if [ -z "$name" ] && [ -n "${PACKAGING_TOOLS-}" ]; then
    echo "$PACKAGING_TOOLS"
    exit
fi
requirements=packaging/${name:+$name/}requirements.lock environment=build/packaging-tools${name:+-$name}
stamp=$environment/.installed
if [ ! -e "$stamp" ] || [ "$requirements" -nt "$stamp" ]; then
    python=/usr/bin/python3
    [ -x "$python" ] || python=python3
    install() { "$environment/bin/python" -m pip install --disable-pip-version-check --require-hashes "$@"; }
    make_environment() {
        "$python" -m venv --clear "$environment" &&
            # What has no wheel is built by the setuptools of the list; pip would fetch another one, of any version, by itself.
            awk '/^[a-z]/ { takes = /^(setuptools|wheel|packaging)==/ } takes' "$requirements" >"$environment/build.lock" &&
            { [ ! -s "$environment/build.lock" ] || install --no-deps -r "$environment/build.lock"; } && install --no-build-isolation -r "$requirements"
    }
    export -f make_environment install
    export python environment requirements
    scripts/step.sh "Setting up $environment for packages" "$environment.log" bash -c make_environment >&2
    touch "$stamp"
fi
echo "$PWD/$environment"
