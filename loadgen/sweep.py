"""`lanewise-load knee`: levels of concurrency or rate, one replay each, until TPOT crosses its SLO; then a cap."""

import dataclasses
import datetime as dt
import json as jsonlib
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import yaml
from cyclopts import Group, Parameter
from rich.console import Console
from rich.table import Table

from loadgen.cli import SloOptions, parameters_of, replayed
from loadgen.failure import Exit, StopError, UsageError
from loadgen.flags import Switch, named, seconds
from loadgen.journal import RunFolder, refuse_used
from loadgen.knee import ALL_LEVELS, WIDEST_FACTOR, Knee, Level, levels, stop
from loadgen.knee import knee as read_knee
from loadgen.manifest import parameters, premise
from loadgen.options import ReplayOptions, SourceOptions
from loadgen.premises import NOTHING, PremisesOptions
from loadgen.report import console
from loadgen.report import seconds as written
from loadgen.sides import read_repeat
from loadgen.steady import full
from loadgen.summary import Slo, plain

SCHEMA = "lanewise.knee/1"
FRAGMENT = "measured.yaml"
LEAST_REQUESTS = 50
"""Of a level: a p95 of fewer says little."""
TIMES_IN_FLIGHT = 5
"""A level sends at least so many times as many requests as are in flight."""


@Parameter(name="*", group=Group("Requests"))
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LevelSource(SourceOptions):
    """The requests of every level: how many and how fast is the level's, so that the help does not name it."""

    rows: Annotated[int | None, Parameter(show=False)] = None
    rate: Annotated[float | None, Parameter(show=False)] = None


@Parameter(name="*", group=Group("Target"))
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LevelOptions(ReplayOptions):
    """The replay of every level: what is in flight is the level's."""

    closed_loop: Annotated[int | None, Parameter(show=False)] = None


_ANY, _SLO = LevelSource(), SloOptions()


def knee(
    *traces: Path,
    options: LevelOptions,
    source: LevelSource = _ANY,
    slo: SloOptions = _SLO,
    premises: PremisesOptions = NOTHING,
    by: Literal["concurrency", "rate"] = "concurrency",
    lowest: Annotated[float, named("from")] = 4.0,
    highest: Annotated[float, named("to")] = 256.0,
    factor: float = WIDEST_FACTOR,
    requests: int = 400,
    settle: Annotated[float, seconds("settle")] = 0.0,
    valid_for: str = "30d",
    set: Annotated[tuple[str, ...], Parameter(negative="")] = (),  # noqa: A002 - the name of the option
    json: Switch = False,
) -> int:
    """Raise concurrency (or rate) step by step until TPOT p95 crosses its SLO, and write the cap for lanewise.

    Aim at the engine itself, not at lanewise in front of it. The folder gets one run per level, knee.json, and
    measured.yaml, which lanewise reads: `lanewise serve --config base.yaml --config measured.yaml`. Exit code 4: no
    knee was found, with the reason.

    Parameters
    ----------
    traces
        Trace files, as for replay.
    by
        concurrency: a closed loop with so many requests in flight. rate: an open loop at so many requests/s.
    lowest
        First level.
    highest
        Last level, if nothing stops the sweep before.
    factor
        Between two levels, at most 1.25.
    requests
        Requests of one level; it has at least five times as many as are in flight.
    settle
        Requests sent before this time of a level are not counted; those that fill it up never are.
    valid_for
        How long the cap holds, for lanewise doctor; a number with a unit, such as 30d or 12h.
    set
        NAME=VALUE that was set on the system under test. May be repeated.
    json
        Print the result as one JSON document.
    """
    _check_levels(by, lowest, highest, factor)
    _check_requests(options, source, requests)
    refuse_used(options.out)
    whole = dataclasses.replace(
        options, source=dataclasses.replace(source, traces=traces), premises=premises, parameters=parameters_of(set)
    )
    done: list[Level] = []
    stopped, folder = ALL_LEVELS, None
    for asked in levels(lowest, highest, factor, whole=by == "concurrency"):
        folder = replayed(_one(whole, by, asked, rows_of(by, asked, requests, done)))
        if not folder.manifest().get("complete"):
            stopped = "it was interrupted"
            break
        if (why := too_short(folder.manifest(), by, asked)) is not None:
            stopped = why
            break
        done.append(level_of(folder, asked, slo.slo(), settle))
        if (why := stop(done, slo.tpot)) is not None:
            stopped = why
            break
    assert folder is not None, "a sweep has at least one level"
    found = read_knee(done, slo.tpot, stopped)
    document = _document(found, by, folder.manifest())
    _write(options.out, document, fragment(found, folder.manifest(), valid_for) if found.cap is not None else None)
    if json:
        sys.stdout.write(jsonlib.dumps(document, ensure_ascii=False, allow_nan=False) + "\n")
    print_knee(found, options.out, console(stderr=json))
    if stopped == "it was interrupted":
        return Exit.INTERRUPTED
    return Exit.DONE if found.cap is not None else Exit.INVALID


