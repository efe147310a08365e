"""Where the client libraries are: an environment of their own, made on demand under runs/clients."""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.faults.station import ROOT

HERE = Path(__file__).resolve().parent
HOME = ROOT / "runs/clients"
_NODE = 20
"""The oldest version of Node that the JavaScript libraries run on."""


class MissingError(Exception):
    """The libraries cannot be had here; the text says why and what to do."""


@dataclass(frozen=True)
class Environment:
    """What drives the libraries."""

    python: Path
    node_folder: Path | None
    """Folder with the JavaScript driver and its modules; None: there is no Node."""

    def command(self, library: str, cases: str) -> list[str]:
        """The command that drives one library through some cases."""
        if library in JAVASCRIPT:
            return ["node", "drive.mjs", library, cases]
        return [str(self.python), str(HERE / "drive.py"), library, cases]


PYTHON = ("openai", "openai_async", "anthropic", "litellm", "langchain", "llama_index", "httpx", "curl")
JAVASCRIPT = ("openai_js", "anthropic_js", "ai_sdk")


def environment(*, make: bool) -> Environment:
    """Find the libraries.

    Args:
        make: install what is not there.

    Raises:
        MissingError: they are not there, and are not to be made or cannot be.
    """
    python = HOME / "venv/bin/python"
    wanted = (HERE / "requirements.txt").read_bytes()
    mark = HOME / "venv/installed.txt"
    if not mark.exists() or mark.read_bytes() != wanted:
        if not make:
            raise MissingError("the client libraries are not installed: run `make test-clients` once")
        _run([sys.executable, "-m", "venv", str(HOME / "venv")])
        _run(
            [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", "-r", f"{HERE}/requirements.txt"]
        )
        mark.write_bytes(wanted)
    return Environment(python, _node(make=make))


def _node(*, make: bool) -> Path | None:
    if shutil.which("node") is None or shutil.which("npm") is None:
        return None
    version = subprocess.check_output(["node", "--version"], text=True).strip()
    if int(version.lstrip("v").partition(".")[0]) < _NODE:
        return None
    folder = HOME / "js"
    folder.mkdir(parents=True, exist_ok=True)
    changed = False
    for source in sorted((HERE / "js").iterdir()):
        target = folder / source.name
        if not target.exists() or target.read_bytes() != source.read_bytes():
            changed |= source.suffix == ".json"
            target.write_bytes(source.read_bytes())
    if changed or not (folder / "node_modules").exists():
        if not make:
            raise MissingError("the JavaScript client libraries are not installed: run `make test-clients` once")
        _run(["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"], folder)
    return folder


def _run(command: list[str], folder: Path | None = None) -> None:
    done = subprocess.run(command, cwd=folder, env=os.environ | {"PYTHONPATH": ""}, check=False)
    if done.returncode:
        raise MissingError(f"`{' '.join(command[:4])} …` failed with {done.returncode}: its output says why")
