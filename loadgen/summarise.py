"""From the shots of a run to its summary: the definitions of docs/latencies.md, in numpy."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from loadgen.answers import abnormal, answers_of
from loadgen.canary import complaints
from loadgen.columns import Columns, Floats, Mask, columns_of
from loadgen.journal import RunFolder
from loadgen.result import LoadOutcome
from loadgen.summary import Caution, LaneSummary, Quantiles, Slo, Summary
from loadgen.telemetry.digest import telemetry_of

CLIENT_LAG_S = 0.005
CLIENT_LAG_SHARE = 0.05
"""A run is client-limited when the p99 of the generator's own lag is above max(5 ms, 5 % of the median TTFT), or the
p99 of its event loop's lag above 5 ms; wall-clock time."""
ENDPOINT_BUSY = 0.8
"""Share of a core from which the endpoint of the self-certificate is too busy to tell anything of the generator."""
FEW_SAMPLES = 500
"""Fewer leave less than five samples beyond p99."""
WARM_SHARE = 0.01
"""Prefix cache hits beyond the plan's own sharing that are put down to block rounding: share of all prompt tokens."""
PROMPT_ERROR = 0.02
DEFAULT_SLO = Slo()


def summarise(run: RunFolder, slo: Slo = DEFAULT_SLO) -> Summary:
    """Read a run folder and say what it shows.

    Args:
        run: the run folder, complete or not.
        slo: what makes a request good.

    Raises:
        UsageError: the folder is no run folder.
    """
    manifest = run.manifest()
    results = list(run.results())
    summary = summarise_columns(columns_of(results), manifest, slo)
    telemetry = telemetry_of(run)
    if telemetry is not None:
        summary.notes["telemetry"] = telemetry.to_json()
    cautions = [Caution("answers", sentence) for sentence in abnormal(answers_of(results))]
    sung = manifest.get("canaries")
    if isinstance(sung, dict):
        cautions += [Caution("canary", sentence) for sentence in complaints(sung["before"], sung["after"])]
    return replace(summary, warnings=(*summary.warnings, *cautions)) if cautions else summary


def summarise_columns(columns: Columns, manifest: dict[str, Any], slo: Slo) -> Summary:
    """Summarise shots that were read already."""
    speed = float(manifest.get("speed", 1.0))
    lag = columns.own_lag / speed
    everything = np.ones(len(columns.index), dtype=np.bool_)
    masks = {"short": columns.short, "long": ~columns.short, "all": everything}
    lanes = {name: _lane(name, columns, mask, slo) for name, mask in masks.items()}
    limited = client_limited(lag, lanes["all"].ttft.p50 / speed, _float(manifest, "loop_lag_p99_s"))
    rates = _rates(columns)
    return Summary(
        label=str(manifest.get("label", "")),
        plan_hash=str(manifest.get("plan", {}).get("hash", "")),
        complete=bool(manifest.get("complete")),
        client_limited=limited is not None,
        speed=speed,
        slo=slo,
        window_s=rates["window_s"],
        drain_s=rates["drain_s"],
        asked_rate=rates["asked_rate"],
        sent_rate=rates["sent_rate"],
        completed_rate=rates["completed_rate"],
        output_token_rate=rates["output_token_rate"],
        drained=int(rates["drained"]),
        lag=quantiles(lag),
        lanes=lanes,
        warnings=tuple(_cautions(columns, manifest, lanes, limited, quantiles(lag))),
        notes=_notes(columns, manifest),
    )


def quantiles(values: Floats) -> Quantiles:
    """Summarise a distribution; NaN values are no samples, infinite ones are.

    A quantile is the smallest sample that at least that share of the samples does not exceed (no interpolation, so that
    an infinite neighbour cannot leak in).
    """
    known = values[~np.isnan(values)]
    if not len(known):
        return Quantiles(0, *(float("nan"),) * 6)
    p50, p90, p95, p99 = (float(q) for q in np.quantile(known, (0.5, 0.9, 0.95, 0.99), method="inverted_cdf"))
    return Quantiles(len(known), float(known.mean()), p50, p90, p95, p99, float(known.max()))


