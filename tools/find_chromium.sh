#!/bin/sh
# Prints the path of a Chromium: $CHROMIUM, or one that is installed; on Debian and Ubuntu, root gets
# one from the package index.
set -eu

found() {
    "$1" --version >/dev/null 2>&1 || return 1
    echo "$1"
    exit 0
}

if [ -n "${CHROMIUM:-}" ]; then
    found "$CHROMIUM" || {
        echo "find_chromium: CHROMIUM=$CHROMIUM does not run" >&2
        exit 2
    }
fi

look() {
    for name in chromium chromium-browser google-chrome google-chrome-stable chrome; do
        path=$(command -v "$name" 2>/dev/null) && found "$path"
    done
    for app in "Google Chrome" Chromium; do
        for folder in /Applications "${HOME:-}/Applications"; do
            path="$folder/$app.app/Contents/MacOS/$app"
            [ -x "$path" ] && found "$path"
        done
    done
    return 0
}

look
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    echo "Installing chromium from the package index; this takes about a minute ..." >&2
    export DEBIAN_FRONTEND=noninteractive
    # What is printed is the path alone.
    { apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium; } >&2 </dev/null
    look
fi
echo "find_chromium: there is no Chromium and no Google Chrome; install one, as with" >&2
echo "  sudo apt-get install chromium        (Debian)" >&2
echo "  brew install --cask google-chrome    (macOS)" >&2
echo "or name one: make test-report CHROMIUM=/path/to/chromium" >&2
exit 2
