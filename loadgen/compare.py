"""Two runs of one plan beside each other: what changed, how much, and whether to keep it. Pure but for reading.

A request is paired with itself by its index in the plan. Intervals are bootstraps over those pairs, by a fixed seed, so
that two comparisons of the same runs say the same. `loadgen.statistics` has the mathematics.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from functools import partial
from typing import Any

import numpy as np

from loadgen.columns import Floats
from loadgen.conditions import conditions, differing_conditions, out_of_bounds, too_many
from loadgen.failure import RefusedError
from loadgen.journal import RunFolder
from loadgen.manifest import Change, changes
from loadgen.measures import LANES, RESOLUTION_S, Measure, measures, statistic
from loadgen.result import LoadOutcome
from loadgen.sides import Repeat, Side, read_side
from loadgen.statistics import Contrast, Interval, intervals
from loadgen.summarise import DEFAULT_SLO
from loadgen.summary import Slo, Summary, plain

__all__ = ["Comparison", "Metric", "NotComparableError", "Verdict", "compare", "differing_conditions", "judge"]

SCHEMA = "lanewise.compare/1"
DOUBLED = 2.0
"""Written with one digit: 1.95 times is shown as 2.0, and counts."""
ABNORMAL_SHARE = 0.05
"""So many more broken answers (of all sent) are abnormal."""
GOODPUT_NOISE = 0.01
PEAK_NOISE = {"KV peak": 0.05, "HBM peak": 64.0}
"""Of one reading a second, without repeats: share of the cache, MB."""
BROKEN = (LoadOutcome.ERROR, LoadOutcome.TRUNCATED, LoadOutcome.STALLED)
_FAMILY = ("TTFT", "E2E", "goodput")
"""What the verdict rests on, beside the memory peak."""


class Verdict(StrEnum):
    """What to do with the change."""

    KEEP = "keep"
    KEEP_TUNING = "keep tuning"
    ROLL_BACK = "roll back"


@dataclass(frozen=True, slots=True)
class Metric:
    """One number of both sides."""

    name: str
    unit: str
    """s, share, count, rate (per second) or MB."""
    a: float
    b: float
    low: float | None = None
    """Interval of B - A over the pairs; None: too few pairs, or a plain number. Those of the verdict hold together
    with 95 %, each of the others alone."""
    high: float | None = None
    pairs: int = 0
    """Requests that have this number in all runs. `a` and `b` are over each run's own requests, the interval is over
    the pairs."""
    lower_is_better: bool = True
    in_verdict: bool = False
    band: float | None = None
    """Differences up to this are noise: spread of the baseline's repeats, or what a clock can tell."""
    absent: bool = False
    """Whether an interval was wanted and too few pairs were there for it."""

    @property
    def effect(self) -> str:
        """Return better, worse, noise or an empty string where nothing can be said."""
        if self.low is None or self.high is None:
            return "" if self.band is None or self.absent else self._by_band()
        if self.low <= 0 <= self.high or (self.band is not None and abs(self.b - self.a) <= self.band):
            return "noise"
        return "better" if (self.high < 0) == self.lower_is_better else "worse"

    def _by_band(self) -> str:
        if not abs(self.b - self.a) > (self.band or 0.0):
            return "noise"
        return "better" if (self.b < self.a) == self.lower_is_better else "worse"

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
    changes: tuple[Change, ...]
    """What was set differently on the system under test: declared parameters, engine, proxy, premises, target."""
    conditions_differ: tuple[str, ...]
    """Sentences; any of them voids the comparison."""
    metrics: tuple[Metric, ...]
    summaries: tuple[Summary, Summary] = field(repr=False)
    notes: tuple[str, ...] = ()
    """What a reader has to know beside: parameters out of bounds, what could not be told."""

    @property
    def changed_parameters(self) -> dict[str, tuple[Any, Any]]:
        """Return values before and after by name."""
        return {change.name: (change.before, change.after) for change in self.changes}

    @property
    def difference(self) -> str:
        """Return none, better, worse, mixed, or unknown where nothing can be told, over the metrics of the verdict."""
        effects = {metric.effect for metric in self.metrics if metric.in_verdict} - {""}
        told = effects - {"noise"}
        if len(told) > 1:
            return "mixed"
        return next(iter(told)) if told else ("none" if effects else "unknown")

    def to_json(self) -> dict[str, Any]:
        """Return a document of plain values."""
        metrics = [asdict(metric) | {"effect": metric.effect, "ratio": metric.ratio} for metric in self.metrics]
        document = {
            "schema": SCHEMA,
            "verdict": self.verdict.value,
            "why": self.why,
            "difference": self.difference,
            "a": self.label_a,
            "b": self.label_b,
            **_said(self.changes, self.conditions_differ),
            "notes": list(self.notes),
            "metrics": metrics,
        }
        return {key: plain(value) for key, value in document.items()}


