#!/usr/bin/env bash
# try.sh WHEEL [PYTHON]: installs the wheel into a fresh virtual environment, as a user would, and tries each command on a program
# of its own. Nothing but PYTHON (default python3) and pip's index is needed: no compiler, no root.
set -euo pipefail

wheel=$(realpath "${1:?usage: packaging/wheel/try.sh WHEEL [PYTHON]}") python=${2:-python3}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
export HAKLAB_RESULTS=$folder/results
unset HAKLAB_LIB HAKLAB_BUILD HAKLAB_LAUNCH

"$python" -m venv venv
venv/bin/python -m pip install --disable-pip-version-check -q "$wheel"
export PATH=$folder/venv/bin:$PATH
program=("$folder/venv/bin/python" -c 'held = [str(i) * 20 for i in range(100000)]; del held[::2]')

# expect WORDS COMMAND...: it succeeds, and its output has the words.
expect() {
    local words=$1
    shift
    "$@" >out.txt 2>&1 </dev/null || {
        echo "try.sh: '$*' ended with status $?:" >&2
        cat out.txt >&2
        exit 1
    }
    grep -qe "$words" out.txt || {
        echo "try.sh: '$*' does not say '$words':" >&2
        cat out.txt >&2
        exit 1
    }
}

# A minute in which figures are few is no failure here: what must be right is that hakmem served.
expect "^hakmem, version" hakmem --version
expect "libhakmem.so$" hakmem --lib
expect "libhakmem-hardened.so$" hakmem --lib hardened
expect "libhakmem-je.so$" hakmem --lib je
expect "libhakmem-je" env LD_PRELOAD="$(hakmem --lib je)" cat /proc/self/maps
expect "Home-page: http" "$folder/venv/bin/python" -m pip show hakmem
expect "hakmem run: served" hakmem run --proof --strict -- "${program[@]}"
expect "ran your program\|no difference\|faster\|slower\|too few" hakmem compare --with hakmem,glibc --rounds 2 -- "${program[@]}"
expect "list\|python\|Py" hakmem profile -- "${program[@]}"
expect "of RSS" hakmem explain --after 0.5 -- "$folder/venv/bin/python" -c 'import time; held = list(range(100000)); time.sleep(1)'
expect "events\|calls" hakmem record -o trace -- "${program[@]}"
expect "hakmem" hakmem replay --with hakmem,glibc --rounds 2 trace
expect "p99" hakmem tail --with hakmem,glibc --rounds 5 --steps 200000
expect "source tree" bash -c '! hakmem bench'
echo "$(basename "$wheel") under $("$python" -V): each command works"
