"""Two runs of one plan beside each other: what changed, how much, and whether to keep it. Pure but for reading.

A request is paired with itself by its index in the plan. Intervals are paired bootstraps: whole pairs are drawn again,
by a fixed seed, so that two comparisons of the same runs say the same.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from loadgen.columns import Columns, Floats, Mask, columns_of
from loadgen.failure import RefusedError
from loadgen.journal import RunFolder
from loadgen.result import LoadOutcome
from loadgen.summarise import DEFAULT_SLO, good, summarise_columns
from loadgen.summary import Slo, Summary, plain

SCHEMA = "lanewise.compare/1"
DRAWS = 1000
MOST_DRAWN = 20_000_000
"""Pairs times draws; more pairs get fewer draws."""
DOUBLED = 2.0
ABNORMAL_SHARE = 0.05
"""So many more broken answers (of all sent) are abnormal."""
GOODPUT_NOISE = 0.01
BROKEN = (LoadOutcome.ERROR, LoadOutcome.TRUNCATED, LoadOutcome.STALLED)


class Verdict(StrEnum):
    """What to do with the change."""

    KEEP = "keep"
    KEEP_TUNING = "keep tuning"
    ROLL_BACK = "roll back"


@dataclass(frozen=True, slots=True)
class Metric:
    """One number of both runs."""

    name: str
    unit: str
    """s, share or count."""
    a: float
    b: float
    low: float | None = None
    """95 % interval of B - A over the pairs; None: too few pairs, or a plain count."""
    high: float | None = None
    pairs: int = 0
    """Requests that have this number in both runs. `a` and `b` are over each run's own requests, the interval is over
    the pairs."""
    lower_is_better: bool = True

    @property
    def effect(self) -> str:
        """Return better, worse, noise or an empty string where nothing can be said."""
        if self.low is None or self.high is None:
            return ""
        if self.low <= 0 <= self.high:
            return "noise"
        return "better" if (self.high < 0) == self.lower_is_better else "worse"

    @property
    def ratio(self) -> float:
        """Return B / A."""
        return self.b / self.a if self.a > 0 else float("nan")


@dataclass(frozen=True, slots=True)
class Comparison:
    """What `compare` says."""

    label_a: str
    label_b: str
    verdict: Verdict
    why: str
    changed_parameters: dict[str, tuple[Any, Any]]
    """What was set differently on the system under test: declared parameters, target, engine."""
    conditions_differ: tuple[str, ...]
    """Sentences; any of them voids the comparison."""
    metrics: tuple[Metric, ...]
    summaries: tuple[Summary, Summary] = field(repr=False)

    def to_json(self) -> dict[str, Any]:
        """Return a document of plain values."""
        metrics = [asdict(metric) | {"effect": metric.effect, "ratio": metric.ratio} for metric in self.metrics]
        document = {
            "schema": SCHEMA,
            "verdict": self.verdict.value,
            "why": self.why,
            "a": self.label_a,
            "b": self.label_b,
            "changed_parameters": {key: list(pair) for key, pair in self.changed_parameters.items()},
            "conditions_differ": list(self.conditions_differ),
            "metrics": metrics,
        }
        return {key: plain(value) for key, value in document.items()}


def compare(a: RunFolder, b: RunFolder, slo: Slo = DEFAULT_SLO, *, force: bool = False, seed: int = 1) -> Comparison:
    """Compare run B with run A.

    Args:
        a: before.
        b: after.
        slo: what makes a request good, in both.
        force: compare even where conditions differ; they are listed all the same.
        seed: of the bootstrap.

    Raises:
        RefusedError: conditions differ, or a run is incomplete or client-limited.
        UsageError: a folder is no run folder.
    """
    manifests = a.manifest(), b.manifest()
    sides = columns_of(a.results()), columns_of(b.results())
    summaries = (
        summarise_columns(sides[0], manifests[0], slo),
        summarise_columns(sides[1], manifests[1], slo),
    )
    conditions = (*differing_conditions(*manifests), *_unfit("A", summaries[0]), *_unfit("B", summaries[1]))
    if conditions and not force:
        raise RefusedError(f"not comparable: {'; '.join(conditions)}. --force compares all the same")
    metrics = tuple(_metrics(sides, summaries, slo, np.random.Generator(np.random.PCG64(seed))))
    verdict, why = judge(metrics, summaries)
    return Comparison(
        summaries[0].label,
        summaries[1].label,
        verdict,
        why,
        changed_parameters(*manifests),
        conditions,
        metrics,
        summaries,
    )


def differing_conditions(a: dict[str, Any], b: dict[str, Any]) -> list[str]:
    """Return what makes two runs incomparable, one sentence each: another workload, client or way of asking."""
    named = {
        "plan": ("plan", "hash"),
        "endpoint": ("endpoint",),
        "model": ("model",),
        "speed": ("speed",),
        "time limits": ("limits",),
        "statuses counted as rejected": ("reject_statuses",),
        "connection reuse": ("fresh_connections",),
        "load generator version": ("versions", "lanewise"),
        "load generator's machine": ("host",),
    }
    found = []
    for name, path in named.items():
        before, after = _at(a, path), _at(b, path)
        if before != after:
            found.append(f"{name} differs: {before} and {after}")
    if a.get("salt") == b.get("salt"):
        found.append("both runs sent the same prompts (same salt), so a warm prefix cache can fake a gain")
    return found


def changed_parameters(a: dict[str, Any], b: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return what was set differently on the system under test. What one run does not know is not a change."""
    before, after = _parameters(a), _parameters(b)
    declared = a.get("parameters", {}).keys() | b.get("parameters", {}).keys()
    changed = {}
    for name in sorted(before.keys() | after.keys()):
        pair = before.get(name), after.get(name)
        if pair[0] != pair[1] and (name in declared or None not in pair):
            changed[name] = pair
    return changed


