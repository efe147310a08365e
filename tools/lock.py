"""Renew requirements.lock: exact versions and hashes of everything a development environment needs."""

import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main() -> int:
    """Compile pyproject.toml's dependencies and the dev group into requirements.lock. Needs `uv` (pip install uv)."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = [
        *project["project"]["dependencies"],
        *project["dependency-groups"]["dev"],
        *project["build-system"]["requires"],
        "editables",
    ]
    command = ["uv", "pip", "compile", "-", "--universal", "--python-version", "3.11", "--generate-hashes"]
    command += ["--no-header", "--no-annotate", "--no-emit-index-url", "--quiet", "-o", "requirements.lock"]
    done = subprocess.run(command, input="\n".join(wanted), text=True, cwd=ROOT, check=False)
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
