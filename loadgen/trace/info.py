"""What trace files hold: lengths, burstiness, clock, repetition, and what each of them could be used for."""

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from loadgen.options import Process, SourceOptions
from loadgen.plan import NS, Plan, prefix_reuse
from loadgen.source import coarse_clock_s, out_of_order, read_source
from loadgen.tracefile import open_trace

Counts = npt.NDArray[np.int64]
PEAK_WINDOWS_S = (1, 10, 60)
BINS_PER_OCTAVE = 4
SMOOTH_BINS = 1.0
LEAST_DEPTH = 0.2
"""A valley is at least this much lower than the lower of the two hills beside it."""
LEAST_SIDE = 0.05
"""Share of the requests that lies on either side of a valley at least."""
ROUND_CAPS = (256, 512, 1024, 2048, 4096)


def trace_info(options: SourceOptions) -> dict[str, Any]:
    """Return what trace files hold, together as one.

    Raises:
        UsageError: a file or a line of it cannot be read.
    """
    timeless = any(open_trace(path, options.format).format.clock == "none" for path in options.traces)
    if timeless:  # any times do: what is said of them is left out
        options = replace(options, arrivals=Process.CONSTANT, rate=1.0)
    source = read_source(options)
    plan, columns = source.plan, source.plan.columns
    prompts = np.asarray(columns.prompt, dtype=np.int64)[plan.order]
    outputs = np.asarray(columns.output, dtype=np.int64)[plan.order]
    reuse = prefix_reuse(plan)
    return {
        "files": source.facts["traces"],
        "rows": len(plan),
        "bad_lines": source.facts["bad_lines"],
        **({"span_s": None, "rate": None, "gap_cv": None, "peaks": []} if timeless else burstiness(plan.due_ns)),
        "prompt_tokens": percentiles(prompts),
        "output_tokens": percentiles(outputs),
        "border": options.border,
        "long_share": float((prompts > options.border).mean()),
        "lane_border": lane_border(prompts),
        "output_caps": output_caps(outputs),
        "coarse_clock_s": None if timeless else coarse_clock_s(plan),
        "out_of_order": out_of_order(plan),
        "shared_prefix_share": reuse.repeated_tokens / int(prompts.sum()) if reuse else None,
        "shared_prefix_exact": reuse.exact if reuse else None,
        "duplicates": duplicates(plan),
        "conversations": conversations(plan),
        "plan_hash": plan.hash,
    }


def percentiles(values: Counts) -> dict[str, Any]:
    """Return the mean and the usual quantiles of token counts."""
    shares = {"p50": 50, "p90": 90, "p99": 99, "max": 100}
    found: dict[str, Any] = {
        name: int(np.percentile(values, share, method="inverted_cdf")) for name, share in shares.items()
    }
    return {"mean": float(values.mean()), **found}


