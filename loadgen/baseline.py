"""`lanewise-load baseline`: one replay several times, and whether the repeats agree well enough to compare with."""

import dataclasses
import json as jsonlib
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
import orjson
from cyclopts import Parameter
from rich.console import Console
from rich.table import Table

from loadgen.cli import SloOptions, parameters_of, replayed
from loadgen.conditions import unfit
from loadgen.failure import Exit, StopError, UsageError
from loadgen.flags import Switch
from loadgen.journal import refuse_used
from loadgen.measures import LANES, RESOLUTION_S, measures, statistic
from loadgen.options import ReplayOptions, SourceOptions
from loadgen.premises import NOTHING, PremisesOptions
from loadgen.report import console, seconds, share
from loadgen.sides import BASELINE, BASELINE_SCHEMA, Repeat, Side, read_repeat
from loadgen.summary import Slo, plain

FEWEST_REPEATS = 3
MOST_SPREAD = 0.1
"""Distance of the extreme repeats over their median, of TTFT and end to end at p50."""
TAIL_FACTOR = 3.0
"""A p99 may spread this many times as far as a median: it rests on a few requests."""
GOODPUT_SPREAD = 0.05
FEWEST_BEYOND = 5

_ANY, _SLO = SourceOptions(), SloOptions()


def _megabytes(value: float) -> str:
    return f"{value:.0f} MB"


_WRITERS: Final[Mapping[str, Callable[[float], str]]] = {"s": seconds, "share": share}


def baseline(
    *traces: Path,
    options: ReplayOptions,
    source: SourceOptions = _ANY,
    slo: SloOptions = _SLO,
    premises: PremisesOptions = NOTHING,
    repeats: int = FEWEST_REPEATS,
    most_spread: float = MOST_SPREAD,
    set: Annotated[tuple[str, ...], Parameter(negative="")] = (),  # noqa: A002 - the name of the option
    json: Switch = False,
) -> int:
    """Replay the same requests several times, store the spread, and say whether it is a baseline (exit code 4: not).

    Each pass has its own salt, so that none finds its prompts in the prefix cache. `compare BASELINE RUN` takes
    the folder as A: differences within the spread of the repeats are noise.

    Parameters
    ----------
    traces
        Trace files, as for replay.
    repeats
        Passes, at least 3.
    most_spread
        Widest spread of TTFT and end to end at p50, as a share of their median; p99 may spread three times as far.
    set
        NAME=VALUE that was set on the system under test. May be repeated.
    json
        Print the result as one JSON document.
    """
    if repeats < FEWEST_REPEATS:
        raise UsageError(f"--repeats {repeats}: a spread needs at least {FEWEST_REPEATS}")
    if options.salt is not None:
        raise UsageError("--salt: each pass of a baseline needs its own, drawn anew; leave it out")
    if not 0 < most_spread < 1:
        raise UsageError(f"--most-spread {most_spread:g}: must be above 0 and below 1")
    refuse_used(options.out)
    label = options.label or options.out.name
    whole = dataclasses.replace(
        options, source=dataclasses.replace(source, traces=traces), premises=premises, parameters=parameters_of(set)
    )
    done: list[Repeat] = []
    for number in range(1, repeats + 1):
        out = options.out / f"run-{number}"
        folder = replayed(dataclasses.replace(whole, out=out, label=f"{label} {number}/{repeats}"))
        done.append(read_repeat(folder, slo.slo()))
        if not done[-1].summary.complete:
            break
    document = store(options.out, label, done, slo.slo(), most_spread)
    if json:
        sys.stdout.write(jsonlib.dumps(document, ensure_ascii=False, allow_nan=False) + "\n")
    print_baseline(document, console(stderr=json))
    if not done[-1].summary.complete:
        return Exit.INTERRUPTED
    return Exit.DONE if document["accepted"] else Exit.INVALID


def store(folder: Path, label: str, repeats: Sequence[Repeat], slo: Slo, most_spread: float) -> dict[str, Any]:
    """Judge the repeats and write `baseline.json` beside their run folders.

    Raises:
        StopError: the disk does not take it.
    """
    document = judged(label, repeats, slo, most_spread)
    try:
        (folder / BASELINE).write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
    except OSError as error:
        raise StopError(f"{folder}: cannot be written: {error.strerror}") from None
    return document


