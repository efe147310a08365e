"""How well the load generator reads its clock, and how much it takes in, against a mock whose own stamps are the truth.

`python -m tools.acceptance.generator --mock FILE`

- *accuracy*: TTFT from the send as `lanewise-load replay` reports it, less TTFT as the mock stamped it, with 1, 50 and
  500 streams at a time whose starts are spread; five runs each, the median of them counts. What the self-certificate of
  each run said stands beside it, and two plain clients at the same load show what machine and mock cost anybody.
- *throughput*: answers of 64 tokens without delays to 64 connections, the generator on one core, what answers on
  another: a server that has every answer prepared, the mock, and one that writes each event by itself (needs `cc`).

Exits with 3 when a target is missed. Without `--mock` the accuracy is left out and said so. The mock takes `--port`,
`--ttft`, `--itl` (seconds) and `--tokens`, and gives `entered_s`, `first_s` (`perf_counter`) of each request as CSV at
`/_rows`.
"""

import argparse
import csv
import http.client
import io
import json
import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from loadgen.children import fetch
from loadgen.failure import Exit, StopError
from tools.acceptance.generator_runs import CLIENTS, READY_S, Load, event_by_event, mock, prepared, taken

TTFT_S, GAP_S, TOKENS = 0.2, 0.05, 32
ANSWER_S = TTFT_S + (TOKENS - 1) * GAP_S
LOADS = {1: 8, 50: 200, 500: 2000}
"""Streams at a time, and how many are sent."""
ALLOWED_S = {1: 0.001, 50: 0.001, 500: 0.005}
"""Error of the mean TTFT."""
CERTIFIED_S = 0.001
"""How far the certificate may be from the error that was there."""
CONNECTIONS, FLOOD_TOKENS = 64, 64
LEAST_REQUESTS, LEAST_CHUNKS, MOST_MB = 2000.0, 120_000.0, 100.0


@dataclass(frozen=True, slots=True)
class Accuracy:
    """One run against the mock. Client less mock, seconds."""

    client: str
    streams: int
    requests: int
    error_mean_s: float
    error_p50_s: float
    error_p99_s: float
    outward_s: float
    """Mean from the client's send to the mock's handler."""
    back_s: float
    """Mean from the return of the mock's write to the client's stamp."""
    certified_s: float | None


@dataclass(frozen=True, slots=True)
class Throughput:
    """One run without delays."""

    client: str
    server: str
    requests_per_s: float
    chunks_per_s: float | None
    cpu_us_per_request: float
    rss_mb: float


def _reset(url: str) -> None:
    """Let the mock forget its stamps."""
    connection = http.client.HTTPConnection(url.rpartition("/")[2], timeout=READY_S)
    connection.request("POST", "/_reset")
    connection.getresponse().read()
    connection.close()


def accuracy(client: str, url: str, streams: int, load: Load, folder: Path) -> Accuracy:
    """Measure once, and compare with the mock's stamps."""
    _reset(url)
    one = taken(client, url, load, folder)
    rows = list(csv.DictReader(io.StringIO(fetch(f"{url}/_rows"))))
    entered = np.array([float(row["entered_s"]) for row in rows])
    first = np.array([float(row["first_s"]) for row in rows])
    if len(rows) != load.requests:
        raise StopError(f"the mock answered {len(rows)} of {load.requests} requests")
    truth = first - entered
    p50, p99 = (float(np.quantile(one.ttft, q) - np.quantile(truth, q)) for q in (0.5, 0.99))
    return Accuracy(
        client=client,
        streams=streams,
        requests=len(rows),
        error_mean_s=float(one.ttft.mean() - truth.mean()),
        error_p50_s=p50,
        error_p99_s=p99,
        outward_s=float(entered.mean() - one.sent.mean()),
        back_s=float(one.first.mean() - first.mean()),
        certified_s=one.certified_s,
    )


def accuracies(asked: argparse.Namespace, folder: Path) -> list[Accuracy]:
    """Measure every load `--runs` times, the clients in turn."""
    found = []
    with mock(asked.mock, TTFT_S, GAP_S, TOKENS) as url:
        for streams in asked.streams:
            how = {"streams": streams} if asked.together else {"rate": streams / ANSWER_S}
            load = Load(LOADS.get(streams, 4 * streams), TOKENS, certify=True, **how)
            for _ in range(asked.runs):
                found += [accuracy(client, url, streams, load, folder) for client in asked.client]
    return found


def throughput(client: str, server: str, url: str, requests: int, folder: Path) -> Throughput:
    """Measure once."""
    one = taken(client, url, Load(requests, FLOOD_TOKENS, streams=CONNECTIONS), folder)
    return Throughput(
        client=client,
        server=server,
        requests_per_s=requests / one.elapsed_s,
        chunks_per_s=None if client == "wire" else one.chunks / one.elapsed_s,
        cpu_us_per_request=one.cpu_s / requests * 1e6,
        rss_mb=one.rss_mb,
    )


def throughputs(asked: argparse.Namespace, folder: Path) -> list[Throughput]:
    """Measure every server `--runs` times, the clients in turn."""
    servers: dict[str, Callable[[], Any]] = {"prepared": lambda: prepared(FLOOD_TOKENS)}
    if asked.mock is not None:
        servers["mock"] = lambda: mock(asked.mock, 0.0, 0.0, FLOOD_TOKENS)
    if shutil.which("cc"):
        servers["event by event"] = lambda: event_by_event(folder)
    found = []
    for name, serve in servers.items():
        with serve() as url:
            for _ in range(asked.runs):
                found += [throughput(client, name, url, asked.requests, folder) for client in asked.client]
    return found


