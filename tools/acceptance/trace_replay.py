"""Replays trace files at the simulated engine through lanewise, and checks that nothing is lost, changed or late.

    python -m tools.acceptance.trace_replay TRACE... --rate 20 --speed 8

Each file gets an engine, a proxy (recording) and a replay of its own, as separate processes. `--rate` is in wall-clock
time: with `--speed 8`, 20 requests/s are 2.5 requests/s of the engine's time. Mooncake's clock is de-quantised.

Checked: every row of the file has exactly one outcome in the journal and in the proxy's record, and both mean the same;
every complete answer has the same bytes at engine, proxy and client; 99 in 100 requests leave within 5 ms of their due
time. Exit code 3 when something does not hold.

With installments, `usage` of a prompt that went in parts tells another count of cached tokens than the engine said: so
that nobody pays for hits that the parts made. `--installments auto` therefore runs an engine that tells no such count;
then those bytes must be equal as well.
"""

import argparse
import json
import math
import sys
from pathlib import Path
from typing import Any

from loadgen.failure import StopError
from loadgen.journal import RunFolder
from tools.acceptance.joining import join_folder
from tools.acceptance.loop import Setting, command, lines, running, stamp

LATE_S = 0.005


def main() -> int:
    """Replay every file and print what held."""
    asked = _arguments()
    results = []
    for trace in asked.traces:
        results.append(check(trace, asked))
        _say(results[-1])
    if asked.json:
        sys.stdout.write(json.dumps(results) + "\n")
    return 0 if all(result["passed"] for result in results) else 3


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", nargs="+", type=Path, metavar="TRACE")
    parser.add_argument("--rate", type=float, default=20.0, help="requests/s, wall clock (default 20)")
    parser.add_argument("--speed", type=float, default=8.0, help="of the engine (default 8)")
    parser.add_argument("--rows", type=int, help="only so many rows of each file")
    parser.add_argument("--installments", choices=("off", "auto", "on"), default="off", help="of the proxy")
    parser.add_argument("--patience", nargs=2, default=("30s", "60s"), metavar=("SHORT", "LONG"), help="of clients")
    parser.add_argument("--set", type=_change, action="append", default=[], metavar="KEY=VALUE", help="of the proxy")
    parser.add_argument("--late", type=float, default=LATE_S, help="p99 of the lateness that passes, s (default 0.005)")
    parser.add_argument("--realtime", action="store_true", help="the replay runs before all other processes (root)")
    parser.add_argument("--out", type=Path, default=Path("runs/acceptance") / f"trace-replay-{stamp()}")
    parser.add_argument("--json", action="store_true", help="print one JSON array on stdout")
    return parser.parse_args()


def _change(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text}: write KEY=VALUE")
    return key, value


def check(trace: Path, asked: argparse.Namespace) -> dict[str, Any]:
    """Replay one file and return the figures.

    Raises:
        StopError: a process did not start.
    """
    rows = min(_rows(trace), asked.rows or sys.maxsize)
    folder = asked.out / trace.stem
    arguments = [str(trace), "--rate", f"{asked.rate / asked.speed:g}", "--rows", str(rows)]
    arguments += ["--patience-short", asked.patience[0], "--patience-long", asked.patience[1]]
    arguments += ["--dequantise"] if trace.suffix == ".jsonl" else []
    with running(folder, _setting(asked)) as loop:
        timeout_s = 120 + 2 * rows / asked.rate + 300 / asked.speed
        code = loop.replay(*arguments, timeout_s=timeout_s, realtime=asked.realtime)
    if code != 0:
        raise StopError(f"the replay of {trace} ended with code {code}; see {folder / 'replay.log'}")
    return _judged(trace, rows, folder, asked)


def _setting(asked: argparse.Namespace) -> Setting:
    parts = asked.installments != "off"
    return Setting(
        speed=asked.speed,
        changes=(("installments.mode", asked.installments), *asked.set),
        engine_flags=("--no-prompt-tokens-details",) if parts else (),
    )


def _judged(trace: Path, rows: int, folder: Path, asked: argparse.Namespace) -> dict[str, Any]:
    joined = join_folder(folder)
    if joined.planned != rows:
        joined.fault(f"the file has {rows} rows, the plan {joined.planned}", str(trace))
    manifest = RunFolder(folder / "run").manifest()
    late = lateness(folder, asked.speed)
    on_time = late["p99"] < asked.late
    return {
        "trace": trace.name,
        "rows": rows,
        "rate_per_s": asked.rate,
        "speed": asked.speed,
        "installments": asked.installments,
        "passed": not joined.faults and on_time,
        **joined.document(),
        "lateness_s": late,
        "lateness_allowed_p99_s": asked.late,
        "loop_lag_p99_s": manifest["loop_lag_p99_s"],
        "prompt_tokens_hit_in_cache": (manifest.get("prefix_cache") or {}).get("hits"),
        "folder": str(folder),
    }


def _rows(trace: Path) -> int:
    """Count the rows by themselves, apart from the readers under test."""
    with trace.open("rb") as opened:
        count = sum(1 for line in opened if line.strip())
    return count - 1 if trace.suffix == ".csv" else count


def lateness(folder: Path, speed: float) -> dict[str, float]:
    """Return quantiles of taken-up minus due over all requests that went out, wall-clock seconds."""
    late = sorted(
        (shot["started"] - shot["due"]) / speed
        for shot in lines([folder / "run" / "shots.jsonl"])
        if shot.get("started") is not None
    )
    return {name: late[math.ceil(share * len(late)) - 1] for name, share in (("p50", 0.5), ("p99", 0.99), ("max", 1))}


def _say(result: dict[str, Any]) -> None:
    late = result["lateness_s"]
    verdict = "ok" if result["passed"] else "FAILED"
    sys.stderr.write(
        f"{verdict}: {result['trace']}: {result['rows']} rows at {result['rate_per_s']:g}/s: {result['outcomes']}; "
        f"{result['bytes_compared']} bytes of {result['answers_compared']} answers compared, {result['parts']} parts; "
        f"lateness p50 {late['p50'] * 1e3:.2f} p99 {late['p99'] * 1e3:.2f} max {late['max'] * 1e3:.2f} ms; "
        f"{result['folder']}\n"
    )
    for what, which in result["faults"].items():
        sys.stderr.write(f"  {what}: {which['requests']} requests, for example {', '.join(which['first'])}\n")


if __name__ == "__main__":
    sys.exit(command(main))
