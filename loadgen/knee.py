"""Where an engine's concurrency stops paying: from the levels of a sweep to a cap. Pure.

The cap comes from the level where TPOT at p95 crosses its SLO. The bend of throughput over concurrency, a fit of two
straight lines, is shown beside it: it says whether more concurrency would still buy throughput.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

WIDEST_FACTOR = 1.25
"""Between two levels: the crossing is known to one step."""
MARGIN = 0.05
"""The cap stays this share below the crossing."""
ALL_LEVELS = "the last level was reached"
"""Why a sweep ended that nothing stopped."""
MOST_FAILED = 0.05
BEYOND = 2
"""Levels above the SLO before a sweep stops: the fit needs some of them."""
COLLAPSED = 0.8
"""Of the best throughput so far: below it the engine is past its peak."""
FEWEST_LEVELS = 6
LEAST_BEND = 0.5
"""A bend is one when the second line is at most this share as steep as the first."""
_GRID = 400


@dataclass(frozen=True, slots=True)
class Level:
    """One level of a sweep, its settling left out."""

    asked: float
    """Concurrency, or requests/s when rates were swept."""
    in_flight: float
    """Mean requests in flight; of a closed loop, what was asked."""
    requests: int
    """Counted ones that are ok."""
    per_s: float
    """Completed requests per second."""
    tokens_per_s: float
    tpot_p95_s: float
    """NaN when nothing completed."""
    ttft_p95_s: float
    failed_share: float
    """Of all sent: neither ok nor cancelled by us."""
    client_limited: bool = False


@dataclass(frozen=True, slots=True)
class Bend:
    """Two straight lines through throughput over concurrency."""

    at: float | None
    """Concurrency where they meet; None: not found."""
    low: float | None
    high: float | None
    """95 % interval of it."""
    why: str
    """Why it was not found; empty when it was."""
    steeper: float
    """Requests/s per unit of concurrency before it, and after it."""
    flatter: float


@dataclass(frozen=True, slots=True)
class Knee:
    """What a sweep says."""

    levels: tuple[Level, ...]
    tpot_slo_s: float
    crossing: float | None
    """Concurrency where TPOT p95 crosses the SLO, between two levels on a straight line; None: it does not."""
    cap: int | None
    """What lanewise should let run: `MARGIN` below the crossing."""
    why: str
    """Why there is no cap; empty when there is one."""
    stopped: str
    """Why the sweep ended."""
    bend: Bend

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)


def levels(lowest: float, highest: float, factor: float = WIDEST_FACTOR, *, whole: bool = True) -> list[float]:
    """Return the levels of a sweep: each at most `factor` times the one before it (whole numbers rise by at least 1).

    Args:
        lowest: the first.
        highest: the last.
        factor: above 1.
        whole: whether levels are whole numbers.
    """
    found = [lowest]
    while found[-1] < highest:
        following = found[-1] * factor
        if whole:
            following = max(found[-1] + 1, math.floor(following + 1e-9))
        found.append(min(following, highest))
    return found


def stop(done: Sequence[Level], tpot_slo_s: float) -> str | None:
    """Return why a sweep goes no further, or None."""
    last = done[-1]
    if len(done) > 1 and last.client_limited and done[-2].client_limited:
        return "the load generator itself was the limit at two levels in a row; give it a quieter or larger machine"
    if last.failed_share > MOST_FAILED:
        return f"{last.failed_share:.0%} of the requests failed or were refused"
    if not last.requests:
        return "nothing completed"
    if len(done) >= BEYOND and all(level.tpot_p95_s > tpot_slo_s for level in done[-BEYOND:]):
        return "TPOT p95 is above its SLO"
    if last.per_s < COLLAPSED * max(level.per_s for level in done):
        return "throughput collapsed"
    return None


def knee(done: Sequence[Level], tpot_slo_s: float, stopped: str) -> Knee:
    """Read the knee off the levels of a sweep.

    Args:
        done: in rising order.
        tpot_slo_s: SLO of TPOT, at p95.
        stopped: why the sweep ended.
    """
    usable = [level for level in done if not level.client_limited and level.requests]
    crossing, why = _crossing(usable, tpot_slo_s, stopped)
    cap = None if crossing is None else max(1, math.floor(crossing * (1 - MARGIN)))
    return Knee(tuple(done), tpot_slo_s, crossing, cap, why, stopped, bend(usable))


def _crossing(usable: Sequence[Level], slo_s: float, stopped: str) -> tuple[float | None, str]:
    """Return where TPOT p95 goes above the SLO for good, or why it cannot be said."""
    if not usable:
        return None, "no level can be used"
    above = [at for at, level in enumerate(usable) if level.tpot_p95_s > slo_s]
    if not above:
        kept = f"TPOT p95 keeps its SLO up to {usable[-1].in_flight:g}"
        return None, f"{kept}; sweep further, with --to" if stopped == ALL_LEVELS else f"{kept}, where the sweep ended"
    first = next(at for at in above if all(level.tpot_p95_s > slo_s for level in usable[at : at + BEYOND]))
    if first == 0:
        return None, f"TPOT p95 is above its SLO at the lowest level, {usable[0].in_flight:g}, already"
    below, beyond = usable[first - 1], usable[first]
    rise = beyond.tpot_p95_s - below.tpot_p95_s
    part = min(1.0, max(0.0, (slo_s - below.tpot_p95_s) / rise)) if rise > 0 else 0.0
    return below.in_flight + part * (beyond.in_flight - below.in_flight), ""


def bend(usable: Sequence[Level]) -> Bend:
    """Fit two straight lines that meet to throughput over concurrency, by least squares over where they meet.

    The interval is the profile of the residuals: every place that an F test with one degree of freedom cannot tell from
    the best (Draper and Smith, Applied Regression Analysis).
    """
    x = np.array([level.in_flight for level in usable])
    y = np.array([level.per_s for level in usable])
    if len(x) < FEWEST_LEVELS:
        return Bend(None, None, None, f"{len(x)} levels are too few, at least {FEWEST_LEVELS}", math.nan, math.nan)
    places = np.linspace(x[1], x[-2], _GRID)
    fits = [_hinged(x, y, at) for at in places]
    errors = np.array([error for error, _, _ in fits])
    best = int(errors.argmin())
    error, steeper, flatter = fits[best]
    freedom = len(x) - 4
    near = places[errors <= error * (1 + _f_of_one(freedom) / freedom) + 1e-12]
    low, high = float(near.min()), float(near.max())
    if not flatter <= LEAST_BEND * steeper:
        why = "throughput does not bend within the levels: it still rises as before at the last one"
        return Bend(None, None, None, why, steeper, flatter)
    if low <= x[1] and high >= x[-2]:
        return Bend(None, None, None, "the bend could be anywhere within the levels", steeper, flatter)
    return Bend(float(places[best]), low, high, "", steeper, flatter)


def _hinged(x: Any, y: Any, at: float) -> tuple[float, float, float]:
    """Return the squared error and both slopes of the two lines that meet at `at`."""
    design = np.column_stack([np.ones_like(x), np.minimum(x, at), np.maximum(x - at, 0.0)])
    solution, *_ = np.linalg.lstsq(design, y, rcond=None)
    return float(((design @ solution - y) ** 2).sum()), float(solution[1]), float(solution[2])


_T_975 = {
    1: 12.71,
    2: 4.30,
    3: 3.18,
    4: 2.78,
    5: 2.57,
    6: 2.45,
    8: 2.31,
    10: 2.23,
    15: 2.13,
    20: 2.09,
}


def _f_of_one(freedom: int) -> float:
    """Return the 95 % point of F with one and `freedom` degrees of freedom: the square of Student's t."""
    known = max(size for size in _T_975 if size <= max(1, freedom))
    return _T_975[known] ** 2
