"""The checks that hold the architecture do bite."""

import subprocess
import sys
import tomllib
from pathlib import Path


def test_the_import_contracts_hold(root):
    lint = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run(
        [lint, "--no-cache"],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_pure_halves_are_named_in_a_contract(root):
    contracts = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    forbidden = {tuple(c["source_modules"]): set(c["forbidden_modules"]) for c in contracts}
    for pure in ("proxy.wire", "proxy.policy"):
        assert {"asyncio", "time", "random", "socket"} <= forbidden[(pure,)]
