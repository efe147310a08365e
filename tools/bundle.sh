#!/bin/sh
# Makes an offline bundle: lanewise and all that it depends on as wheels, with a script that installs them without a
# network. Needs a network itself, and `make install` before.
#
#   sh tools/bundle.sh [--arch x86_64|aarch64] [--python "3.11 3.12"] [--extras redis,otel] [--out dist]
#
# The result is OUT/lanewise-VERSION-ARCH.tar.gz. Versions are those of requirements.lock.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
python=${VENV:-$root/.venv}/bin/python
arch=$(uname -m) pythons=3.11 extras= out=dist

say() { printf '%s\n' "$*" >&2; }

while [ $# -gt 0 ]; do
    [ $# -gt 1 ] || { say "$1 needs a value; the head of this script shows the options"; exit 2; }
    case $1 in
        --arch) arch=$2 ;;
        --python) pythons=$2 ;;
        --extras) extras=$2 ;;
        --out) out=$2 ;;
        *) say "no such option: $1. The head of this script shows them"; exit 2 ;;
    esac
    shift 2
done
case $arch in x86_64 | aarch64) ;; *) say "--arch $arch: x86_64 or aarch64"; exit 2 ;; esac
[ -x "$python" ] || { say "no $python: run make install first, or set VENV"; exit 1; }
mkdir -p "$out"
out=$(cd "$out" && pwd)

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
(cd "$root" && "$python" -m build --wheel --no-isolation --outdir "$work" >"$work/build.log" 2>&1) || {
    cat "$work/build.log" >&2
    exit 1
}
wheel=$(ls "$work"/lanewise-*.whl)
version=$(basename "$wheel" | cut -d- -f2)
name=lanewise-$version-$arch
mkdir -p "$work/$name/wheels"
mv "$wheel" "$work/$name/wheels/"
wheel=$work/$name/wheels/$(basename "$wheel")

# Versions alone: pip takes no hashes for a wheel that was built here. SHA256SUMS holds them for what is in the bundle.
sed -n 's/^\([A-Za-z0-9][^\\]*==[^\\]*[^\\ ]\) *\\*$/\1/p' "$root/requirements.lock" >"$work/constraints.txt"
for one in $pythons; do
    abi=cp$(printf %s "$one" | tr -d .)
    "$python" -m pip download --quiet --quiet --disable-pip-version-check --only-binary=:all: \
        --implementation cp --python-version "$one" --abi "$abi" --abi abi3 --abi none \
        --platform "manylinux2014_$arch" --platform "manylinux_2_17_$arch" --platform "manylinux_2_27_$arch" \
        --platform "manylinux_2_28_$arch" --constraint "$work/constraints.txt" --dest "$work/$name/wheels" \
        "$wheel${extras:+[$extras]}" "pip==$("$python" -m pip --version | cut -d' ' -f2)"
done

wanted="lanewise${extras:+[$extras]}==$version"
sed -e "s/@ARCH@/$arch/" -e "s/@PYTHONS@/$pythons/" -e "s/@WANTED@/$wanted/" "$root/tools/bundle-install.sh" \
    >"$work/$name/install.sh"
cp "$root/LICENSE" "$work/$name/"
(cd "$work/$name" && find . -type f ! -name SHA256SUMS | LC_ALL=C sort | xargs sha256sum >SHA256SUMS)
tar -C "$work" --owner=0 --group=0 --sort=name -czf "$out/$name.tar.gz" "$name"
say "$out/$name.tar.gz: $(find "$work/$name/wheels" -name '*.whl' | wc -l) wheels for $arch, Python $pythons"
