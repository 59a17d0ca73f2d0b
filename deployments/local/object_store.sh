#!/usr/bin/env bash
# An S3 server on the loopback interface (moto's, in memory), with a proxy in front of it that fails as real stores do.
#
#   object_store.sh start FOLDER [SHARE [SEED]]   the last line is the address; SHARE of requests meet a fault (0)
#   object_store.sh stop FOLDER                   ends both; what the store held is gone
#
# The bucket `bessemer` stands there. To use it:
#   export AWS_ENDPOINT_URL=ADDRESS AWS_ACCESS_KEY_ID=local AWS_SECRET_ACCESS_KEY=local AWS_DEFAULT_REGION=us-east-1
#   bessemer demo --root s3://bessemer/demo
# Each fault is a line of FOLDER/faults.jsonl. A stalled answer waits for STALL_SECONDS (30), past a client's deadline
# where BESSEMER_STORE_SECONDS is less. PYTHON names the interpreter that has moto (pip install 'moto[server]').
set -euo pipefail

usage() {
    sed -n '2,12s/^# \{0,1\}//p' "$0" >&2
    exit 2
}

project=$(cd "$(dirname "$0")/../.." && pwd)
python=${PYTHON:-$project/.venv/bin/python}

free_port() {
    "$python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}

# A number alone may have passed to another process since.
runs() {
    [ -f "$folder/$1.pid" ] && tr '\0' ' ' 2>/dev/null <"/proc/$(cat "$folder/$1.pid")/cmdline" | grep -q -- "$2"
}

answers() { # PORT PID
    "$python" - "$1" "$2" <<'WAIT'
import pathlib, socket, sys, time
deadline = time.monotonic() + 120
while time.monotonic() < deadline and pathlib.Path("/proc", sys.argv[2]).exists():
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", int(sys.argv[1]))) == 0:
            sys.exit(0)
    time.sleep(0.1)
sys.exit(1)
WAIT
}

begin() { # NAME PORT COMMAND...
    local name=$1 port=$2
    shift 2
    echo "$port" >"$folder/$name.port"
    setsid nohup "$@" >"$folder/$name.log" 2>&1 </dev/null &
    echo $! >"$folder/$name.pid"
    answers "$port" "$!" || { echo "object_store.sh: $name does not answer; its log is $folder/$name.log" >&2; exit 75; }
}

end() {
    if runs "$1" "$2"; then
        kill "$(cat "$folder/$1.pid")"
    fi
    rm -f "$folder/$1.pid"
}

start() {
    local share=${1:-0} seed=${2:-0}
    "$python" -c 'import moto.server' 2>/dev/null ||
        { echo "object_store.sh: $python has no moto; pip install 'moto[server]', or name another by PYTHON" >&2; exit 3; }
    mkdir -p "$folder"
    if ! runs server s3_server; then
        local port
        port=$(free_port)
        begin server "$port" "$python" "$project/benchmarks/object_store/s3_server.py" "$port"
        "$python" -c 'import sys, urllib.request as web; web.urlopen(web.Request(sys.argv[1], method="PUT")).read()' \
            "http://127.0.0.1:$port/bessemer"
    fi
    if [ "$(cat "$folder/faults" 2>/dev/null)" != "$share $seed" ]; then
        end proxy faulty_proxy
        echo "$share $seed" >"$folder/faults"
    fi
    if ! runs proxy faulty_proxy; then
        # The same port again: the address that people were given stays true when the share of faults changes.
        local front
        front=$(cat "$folder/proxy.port" 2>/dev/null || free_port)
        begin proxy "$front" "$python" "$project/benchmarks/object_store/faulty_proxy.py" \
            --port "$front" --server "127.0.0.1:$(cat "$folder/server.port")" \
            --share "$share" --seed "$seed" --stall "${STALL_SECONDS:-30}" --log "$folder/faults.jsonl"
    fi
    echo "http://127.0.0.1:$(cat "$folder/proxy.port")"
}

[ $# -ge 2 ] || usage
folder=$2
case $1 in
    start) shift 2; start "$@" ;;
    stop) end proxy faulty_proxy; end server s3_server ;;
    *) usage ;;
esac