def _said(changed: Sequence[Change], differ: Sequence[str]) -> dict[str, Any]:
    return {
        "changed_parameters": {change.name: [change.before, change.after] for change in changed},
        "parameter_classes": {change.name: change.kind.value for change in changed},
        "consequences": [change.name for change in changed if not change.counts],
        "conditions_differ": list(differ),
    }


class NotComparableError(RefusedError):
    """The comparison is refused; what differs is in the document.

    Attributes:
        document: what `--json` prints instead of a comparison: the same keys, without metrics.
    """

    def __init__(self, sides: tuple[Side, Side], changed: Sequence[Change], reasons: Sequence[str]) -> None:
        super().__init__(f"not comparable: {'; '.join(reasons)}. --force compares all the same")
        self.document: dict[str, Any] = {
            "schema": SCHEMA,
            "verdict": "refused",
            "why": "; ".join(reasons),
            "a": sides[0].label,
            "b": sides[1].label,
            **_said(changed, reasons),
            "metrics": [],
        }


def compare(a: RunFolder, b: RunFolder, slo: Slo = DEFAULT_SLO, *, force: bool = False, seed: int = 1) -> Comparison:
    """Compare run B with run A.

    Args:
        a: before: a run folder, or a baseline of several repeats.
        b: after.
        slo: what makes a request good, in both.
        force: compare even where conditions differ or several parameters changed; they are listed all the same.
        seed: of the bootstrap.

    Raises:
        NotComparableError: conditions differ, more than one parameter changed, a run is incomplete or client-limited,
            or a baseline is none.
        UsageError: a folder is no run folder.
    """
    sides = read_side(a, slo), read_side(b, slo)
    changed = changes(sides[0].repeats[0].manifest, sides[1].repeats[0].manifest)
    reasons = list(conditions(*sides))
    if (sentence := too_many(changed)) is not None:
        reasons.append(sentence)
    if reasons and not force:
        raise NotComparableError(sides, changed, reasons)
    metrics = tuple(_metrics(sides, slo, seed))
    verdict, why = judge(metrics, (_broken(sides[0]), _broken(sides[1])))
    if verdict is Verdict.KEEP_TUNING and not any(change.counts for change in changed):
        why += " Nothing that is known was changed between the two: this is an A/A comparison."
    return Comparison(
        sides[0].label,
        sides[1].label,
        verdict,
        why,
        tuple(changed),
        tuple(reasons),
        metrics,
        (sides[0].repeats[0].summary, sides[1].repeats[0].summary),
        (*out_of_bounds(changed), *_untold(metrics)),
    )


def _untold(metrics: Sequence[Metric]) -> Iterator[str]:
    few = [f"{metric.name} ({metric.pairs} pairs)" for metric in metrics if metric.absent and metric.in_verdict]
    if few:
        yield f"too few requests to tell a difference from noise: {', '.join(few)}"


def _metrics(sides: tuple[Side, Side], slo: Slo, seed: int) -> list[Metric]:
    wanted = list(measures(_lanes(sides), slo))
    contrasts = [_contrast(sides, one) for one in wanted]
    rows: list[Metric] = []
    for one, found in zip(wanted, intervals(contrasts, seed=seed), strict=True):
        rows += [_metric(sides, one, share, interval) for share, interval in zip(one.shares, found, strict=True)]
    return sorted([*rows, *_peaks(sides), *_counts(sides)], key=lambda metric: not metric.in_verdict)


def _lanes(sides: tuple[Side, Side]) -> list[str]:
    """Return the lanes that anybody was sent in."""
    summaries = [repeat.summary for side in sides for repeat in side.repeats]
    return [lane for lane in LANES if any(summary.lanes[lane].sent for summary in summaries)]


def _contrast(sides: tuple[Side, Side], wanted: Measure) -> Contrast:
    """Put the runs of both sides on the rows of the plan."""
    count = 1 + max(
        (int(repeat.columns.index.max()) for side in sides for repeat in side.repeats if len(repeat.columns.index)),
        default=0,
    )

    def placed(repeat: Repeat) -> Floats:
        values = np.full(count, np.nan)
        values[repeat.columns.index] = wanted.of(repeat.columns)
        return values

    before, after = (tuple(placed(repeat) for repeat in side.repeats) for side in sides)
    return Contrast(before, after, wanted.shares, wanted.name in _FAMILY)