def burstiness(due_ns: Counts) -> dict[str, Any]:
    """Return span, mean rate, CV of the gaps, and the fullest windows beside the mean.

    Args:
        due_ns: arrivals in order, from 0.
    """
    gaps = np.diff(due_ns) / NS
    mean_gap = float(gaps.mean()) if len(gaps) else 0.0
    rate = 1 / mean_gap if mean_gap else None
    peaks = []
    for window_s in PEAK_WINDOWS_S:
        most = int((np.arange(len(due_ns)) - np.searchsorted(due_ns, due_ns - window_s * NS, side="right")).max()) + 1
        times = most / (rate * window_s) if rate and window_s * NS <= due_ns[-1] else None
        peaks.append({"window_s": window_s, "requests": most, "times_the_mean": times})
    return {
        "span_s": float(due_ns[-1]) / NS,
        "rate": rate,
        "gap_cv": float(gaps.std() / mean_gap) if mean_gap else None,
        "peak_in_one_second": int(np.bincount((due_ns // NS).astype(np.int64)).max()),
        "peaks": peaks,
    }


def lane_border(prompts: Counts) -> dict[str, Any]:
    """Return where short and long could be divided.

    The advice is that of engine schedulers that put short requests first: between P70 and P85 of the prompt lengths,
    ideally in a valley of their distribution. `suggested` is the thinnest place between the two on a scale of ratios;
    `valley` is the deepest dip of the whole distribution between two hills, None when it has one hill only.
    """
    shares = {f"p{share}": int(np.percentile(prompts, share, method="inverted_cdf")) for share in (70, 75, 80, 85)}
    centres, density = _density(prompts)
    inside = (centres >= shares["p70"]) & (centres <= shares["p85"])
    thinnest = round(float(centres[inside][np.argmin(density[inside])])) if inside.any() else shares["p80"]
    return {**shares, "valley": _valley(prompts, centres, density), "suggested": thinnest}


def _density(prompts: Counts) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return token counts in steps of a fixed ratio, and how many prompts lie about each, smoothed."""
    logs = np.log2(prompts.astype(np.float64)) * BINS_PER_OCTAVE
    low = int(np.floor(logs.min())) - 4
    counts = np.bincount((np.floor(logs) - low).astype(np.int64), minlength=int(np.ceil(logs.max())) - low + 5)
    reach = np.arange(-3, 4)
    kernel = np.exp(-((reach / SMOOTH_BINS) ** 2) / 2)
    smooth = np.convolve(counts, kernel / kernel.sum(), mode="same")
    return 2 ** ((low + np.arange(len(counts)) + 0.5) / BINS_PER_OCTAVE), smooth


def _valley(
    prompts: Counts, centres: npt.NDArray[np.float64], density: npt.NDArray[np.float64]
) -> dict[str, Any] | None:
    """For each place: how far it lies below the lower one of the highest hills to its left and right."""
    left, right = np.maximum.accumulate(density), np.maximum.accumulate(density[::-1])[::-1]
    depth = 1 - density / np.maximum(np.minimum(left, right), 1e-9)
    ordered = np.sort(prompts)
    below = np.searchsorted(ordered, centres, side="right") / len(ordered)
    depth[(below < LEAST_SIDE) | (below > 1 - LEAST_SIDE)] = 0.0
    at = int(np.argmax(depth))
    if depth[at] < LEAST_DEPTH:
        return None
    return {"tokens": round(float(centres[at])), "depth": float(depth[at]), "share_below": float(below[at])}


def output_caps(outputs: Counts) -> list[dict[str, Any]]:
    """Return for several caps how many answers they would cut, and how many of all output tokens that saves."""
    total = int(outputs.sum())
    quantiles = {int(np.percentile(outputs, share, method="inverted_cdf")) for share in (90, 95, 99)}
    caps = sorted(quantiles | {cap for cap in ROUND_CAPS if cap < outputs.max()})
    return [
        {
            "cap": cap,
            "requests_cut_share": float((outputs > cap).mean()),
            "tokens_cut_share": float(np.maximum(outputs - cap, 0).sum() / total),
        }
        for cap in caps
    ]


def duplicates(plan: Plan) -> dict[str, Any] | None:
    """Return how many prompts are, block for block, one that came before; None when no prefixes were recorded."""
    columns = plan.columns
    if not columns.blocks.size:
        return None
    keys = [hash((columns.blocks[at], columns.prompt[at])) for at in plan.order.tolist() if columns.blocks[at]]
    repeated = len(keys) - len(np.unique(np.array(keys, dtype=np.int64)))
    return {"rows": repeated, "share": repeated / len(plan)}


def conversations(plan: Plan) -> dict[str, Any] | None:
    """Return how many conversations there are and how long they get; None when none were recorded."""
    if plan.parents is None:
        return None
    turns = np.ones(len(plan), dtype=np.int64)
    for index in np.flatnonzero(plan.parents >= 0).tolist():
        turns[index] = turns[plan.parents[index]] + 1
    begun = int((plan.parents < 0).sum())
    return {"conversations": begun, "later_turns": len(plan) - begun, "longest_turns": int(turns.max())}
