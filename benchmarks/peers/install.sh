#!/usr/bin/env bash
# Makes a virtual environment for every peer that the benchmarks compare with: install.sh FOLDER [NAME ...]
#
# NAME.txt beside this file pins all that the environment of NAME holds. One that has the same pins is kept.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
folder=$1
shift
names=("$@")
if [ ${#names[@]} -eq 0 ]; then
    for pins in "$here"/*.txt; do
        names+=("$(basename "$pins" .txt)")
    done
fi
for name in "${names[@]}"; do
    if cmp -s "$here/$name.txt" "$folder/$name/installed.txt"; then
        continue
    fi
    echo "installing $name into $folder/$name"
    rm -rf "${folder:?}/$name"
    "${PYTHON:-python3.11}" -m venv "$folder/$name"
    "$folder/$name/bin/python" -m pip install --quiet --disable-pip-version-check -r "$here/$name.txt"
    cp "$here/$name.txt" "$folder/$name/installed.txt"
done