def _parameters(manifest: dict[str, Any]) -> dict[str, Any]:
    engine = manifest.get("engine", {})
    cache = engine.get("cache_config") or {}
    return (
        {"target": manifest.get("target"), "engine.version": engine.get("version")}
        | {f"engine.{name}": value for name, value in cache.items()}
        | dict(manifest.get("parameters", {}))
    )


def _at(document: dict[str, Any], path: tuple[str, ...]) -> Any:
    value: Any = document
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _unfit(side: str, summary: Summary) -> list[str]:
    voids = {"incomplete", "client_limited", "warm_cache"}
    return [f"run {side}: {caution.message}" for caution in summary.warnings if caution.code in voids]


def _metrics(
    sides: tuple[Columns, Columns], summaries: tuple[Summary, Summary], slo: Slo, draw: np.random.Generator
) -> list[Metric]:
    pairs = _Pairs(sides)
    found = []
    for lane in ("short", "long", "all"):
        a, b = summaries[0].lanes[lane], summaries[1].lanes[lane]
        if not a.sent and not b.sent:
            continue
        for name, of in _LATENCIES.items():
            found += [
                pairs.metric(f"{lane} {name} {label}", lane, of, share, draw)
                for label, share in (("p50", 0.5), ("p99", 0.99))
            ]
        found.append(pairs.goodput(f"{lane} goodput", lane, slo, draw))
        for label, outcome in (("completed", "ok"), ("rejected", "rejected")):
            better_low = outcome != "ok"
            counts = float(a.outcomes[outcome]), float(b.outcomes[outcome])
            found.append(Metric(f"{lane} {label}", "count", *counts, lower_is_better=better_low))
    return found


_LATENCIES: dict[str, Callable[[Columns], Floats]] = {
    "TTFT": lambda columns: columns.first - columns.due,
    "TPOT": lambda columns: columns.tpot,
    "E2E": lambda columns: columns.last - columns.due,
}


class _Pairs:
    """Both runs, and which rows of them are the same request."""

    def __init__(self, sides: tuple[Columns, Columns]) -> None:
        self._sides = sides
        _, at_a, at_b = np.intersect1d(sides[0].index, sides[1].index, assume_unique=True, return_indices=True)
        self._at = at_a, at_b

    def metric(
        self, name: str, lane: str, of: Callable[[Columns], Floats], share: float, draw: np.random.Generator
    ) -> Metric:
        """Quantile of a latency over ok requests; the interval is over requests that are ok in both."""
        whole = [np.where(side.ok & _in(side, lane), of(side), np.nan) for side in self._sides]
        a, b = (values[at] for values, at in zip(whole, self._at, strict=True))
        both = ~np.isnan(a) & ~np.isnan(b)
        low, high = _interval(a[both], b[both], lambda values: _quantile(values, share), share, draw)
        own = [float(_quantile(_known(values), share)) for values in whole]
        return Metric(name, "s", own[0], own[1], low, high, int(both.sum()))

    def goodput(self, name: str, lane: str, slo: Slo, draw: np.random.Generator) -> Metric:
        """Share of good requests among all sent; every request is in the pairs, failed or not."""
        whole = [good(side, slo)[_in(side, lane)].astype(np.float64) for side in self._sides]
        a, b = (
            good(side, slo)[at][_in(side, lane)[at]].astype(np.float64)
            for side, at in zip(self._sides, self._at, strict=True)
        )
        if len(a) != len(b):
            low = high = None
        else:
            low, high = _interval(a, b, lambda values: np.asarray(values.mean(axis=-1)), 0.5, draw)
        means = [float(values.mean()) if len(values) else float("nan") for values in whole]
        return Metric(name, "share", means[0], means[1], low, high, len(a), lower_is_better=False)


