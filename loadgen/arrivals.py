"""Arrival processes: when requests come, drawn by seed. Pure.

All times of a run come out of one call and count from one start: nothing is added up while sending, so nothing drifts,
and processes that share a run take their parts of one schedule (`loadgen.plan.Plan.part`).

A process is built in two steps. Gaps of mean 1 are drawn (constant, exponential or gamma) and summed; then the rate,
which may change with time, is applied: an arrival at s mean gaps happens when the integral of the rate has reached s.
"""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from loadgen.failure import UsageError
from loadgen.flags import duration_s
from loadgen.options import Process

Times = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Stage:
    """A stretch of time in which the rate goes in a straight line from one value to another."""

    duration_s: float
    start_rate: float
    """Requests/s."""
    end_rate: float

    @property
    def mass(self) -> float:
        """Requests that come in it, on average."""
        return self.duration_s * (self.start_rate + self.end_rate) / 2


@dataclass(frozen=True, slots=True)
class Arrivals:
    """An arrival process and its rate over time."""

    process: Process
    stages: tuple[Stage, ...]
    """One stage of infinite length: a rate that stays."""
    cv: float = 1.0
    """Of gamma gaps."""

    @property
    def end_s(self) -> float:
        """When the last stage ends; nothing comes after it."""
        return sum(stage.duration_s for stage in self.stages)

    def times(self, count: int, seed: int) -> Times:
        """Return when up to `count` requests come, seconds from the first, in order.

        More requests begin with the same times as fewer. There are fewer than `count` when the stages end before.
        """
        gaps = _unit_gaps(self.process, self.cv, count - 1, np.random.Generator(np.random.PCG64(seed)))
        return self._at(np.concatenate(([0.0], np.cumsum(gaps))))

    def _at(self, sums: Times) -> Times:
        """Return when the integral of the rate reaches each sum; sums beyond the last stage are left out."""
        parts, before_s, done = [], 0.0, 0.0
        for stage in self.stages:
            inside = sums[(sums >= done) & (sums < done + stage.mass)] - done
            parts.append(before_s + _within(stage, inside))
            before_s, done = before_s + stage.duration_s, done + stage.mass
        return np.concatenate(parts)


def _within(stage: Stage, sums: Times) -> Times:
    if stage.start_rate == stage.end_rate:
        return sums / stage.start_rate
    slope = (stage.end_rate - stage.start_rate) / stage.duration_s
    # The root of rate * t + slope * t^2 / 2 = sum in the form that loses no digits for a small slope.
    root = np.sqrt(np.maximum(stage.start_rate**2 + 2 * slope * sums, 0.0))
    below = stage.start_rate + root
    return 2 * sums / np.where(below > 0, below, 1.0)


def _unit_gaps(process: Process, cv: float, count: int, rng: np.random.Generator) -> Times:
    if process is Process.CONSTANT:
        return np.ones(count)
    if process is Process.POISSON:
        return rng.standard_exponential(count)
    shape = 1 / cv**2
    return rng.standard_gamma(shape, count) / shape


def arrivals_of(process: Process, *, rate: float | None, rates: str | None, cv: float) -> Arrivals:
    """Return the process that options ask for.

    Args:
        process: any but recorded.
        rate: requests/s that stay.
        rates: `60s@2,30s@2..10`: stages, each DURATION@RATE or DURATION@FROM..TO; instead of `rate`.
        cv: of gamma gaps.

    Raises:
        UsageError: neither or both of rate and rates, or one of them is no rate.
    """
    if (rate is None) == (rates is None):
        raise UsageError(f"--arrivals {process}: give its --rate, or --rates like 60s@2,30s@2..10; one of the two")
    if not (math.isfinite(cv) and cv > 0):
        raise UsageError(f"--cv {cv:g}: must be above 0")
    if rates is not None:
        return Arrivals(process, stages_of(rates), cv)
    assert rate is not None
    if not (math.isfinite(rate) and rate > 0):
        raise UsageError(f"--rate {rate:g}: must be above 0")
    return Arrivals(process, (Stage(math.inf, rate, rate),), cv)


def stages_of(text: str) -> tuple[Stage, ...]:
    """Read `60s@2,30s@2..10`.

    Raises:
        UsageError: it is not written like that, or nothing would ever come.
    """
    stages = tuple(_stage(part, text) for part in text.split(","))
    if not any(stage.mass > 0 for stage in stages):
        raise UsageError(f"--rates {text}: no request would ever come")
    return stages


def _stage(part: str, text: str) -> Stage:
    length, at, rates = part.strip().partition("@")
    low, _, high = rates.partition("..")
    try:
        stage = Stage(duration_s(length), float(low), float(high or low))
    except ValueError:
        stage = Stage(math.nan, math.nan, math.nan)
    numbers = (stage.duration_s, stage.start_rate, stage.end_rate)
    if not at or not all(math.isfinite(number) and number >= 0 for number in numbers) or stage.duration_s == 0:
        raise UsageError(f"--rates {text}: {part.strip()!r} is not DURATION@RATE or DURATION@FROM..TO, like 30s@2..10")
    return stage


@dataclass(frozen=True, slots=True)
class Gaps:
    """Independent gaps of one distribution, in seconds."""

    distribution: Literal["gamma", "weibull"]
    shape: float
    scale: float
    """Seconds."""

    def draw(self, count: int, rng: np.random.Generator) -> Times:
        """Return gaps."""
        if self.distribution == "gamma":
            return rng.gamma(self.shape, self.scale, count)
        return self.scale * rng.weibull(self.shape, count)

    def first(self, rng: np.random.Generator) -> float:
        """Return the wait for the next arrival of a process that has been running for long.

        It is a uniform part of a gap drawn in proportion to its length: whoever looks in falls into a long gap more
        often than into a short one (renewal theory; for both families the length-biased gap has a closed form).
        """
        if self.distribution == "gamma":
            whole = rng.gamma(self.shape + 1, self.scale)
        else:
            whole = self.scale * rng.gamma(1 + 1 / self.shape) ** (1 / self.shape)
        return float(rng.random() * whole)

    @property
    def mean_s(self) -> float:
        """Mean gap, seconds."""
        if self.distribution == "gamma":
            return self.shape * self.scale
        return self.scale * math.gamma(1 + 1 / self.shape)

    def times(self, span_s: float, rng: np.random.Generator) -> Times:
        """Return all arrivals within a span, seconds from its start, in order."""
        drawn = [np.array([self.first(rng)])]
        reached = float(drawn[0][0])
        while reached < span_s:
            gaps = self.draw(max(16, math.ceil((span_s - reached) / self.mean_s)), rng)
            drawn.append(reached + np.cumsum(gaps))
            reached = float(drawn[-1][-1])
        times = np.concatenate(drawn)
        return times[times < span_s]
