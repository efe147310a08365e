"""Steps of concurrency until answers come too late: which to try next, and what the steps say together. Pure."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from loadgen.summary import Slo, Summary

FACTOR = 1.25
"""Distance of the last step that was good from the first that was not."""
LOST = 0.05
TPOT = "TPOT p95"
"""How the reason begins when it was the tokens that came too late."""
MARGIN = 0.9
"""The cap stays this far before the knee: the knee moves."""


@dataclass(frozen=True, slots=True)
class Rung:
    """One step: so many requests in flight, and what came of it. Seconds."""

    concurrency: int
    tpot_p95_s: float | None
    ttft_p95_s: float | None
    """Of the short lane, or of the long one when there is no other."""
    tokens_per_s: float | None
    lost_share: float
    bad: str | None
    """Why it is beyond the knee; None: it is not."""

    def facts(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Ladder:
    """What the steps say together."""

    last_good: int | None
    first_bad: int | None
    cap: int | None
    """Concurrency to set, before the knee; None: not found."""
    reason: str
    """Why the first bad step is one, or why there is none."""


def rung_of(concurrency: int, summary: Summary, tokens_per_s: float | None) -> Rung:
    """Judge one step by the SLO of its summary."""
    slo, lanes = summary.slo, summary.lanes
    name = "short" if lanes["short"].sent else "long"
    everything = lanes["all"]
    tpot, ttft = everything.tpot.p95, lanes[name].ttft_all.p95
    lost = 1 - everything.outcomes["ok"] / everything.sent if everything.sent else 1.0
    return Rung(
        concurrency,
        _known(tpot),
        _known(ttft),
        tokens_per_s,
        lost,
        _why_bad(slo, name, tpot=tpot, ttft=ttft, lost=lost),
    )


def _why_bad(slo: Slo, lane: str, *, tpot: float, ttft: float, lost: float) -> str | None:
    limit = slo.ttft_short_s if lane == "short" else slo.ttft_long_s
    if lost > LOST:
        return f"{lost:.0%} of the requests were rejected or failed"
    if tpot > slo.tpot_s:
        return f"{TPOT} is {tpot * 1e3:.0f} ms, the SLO {slo.tpot_s * 1e3:.0f} ms"
    if ttft > limit:
        return f"TTFT p95 of {lane} requests is {ttft:.2f} s, the SLO {limit:g} s"
    return None


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None


def next_step(rungs: Sequence[Rung], most: int) -> int | None:
    """Return the concurrency to try next: doubled until a step is bad, then up from the last good one by a quarter.

    Args:
        rungs: what was tried, in any order.
        most: highest concurrency to try.

    Returns:
        None when the knee is between two steps at most a quarter (or one request) apart, or cannot be found.
    """
    good, bad = _bounds(rungs)
    if bad is None:
        following = 1 if good is None else good * 2
        return min(following, most) if good is None or good < most else None
    if good is None:
        return None
    step = max(good + 1, math.ceil(good * FACTOR - 1e-9))
    return step if step < bad else None


def _bounds(rungs: Sequence[Rung]) -> tuple[int | None, int | None]:
    """Return the highest good step below the lowest bad one, and that."""
    bad = min((one.concurrency for one in rungs if one.bad), default=None)
    good = [one.concurrency for one in rungs if not one.bad and (bad is None or one.concurrency < bad)]
    return max(good, default=None), bad


def ladder_of(rungs: Sequence[Rung]) -> Ladder:
    """Say what the steps show."""
    good, bad = _bounds(rungs)
    if bad is None:
        return Ladder(good, None, None, f"up to {good} in flight every step was inside the SLO")
    reason = next(str(one.bad) for one in rungs if one.concurrency == bad)
    cap = None if good is None else max(1, math.floor(good * MARGIN))
    return Ladder(good, bad, cap, reason)
