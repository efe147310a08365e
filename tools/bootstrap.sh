#!/bin/sh
# Makes the virtual environment. On Debian, as root, it installs what Python needs for that; otherwise it says what is missing.
set -eu
python=${PYTHON:-python3}
venv=${VENV:-.venv}

say() { printf '%s\n' "$*" >&2; }

apt_install() {
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
        say "installing $* with apt"
        DEBIAN_FRONTEND=noninteractive apt-get update -qq
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null
    else
        say "missing: $*. Install it first: apt-get install $*   (as root, 'make' does it by itself)"
        exit 1
    fi
}

command -v "$python" >/dev/null 2>&1 || apt_install python3
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
    say "lanewise needs Python 3.11 or newer; $python is $("$python" --version 2>&1). Set PYTHON=/path/to/python3.11"
    exit 1
}
"$python" -c 'import ensurepip, venv' 2>/dev/null || apt_install python3-venv

[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
say "ready: $venv"
