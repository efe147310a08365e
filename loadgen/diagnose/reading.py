"""Small questions that several rules ask of the facts. Pure."""

import math
from collections.abc import Sequence

from loadgen.diagnose.facts import Facts
from loadgen.telemetry.digest import CardDigest, EngineDigest

GOOD_ENOUGH = 0.95
"""Goodput from which latency is no complaint."""
WAITS = 0.2
"""Share of the readings with a request waiting, from which the engine has a backlog."""


def complains(facts: Facts) -> bool:
    """Return whether requests come too late, or are lost, more often than `GOOD_ENOUGH` allows."""
    goodput = facts.summary.lanes["all"].goodput
    return math.isnan(goodput) or goodput < GOOD_ENOUGH


def first_token_late(facts: Facts) -> bool:
    """Return whether the p95 of the TTFT over all sent is above the SLO, in any lane."""
    slo, lanes = facts.summary.slo, facts.summary.lanes
    limits = (("short", slo.ttft_short_s), ("long", slo.ttft_long_s))
    return any(lanes[name].ttft_all.p95 > limit for name, limit in limits if lanes[name].sent)


def tokens_late(facts: Facts) -> bool:
    """Return whether the p95 of the TPOT is above the SLO."""
    return facts.summary.lanes["all"].tpot.p95 > facts.summary.slo.tpot_s


def engine_of(facts: Facts) -> EngineDigest | None:
    """Return the engine, when exactly one was read."""
    return None if facts.telemetry is None else facts.telemetry.engine


def cards_of(facts: Facts) -> Sequence[CardDigest]:
    """Return the cards that were read."""
    return () if facts.telemetry is None else facts.telemetry.cards


def ratio(part: float | None, whole: float | None) -> float | None:
    """Divide; None where a part is unknown, or the whole 0."""
    return None if part is None or not whole else part / whole


def number(value: object) -> float:
    """Return a note of a summary as a number; NaN when it is none."""
    return float(value) if isinstance(value, (int, float)) else math.nan


def outside_s(facts: Facts) -> float | None:
    """Return the mean TTFT at the client less that at the engine: link, proxy and what waits in them."""
    engine = engine_of(facts)
    if engine is None or engine.ttft_s is None or facts.ttft_send_mean_s is None:
        return None
    return facts.ttft_send_mean_s - engine.ttft_s
