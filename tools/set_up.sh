#!/bin/sh
# Makes the environment $1 with Windrow and its extra $2, and marks it as ready.
# Takes $PYTHON, or the first Python 3.11 or later that really runs: a name on the PATH may be a
# shim for a version that is not installed, or a Python without venv.
set -eu

venv=$1
extra=$2
usable='import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))'

if [ -n "${PYTHON:-}" ]; then
    candidates=$PYTHON
else
    candidates='python3.13 python3.12 python3.11 python3'
fi

python=
for candidate in $candidates; do
    if "$candidate" -c "$usable" >/dev/null 2>&1; then
        python=$candidate
        break
    fi
done
if [ -z "$python" ]; then
    echo "set-up: no usable Python 3.11 or later; tried: $candidates" >&2
    for candidate in $candidates; do
        reason=$("$candidate" -c "$usable" 2>&1 | tail -n 1) || true
        echo "  $candidate: ${reason:-$("$candidate" --version 2>&1 | head -n 1)}" >&2
    done
    echo "Install one with its venv module, or name one: make PYTHON=/path/to/python" >&2
    exit 2
fi

version=$("$python" -c 'import platform; print(platform.python_version())')
echo "Setting up $venv with Python $version; the first time this takes some minutes ..."
place=$(pwd -P)
# A moved or half-made environment is made anew; a good one only gets what is missing.
if [ "$(cat "$venv/.made" 2>/dev/null)" != "$place $version" ]; then
    rm -rf "$venv"
    "$python" -m venv "$venv"
    echo "$place $version" >"$venv/.made"
fi
rm -f "$venv/.ready"
# Without --no-compile half of the time goes into bytecode of modules that nobody imports.
"$venv/bin/python" -m pip install -qq --disable-pip-version-check --no-input --no-compile \
    --editable ".[$extra]"
touch "$venv/.ready"
