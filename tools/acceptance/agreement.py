"""The same requests through real sockets and in virtual time: does the study measure what the product does?

    python -m tools.acceptance.agreement --traces DIR                     450 rows of the study's `mixed`, three minutes
    python -m tools.acceptance.agreement --rows 120 --speed 4             shipped profile `mixed`, for machines without

Wall clock: simulated engine, proxy and replay as three processes. Virtual time: the same engine and the same Dispatcher
driven by `loadgen.sim.drive`. Both get the same arrivals, lengths, engine profile, scheduling settings and patience;
prompts share no prefix. A replay names its output length as `max_tokens`, which bounds what the proxy expects: virtual
time is told as much (`--untold`: it is not, as in the study).

The first tenth of the time is not counted, on either side, and one function computes both sides' figures. Goodput has
to agree within 0.05, short TTFT p50 and p99 within 15 % or 50 ms, whichever is larger. Exit code 3 when it does not.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from loadgen.failure import StopError
from loadgen.options import SourceOptions
from loadgen.sim.drive import Drive, Driven, Served
from loadgen.sim.engine import Engine
from loadgen.sim.profile import load_profile
from loadgen.sim.trials import Figures, Study, figures, good
from loadgen.sim.virtual import LOWEST_CONCURRENCY, LaneOptions, Preset, lanewise
from loadgen.sim.workloads import Arrival
from loadgen.source import read_source
from loadgen.tracefile.azure import HEADER
from tools.acceptance.loop import Setting, command, lines, running, stamp

GOODPUT = 0.05
SHARE, SECONDS = 0.15, 0.05
PATIENCE = ("--patience-short", "30s", "--patience-long", "60s")
OUTCOMES = {"ok": "ok", "rejected": "expired", "cancelled": "client_gone"}
"""Outcome in the journal → as the study names it (it counts rejected and expired together)."""


def main() -> int:
    """Run both sides and print what they give."""
    asked = _arguments()
    arrivals = cut(asked)
    asked.out.mkdir(parents=True)
    trace = asked.out / "cut.csv"
    write(trace, arrivals)
    arrivals = planned(trace)
    sides = {"wall_clock": wall_clock(asked, trace), "virtual_time": virtual_time(asked, arrivals)}
    result = judged(asked, arrivals, sides)
    _say(result)
    if asked.json:
        sys.stdout.write(json.dumps(result) + "\n")
    return 0 if result["passed"] else 3


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=Path, help="folder of the public traces; else the shipped profile is drawn")
    parser.add_argument("--rows", type=int, default=450)
    parser.add_argument("--load", type=float, default=1.0, help="multiple of the saturated throughput (default 1)")
    parser.add_argument("--seed", type=int, default=1, help="decides which rows")
    parser.add_argument("--engine", default="8b", help="profile of the simulated engine")
    parser.add_argument("--preset", choices=("strict", "gentle"), default="strict")
    parser.add_argument("--adaptive", choices=("on", "off"), default="off", help="concurrency cap, both sides")
    parser.add_argument("--installments", choices=("on", "off"), default="off", help="both sides")
    parser.add_argument("--untold", action="store_true", help="virtual time knows nothing of output lengths")
    parser.add_argument("--speed", type=float, default=1.0, help="of the wall-clock side")
    parser.add_argument("--tolerance", type=float, default=1.0, help="factor on everything that is allowed")
    parser.add_argument("--out", type=Path, default=Path("runs/acceptance") / f"agreement-{stamp()}")
    parser.add_argument("--json", action="store_true", help="print one JSON document on stdout")
    return parser.parse_args()


def cut(asked: argparse.Namespace) -> list[Arrival]:
    """Return the arrivals that both sides get.

    Raises:
        UsageError: the traces cannot be read.
    """
    profile = load_profile(asked.engine)
    if asked.traces is not None:
        study = Study(asked.traces, profile, profile)
        (window,) = study.workload("mixed").windows(1, asked.rows, asked.seed)
        return window.arrivals(asked.load * study.saturated_per_s("mixed"))
    rate = asked.load * SATURATED
    plan = read_source(SourceOptions(workload="mixed", rows=asked.rows, rate=rate, seed=asked.seed)).plan
    return [Arrival(shot.due_s, min(shot.prompt_tokens, 24_000), shot.output_tokens) for shot in plan.shots()]


SATURATED = 2.57
"""Requests/s of the shipped profile `mixed` at 1.0 on engine 8b, as the demo states it."""


def write(path: Path, arrivals: Sequence[Arrival]) -> None:
    """Write arrivals as a trace in Azure's format."""
    origin = datetime(2026, 1, 1, tzinfo=UTC)
    rows = []
    for one in arrivals:
        at = (origin + timedelta(seconds=one.at_s)).strftime("%Y-%m-%d %H:%M:%S.%f")
        rows.append(f"{at},{one.prompt_tokens},{one.output_tokens}")
    path.write_text("\n".join([HEADER, *rows]) + "\n")


def planned(trace: Path) -> list[Arrival]:
    """Return what a replay of the trace plans to send: what virtual time gets as well."""
    plan = read_source(SourceOptions(traces=(trace,))).plan
    return [Arrival(shot.due_s, shot.prompt_tokens, shot.output_tokens) for shot in plan.shots()]


