#!/bin/sh
# Python packages that Debian lacks: an environment in the cache, made once, and a link to it.
#
#   venv.sh LINK PACKAGE==VERSION...
set -eu
link=$1
shift
above=${HAKLAB_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/hakmem/peers}/venvs
made="$above/$(echo "$*" | tr ' ' '+')"
if [ ! -e "$made" ]; then
    mkdir -p "$above"
    new="$made.$$"
    trap 'rm -rf "$new"' EXIT
    python3 -m venv "$new"
    "$new/bin/python3" -m pip --disable-pip-version-check install -q --no-deps --only-binary :all: "$@"
    mv -T "$new" "$made" || [ -e "$made" ]
fi
ln -s "$made" "$link"
