"""Run the real-engine suite: `python -m tests.engine`. First its tests, then the head-of-line experiment.

Exit code 0: all passed and every target is met; 1: a test failed, or the engine did not start; 2: wrong usage, or not
this machine (Linux on x86-64 with Python 3.11); 3: a target is missed; 130: interrupted.
"""

import argparse
import asyncio
import datetime as dt
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.engine.drive import Mix, drive
from tests.engine.experiment import SEEDS, WAYS, judged, one_pass, pooled
from tests.engine.server import HOME, MODEL, VENV, EngineError, Installation, UnfitError, installation, serving
from tests.engine.table import tables, write_table
from tests.faults.station import ROOT


def main(arguments: Sequence[str]) -> int:
    """Run what was asked for; see the module docstring for the exit code."""
    options = _options(arguments)
    try:
        installed = installation()
        failed = options.only != "experiment" and _tests(installed)
        if options.only == "tests":
            return int(failed)
        met = _experiment(installed, options)
    except UnfitError as fault:
        print(fault, file=sys.stderr)
        return 2
    except (EngineError, subprocess.CalledProcessError) as fault:
        print(f"the engine could not be had: {fault}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    if failed:
        return 1
    return 0 if met else 3


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.engine", description=__doc__)
    parser.add_argument("--only", choices=("tests", "experiment"), help="run one half alone (default: both)")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS), help="of the arrivals (default: 11 12 13)")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS), help="default: all")
    parser.add_argument(
        "--merge", action="store_true", help="keep the passes of an earlier run with other seeds or ways"
    )
    parser.add_argument("--table", action="store_true", help="write the tables into docs/real-engine.md")
    parser.add_argument("--out", type=Path, default=HOME / "latest.json", help="default: runs/engine/latest.json")
    return parser.parse_args(arguments)


def _tests(installed: Installation) -> bool:
    """Run the tests in a process of their own; return whether one failed."""
    env = os.environ | {VENV: str(installed.python.parent.parent), MODEL: str(installed.model)}
    command = [sys.executable, "-m", "pytest", "-m", "real_engine", "-p", "no:randomly", "tests/engine"]
    return subprocess.run(command, cwd=ROOT, env=env, check=False).returncode != 0


def _experiment(installed: Installation, options: argparse.Namespace) -> bool:
    """Drive every way with every seed, keep each pass as it ends; return whether every target is met."""
    earlier = []
    if options.merge and options.out.exists():
        earlier = json.loads(options.out.read_text("utf-8"))["passes"]
    machine = _machine(installed)

    def keep(rows: list[dict[str, Any]]) -> dict[str, Any]:
        again = {(row["way"], row["seed"]) for row in rows}
        result = _result([row for row in earlier if (row["way"], row["seed"]) not in again] + rows, machine)
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(result, indent=1) + "\n", "utf-8")
        return result

    result = asyncio.run(_passes(installed, options, keep))
    print(tables(result))
    if options.table:
        write_table(ROOT / "docs/real-engine.md", result)
    return all(one["met"] for one in result["targets"])


def _result(rows: list[dict[str, Any]], machine: dict[str, Any]) -> dict[str, Any]:
    ways = {way: summary for way in WAYS if (summary := pooled(rows, way)) is not None}
    return {
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        "machine": machine,
        "seeds": sorted({row["seed"] for row in rows}),
        "ways": ways,
        "targets": judged(ways),
        "passes": rows,
    }


async def _passes(
    installed: Installation, options: argparse.Namespace, keep: Callable[[list[dict[str, Any]]], dict[str, Any]]
) -> dict[str, Any]:
    rows: list[dict[str, Any]] = []
    result = {}
    async with serving(installed) as engine:
        await drive(engine.url, engine, Mix(short=6, long=1, rate=2.0), seed=1)  # the first steps of an engine are slow
        for seed in options.seeds:
            for way in options.ways:
                rows.append(await one_pass(engine, way, seed, Mix()))
                result = keep(rows)
                print(f"seed {seed}, {way}: {rows[-1]['seconds']:.0f} s", file=sys.stderr)
    return result


def _machine(installed: Installation) -> dict[str, Any]:
    asked = "from importlib.metadata import version; print(version('vllm'))"
    vllm = subprocess.run(
        [str(installed.python), "-c", asked], capture_output=True, text=True, check=True
    ).stdout.strip()
    lines = Path("/proc/cpuinfo").read_text("ascii", "replace").splitlines()
    cpu = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "an unnamed CPU")
    return {"vllm": vllm, "cpu": cpu, "cores": os.cpu_count(), "dtype": installed.dtype, "model": installed.model.name}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
