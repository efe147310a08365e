"""A run as a benchmark report of llm-d (schema v0.2): the record that llm-d-benchmark keeps of every load generator.

Its fields are fixed, so that what it has no field for (outcomes, goodput, lanes, lag) stands under `observability`, the
one part that is open. Latencies count from the due time, as everywhere here; `definitions` says so.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from loadgen.columns import Columns, Floats
from loadgen.summary import Summary, plain

VERSION = "0.2"
_SHARES = {"p1": 0.01, "p5": 0.05, "p10": 0.1, "p25": 0.25, "p50": 0.5, "p75": 0.75, "p90": 0.9, "p95": 0.95}
_TAILS = {"p99": 0.99, "p99p9": 0.999}
_DEFINITIONS = {
    "time_to_first_token": "due time to the first token of any channel, over complete answers",
    "time_per_output_token": "(last token - first token) / (n - 1), one value per request, n by the engine's usage",
    "inter_token_latency": "gaps of answers whose every chunk is known to carry one token",
    "request_latency": "due time to the last token",
    "requests.failures": "everything that was sent and is neither ok nor cancelled; rejected ones included",
    "throughput": "answers that ended within the steady window, first to last due time",
}


def llmd_report(columns: Columns, summary: Summary, manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return the report as a document of plain values.

    Args:
        columns: the shots.
        summary: of the same run.
        manifest: of the same run.
    """
    document = {
        "version": VERSION,
        "run": {
            "uid": f"{summary.plan_hash}-{manifest.get('salt')}",
            "eid": summary.plan_hash,
            "time": _time(manifest),
        },
        "scenario": {"load": _load(columns, summary, manifest)},
        "results": {
            "request_performance": {"aggregate": _aggregate(columns, summary)},
            "observability": {"lanewise": _beside(summary, manifest)},
        },
    }
    return {key: plain(value) for key, value in document.items()}


def _time(manifest: Mapping[str, Any]) -> dict[str, Any]:
    found = {"start": manifest.get("started_at"), "end": manifest.get("ended_at")}
    return {name: stamp for name, stamp in found.items() if isinstance(stamp, str)}


def _load(columns: Columns, summary: Summary, manifest: Mapping[str, Any]) -> dict[str, Any]:
    closed = manifest.get("closed_loop")
    versions = manifest.get("versions")
    standard: dict[str, Any] = {
        "tool": "lanewise-load",
        "tool_version": str(versions.get("lanewise", "unknown") if isinstance(versions, dict) else "unknown"),
        "source": "random",
        "input_seq_len": _lengths(columns.planned_prompt),
        "output_seq_len": _lengths(columns.planned_output),
    }
    if isinstance(closed, dict):
        standard["concurrency"] = closed["concurrency"]
    elif summary.asked_rate > 0:
        standard["rate_qps"] = summary.asked_rate
    told = ("plan", "target", "endpoint", "model", "speed", "closed_loop", "limits", "parameters")
    return {
        "metadata": {"cfg_id": summary.plan_hash, "description": summary.label},
        "standardized": standard,
        "native": {"args": {key: manifest[key] for key in told if key in manifest}},
    }


def _lengths(tokens: Floats) -> dict[str, Any]:
    if not len(tokens):
        return {"distribution": "other", "value": 0}
    fixed = bool((tokens == tokens[0]).all())
    return {
        "distribution": "fixed" if fixed else "other",
        "value": float(tokens.mean()),
        "std_dev": float(tokens.std()),
        "min": int(tokens.min()),
        "max": max(1, int(tokens.max())),
    }


def _aggregate(columns: Columns, summary: Summary) -> dict[str, Any]:
    ok, lane = columns.ok, summary.lanes["all"]
    gaps = [event.token_gaps for event, is_ok in zip(columns.events, ok, strict=True) if is_ok]
    single = [gap for gap in gaps if gap is not None]
    latency = {
        "time_to_first_token": _statistics("s", (columns.first - columns.due)[ok]),
        "time_per_output_token": _statistics("s/token", columns.tpot[ok]),
        "inter_token_latency": _statistics("s/token", np.concatenate(single) if single else np.empty(0)),
        "request_latency": _statistics("s", (columns.last - columns.due)[ok]),
    }
    rates = {
        "output_token_rate": ("tokens/s", summary.output_token_rate),
        "request_rate": ("queries/s", summary.completed_rate),
    }
    requests = {
        "total": lane.sent,
        "failures": lane.sent - lane.outcomes["ok"] - lane.outcomes["cancelled"],
        "incomplete": lane.outcomes["cancelled"],
        "input_length": _statistics("count", columns.usage_prompt[ok]),
        "output_length": _statistics("count", columns.tokens[ok]),
    }
    return {
        "requests": _present(requests),
        "latency": _present(latency),
        "throughput": {
            name: {"units": unit, "mean": rate} for name, (unit, rate) in rates.items() if not math.isnan(rate)
        },
    }


def _statistics(units: str, values: Floats) -> dict[str, Any] | None:
    known = values[~np.isnan(values)]
    if not len(known):
        return None
    shares = _SHARES | _TAILS
    found = np.quantile(known, list(shares.values()), method="inverted_cdf")
    return {
        "units": units,
        "mean": float(known.mean()),
        "stddev": float(known.std()),
        "min": float(known.min()),
        **{name: float(value) for name, value in zip(shares, found, strict=True)},
        "max": float(known.max()),
    }


def _present(found: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in found.items() if value is not None}


def _beside(summary: Summary, manifest: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "definitions": _DEFINITIONS,
        "complete": summary.complete,
        "client_limited": summary.client_limited,
        "lag_p99_s": summary.lag.p99,
        "drain_s": summary.drain_s,
        "certificate": manifest.get("certificate"),
        "warnings": [caution.message for caution in summary.warnings],
        "lanes": {
            name: {
                "sent": lane.sent,
                "outcomes": lane.outcomes,
                "goodput": lane.goodput,
                "ttft_p99_s": lane.ttft.p99,
                "ttft_p99_s_failures_infinite": lane.ttft_all.p99,
            }
            for name, lane in summary.lanes.items()
        },
    }