def judged(label: str, repeats: Sequence[Repeat], slo: Slo, most_spread: float = MOST_SPREAD) -> dict[str, Any]:
    """Return what `baseline.json` says: the spread of every metric, and whether this is a baseline.

    Args:
        label: what people call it.
        repeats: in the order they were made.
        slo: what makes a request good.
        most_spread: widest spread of a median latency, as a share of it.
    """
    spread = _spread(repeats, slo)
    reasons = list(unfit("baseline", Side(label, tuple(repeats))))
    if len(repeats) < FEWEST_REPEATS:
        reasons.append(f"only {len(repeats)} repeats; a spread needs at least {FEWEST_REPEATS}")
    wide = [name for name, entry in spread.items() if _too_wide(name, entry, most_spread)]
    reasons += [_why(name, spread[name], most_spread) for name in wide]
    if wide:
        reasons.append(
            "the environment comes before any tuning: other load on the engine or on this machine, clocks that move, "
            "a shared link"
        )
    manifest = repeats[0].manifest
    document = {
        "schema": BASELINE_SCHEMA,
        "label": label,
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "accepted": not reasons,
        "why": "; ".join(reasons),
        "reasons": reasons,
        "repeats": [f"run-{number}" for number in range(1, len(repeats) + 1)],
        "most_spread": most_spread,
        "plan": manifest.get("plan"),
        "model": manifest.get("model"),
        "premises": manifest.get("premises"),
        "spread": spread,
    }
    return {key: plain(value) for key, value in document.items()}


def _spread(repeats: Sequence[Repeat], slo: Slo) -> dict[str, dict[str, Any]]:
    found = {}
    for measure in measures(LANES, slo):
        for part in measure.shares:
            columns = [measure.of(repeat.columns) for repeat in repeats]
            fewest = min(int((~np.isnan(values)).sum()) for values in columns)
            if fewest * (0.5 if part is None else min(part, 1 - part)) >= FEWEST_BEYOND:
                found[measure.label(part)] = _entry([statistic(values, part) for values in columns], measure.unit)
    for name, key, unit in (("KV peak", "kv_usage", "share"), ("HBM peak", "hbm_mb", "MB")):
        peaks = [repeat.peaks[key] for repeat in repeats if key in repeat.peaks]
        if len(peaks) == len(repeats):
            found[name] = _entry(peaks, unit)
    return found


def _entry(values: list[float], unit: str) -> dict[str, Any]:
    middle, width = float(np.median(values)), max(values) - min(values)
    return {
        "unit": unit,
        "values": values,
        "median": middle,
        "range": width,
        "relative": width / middle if middle > 0 else float("nan"),
    }


def _too_wide(name: str, entry: dict[str, Any], most_spread: float) -> bool:
    kind = name.split(" ")[1]
    if kind == "goodput":
        return bool(entry["range"] > GOODPUT_SPREAD)
    if kind not in {"TTFT", "E2E"} or entry["range"] <= RESOLUTION_S[kind]:
        return False
    return bool(entry["relative"] > _allowed(name, most_spread))


def _allowed(name: str, most_spread: float) -> float:
    return most_spread * (TAIL_FACTOR if name.endswith("p99") else 1.0)


def _why(name: str, entry: dict[str, Any], most_spread: float) -> str:
    write = share if entry["unit"] == "share" else seconds
    low, high = write(min(entry["values"])), write(max(entry["values"]))
    if entry["unit"] == "share":
        return f"{name} spreads from {low} to {high}, more than {GOODPUT_SPREAD:g}"
    return f"{name} spreads by {entry['relative']:.0%} ({low} to {high}), more than {_allowed(name, most_spread):.0%}"


def print_baseline(document: dict[str, Any], out: Console) -> None:
    """Print the spread of every metric and whether this is a baseline."""
    table = Table(title=f"{document['label']}, {len(document['repeats'])} repeats", title_justify="left")
    for column in ("", "median", "from", "to", "spread"):
        table.add_column(column, justify="left" if column == "" else "right")
    for name, entry in document["spread"].items():
        write = _WRITERS.get(entry["unit"], _megabytes)
        relative = "-" if entry["relative"] is None else f"{entry['relative']:.1%}"
        low, high = min(entry["values"]), max(entry["values"])
        table.add_row(name, write(entry["median"]), write(low), write(high), relative)
    out.print(table)
    if document["accepted"]:
        out.print("This is a baseline. compare takes the folder as A.", style="bold")
    else:
        out.print("This is not a baseline:", style="bold yellow")
        for reason in document["reasons"]:
            out.print(f"- {reason}", style="yellow")
