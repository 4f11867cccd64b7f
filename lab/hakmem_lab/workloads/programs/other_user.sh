# Sourced. Sets `as` to what gives a server that root may not run to a user; empty where that is not needed.
#
#   as_user NAME GROUP
# Changing the user takes the signal away that a parent's end sends: it is asked for again.
as_user() {
    as=
    [ "$(id -u)" -ne 0 ] || as="setpriv --reuid=$1 --regid=$2 --clear-groups --pdeathsig=KILL --"
}
