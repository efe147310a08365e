#!/bin/sh
# Every locked dependency has a wheel for aarch64 (Ascend hosts are Arm).
set -eu
venv=${VENV:-.venv}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
"$venv/bin/python" -m pip download --quiet --disable-pip-version-check --only-binary=:all: --require-hashes \
    --python-version 3.11 --implementation cp --abi cp311 --abi abi3 --abi none \
    --platform manylinux2014_aarch64 --platform manylinux_2_27_aarch64 --platform manylinux_2_28_aarch64 \
    --dest "$dir" -r requirements.lock
printf 'aarch64: %s wheels\n' "$(find "$dir" -name '*.whl' | wc -l)"