def _metric(sides: tuple[Side, Side], wanted: Measure, share: float | None, interval: Interval) -> Metric:
    name = wanted.label(share)
    a, b = (float(np.mean([statistic(wanted.of(repeat.columns), share) for repeat in side.repeats])) for side in sides)
    return Metric(
        name,
        wanted.unit,
        a,
        b,
        interval.low,
        interval.high,
        interval.pairs,
        lower_is_better=wanted.name != "goodput",
        in_verdict=wanted.name in _FAMILY,
        band=_band(sides, name, RESOLUTION_S.get(wanted.name)),
        absent=interval.low is None,
    )


def _band(sides: tuple[Side, Side], name: str, least: float | None) -> float | None:
    """Return the widest spread that a baseline had in this metric, and never less than can be told."""
    known = [side.spread[name] for side in sides if name in side.spread] + ([] if least is None else [least])
    return max(known, default=None)


def _peaks(sides: tuple[Side, Side]) -> Iterator[Metric]:
    for name, key, unit in (("KV peak", "kv_usage", "share"), ("HBM peak", "hbm_mb", "MB")):
        values = [[repeat.peaks[key] for repeat in side.repeats if key in repeat.peaks] for side in sides]
        if all(values):
            a, b = (max(one) for one in values)
            yield Metric(name, unit, a, b, in_verdict=True, band=_band(sides, name, PEAK_NOISE[name]))


def _counts(sides: tuple[Side, Side]) -> Iterator[Metric]:
    def means(of: Callable[[Summary], float]) -> tuple[float, float]:
        a, b = (float(np.mean([of(repeat.summary) for repeat in side.repeats])) for side in sides)
        return a, b

    for lane in _lanes(sides):
        for label, outcome in (("completed", "ok"), ("rejected", "rejected")):
            both = means(partial(_outcomes, lane, outcome))
            yield Metric(f"{lane} {label}", "count", *both, lower_is_better=outcome != "ok")
    yield Metric("completed rate", "rate", *means(lambda summary: summary.completed_rate), lower_is_better=False)
    yield Metric("output tokens", "rate", *means(lambda summary: summary.output_token_rate), lower_is_better=False)


def _outcomes(lane: str, outcome: str, summary: Summary) -> float:
    return float(summary.lanes[lane].outcomes[outcome])


def judge(metrics: Sequence[Metric], broken: tuple[float, float] = (0.0, 0.0)) -> tuple[Verdict, str]:
    """Decide: roll back only for abnormal answers or a latency that more than doubled; keep what is proven better.

    A lane that more than doubled while goodput rose is a trade that the operator decides on, not a roll back.

    Args:
        metrics: of both sides.
        broken: share of broken answers before and after.
    """
    if broken[1] - broken[0] > ABNORMAL_SHARE:
        return Verdict.ROLL_BACK, f"Answers are abnormal: {broken[1]:.1%} broke, {broken[0]:.1%} before."
    verdict = [metric for metric in metrics if metric.in_verdict]
    goodput = next((metric for metric in metrics if metric.name == "all goodput"), None)
    rose = goodput is not None and goodput.effect == "better"
    for metric in verdict:
        if metric.unit == "s" and metric.effect == "worse" and round(metric.ratio, 1) >= DOUBLED:
            said = f"{metric.name} more than doubled ({metric.ratio:.1f} times)"
            if metric.name.startswith("all ") or not rose:
                return Verdict.ROLL_BACK, f"{said}."
            return Verdict.KEEP_TUNING, f"{said}, while goodput rose: decide whether that is worth it."
    if goodput is not None and goodput.b < goodput.a - GOODPUT_NOISE and goodput.effect != "noise":
        return Verdict.KEEP_TUNING, f"Goodput fell from {goodput.a:.3f} to {goodput.b:.3f}."
    worse = [metric.name for metric in verdict if metric.effect == "worse" and metric.name.startswith("all ")]
    if worse:
        return Verdict.KEEP_TUNING, f"Worse: {', '.join(worse)}."
    better = [metric.name for metric in verdict if metric.effect == "better"]
    if better:
        return Verdict.KEEP, f"Better: {', '.join(better)}.{_price(verdict)}"
    if not any(metric.effect for metric in verdict if metric.pairs):
        return Verdict.KEEP_TUNING, "Too few requests that ended well in both runs to tell a difference from noise."
    price = _price(verdict)
    return Verdict.KEEP_TUNING, price.strip() or "No difference beyond noise."


def _price(verdict: Sequence[Metric]) -> str:
    """Say what got worse without deciding."""
    worse = [metric.name for metric in verdict if metric.effect == "worse"]
    return f" Worse: {', '.join(worse)}." if worse else ""


def _broken(side: Side) -> float:
    """Return the mean share of broken answers."""
    shares = []
    for repeat in side.repeats:
        lane = repeat.summary.lanes["all"]
        count = sum(lane.outcomes[outcome.value] for outcome in BROKEN)
        shares.append(count / lane.sent if lane.sent else 0.0)
    return float(np.mean(shares))
