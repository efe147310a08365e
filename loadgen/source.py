"""From the source part of the options to a plan, and what the manifest says about where it came from."""

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from loadgen.arrivals import Arrivals, arrivals_of
from loadgen.failure import UsageError
from loadgen.options import BadLines, Bodies, Process, SourceOptions, Turns
from loadgen.plan import NS, Plan, Window, make_plan, shared_prefix_tokens
from loadgen.trace.provenance import provenance_of, sha256
from loadgen.tracefile import Reading, Row, Skipped, Trace, open_trace


@dataclass(frozen=True, slots=True)
class Source:
    """A plan and its origin."""

    plan: Plan
    facts: dict[str, Any]
    """For the manifest: files with hashes, time units, skipped lines, seeds, window, scale."""


def read_source(options: SourceOptions, *, endpoint: str | None = None) -> Source:
    """Read the traces, or draw the workload, and plan.

    Args:
        options: what to read.
        endpoint: which endpoint recorded bodies must be of, when they are sent.

    Raises:
        UsageError: an option, a file or a line of it is wrong.
    """
    _check(options)
    arrivals = _arrivals(options)
    window = Window(
        start_s=options.start_s,
        duration_s=options.duration_s,
        rows=options.rows,
        scale=options.scale,
        rate=None if arrivals else options.rate,
        max_prompt_tokens=options.max_prompt_tokens,
        max_output_tokens=options.max_output_tokens,
        arrivals=arrivals,
        seed=options.seed,
    )
    seed = options.seed if options.dequantise else None
    if options.workload is not None:
        rows, facts = _drawn(options, options.workload)
        plan = make_plan(rows, replace(window, start_s=0.0), border=options.border, dequantise_seed=seed)
    else:
        traces, skipped = _traces(options, endpoint)
        plan = make_plan(_merged(traces), window, border=options.border, dequantise_seed=seed)
        facts = _trace_facts(traces, skipped)
    plan = _told_apart(plan, options)
    return Source(plan, facts | _plan_facts(options, plan))


def _told_apart(plan: Plan, options: SourceOptions) -> Plan:
    """The same shots sent in another way are another plan: their runs are not to be compared."""
    ways = [options.turns.value] if options.turns is Turns.AFTER_ANSWER and plan.parents is not None else []
    ways += [options.bodies.value] if options.bodies is not Bodies.MADE else []
    if not ways:
        return plan
    return replace(plan, hash=hashlib.sha256(" ".join([plan.hash, *ways]).encode()).hexdigest()[:16])


def _check(options: SourceOptions) -> None:
    if bool(options.traces) == (options.workload is not None):
        raise UsageError("give trace files or --workload NAME, one of the two")
    if options.scale != 1.0 and options.rate is not None:
        raise UsageError("--scale and --rate both set the speed of the plan; give one of them")
    positive = {
        "--scale": options.scale,
        "--rate": options.rate,
        "--duration": options.duration_s,
        "--rows": options.rows,
        "--max-prompt": options.max_prompt_tokens,
        "--max-output": options.max_output_tokens,
        "--assume-output": options.assume_output_tokens,
        "--border": options.border,
    }
    for name, value in positive.items():
        if value is not None and not (math.isfinite(value) and value > 0):
            raise UsageError(f"{name} {value:g}: must be above 0")
    if not (math.isfinite(options.start_s) and options.start_s >= 0):
        raise UsageError(f"--start {options.start_s:g}: must be 0 or more seconds")


def _arrivals(options: SourceOptions) -> Arrivals | None:
    if options.arrivals is Process.RECORDED:
        if options.rates is not None:
            raise UsageError("--rates needs a process: --arrivals constant, poisson or gamma")
        return None
    if options.scale != 1.0 or options.dequantise:
        raise UsageError(f"--arrivals {options.arrivals}: recorded times are not used; leave out --scale, --dequantise")
    return arrivals_of(options.arrivals, rate=options.rate, rates=options.rates, cv=options.cv)


def _traces(options: SourceOptions, endpoint: str | None) -> tuple[list[Trace], Skipped]:
    skipped = Skipped()
    reading = Reading(
        assume_output_tokens=options.assume_output_tokens,
        seed=options.seed,
        bodies=None if options.bodies is Bodies.MADE else endpoint,
        start_s=options.start_s,
        end_s=None if options.duration_s is None else options.start_s + options.duration_s,
    )
    counting = skipped if options.bad_lines is BadLines.SKIP else None
    traces = [
        open_trace(
            path,
            options.format,
            skipped=counting,
            reading=reading if len(options.traces) == 1 else replace(reading, start_s=0.0, end_s=None),
            source=source,
        )
        for source, path in enumerate(options.traces)
    ]
    for trace in traces:
        if trace.format.clock == "none" and options.arrivals is Process.RECORDED:
            raise UsageError(f"{trace.path}: {trace.format.name} has no times; give --arrivals poisson --rate 2, say")
    return traces, skipped


