#!/bin/sh
# Installs lanewise from this folder, without a network: sh install.sh [FOLDER], by default /opt/lanewise.
# Run it again with another bundle and the same folder to upgrade, or to go back. PYTHON picks the interpreter.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
folder=${1:-/opt/lanewise}
python=${PYTHON:-python3}

fail() {
    printf 'install.sh: %s\n' "$*" >&2
    exit 1
}

[ "$(uname -m)" = "@ARCH@" ] || fail "this bundle is for @ARCH@, this machine is $(uname -m)"
command -v "$python" >/dev/null 2>&1 || fail "no $python here: set PYTHON to one of Python @PYTHONS@"
version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
case " @PYTHONS@ " in
    *" $version "*) ;;
    *) fail "this bundle is for Python @PYTHONS@, $python is $version: set PYTHON, or make a bundle with --python $version" ;;
esac
(cd "$here" && sha256sum --quiet --check SHA256SUMS) || fail "a file of this bundle is not what it was when it was made"
# Debian's python3 has venv without pip until python3-venv is there; the pip of the bundle works from where it lies.
[ -x "$folder/bin/python" ] || "$python" -m venv --without-pip "$folder"
pip=$(ls "$here"/wheels/pip-*.whl)
"$python" "$pip/pip" --python "$folder/bin/python" install --quiet --disable-pip-version-check \
    --no-index --find-links "$here/wheels" "@WANTED@"
printf 'installed: %s/bin/lanewise %s\n' "$folder" "$("$folder/bin/lanewise" --version)"
printf 'unit file, presets, dashboards, charts: %s\n' "$("$folder/bin/lanewise" files)"