def client_limited(lag: Floats, median_ttft_s: float, loop_lag_p99_s: float) -> str | None:
    """Return why the generator itself limited the run, or None. All in wall-clock seconds."""
    allowed = max(CLIENT_LAG_S, CLIENT_LAG_SHARE * (0.0 if np.isnan(median_ttft_s) else median_ttft_s))
    p99 = quantiles(lag).p99
    if p99 > allowed:
        return f"requests left {p99 * 1e3:.1f} ms late (p99; allowed {allowed * 1e3:.1f} ms)"
    if loop_lag_p99_s > CLIENT_LAG_S:
        return f"the generator's event loop ran {loop_lag_p99_s * 1e3:.1f} ms late (p99; allowed 5 ms)"
    return None


def good(columns: Columns, slo: Slo) -> Mask:
    """Return which requests are ok within every SLO."""
    limit = np.where(columns.short, slo.ttft_short_s, slo.ttft_long_s)
    tpot = columns.tpot
    with np.errstate(invalid="ignore"):
        return columns.ok & (columns.first - columns.due <= limit) & (np.isnan(tpot) | (tpot <= slo.tpot_s))


def _lane(name: str, columns: Columns, mask: Mask, slo: Slo) -> LaneSummary:
    unsent = int((mask & columns.unsent).sum())
    mask = mask & ~columns.unsent
    ok = mask & columns.ok
    sent = int(mask.sum())
    is_good = int((good(columns, slo) & mask).sum())
    events = [columns.events[at] for at in np.flatnonzero(ok)]
    rejected = mask & (columns.outcome == LoadOutcome.REJECTED.value)
    return LaneSummary(
        lane=name,
        sent=sent,
        outcomes={outcome.value: int((columns.outcome[mask] == outcome.value).sum()) for outcome in LoadOutcome},
        good=is_good,
        goodput=is_good / sent if sent else float("nan"),
        ttft=quantiles((columns.first - columns.due)[ok]),
        ttft_all=quantiles(_failures_infinite(columns.first - columns.due, mask, ok)),
        ttft_send=quantiles((columns.first - columns.sent)[ok]),
        ttfot=quantiles((columns.first_content - columns.due)[ok]),
        tpot=quantiles(columns.tpot[ok]),
        icl=quantiles(_pooled(event.gaps for event in events)),
        itl=quantiles(_pooled(event.token_gaps for event in events if event.token_gaps is not None)),
        e2e=quantiles((columns.last - columns.due)[ok]),
        e2e_all=quantiles(_failures_infinite(columns.last - columns.due, mask, ok)),
        stream_end=quantiles((columns.end - columns.due)[ok]),
        reject=quantiles((columns.end - columns.due)[rejected]),
        as_vllm_032=_as_vllm(columns, ok, np.array([event.first_event for event in events])),
        as_vllm_033=_as_vllm(columns, ok, np.array([event.first_counted for event in events]))
        | {"itl": quantiles(_pooled(event.counted_gaps for event in events))},
        output_tokens=int(np.nansum(columns.tokens[ok])),
        token_sources={
            "usage": int((ok & columns.from_usage).sum()),
            "chunks": int((ok & ~columns.from_usage).sum()),
        },
        unsent=unsent,
    )


def _failures_infinite(values: Floats, mask: Mask, ok: Mask) -> Floats:
    """A success without a token counts as a failure here: it has no latency to show."""
    with_failures = np.where(ok & ~np.isnan(values), values, np.inf)
    return np.asarray(with_failures[mask])


def _pooled(parts: Iterable[Floats]) -> Floats:
    found = list(parts)
    return np.concatenate(found) if found else np.empty(0)


def _as_vllm(columns: Columns, ok: Mask, ttft: Floats) -> dict[str, Quantiles]:
    """The clock starts at the send, and n is the server's count, as in ours."""
    e2e = (columns.last - columns.sent)[ok]
    tokens = columns.tokens[ok]
    with np.errstate(divide="ignore", invalid="ignore"):
        tpot = np.where(tokens > 1, (e2e - ttft) / (tokens - 1), np.nan) if len(ttft) else np.empty(0)
    return {"ttft": quantiles(ttft), "tpot": quantiles(tpot), "e2e": quantiles(e2e)}


