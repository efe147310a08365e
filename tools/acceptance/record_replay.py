"""Records traffic with lanewise and replays the record with lanewise-load: the same arrivals, the same lengths.

    python -m tools.acceptance.record_replay TRACE --rate 20 --speed 8

A trace is replayed at the simulated engine through a proxy that records; then the proxy's record is replayed through a
second proxy that records too. Checked: every recorded request is planned again at its recorded time, to the
microsecond; 99 in 100 leave within 5 ms of it; every request that ended well both times has prompt and output lengths
within 1 %, and so have all of them together. Exit code 3 when something does not hold.
"""

import argparse
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from loadgen.failure import StopError
from loadgen.journal import RunFolder
from loadgen.tracefile.lanewise import GENERATES
from tools.acceptance.loop import Setting, command, lines, running, stamp
from tools.acceptance.trace_replay import lateness

LATE_S = 0.005
LENGTHS_SHARE = 0.01
SAME_TIME_S = 2e-6
"""Records hold microseconds, and so do journals."""


def main() -> int:
    """Record, replay, and print what held."""
    asked = _arguments()
    result = check(asked)
    _say(result)
    if asked.json:
        sys.stdout.write(json.dumps(result) + "\n")
    return 0 if result["passed"] else 3


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path, metavar="TRACE")
    parser.add_argument("--rate", type=float, default=20.0, help="requests/s, wall clock (default 20)")
    parser.add_argument("--speed", type=float, default=8.0, help="of the engine (default 8)")
    parser.add_argument("--rows", type=int, default=1000, help="of the trace (default 1000)")
    parser.add_argument("--endpoint", choices=("completions", "chat"), default="completions")
    parser.add_argument("--late", type=float, default=LATE_S, help="p99 of the lateness that passes, s (default 0.005)")
    parser.add_argument("--realtime", action="store_true", help="the replay runs before all other processes (root)")
    parser.add_argument("--out", type=Path, default=Path("runs/acceptance") / f"record-replay-{stamp()}")
    parser.add_argument("--json", action="store_true", help="print one JSON document on stdout")
    return parser.parse_args()


def check(asked: argparse.Namespace) -> dict[str, Any]:
    """Run both passes and return the figures.

    Raises:
        StopError: a process did not start, or a replay did not end well.
    """
    pace = ("--rate", f"{asked.rate / asked.speed:g}", "--rows", str(asked.rows))
    first = _passed(asked, asked.out / "recorded", str(asked.trace), *pace)
    record = asked.out / "record.jsonl"
    record.write_text("".join(json.dumps(line) + "\n" for line in first))
    # A record tells wall-clock times; a plan for an engine of this speed tells the engine's.
    second = _passed(asked, asked.out / "replayed", str(record), "--scale", f"{1 / asked.speed!r}")
    return judged(first, second, asked.out / "replayed", asked)


def _passed(asked: argparse.Namespace, folder: Path, *arguments: str) -> list[dict[str, Any]]:
    """Replay through a recording proxy and return what it recorded."""
    with running(folder, Setting(speed=asked.speed)) as loop:
        timeout_s = 120 + 2 * asked.rows / asked.rate + 300 / asked.speed
        more = ("--endpoint", asked.endpoint)
        code = loop.replay(*arguments, *more, timeout_s=timeout_s, realtime=asked.realtime)
    if code != 0:
        raise StopError(f"the replay ended with code {code}; see {folder / 'replay.log'}")
    return list(lines(sorted((folder / "trace").glob("*.jsonl"))))


def judged(
    first: Sequence[dict[str, Any]], second: Sequence[dict[str, Any]], folder: Path, asked: argparse.Namespace
) -> dict[str, Any]:
    """Compare two records through the journal of the second pass."""
    shots = list(lines([folder / "run" / "shots.jsonl"]))
    salt = RunFolder(folder / "run").manifest()["salt"]
    traffic, replayed = ([record for record in side if record["endpoint"] in GENERATES] for side in (first, second))
    begun = min(record["arrived_s"] for record in traffic)
    again = {record["request_id"]: record for record in second}
    schedule = [abs(shot["due"] / asked.speed - (first[shot["row"] - 1]["arrived_s"] - begun)) for shot in shots]
    pairs = [
        (before, after)
        for shot in shots
        if (before := first[shot["row"] - 1])["outcome"] == "ok"
        and (after := again.get(f"{salt}-{shot['index']}", {})).get("outcome") == "ok"
    ]
    late = lateness(folder, asked.speed)
    off = {length: differences(length, pairs) for length in ("prompt_tokens", "output_tokens")}
    held = {
        "every request again": len(shots) == len(traffic) == len(replayed),
        "same schedule": max(schedule, default=math.inf) <= SAME_TIME_S,
        "on time": late["p99"] <= asked.late,
        "pairs to compare": len(pairs) > 0,
        "same lengths": all(one["total"] <= LENGTHS_SHARE and one["worst"] <= LENGTHS_SHARE for one in off.values()),
    }
    return {
        "trace": asked.trace.name,
        "requests": len(traffic),
        "pairs": len(pairs),
        "passed": all(held.values()),
        "held": held,
        "schedule_off_max_s": max(schedule, default=None),
        "lateness_s": late,
        "lateness_allowed_p99_s": asked.late,
        "lengths_off": off,
        "folder": str(asked.out),
    }


def differences(length: str, pairs: Sequence[tuple[dict[str, Any], dict[str, Any]]]) -> dict[str, float]:
    """Return how far a length is off, as shares: over all requests together, and the worst single one."""
    before, after = (sum(pair[side][length] for pair in pairs) for side in (0, 1))
    worst = max((abs(one[length] - two[length]) / one[length] for one, two in pairs), default=0.0)
    return {"total": abs(after - before) / max(1, before), "worst": worst}


def _say(result: dict[str, Any]) -> None:
    late = result["lateness_s"]
    failed = ", ".join(name for name, holds in result["held"].items() if not holds)
    sys.stderr.write(
        f"{'FAILED: ' + failed if failed else 'ok'}: {result['trace']}: {result['requests']} requests, "
        f"{result['pairs']} pairs; schedule off at most {result['schedule_off_max_s'] * 1e6:.1f} µs; lateness p50 "
        f"{late['p50'] * 1e3:.2f} p99 {late['p99'] * 1e3:.2f} ms; lengths off {result['lengths_off']}; "
        f"{result['folder']}\n"
    )


if __name__ == "__main__":
    sys.exit(command(main))
