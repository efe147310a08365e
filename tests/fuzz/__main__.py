"""Fuzz the readers: `python -m tests.fuzz`. What is found is an input in runs/fuzz/TARGET, named by its kind.

Exit code 0: nothing was found; 1: atheris could not be had; 2: wrong usage; 3: something was found; 130: interrupted.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.faults.station import ROOT
from tests.fuzz.targets import TARGETS

ATHERIS = "atheris==3.0.0"
HOME = ROOT / "runs/fuzz"
CORPUS = Path(__file__).resolve().parent / "corpus"


def main(arguments: Sequence[str]) -> int:
    """Run what was asked for; see the module docstring for the exit code."""
    options = _options(arguments)
    site = HOME / "site"
    if not (site / "atheris").exists():
        pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(site), ATHERIS]
        if subprocess.run(pip, check=False).returncode:
            print(f"{ATHERIS} could not be installed (it has wheels for Linux on x86-64)", file=sys.stderr)
            return 1
    try:
        rows = [_fuzz(target, options.seconds, site) for target in options.target or TARGETS]
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    options.out.write_text(json.dumps(rows, indent=1) + "\n", "utf-8")
    return 3 if any(row["found"] for row in rows) else 0


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=int, default=60, help="for each target (default: 60)")
    parser.add_argument("--target", choices=list(TARGETS), action="append", help="this one alone; may be repeated")
    parser.add_argument("--out", type=Path, default=HOME / "latest.json", help="default: runs/fuzz/latest.json")
    return parser.parse_args(arguments)


def _fuzz(target: str, seconds: int, site: Path) -> dict[str, object]:
    folder = HOME / target
    folder.mkdir(parents=True, exist_ok=True)
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(site)])}
    command = [sys.executable, str(CORPUS.parent / "run.py"), target, str(seconds), str(CORPUS / target), str(folder)]
    began, cpu = time.monotonic(), os.times()
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, errors="replace", check=False)
    after = os.times()
    runs = re.search(r"number_of_executed_units: (\d+)", done.stderr)
    covered = re.findall(r"cov: (\d+)", done.stderr)
    found = sorted(
        path.name for path in folder.glob("*-*") if re.match(r"(crash|timeout|oom|leak|slow-unit)-", path.name)
    )
    row: dict[str, object] = {
        "target": target,
        "seconds": round(time.monotonic() - began),
        "cpu_s": round(after.children_user + after.children_system - cpu.children_user - cpu.children_system, 1),
        "runs": int(runs[1]) if runs else 0,
        "branches": int(covered[-1]) if covered else 0,
        "found": found,
    }
    print(json.dumps(row), flush=True)
    if done.returncode or found or not runs:
        (folder / "log.txt").write_text(done.stderr, "utf-8")
        print(f"{target}: exit {done.returncode}; {folder / 'log.txt'} has the traceback", file=sys.stderr)
        row["found"] = found or [f"exit {done.returncode}"]
    return row


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