def _rates(columns: Columns) -> dict[str, float]:
    """The steady window runs from the first to the last due time of what went out; what ends later is drain."""
    nothing = dict.fromkeys(
        ("window_s", "drain_s", "asked_rate", "sent_rate", "completed_rate", "output_token_rate"), float("nan")
    ) | {"drained": 0}
    due = columns.due[~columns.unsent]
    if not len(due):
        return nothing
    last_due = float(due.max())
    window = last_due - float(due.min())
    ends = columns.end[~np.isnan(columns.end)]
    nothing["drain_s"] = max(0.0, float(ends.max()) - last_due) if len(ends) else 0.0
    nothing["window_s"] = window
    with np.errstate(invalid="ignore"):
        inside = columns.ok & (columns.end <= last_due)
        sent = int((columns.sent <= last_due).sum())
    nothing["drained"] = int((columns.ok & ~inside).sum())
    if window <= 0:
        return nothing
    return nothing | {
        "asked_rate": len(due) / window,
        "sent_rate": sent / window,
        "completed_rate": int(inside.sum()) / window,
        "output_token_rate": float(np.nansum(columns.tokens[inside])) / window,
    }


def _cautions(
    columns: Columns, manifest: dict[str, Any], lanes: dict[str, LaneSummary], limited: str | None, lag: Quantiles
) -> Iterable[Caution]:
    plan = manifest.get("plan", {})
    planned = int(plan.get("requests", len(columns.index)))
    if not manifest.get("complete"):
        sent = int((~columns.unsent).sum())
        yield Caution("incomplete", f"the run did not end by itself: {sent} of {planned} planned requests were sent")
    if limited is not None:
        yield Caution("client_limited", f"client-limited: {limited}; the target looks slower than it is")
    yield from _certificate(manifest, lanes["all"].ttft.p50)
    yield from _few_samples(lanes)
    yield from _speed(manifest, lanes, lag)
    if closed := manifest.get("closed_loop"):
        most = closed["concurrency"]
        yield Caution("closed_loop", f"closed loop of {most}: the load followed the target, overload cannot show")
    yield from _plan_cautions(plan)
    yield from _length_cautions(columns)
    warm = _warm_cache(columns, manifest)
    if warm is not None:
        yield warm


def _certificate(manifest: dict[str, Any], median_ttft_s: float) -> Iterable[Caution]:
    """What the generator measured of itself before the run, where it weighs as much as a lag that voids a run."""
    found = manifest.get("certificate")
    if not isinstance(found, dict) or "ttft_error_mean_s" not in found:
        return
    own = float(found["ttft_error_mean_s"]) - float(found.get("endpoint_read_mean_s", 0.0))
    error = own * float(manifest.get("speed", 1.0))
    allowed = max(CLIENT_LAG_S, CLIENT_LAG_SHARE * (0.0 if np.isnan(median_ttft_s) else median_ttft_s))
    if error > allowed and found.get("endpoint_busy", 0.0) > ENDPOINT_BUSY:
        yield Caution(
            "certificate",
            "before the run the endpoint of the self-certificate was itself the limit "
            f"({found['endpoint_busy']:.0%} of a core), so the error of the generator at this load is not known: use "
            "more --workers",
        )
    elif error > allowed:
        yield Caution(
            "certificate",
            f"before the run the generator read TTFT {error * 1e3:.1f} ms too long at this load (mean, against its own "
            f"endpoint; {allowed * 1e3:.1f} ms would do): use more --workers, or a machine with more free cores",
        )


def _few_samples(lanes: dict[str, LaneSummary]) -> Iterable[Caution]:
    for name in ("short", "long"):
        n = lanes[name].ttft.n
        if 0 < n < FEW_SAMPLES:
            beyond = n // 100
            yield Caution(
                "few_samples", f"{name}: p99 of {n} requests has {beyond} samples beyond it; read it as rough"
            )