def _merged(traces: list[Trace]) -> Iterator[Row]:
    """Files of one clock keep their distance; if they are of several, every file starts at 0.

    Raises:
        UsageError: there is no row in any of them, or one cannot be read.
    """
    together = len({trace.format.clock for trace in traces}) == 1 and traces[0].format.wall_clock
    count = 0
    for trace in traces:
        for row in trace.rows() if together or len(traces) == 1 else _from_zero(list(trace.rows())):
            count += 1
            yield row
    if not count:
        raise UsageError(f"{', '.join(str(trace.path) for trace in traces)}: no request in it")


def _from_zero(rows: list[Row]) -> Iterator[Row]:
    first = min((row.t_ns for row in rows), default=0)
    return (replace(row, t_ns=row.t_ns - first) for row in rows)


def _drawn(options: SourceOptions, name: str) -> tuple[Iterator[Row], dict[str, Any]]:
    """A window of drawn rows is cut by drawing up to its end, in time before scaling."""
    from loadgen.shipped import locate  # noqa: PLC0415 - pydantic and YAML, only when drawn
    from loadgen.workload import read_workload  # noqa: PLC0415

    if options.start_s and options.duration_s is None:
        raise UsageError("--start within a workload needs --duration")
    path = locate("config/workloads", name)
    workload = read_workload(path)
    if options.duration_s is None:
        rows = workload.rows(options.seed, rows=options.rows)
    else:
        rows = workload.rows(options.seed, duration_s=options.start_s + options.duration_s)
    kept = (row for row in rows if row.t_ns >= options.start_s * NS)
    return kept, {"workload": workload.name, "workload_sha256": sha256(path)}


def _trace_facts(traces: list[Trace], skipped: Skipped) -> dict[str, Any]:
    return {
        "traces": [
            {
                "name": trace.path.name,
                "sha256": sha256(trace.path),
                "format": trace.format.name,
                "time_unit": trace.format.time_unit,
                "assumed_outputs": trace.assumed_outputs,
                "other_lines": trace.other_lines,
                **provenance_of(trace.path),
            }
            for trace in traces
        ],
        "bad_lines": {"skipped": skipped.count, "examples": skipped.examples},
    }


def _plan_facts(options: SourceOptions, plan: Plan) -> dict[str, Any]:
    return {
        "seed": options.seed,
        "border": plan.border,
        "scale": plan.scale,
        "window": {"start_s": options.start_s, "duration_s": options.duration_s, "rows": options.rows},
        "max_prompt_tokens": options.max_prompt_tokens,
        "max_output_tokens": options.max_output_tokens,
        "arrivals": _arrival_facts(options),
        "bodies": options.bodies.value,
        "turns": options.turns.value if plan.parents is not None else None,
        "dequantised": options.dequantise,
        "dequantised_tick_s": plan.dequantised_tick_s,
        "coarse_clock_s": coarse_clock_s(plan),
        "out_of_order": out_of_order(plan),
        "shared_prefix_tokens": shared_prefix_tokens(plan),
    }


def _arrival_facts(options: SourceOptions) -> dict[str, Any]:
    if options.arrivals is Process.RECORDED:
        return {"process": "recorded"}
    rates = {"rate": options.rate} if options.rates is None else {"rates": options.rates}
    return {
        "process": options.arrivals.value,
        **rates,
        **({"cv": options.cv} if options.arrivals is Process.GAMMA else {}),
    }


def coarse_clock_s(plan: Plan) -> float | None:
    """Return the tick of a quantised clock, in recorded seconds, when most shots still share their instant."""
    import numpy as np  # noqa: PLC0415

    distinct, counts = np.unique(plan.due_ns, return_counts=True)
    if len(distinct) < 2 or counts[counts > 1].sum() * 2 < len(plan):
        return None
    return float(np.median(np.diff(distinct))) / NS * plan.scale


def out_of_order(plan: Plan) -> dict[str, Any]:
    """Return how many rows are earlier than the one before them in their file, and where the first is."""
    import numpy as np  # noqa: PLC0415

    times = np.asarray(plan.columns.t_ns, dtype=np.int64)
    source = np.asarray(plan.columns.source, dtype=np.int64)
    back = np.flatnonzero((np.diff(times) < 0) & (np.diff(source) == 0)) + 1
    first = plan.columns.row[int(back[0])] if len(back) else None
    return {"rows": len(back), "first_line": first}