def virtual_time(asked: argparse.Namespace, arrivals: Sequence[Arrival]) -> Driven:
    """Run the cut in virtual time."""
    profile = load_profile(asked.engine)
    parts = asked.installments == "on"
    adaptive = asked.adaptive == "on"
    cap, told = profile.concurrency_cap, not asked.untold
    options = LaneOptions(Preset(asked.preset), installments=parts, adaptive=adaptive, cap=cap, told_output=told)
    return Drive([Engine(profile)], lanewise(profile, options, 1), arrivals, hashed=parts).run()


def wall_clock(asked: argparse.Namespace, trace: Path) -> Driven:
    """Run the cut through sockets.

    Raises:
        StopError: a process did not start, or the replay did not end well.
    """
    changes = (
        ("installments.mode", asked.installments),
        ("scheduling.adaptive.enabled", asked.adaptive == "on"),
        ("scheduling.adaptive.floor", LOWEST_CONCURRENCY),
    )
    setting = Setting(asked.engine, asked.preset, asked.speed, changes)
    span = planned(trace)[-1].at_s / asked.speed
    with running(asked.out / "wall", setting) as loop:
        code = loop.replay(str(trace), *PATIENCE, timeout_s=120 + 2 * span)
    if code != 0:
        raise StopError(f"the replay ended with code {code}; see {asked.out / 'wall' / 'replay.log'}")
    shots = sorted(lines([asked.out / "wall" / "run" / "shots.jsonl"]), key=lambda shot: shot["index"])
    return Driven([_served(shot) for shot in shots])


def _served(shot: dict[str, Any]) -> Served:
    """Return a line of the journal as virtual time has it: TTFT from the due time, the end at the last token."""
    outcome = OUTCOMES.get(shot["outcome"], shot["outcome"])
    end = shot.get("last") if outcome == "ok" else shot.get("end")
    lengths = shot["prompt_tokens"], shot["output_tokens"]
    return Served(shot["due"], *lengths, shot.get("first"), end, outcome, shot.get("reason") or "")


def judged(asked: argparse.Namespace, arrivals: Sequence[Arrival], sides: dict[str, Driven]) -> dict[str, Any]:
    """Compare the figures of both sides."""
    wall, virtual = (figures(driven, 0) for driven in sides.values())
    checks = [
        _check("goodput", wall.goodput, virtual.goodput, GOODPUT * asked.tolerance),
        *(_latency(name, wall, virtual, asked.tolerance) for name in ("short_ttft_p50_s", "short_ttft_p99_s")),
    ]
    return {
        "passed": all(check["passed"] for check in checks),
        "checks": checks,
        "rows": len(arrivals),
        "rate_per_s": (len(arrivals) - 1) / arrivals[-1].at_s,
        "load": asked.load,
        "speed": asked.speed,
        "engine": asked.engine,
        "preset": asked.preset,
        "adaptive": asked.adaptive,
        "installments": asked.installments,
        "told_output": not asked.untold,
        "wall_clock": asdict(wall),
        "virtual_time": asdict(virtual),
        "judged_differently": different(*sides.values()),
        "folder": str(asked.out),
    }


def _latency(name: str, wall: Figures, virtual: Figures, tolerance: float) -> dict[str, Any]:
    """A latency that one side does not have agrees with nothing."""
    ours, theirs = getattr(wall, name), getattr(virtual, name)
    if ours is None or theirs is None:
        return {"name": name, "wall_clock": ours, "virtual_time": theirs, "allowed": None, "passed": False}
    return _check(name, ours, theirs, max(SHARE * theirs, SECONDS) * tolerance)


def _check(name: str, wall: float, virtual: float, allowed: float) -> dict[str, Any]:
    passed = abs(wall - virtual) <= allowed
    return {"name": name, "wall_clock": wall, "virtual_time": virtual, "allowed": allowed, "passed": passed}


def different(wall: Driven, virtual: Driven) -> dict[str, int]:
    """Count requests that are good on one side alone: figures can agree while requests do not."""
    pairs = [(good(one), good(two)) for one, two in zip(wall.served, virtual.served, strict=True)]
    return {
        "good_in_wall_clock_only": pairs.count((True, False)),
        "good_in_virtual_time_only": pairs.count((False, True)),
    }


def _say(result: dict[str, Any]) -> None:
    verdict = "ok" if result["passed"] else "FAILED"
    sys.stderr.write(
        f"{verdict}: {result['rows']} rows at {result['rate_per_s']:.2f}/s, speed {result['speed']:g}; "
        f"{result['judged_differently']}; {result['folder']}\n"
    )
    for check in result["checks"]:
        values = f"wall clock {check['wall_clock']:.3f}, virtual time {check['virtual_time']:.3f}"
        sys.stderr.write(
            f"  {'ok' if check['passed'] else 'FAILED'}: {check['name']}: {values}, allowed {check['allowed']:.3f}\n"
        )


if __name__ == "__main__":
    sys.exit(command(main))