def _in(columns: Columns, lane: str) -> Mask:
    if lane == "all":
        return np.ones(len(columns.index), dtype=np.bool_)
    return columns.short if lane == "short" else ~columns.short


def _known(values: Floats) -> Floats:
    return np.asarray(values[~np.isnan(values)])


def _quantile(values: Floats, share: float) -> Any:
    """Return the quantile along the last axis; NaN for none."""
    if not values.shape[-1]:
        return float("nan")
    rank = max(0, int(np.ceil(share * values.shape[-1])) - 1)
    return np.partition(values, rank, axis=-1)[..., rank]


def _interval(
    a: Floats, b: Floats, statistic: Callable[[Floats], Any], share: float, draw: np.random.Generator
) -> tuple[float | None, float | None]:
    """Return the 95 % percentile interval of statistic(b) - statistic(a) over redrawn pairs.

    None where fewer than five pairs lie beyond the quantile: an interval would look like knowledge.
    """
    n = len(a)
    if n * min(share, 1 - share) < 5:
        return None, None
    differences: list[float] = []
    draws = min(DRAWS, max(200, MOST_DRAWN // n))
    for _ in range(draws):
        chosen: npt.NDArray[np.int64] = draw.integers(0, n, n)
        differences.append(float(statistic(b[chosen]) - statistic(a[chosen])))
    low, high = np.quantile(differences, (0.025, 0.975))
    return float(low), float(high)


def judge(metrics: tuple[Metric, ...], summaries: tuple[Summary, Summary]) -> tuple[Verdict, str]:
    """Decide: roll back only for abnormal answers or a latency that more than doubled; keep what is proven better.

    A gain needs an interval without zero, no overall latency that is proven worse, and a goodput that did not fall.
    """
    by_name = {metric.name: metric for metric in metrics}
    broken = [_broken(summary) for summary in summaries]
    if broken[1] - broken[0] > ABNORMAL_SHARE:
        return Verdict.ROLL_BACK, f"Answers are abnormal: {broken[1]:.1%} broke, {broken[0]:.1%} before."
    headline = [by_name[name] for name in _HEADLINE if name in by_name]
    for metric in headline:
        if metric.ratio > DOUBLED and metric.effect != "noise":
            return Verdict.ROLL_BACK, f"{metric.name} more than doubled ({metric.ratio:.1f} times)."
    goodput = by_name.get("all goodput")
    if goodput is not None and goodput.b < goodput.a - GOODPUT_NOISE:
        return Verdict.KEEP_TUNING, f"Goodput fell from {goodput.a:.3f} to {goodput.b:.3f}."
    worse = [metric.name for metric in headline if metric.effect == "worse"]
    if worse:
        return Verdict.KEEP_TUNING, f"Worse: {', '.join(worse)}."
    better = [metric.name for metric in metrics if metric.effect == "better"]
    if better:
        return Verdict.KEEP, f"Better: {', '.join(better)}."
    if not any(metric.effect for metric in metrics):
        return Verdict.KEEP_TUNING, "Too few requests that ended well in both runs to tell a difference from noise."
    return Verdict.KEEP_TUNING, "No difference beyond noise."


_HEADLINE = ("all TTFT p50", "all TTFT p99", "all E2E p50", "all E2E p99")


def _broken(summary: Summary) -> float:
    lane = summary.lanes["all"]
    return sum(lane.outcomes[outcome.value] for outcome in BROKEN) / lane.sent if lane.sent else 0.0
