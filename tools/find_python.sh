#!/bin/sh
# Prints the first Python 3.11 or later that really runs, of the names that are given: a name on the PATH
# may be a shim for a version that is not installed, or a Python without venv. For each name it looks in
# the PATH and then among pyenv's versions. With $PYTHON it takes that one or none.
set -eu

usable='import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))'
names=${PYTHON:-${*:-python3.14 python3.13 python3.12 python3.11 python3}}

for name in $names; do
    for python in "$name" "${PYENV_ROOT:-${HOME:-}/.pyenv}/versions"/*/bin/"$name"; do
        if "$python" -c "$usable" >/dev/null 2>&1; then
            echo "$python"
            exit 0
        fi
    done
done

echo "set-up: no usable Python 3.11 or later; tried: $names" >&2
for name in $names; do
    reason=$("$name" -c "$usable" 2>&1 | tail -n 1) || true
    echo "  $name: ${reason:-$("$name" --version 2>&1 | head -n 1)}" >&2
done
echo "Install one with its venv module, or name one: make PYTHON=/path/to/python" >&2
exit 2