def _speed(manifest: dict[str, Any], lanes: dict[str, LaneSummary], lag: Quantiles) -> Iterable[Caution]:
    speed = float(manifest.get("speed", 1.0))
    if speed == 1.0:
        return
    late = lag.p99 * speed
    yield Caution("speed", f"time was compressed {speed:g}-fold; all times but lag are multiplied back")
    if late > CLIENT_LAG_SHARE * lanes["all"].ttft.p50:
        yield Caution(
            "coarse_speed",
            f"at this speed the p99 of the lag weighs {late * 1e3:.0f} ms, more than 5 % of the median TTFT: "
            "use a lower --speed for exact numbers",
        )


def _plan_cautions(plan: dict[str, Any]) -> Iterable[Caution]:
    tick = plan.get("coarse_clock_s")
    if tick:
        yield Caution(
            "quantised_trace",
            f"most requests share their instant with others (a clock of {tick:.3g} s): they were fired together; "
            "--dequantise spreads them",
        )
    skipped = plan.get("bad_lines", {}).get("skipped", 0)
    if skipped:
        yield Caution("bad_lines", f"{skipped} lines of the trace could not be read and were passed over")
    assumed = sum(trace.get("assumed_outputs", 0) for trace in plan.get("traces", ()))
    if assumed:
        yield Caution(
            "assumed_outputs", f"{assumed} records had no output length; their cap or an assumed one was used"
        )


def _length_cautions(columns: Columns) -> Iterable[Caution]:
    ok = columns.ok
    chunked = int((ok & ~columns.from_usage).sum())
    if chunked:
        yield Caution("chunks", f"{chunked} answers carried no usage: their tokens are counted in chunks")
    error = _prompt_error(columns)
    if len(error) and float(np.quantile(np.abs(error), 0.9)) > PROMPT_ERROR:
        yield Caution(
            "prompt_length",
            f"the engine counted other prompt lengths than planned: median {np.median(error):+.1%}, "
            f"p90 of the error {np.quantile(np.abs(error), 0.9):.1%}",
        )
    other = int((ok & columns.from_usage & (columns.tokens != columns.planned_output)).sum())
    if other:
        yield Caution("output_length", f"{other} answers have another length than asked for")


def _prompt_error(columns: Columns) -> Floats:
    relative = (columns.usage_prompt - columns.planned_prompt) / columns.planned_prompt
    return np.asarray(relative[columns.ok & ~np.isnan(relative)])


def _warm_cache(columns: Columns, manifest: dict[str, Any]) -> Caution | None:
    delta = manifest.get("prefix_cache")
    if not isinstance(delta, dict) or "hits" not in delta:
        return None
    expected = float(manifest.get("plan", {}).get("shared_prefix_tokens", 0))
    extra = float(delta["hits"]) - expected
    if extra <= WARM_SHARE * float(columns.planned_prompt.sum()):
        return None
    return Caution(
        "warm_cache",
        f"the engine's prefix cache hit {delta['hits']:.0f} tokens, {extra:.0f} more than this plan repeats itself: "
        "it was warm, others used the engine, or a proxy fed long prompts in installments",
    )


def _notes(columns: Columns, manifest: dict[str, Any]) -> dict[str, Any]:
    error = _prompt_error(columns)
    return {
        "loop_lag_p99_s": _float(manifest, "loop_lag_p99_s"),
        "most_in_flight": manifest.get("most_in_flight"),
        "connections": manifest.get("connections"),
        "prefix_cache": manifest.get("prefix_cache"),
        "certificate": manifest.get("certificate"),
        "prompt_length_error_median": float(np.median(error)) if len(error) else None,
        "prompt_length_error_p99": float(np.quantile(np.abs(error), 0.99)) if len(error) else None,
    }


def _float(manifest: dict[str, Any], key: str) -> float:
    value = manifest.get(key)
    return float(value) if isinstance(value, (int, float)) else 0.0
