#!/bin/sh
# Installs Debian's packages that tests use and that `make test` can do without (it skips those tests and says so):
# a browser for the status page, systemd's own check of the unit file, a Redis for the shared leases. Prometheus is unpacked by tools/prometheus.sh,
# without root; the checkers of container and cluster files come from PyPI (tools/deploy).
set -eu
wanted=
command -v chromium >/dev/null 2>&1 || wanted="$wanted chromium"
command -v systemd-analyze >/dev/null 2>&1 || wanted="$wanted systemd"
command -v redis-server >/dev/null 2>&1 || wanted="$wanted redis-server"
[ -n "$wanted" ] || exit 0
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null 2>&1; then
    echo "no way to install$wanted: the tests that need it are skipped" >&2
    exit 0
fi
apt-get update -qq
# shellcheck disable=SC2086  # a list of words
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $wanted >/dev/null
