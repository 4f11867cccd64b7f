#!/bin/sh
# PostgreSQL as a load. Root may not run the server: it gives it to the user postgres.
#
#   postgres.sh prepare FOLDER [SQL]        a database, made once, with tables of a file
#   postgres.sh fresh FOLDER                the same again: all runs begin alike
#   postgres.sh serve FOLDER PORT
#   postgres.sh load FOLDER PORT COUNT [-C] transactions of two clients; prints a sum of the table they have changed;
#                                           -C: each of them on a connection of its own
#   postgres.sh ask FOLDER PORT COUNT SQL   the queries of a file, so many times, by two clients; prints digests
set -eu
what=$1 folder=$2 port=${3:-}
bin=$(printf '%s\n' /usr/lib/postgresql/*/bin | sort -V | tail -n 1)
. "$(dirname "$0")/other_user.sh"
as_user postgres postgres
# Durability is not what is measured; no work of its own that falls into some runs only.
settings='--fsync=off --synchronous_commit=off --full_page_writes=off --autovacuum=off --jit=off --shared_buffers=32MB
    --log_min_messages=fatal'
ask() { "$bin/psql" -h "$folder/data" -p "$port" -U bench -d postgres -XAtc "$1"; }

case $what in
prepare)
    mkdir "$folder/data"
    [ -z "$as" ] || chown postgres "$folder/data"
    cd "$folder/data"
    $as "$bin/initdb" -D "$folder/data" -U bench -A trust -E UTF8 --no-locale --wal-segsize=1 --no-sync
    $as "$bin/pg_ctl" start -w -D "$folder/data" -l "$folder/data/log" -o "-k $folder/data -p 5432 -c listen_addresses="
    trap '$as "$bin/pg_ctl" stop -w -D "$folder/data" -m fast' EXIT
    if [ $# -gt 2 ]; then
        "$bin/psql" -h "$folder/data" -U bench -d postgres -Xq -v ON_ERROR_STOP=1 -f "$3"
    else
        "$bin/pgbench" -h "$folder/data" -U bench -i -q -n -s 1 postgres
    fi
    trap - EXIT
    $as "$bin/pg_ctl" stop -w -D "$folder/data" -m fast
    mv "$folder/data" "$folder/packed"
    ;;
fresh)
    rm -rf "$folder/data"
    cp -a "$folder/packed" "$folder/data"
    ;;
serve)
    cd "$folder/data"
    # shellcheck disable=SC2086
    exec $as "$bin/postgres" -D "$folder/data" -k "$folder/data" -p "$port" --listen_addresses=127.0.0.1 $settings
    ;;
load)
    until ask 'SELECT 1' >"$folder/said" 2>&1; do sleep 0.02; done
    # One script, so that each client's random numbers, and with them the sums, follow from the seed.
    cat >"$folder/transaction.sql" <<'SQL'
\set aid random(1, 100000)
\set delta random(-5000, 5000)
SELECT abalance FROM pgbench_accounts WHERE aid = :aid;
UPDATE pgbench_accounts SET abalance = abalance + :delta WHERE aid = :aid;
SELECT abalance % 7 AS rest, count(*), string_agg(aid::text, ',' ORDER BY aid DESC)
  FROM pgbench_accounts WHERE aid BETWEEN :aid AND :aid + 200 GROUP BY rest ORDER BY 2, 1;
SQL
    # shellcheck disable=SC2086
    "$bin/pgbench" -h "$folder/data" -p "$port" -U bench -n -t "$4" -c 2 -j 1 --random-seed=42 ${5-} \
        -f "$folder/transaction.sql" postgres >"$folder/said" 2>&1
    # A sum does not depend on which client came first.
    ask "SELECT md5(string_agg(aid || ':' || abalance, ',' ORDER BY aid)) FROM pgbench_accounts"
    ;;
ask)
    until ask 'SELECT 1' >"$folder/said" 2>&1; do sleep 0.02; done
    pids=
    for client in 1 2; do
        i=0
        while [ $i -lt "$4" ]; do
            i=$((i + 1))
            echo "\\set turn $((i * 2 + client))"
            cat "$5"
        done >"$folder/queries$client"
        "$bin/psql" -h "$folder/data" -p "$port" -U bench -d postgres -XAtq -v ON_ERROR_STOP=1 \
            -f "$folder/queries$client" >"$folder/answer$client" &
        pids="$pids $!"
    done
    # One after the other: each has a status.
    for pid in $pids; do wait "$pid"; done
    sha256sum <"$folder/answer1"
    sha256sum <"$folder/answer2"
    ;;
esac