def _check_levels(by: str, lowest: float, highest: float, factor: float) -> None:
    if not 1 < factor <= WIDEST_FACTOR:
        raise UsageError(f"--factor {factor:g}: must be above 1 and at most {WIDEST_FACTOR:g}")
    if not 0 < lowest < highest < math.inf:
        raise UsageError(f"--from {lowest:g} --to {highest:g}: must be above 0, and the first below the second")
    if by == "concurrency" and not (lowest.is_integer() and highest.is_integer()):
        raise UsageError(f"--from {lowest:g} --to {highest:g}: requests in flight are whole numbers")


def _check_requests(options: ReplayOptions, source: SourceOptions, requests: int) -> None:
    if requests < LEAST_REQUESTS:
        raise UsageError(f"--requests {requests}: a p95 needs at least {LEAST_REQUESTS}")
    if options.closed_loop is not None:
        raise UsageError("--closed-loop: knee sets it for every level; leave it out")
    if source.rows is not None or source.rate is not None:
        raise UsageError("--rows and --rate: knee sets them for every level; leave them out, --requests is the number")


def rows_of(by: str, asked: float, requests: int, done: Sequence[Level]) -> int:
    """Return how many requests a level sends: enough that most of them neither fill it nor run dry.

    Args:
        by: concurrency or rate.
        asked: the level.
        requests: at least so many.
        done: the levels before it. They tell what a rate keeps in flight, and the next rate at least as much.
    """
    in_flight = asked if by == "concurrency" else max((level.in_flight for level in done), default=0.0) * WIDEST_FACTOR
    return max(requests, TIMES_IN_FLIGHT * math.ceil(in_flight))


def _one(whole: ReplayOptions, by: str, asked: float, rows: int) -> ReplayOptions:
    return dataclasses.replace(
        whole,
        out=whole.out / f"level-{asked:g}",
        label=f"{by} {asked:g}",
        closed_loop=int(asked) if by == "concurrency" else None,
        source=dataclasses.replace(whole.source, rows=rows, rate=asked if by == "rate" else None),
    )


def too_short(manifest: Mapping[str, Any], by: str, asked: float) -> str | None:
    """Return why a level cannot be read, when the trace has too few requests for it; None: it has enough."""
    plan = manifest.get("plan")
    sent = plan.get("requests") if isinstance(plan, Mapping) else None
    least = max(LEAST_REQUESTS, TIMES_IN_FLIGHT * int(asked)) if by == "concurrency" else LEAST_REQUESTS
    if sent is None or sent >= least:
        return None
    return f"the trace has only {sent} requests, and level {asked:g} needs {least}; give a longer one"


def level_of(folder: RunFolder, asked: float, slo: Slo, settle_s: float = 0.0) -> Level:
    """Read one level off its run.

    Counted are requests that were sent when the level was full and ended before the last one was sent: what fills a
    closed loop, and what runs dry at its end, says nothing about the level.

    Args:
        folder: of a complete run.
        asked: concurrency or requests/s.
        slo: of the summary.
        settle_s: requests sent before this are not counted, seconds of the plan.
    """
    repeat = read_repeat(folder, slo)
    columns, closed = repeat.columns, repeat.manifest.get("closed_loop")
    fill = int(closed["concurrency"]) if isinstance(closed, Mapping) else 0
    with np.errstate(invalid="ignore"):
        counted = columns.ok & full(columns, fill) & (columns.sent >= settle_s)
    ends, tpot = np.sort(columns.end[counted]), columns.tpot[counted]
    span = max(1e-9, float(ends[-1] - ends[0])) if len(ends) > 1 else math.inf
    busy = float(np.nansum(columns.end - columns.sent))
    whole_span = max(1e-9, float(np.nanmax(columns.end)) - float(np.nanmin(columns.sent))) if busy else math.inf
    lane = repeat.summary.lanes["all"]
    failed = lane.sent - lane.outcomes["ok"] - lane.outcomes["cancelled"]
    return Level(
        asked=asked,
        in_flight=float(fill) if fill else busy / whole_span,
        requests=int(counted.sum()),
        per_s=(len(ends) - 1) / span if len(ends) > 1 else 0.0,
        tokens_per_s=float(np.nansum(columns.tokens[counted])) / span,
        tpot_p95_s=_p95(tpot),
        ttft_p95_s=_p95((columns.first - columns.due)[counted]),
        failed_share=failed / lane.sent if lane.sent else 0.0,
        client_limited=repeat.summary.client_limited,
    )


def _p95(values: Any) -> float:
    known = values[~np.isnan(values)]
    return float(np.quantile(known, 0.95)) if len(known) else math.nan


