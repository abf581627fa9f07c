#!/bin/sh
# Makes the environment $1 with Windrow and its extra $2, and marks it as ready. Packages are the newest
# that there are for this Python, or of the versions in the file $3.
# Takes $PYTHON, or the newest Python that `find_python.sh` finds.
set -eu

venv=$1
extra=$2
versions=${3:-}
tools=$(dirname "$0")

if [ "$extra" = dev ]; then
    python=$(sh "$tools/find_python.sh")
else
    python=$(sh "$tools/find_python.sh" python3.13 python3.12 python3.11 python3) # TensorFlow has no 3.14
fi

version=$("$python" -c 'import platform; print(platform.python_version())')
echo "Setting up $venv with Python $version${versions:+ and $versions}; the first time this takes some minutes ..."
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
    ${versions:+--constraint "$versions"} --editable ".[$extra]"
"$venv/bin/python" -m tools.forward_types # for type checkers and editors
touch "$venv/.ready"
