#!/usr/bin/env bash
# Runs one step of a build quietly: one line says what it does and how long it took, everything it
# prints goes to a log, and the end of the log is shown when it fails.
#
#   scripts/step.sh TITLE LOG COMMAND [ARG...]
set -uo pipefail

title=$1 log=$2
shift 2
mkdir -p "$(dirname "$log")"

[ -t 1 ] && printf '%s ...' "$title"
start=$SECONDS
"$@" >"$log" 2>&1 </dev/null
status=$?
[ -t 1 ] && printf '\r\033[K'
if [ "$status" -eq 0 ]; then
    echo "$title: done ($((SECONDS - start)) s)"
else
    echo "$title: FAILED with status $status; the end of $log:" >&2
    tail -n 40 "$log" >&2
fi
exit "$status"