def _document(found: Knee, by: str, manifest: Mapping[str, Any]) -> dict[str, Any]:
    document = {
        "schema": SCHEMA,
        "at": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "by": by,
        **found.to_json(),
        "model": manifest.get("model"),
        "engine": manifest.get("engine"),
        "premises": manifest.get("premises"),
        "plan": manifest.get("plan"),
    }
    return {key: plain(value) for key, value in document.items()}


def fragment(found: Knee, manifest: Mapping[str, Any], valid_for: str = "30d") -> str:
    """Return the cap as configuration for lanewise: `scheduling.concurrency`, and under `measured` what it holds for.

    Args:
        found: with a cap.
        manifest: of one of its runs.
        valid_for: how long it holds.
    """
    today, slo = dt.datetime.now(dt.UTC).date(), f"{found.tpot_slo_s * 1000:g}ms"
    engine = manifest.get("engine") or {}
    known = parameters(manifest)
    cards, card = premise(manifest, "cards"), premise(manifest, "card")
    measured = {
        "date": today,
        "valid_for": valid_for,
        "concurrency": found.cap,
        "model": manifest.get("model"),
        "engine_version": engine.get("version"),
        "cards": " x ".join(str(part) for part in (cards, card) if part is not None),
        "quantisation": premise(manifest, "quantisation"),
        "kv_tokens": _kv_tokens(known),
        "max_num_seqs": _whole(known.get("engine.max_num_seqs")),
        "max_num_batched_tokens": _whole(known.get("engine.max_num_batched_tokens")),
        "trace": (manifest.get("plan") or {}).get("hash"),
        "tpot_slo": slo,
        "by": "lanewise-load knee",
    }
    why = (
        f"TPOT p95 crosses {slo} at {found.crossing:.1f} (lanewise-load knee, {today}); measure again when the model, "
        "the cards, the engine or the traffic changes"
    )
    document = {
        "scheduling": {"concurrency": found.cap},
        "measured": {name: value for name, value in measured.items() if value not in (None, "")},
        "why": {"scheduling.concurrency": why},
    }
    head = "# Written by lanewise-load knee. lanewise serve --config base.yaml --config measured.yaml\n"
    return head + yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=1000)


def _kv_tokens(known: Mapping[str, Any]) -> int | None:
    told = _whole(known.get("engine.kv_cache_size_tokens"))
    blocks, size = _whole(known.get("engine.num_gpu_blocks")), _whole(known.get("engine.block_size"))
    return told or (blocks * size if blocks and size else None)


def _whole(value: Any) -> int | None:
    text = str(value)
    return int(text) if text.isdecimal() else None


def _write(folder: Path, document: Mapping[str, Any], text: str | None) -> None:
    try:
        (folder / "knee.json").write_text(jsonlib.dumps(document, indent=2, allow_nan=False) + "\n", encoding="utf-8")
        if text is not None:
            (folder / FRAGMENT).write_text(text, encoding="utf-8")
    except OSError as error:
        raise StopError(f"{folder}: cannot be written: {error.strerror}") from None


def print_knee(found: Knee, folder: Path, out: Console) -> None:
    """Print every level, the bend of throughput, and the cap."""
    table = Table(title="levels, settling left out", title_justify="left")
    for column in ("level", "in flight", "requests", "completed/s", "tokens/s", "TTFT p95", "TPOT p95", "failed", ""):
        table.add_column(column, justify="right")
    for level in found.levels:
        over = "over the SLO" if level.tpot_p95_s > found.tpot_slo_s else ""
        table.add_row(
            f"{level.asked:g}",
            f"{level.in_flight:.1f}",
            str(level.requests),
            f"{level.per_s:.2f}",
            f"{level.tokens_per_s:.0f}",
            written(level.ttft_p95_s),
            written(level.tpot_p95_s),
            f"{level.failed_share:.1%}",
            "client-limited" if level.client_limited else over,
        )
    out.print(table)
    out.print(f"The sweep ended because {found.stopped}.")
    bend = found.bend
    if bend.at is None:
        out.print(f"Bend of throughput: not found, because {bend.why}.")
    else:
        out.print(
            f"Throughput bends at {bend.at:.0f} in flight (95 % interval {bend.low:.0f} to {bend.high:.0f}): "
            f"{bend.steeper:.3f} requests/s for one more before it, {bend.flatter:.3f} after it."
        )
    if found.cap is None:
        out.print(f"Knee: not found, because {found.why}.", style="bold yellow")
        return
    out.print(
        f"TPOT p95 crosses {found.tpot_slo_s * 1000:g} ms at {found.crossing:.1f} in flight: cap {found.cap}. "
        f"It is in {folder / FRAGMENT}.",
        style="bold",
    )
