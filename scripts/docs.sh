#!/usr/bin/env bash
# Builds the site of the documents into build/site, and fails on any warning: a broken link, a page that the navigation
# lacks. The generator lives in an environment of its own, build/docs-venv, which the first call installs from PyPI.
#
#   scripts/docs.sh            installs the generator where it is missing, and builds
#   scripts/docs.sh --check [FOLDER]   builds into FOLDER, or a temporary one, and installs nothing: status 77 without the generator
#   scripts/docs.sh --serve    shows the site at http://127.0.0.1:8000/ while the documents are edited
set -euo pipefail
cd "$(dirname "$0")/.."

# What `hakmem-lab[test]` has installed serves as well.
for environment in build/docs-venv .venv; do
    [ -x "$environment/bin/mkdocs" ] && "$environment/bin/python" -c 'import material' 2>/dev/null && break
    environment=
done
export NO_MKDOCS_2_WARNING=1 PYTHONDONTWRITEBYTECODE=1

case ${1:-} in
--check)
    if [ -z "$environment" ]; then
        echo "no site generator: make docs installs one"
        exit 77
    fi
    site=${2-}
    if [ -z "$site" ]; then
        site=$(mktemp -d)
        trap 'rm -rf "$site"' EXIT
    fi
    "$environment/bin/mkdocs" build --strict --site-dir "$site"
    for page in index.html search/search_index.json troubleshooting.html; do
        [ -s "$site/$page" ] || { echo "the site has no $page" >&2; exit 1; }
    done
    exit
    ;;
'' | --serve) ;;
*)
    echo "usage: scripts/docs.sh [--check [FOLDER]|--serve]" >&2
    exit 2
    ;;
esac

if [ -z "$environment" ]; then
    environment=build/docs-venv
    install_generator() {
        python3 -m venv --clear build/docs-venv &&
            build/docs-venv/bin/pip install --disable-pip-version-check --require-hashes -r scripts/docs-requirements.lock
    }
    export -f install_generator
    scripts/step.sh "Setting up build/docs-venv for the documents" build/docs-venv.log bash -c install_generator
fi
if [ "${1:-}" = --serve ]; then
    exec "$environment/bin/mkdocs" serve --strict
fi
"$environment/bin/mkdocs" build --strict --clean
echo "the documents: build/site/index.html; with search: python3 -m http.server -d build/site"