def median(rows: Sequence[Any], **where: Any) -> dict[str, Any]:
    """Return the median of each figure over the rows of one kind."""
    chosen = [asdict(row) for row in rows if all(getattr(row, key) == value for key, value in where.items())]
    figures = {key: [row[key] for row in chosen if row[key] is not None] for key in chosen[0] if key not in where}
    middle = {key: statistics.median(values) if values else None for key, values in figures.items()}
    return {**where, **middle, "runs": len(chosen)}


def kinds(rows: Sequence[Any], *keys: str) -> list[dict[str, Any]]:
    """Return the medians of every kind of row, in the order they were measured."""
    wheres = dict.fromkeys(tuple(getattr(row, key) for key in keys) for row in rows)
    return [median(rows, **dict(zip(keys, where, strict=True))) for where in wheres]


def verdicts(accurate: list[dict[str, Any]], fast: list[dict[str, Any]]) -> dict[str, bool]:
    """Return what held, by name; of the shipped command alone."""
    held: dict[str, bool] = {}
    for row in accurate:
        streams, error = row["streams"], row["error_mean_s"]
        if row["client"] == CLIENTS[0] and streams in ALLOWED_S:
            held[f"error of the mean at {streams} streams"] = abs(error) <= ALLOWED_S[streams]
            held[f"certificate at {streams} streams"] = abs(error - row["certified_s"]) <= CERTIFIED_S
    for row in fast:
        if row["client"] == CLIENTS[0] and row["server"] == "prepared":
            held["requests/s"] = row["requests_per_s"] >= LEAST_REQUESTS
            held["chunks/s"] = row["chunks_per_s"] >= LEAST_CHUNKS
            held["memory"] = row["rss_mb"] <= MOST_MB
    return held


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{1e3 * value:.2f}"


def _show(document: dict[str, Any]) -> None:
    out = Console(highlight=False, width=120)
    table = Table(title="TTFT from the send, client less mock, ms (medians)", title_justify="left")
    for column in ("streams", "client", "error of the mean", "p50", "p99", "out", "back", "certificate"):
        table.add_column(column)
    for row in document["accuracy"]:
        shown = ("error_mean_s", "error_p50_s", "error_p99_s", "outward_s", "back_s", "certified_s")
        table.add_row(str(row["streams"]), row["client"], *(_ms(row[key]) for key in shown))
    if document["accuracy"]:
        out.print(table)
    table = Table(title="No delays, 64 connections, 64 tokens (medians)", title_justify="left")
    for column in ("server", "client", "requests/s", "chunks/s", "CPU us a request", "MB"):
        table.add_column(column)
    for row in document["throughput"]:
        chunks = "-" if row["chunks_per_s"] is None else f"{row['chunks_per_s']:.0f}"
        figures = (f"{row['requests_per_s']:.0f}", chunks, f"{row['cpu_us_per_request']:.0f}", f"{row['rss_mb']:.0f}")
        table.add_row(row["server"], row["client"], *figures)
    if document["throughput"]:
        out.print(table)
    for name, held in document["held"].items():
        out.print(f"{'holds ' if held else 'MISSED'} {name}")


def main(arguments: list[str] | None = None) -> int:
    """Run the checks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mock", type=Path, help="the mock whose stamps are the truth")
    parser.add_argument("--runs", type=int, default=5, help="of each cell (default: 5)")
    parser.add_argument("--streams", type=int, action="append", help="at a time (default: 1, 50 and 500)")
    parser.add_argument(
        "--together",
        action="store_true",
        help="a closed loop whose streams start at once: harder, without a target",
    )
    parser.add_argument("--requests", type=int, default=6000, help="of a throughput run (default: 6000)")
    parser.add_argument("--client", action="append", choices=CLIENTS, help="run only this one (may be repeated)")
    parser.add_argument("--only", choices=("accuracy", "throughput"), help="leave the other out")
    parser.add_argument(
        "--realtime", action="store_true", help="run before every other process of the machine (SCHED_FIFO, needs root)"
    )
    parser.add_argument("--json", action="store_true", help="print one document")
    asked = parser.parse_args(arguments)
    asked.streams, asked.client = asked.streams or list(LOADS), asked.client or list(CLIENTS)
    if asked.realtime:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    accurate: list[Accuracy] = []
    fast: list[Throughput] = []
    with tempfile.TemporaryDirectory() as folder:
        if asked.mock is None and asked.only != "throughput":
            sys.stderr.write("accuracy: left out, since --mock names no file\n")
        elif asked.only != "throughput":
            accurate = accuracies(asked, Path(folder))
        if asked.only != "accuracy":
            fast = throughputs(asked, Path(folder))
    medians = kinds(accurate, "streams", "client"), kinds(fast, "server", "client")
    held = verdicts([] if asked.together else medians[0], medians[1])
    document: dict[str, Any] = {"accuracy": medians[0], "throughput": medians[1], "held": held}
    document["runs"] = {"accuracy": [asdict(row) for row in accurate], "throughput": [asdict(row) for row in fast]}
    print(json.dumps(document, indent=1)) if asked.json else _show(document)
    return Exit.DONE if all(document["held"].values()) else Exit.GATE


if __name__ == "__main__":
    sys.exit(main())
