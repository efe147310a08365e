"""The numbers that runs are compared by: each a value of every request, and what is told of it. Pure."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from loadgen.columns import Columns, Floats, Mask
from loadgen.summarise import good
from loadgen.summary import Slo

LANES = ("all", "short", "long")
QUANTILES = {0.5: "p50", 0.99: "p99"}
RESOLUTION_S = {"TTFT": 0.001, "E2E": 0.001, "TPOT": 0.0001}
"""Smaller differences are below what the clocks of two runs can tell: the generator's own error (docs/latencies.md)."""


@dataclass(frozen=True, slots=True)
class Measure:
    """A number of every request, and what is told of it."""

    lane: str
    name: str
    """TTFT, E2E, TPOT or goodput."""
    of: Callable[[Columns], Floats]
    """Value per row; NaN where it does not count."""
    shares: tuple[float | None, ...]
    """Quantiles; None: the mean."""

    @property
    def unit(self) -> str:
        """Return s or share."""
        return "share" if self.name == "goodput" else "s"

    def label(self, share: float | None) -> str:
        """Return what a table calls it."""
        return f"{self.lane} {self.name}" + ("" if share is None else f" {QUANTILES[share]}")


_LATENCIES: dict[str, Callable[[Columns], Floats]] = {
    "TTFT": lambda columns: columns.first - columns.due,
    "E2E": lambda columns: columns.last - columns.due,
    "TPOT": lambda columns: columns.tpot,
}


def measures(lanes: Iterable[str], slo: Slo) -> Iterator[Measure]:
    """Yield what is compared, lane by lane."""
    for lane in lanes:
        for name, latency in _LATENCIES.items():
            yield Measure(lane, name, _of_ok(lane, latency), tuple(QUANTILES))
        yield Measure(lane, "goodput", _good(lane, slo), (None,))


def _of_ok(lane: str, latency: Callable[[Columns], Floats]) -> Callable[[Columns], Floats]:
    return lambda columns: np.where(columns.ok & _in(columns, lane), latency(columns), np.nan)


def _good(lane: str, slo: Slo) -> Callable[[Columns], Floats]:
    return lambda columns: np.where(_in(columns, lane), good(columns, slo).astype(np.float64), np.nan)


def _in(columns: Columns, lane: str) -> Mask:
    if lane == "all":
        return np.ones(len(columns.index), dtype=np.bool_)
    return columns.short if lane == "short" else ~columns.short


def statistic(values: Floats, share: float | None) -> float:
    """Return a quantile (the smallest sample that this share does not exceed) or the mean; NaN without samples."""
    known = values[~np.isnan(values)]
    if not len(known):
        return float("nan")
    if share is None:
        return float(known.mean())
    return float(np.quantile(known, share, method="inverted_cdf"))
