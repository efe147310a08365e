"""Run a proxy under load and trouble, and see whether it holds: `python -m tests.soak`.

Exit code 0: it holds; 2: wrong usage; 3: it does not (the rules that are not met are printed); 130: interrupted.
"""

import argparse
import asyncio
import json
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.faults.rules import unmet
from tests.faults.station import ROOT
from tests.soak.run import Plan, soak


def main(arguments: Sequence[str]) -> int:
    """Run what was asked for; see the module docstring for the exit code."""
    options = _options(arguments)
    try:
        report = asyncio.run(_until_told(options))
    except (asyncio.CancelledError, KeyboardInterrupt):
        print("interrupted: nothing is written", file=sys.stderr)
        return 130
    report["unmet"] = unmet(report["expected"], report["got"])
    report["passed"] = not report["unmet"]
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(report, indent=1) + "\n", "utf-8")
    for line in report["unmet"]:
        print(line, file=sys.stderr)
    print(json.dumps(report["got"], indent=1))
    print(f"{'held' if report['passed'] else 'did not hold'} for {options.seconds:.0f} s: {options.out}")
    return 0 if report["passed"] else 3


async def _until_told(options: argparse.Namespace) -> dict[str, Any]:
    this = asyncio.current_task()
    assert this is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, this.cancel)  # processes under test end with it
    return await soak(Plan(options.seconds, options.seed, options.rate, options.warm_up))


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=180.0, help="of load (default: 180; hours are 3600 each)")
    parser.add_argument("--seed", type=int, default=1, help="of requests, faults and their times (default: 1)")
    parser.add_argument(
        "--rate",
        type=float,
        help="requests/s (default: half of what this machine carries, which is measured first for some seconds)",
    )
    parser.add_argument("--warm-up", type=float, help="seconds that memory may grow in (default: a third, at most 300)")
    parser.add_argument(
        "--out", type=Path, default=ROOT / "runs/soak/latest.json", help="default: runs/soak/latest.json"
    )
    options = parser.parse_args(arguments)
    if options.seconds < 10 or (options.rate is not None and options.rate <= 0):
        parser.error("--seconds is at least 10, and --rate above 0")
    if options.warm_up is None:
        options.warm_up = min(300.0, options.seconds / 3)
    return options


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
