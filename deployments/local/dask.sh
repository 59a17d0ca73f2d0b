#!/usr/bin/env bash
# A Dask scheduler and workers of one process and one thread each, on free ports of the loopback interface.
#
#   dask.sh start FOLDER [WORKERS]   3 workers; more where fewer run; the last line is the scheduler's address
#   dask.sh stop FOLDER              ends all of them
#
# To use it:  bessemer run RECIPE --set machines.executor=dask --set machines.address=ADDRESS
# FOLDER/worker-0.pid and so on hold the workers' process ids. A worker that was killed is not started again by itself;
# `start` does that. PYTHON names the interpreter that has Dask (pip install 'bessemer[dask]').
set -euo pipefail

usage() {
    sed -n '2,9s/^# \{0,1\}//p' "$0" >&2
    exit 2
}

project=$(cd "$(dirname "$0")/../.." && pwd)
python=${PYTHON:-$project/.venv/bin/python}

# A number alone may have passed to another process since.
runs() {
    [ -f "$folder/$1.pid" ] && tr '\0' ' ' 2>/dev/null <"/proc/$(cat "$folder/$1.pid")/cmdline" | grep -q -- "dask $2"
}

begin() { # NAME COMMAND...
    local name=$1
    shift
    # Workers compute in the environment that the stages of a run have.
    setsid nohup "$python" -m model.environment -m dask "$@" >"$folder/$name.log" 2>&1 </dev/null &
    echo $! >"$folder/$name.pid"
}

# The scheduler writes its address once it listens.
address() {
    "$python" -c 'import json, sys; print(json.load(open(sys.argv[1]))["address"])' "$folder/scheduler.json"
}

await_file() { # PATH NAME
    for _ in $(seq 1200); do
        [ -s "$1" ] && return
        runs "$2" "$2" || break
        sleep 0.1
    done
    echo "dask.sh: $2 did not start; its log is $folder/$2.log" >&2
    exit 75
}

start() {
    local workers=${1:-3}
    "$python" -c 'import distributed' 2>/dev/null ||
        { echo "dask.sh: $python has no Dask; pip install 'bessemer[dask]', or name another by PYTHON" >&2; exit 3; }
    mkdir -p "$folder"
    folder=$(cd "$folder" && pwd)
    if ! runs scheduler scheduler; then
        rm -f "$folder/scheduler.json"
        begin scheduler scheduler --host 127.0.0.1 --port 0 --no-dashboard --scheduler-file "$folder/scheduler.json"
        await_file "$folder/scheduler.json" scheduler
    fi
    for number in $(seq 0 $((workers - 1))); do
        runs "worker-$number" worker && continue
        begin "worker-$number" worker "$(address)" --host 127.0.0.1 --no-nanny --nthreads 1 --no-dashboard \
            --name "worker-$number" --local-directory "$folder"
    done
    address
}

stop() {
    for file in "$folder"/worker-*.pid "$folder/scheduler.pid"; do
        name=$(basename "$file" .pid)
        if runs "$name" "${name%%-*}"; then
            kill "$(cat "$file")"
        fi
        rm -f "$file"
    done
}

[ $# -ge 2 ] || usage
folder=$2
case $1 in
    start) shift 2; start "$@" ;;
    stop) stop ;;
    *) usage ;;
esac
