# Sourced by the scripts that run others for minutes. bash handles a signal only when its command has ended: so commands are run
# as background jobs that are waited for, each in a process group of its own, and a script that ends ends the group.
#
#   running COMMAND...    runs it; its status
#   end_with FUNCTION     FUNCTION cleans up, at any end but SIGKILL
running_group=''

running() {
    local status=0
    set -m
    "$@" &
    running_group=$!
    set +m
    wait "$running_group" || status=$?
    running_group=''
    return "$status"
}

running_end() {
    trap - EXIT
    if [ -n "$running_group" ]; then
        kill -TERM -- "-$running_group" 2>/dev/null || true
        wait "$running_group" 2>/dev/null || true
    fi
    "$1"
}

end_with() {
    trap "running_end $1" EXIT
    trap 'exit 129' HUP
    trap 'exit 130' INT
    trap 'exit 143' TERM
}
