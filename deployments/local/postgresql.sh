#!/usr/bin/env bash
# A PostgreSQL cluster of its own in a folder, on a free port of the loopback interface, for the Prefect server.
#
#   postgresql.sh start FOLDER     makes the cluster where there is none; the last line is its address, with its password
#   postgresql.sh stop FOLDER      ends it; what it holds stays
#
# The password is in FOLDER/password too, which only the owner may read: anyone who can write to the database of a
# Prefect server can run code as its owner. A cluster that was killed is recovered by the next start.
set -euo pipefail

usage() {
    sed -n '2,7s/^# \{0,1\}//p' "$0" >&2
    exit 2
}

missing() {
    echo "postgresql.sh: $1 was found neither on PATH nor under /usr/lib/postgresql; on Debian: apt install postgresql" >&2
    exit 3
}

program() {
    command -v "$1" || ls -v /usr/lib/postgresql/*/bin/"$1" 2>/dev/null | tail -n 1 | grep . || missing "$1"
}

# PostgreSQL refuses to run as root, who lends it the account that Debian's package makes.
as_owner() {
    if [ "$(id -u)" -eq 0 ]; then
        (cd / && exec setpriv --reuid postgres --regid postgres --init-groups "$@")
    else
        "$@"
    fi
}

runs() {
    as_owner "$pg_ctl" --pgdata "$folder/data" status >/dev/null 2>&1
}

ask() {
    PGPASSWORD=$(cat "$folder/password") "$psql" --host 127.0.0.1 --port "$(cat "$folder/port")" --username bessemer --dbname postgres --no-psqlrc \
        --quiet --tuples-only --no-align --command "$1"
}

free_port() {
    python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}

prepare() {
    local initdb
    initdb=$(program initdb)
    mkdir -p "$folder"
    if [ "$(id -u)" -eq 0 ]; then
        id postgres >/dev/null 2>&1 || { echo "postgresql.sh: there is no user postgres to run as; on Debian: apt install postgresql" >&2; exit 3; }
        chown postgres: "$folder"
    fi
    if [ ! -f "$folder/password" ]; then
        (umask 077 && od -An -N 24 -t x1 /dev/urandom | tr -d ' \n' >"$folder/password")
        [ "$(id -u)" -ne 0 ] || chown postgres: "$folder/password"
    fi
    [ -f "$folder/ready" ] && return
    as_owner rm -rf "$folder/data"
    as_owner "$initdb" --pgdata "$folder/data" --username bessemer --auth scram-sha-256 --pwfile "$folder/password" \
        --encoding UTF8 --locale C >/dev/null ||
        { echo "postgresql.sh: no cluster can be made in $folder; the user postgres must be able to reach it" >&2; exit 3; }
    free_port >"$folder/port"
    touch "$folder/ready"
}

start() {
    prepare
    # One that was just killed still counts as running for a moment, and its last sessions hold what a new one needs.
    for _ in $(seq 60); do
        ask "SELECT 1" >/dev/null 2>&1 && break
        as_owner "$pg_ctl" --pgdata "$folder/data" --log "$folder/log" --wait --timeout 120 --options \
            "-c listen_addresses=127.0.0.1 -c port=$(cat "$folder/port") -c unix_socket_directories=''" start >/dev/null 2>&1 || sleep 1
    done
    ask "SELECT 1" >/dev/null 2>&1 || {
        echo "postgresql.sh: the cluster in $folder does not start; its log ends:" >&2
        tail -n 5 "$folder/log" >&2
        exit 75
    }
    # Clusters of earlier versions let in everyone on the machine.
    if grep -q 'trust$' "$folder/data/pg_hba.conf"; then
        ask "ALTER ROLE bessemer PASSWORD '$(cat "$folder/password")'"
        as_owner sed -i 's/trust$/scram-sha-256/' "$folder/data/pg_hba.conf"
        as_owner "$pg_ctl" --pgdata "$folder/data" reload >/dev/null
    fi
    ask "SELECT 1 FROM pg_database WHERE datname = 'bessemer'" | grep -q 1 || ask "CREATE DATABASE bessemer"
    echo "postgresql+asyncpg://bessemer:$(cat "$folder/password")@127.0.0.1:$(cat "$folder/port")/bessemer"
}

stop() {
    if [ -d "$folder/data" ] && runs; then
        as_owner "$pg_ctl" --pgdata "$folder/data" --mode fast --wait --timeout 120 stop >/dev/null
    fi
}

[ $# -eq 2 ] || usage
folder=$(realpath -m "$2")
pg_ctl=$(program pg_ctl)
psql=$(program psql)
case $1 in
start) start ;;
stop) stop ;;
*) usage ;;
esac
