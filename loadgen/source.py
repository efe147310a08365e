"""From the source part of the options to a plan, and what the manifest says about where it came from."""

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from loadgen.failure import UsageError
from loadgen.options import BadLines, SourceOptions
from loadgen.plan import NS, Plan, Window, make_plan, shared_prefix_tokens
from loadgen.tracefile import Row, Skipped, Trace, open_trace


@dataclass(frozen=True, slots=True)
class Source:
    """A plan and its origin."""

    plan: Plan
    facts: dict[str, Any]
    """For the manifest: files with hashes, time units, skipped lines, seeds, window, scale."""


def read_source(options: SourceOptions) -> Source:
    """Read the traces, or draw the workload, and plan.

    Raises:
        UsageError: an option, a file or a line of it is wrong.
    """
    _check(options)
    window = Window(
        start_s=options.start_s,
        duration_s=options.duration_s,
        rows=options.rows,
        scale=options.scale,
        rate=options.rate,
        max_prompt_tokens=options.max_prompt_tokens,
        max_output_tokens=options.max_output_tokens,
    )
    seed = options.seed if options.dequantise else None
    if options.workload is not None:
        rows, facts = _drawn(options, options.workload)
        plan = make_plan(rows, replace(window, start_s=0.0), border=options.border, dequantise_seed=seed)
    else:
        traces, skipped = _traces(options)
        plan = make_plan(_merged(traces), window, border=options.border, dequantise_seed=seed)
        facts = _trace_facts(traces, skipped)
    return Source(plan, facts | _plan_facts(options, plan))


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


def _traces(options: SourceOptions) -> tuple[list[Trace], Skipped]:
    skipped = Skipped()
    counting = skipped if options.bad_lines is BadLines.SKIP else None
    traces = [
        open_trace(
            path,
            options.format,
            skipped=counting,
            assume_output_tokens=options.assume_output_tokens,
            source=source,
        )
        for source, path in enumerate(options.traces)
    ]
    return traces, skipped


def _merged(traces: list[Trace]) -> Iterator[Row]:
    """Files with a wall clock keep their distance; if one has none, every file starts at 0.

    Raises:
        UsageError: there is no row in any of them, or one cannot be read.
    """
    together = all(trace.format.wall_clock for trace in traces)
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
    return kept, {"workload": workload.name, "workload_sha256": _sha256(path)}


def _trace_facts(traces: list[Trace], skipped: Skipped) -> dict[str, Any]:
    return {
        "traces": [
            {
                "name": trace.path.name,
                "sha256": _sha256(trace.path),
                "format": trace.format.name,
                "time_unit": trace.format.time_unit,
                "assumed_outputs": trace.assumed_outputs,
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
        "dequantised": options.dequantise,
        "dequantised_tick_s": plan.dequantised_tick_s,
        "coarse_clock_s": coarse_clock_s(plan),
        "shared_prefix_tokens": shared_prefix_tokens(plan),
    }


def trace_info(options: SourceOptions) -> dict[str, Any]:
    """Return what trace files hold: rows, span, rate, lengths, burstiness, clock, sharing of prefixes.

    Raises:
        UsageError: a file or a line of it cannot be read.
    """
    import numpy as np  # noqa: PLC0415

    source = read_source(options)
    plan, columns = source.plan, source.plan.columns
    prompts, outputs = np.asarray(columns.prompt), np.asarray(columns.output)
    gaps = np.diff(plan.due_ns) / NS
    mean_gap = float(gaps.mean()) if len(gaps) else 0.0
    in_second = np.bincount((plan.due_ns // NS).astype(np.int64))
    return {
        "files": source.facts["traces"],
        "rows": len(plan),
        "bad_lines": source.facts["bad_lines"],
        "span_s": plan.span_s,
        "rate": 1 / mean_gap if mean_gap else None,
        "gap_cv": float(gaps.std() / mean_gap) if mean_gap else None,
        "peak_in_one_second": int(in_second.max()),
        "prompt_tokens": _percentiles(prompts),
        "output_tokens": _percentiles(outputs),
        "long_share": float((prompts > options.border).mean()),
        "coarse_clock_s": coarse_clock_s(plan),
        "shared_prefix_share": shared_prefix_tokens(plan) / int(prompts.sum()) if len(columns.blocks) else None,
        "plan_hash": plan.hash,
    }


def _percentiles(values: Any) -> dict[str, float]:
    import numpy as np  # noqa: PLC0415

    shares = {"p50": 50, "p90": 90, "p99": 99, "max": 100}
    return {name: int(np.percentile(values, share, method="inverted_cdf")) for name, share in shares.items()}


def coarse_clock_s(plan: Plan) -> float | None:
    """Return the tick of a quantised clock, in recorded seconds, when most shots still share their instant."""
    import numpy as np  # noqa: PLC0415

    distinct, counts = np.unique(plan.due_ns, return_counts=True)
    if len(distinct) < 2 or counts[counts > 1].sum() * 2 < len(plan):
        return None
    return float(np.median(np.diff(distinct))) / NS * plan.scale


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
