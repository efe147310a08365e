#!/bin/sh
# Prints the folder that holds prometheus and promtool: what is on the PATH, else Debian's package, unpacked and not
# installed (nothing is started, root is not needed once the lists of apt are there). Where neither is, it fails.
set -eu
cache=${PROMETHEUS_CACHE:-$(cd "$(dirname "$0")/.." && pwd)/.venv/prometheus}

say() { printf '%s\n' "$*" >&2; }

if command -v prometheus >/dev/null 2>&1 && command -v promtool >/dev/null 2>&1; then
    dirname "$(command -v prometheus)"
    exit 0
fi
if [ ! -x "$cache/usr/bin/promtool" ]; then
    command -v apt-get >/dev/null 2>&1 && command -v dpkg >/dev/null 2>&1 || {
        say "no prometheus on the PATH and no apt to fetch it with: install Prometheus, promtool comes with it"
        exit 1
    }
    mkdir -p "$(dirname "$cache")"
    new=$(mktemp -d "$cache.XXXXXX")
    trap 'rm -rf "$new"' EXIT
    cd "$new"
    apt-get download -qq prometheus >/dev/null 2>&1 || {
        [ "$(id -u)" = 0 ] && apt-get update -qq >/dev/null 2>&1
        apt-get download -qq prometheus >/dev/null 2>&1
    } || {
        say "apt-get download prometheus failed: run apt-get update as root, or install Prometheus"
        exit 1
    }
    dpkg -x prometheus_*.deb .
    rm -rf prometheus_*.deb usr/share
    "$new/usr/bin/promtool" --version >/dev/null 2>&1 || {
        say "promtool of Debian's package does not run here: $(ldd "$new/usr/bin/promtool" 2>&1 | grep 'not found')"
        exit 1
    }
    # Whoever comes first wins; what another has put there meanwhile is as good.
    mv -T "$new" "$cache" 2>/dev/null || [ -x "$cache/usr/bin/promtool" ]
fi
printf '%s\n' "$cache/usr/bin"
