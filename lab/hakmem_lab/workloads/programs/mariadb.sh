#!/bin/sh
# MariaDB as a load. Root may not run the server: it gives it to the user nobody.
#
#   mariadb.sh prepare FOLDER              an empty database, made once
#   mariadb.sh fresh FOLDER                the same again: all runs begin alike
#   mariadb.sh serve FOLDER PORT
set -eu
what=$1 folder=$2
. "$(dirname "$0")/other_user.sh"
as_user nobody nogroup

case $what in
prepare)
    mkdir "$folder/packed"
    [ -z "$as" ] || chown nobody "$folder/packed"
    cd "$folder/packed"
    $as mariadb-install-db --no-defaults --datadir="$folder/packed" --auth-root-authentication-method=normal \
        --skip-test-db --innodb-log-file-size=16M --innodb-use-native-aio=0
    ;;
fresh)
    rm -rf "$folder/data"
    cp -a "$folder/packed" "$folder/data"
    ;;
serve)
    cd "$folder/data"
    # Durability is not what is measured.
    # shellcheck disable=SC2086
    exec $as /usr/sbin/mariadbd --no-defaults --datadir="$folder/data" --socket="$folder/data/socket" --port="$3" \
        --bind-address=127.0.0.1 --skip-name-resolve --skip-log-bin --max-allowed-packet=64M \
        --innodb-log-file-size=16M --innodb-buffer-pool-size=32M --innodb-flush-log-at-trx-commit=0 \
        --innodb-doublewrite=0 --innodb-use-native-aio=0
    ;;
esac
