#!/bin/sh
# Installs Debian's packages that tests use and that `make test` can do without (it skips those tests and says so):
# a browser for the status page. Prometheus is unpacked by tools/prometheus.sh, without root.
set -eu
if command -v chromium >/dev/null 2>&1; then exit 0; fi
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null 2>&1; then
    echo "no chromium and no way to install it: the tests of the status page are skipped" >&2
    exit 0
fi
apt-get update -qq
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium >/dev/null
