"""The concurrency limit in front of the simulated engine: it finds the same place from everywhere, and says how."""

from dataclasses import replace
from statistics import fmean

import pytest

from loadgen.sim.drive import Delays, Drive
from loadgen.sim.engine import Engine
from loadgen.sim.profile import load_profile
from loadgen.sim.virtual import TPOT_SLO_S, LaneOptions, lanewise
from loadgen.sim.workloads import Arrival
from proxy.policy.limiter import Cause

PROFILE = replace(load_profile("8b"), b=0.0015)
"""A slow engine: 50 sequences take about 0.1 s per token."""
LASTS_S = 240.0
RATE = 5.0
"""Requests per second: twice what the engine can do."""


def pushed(options):
    """Push the engine for four minutes; return what was served, and the backend as it stood at the end of it."""
    arrivals = [Arrival(number / RATE, 300, 200) for number in range(int(RATE * LASTS_S))]
    front = lanewise(PROFILE, options, backends=1)
    delays = Delays(patience_short_s=None, patience_long_s=None)
    driven = Drive([Engine(PROFILE)], front, arrivals, delays).run()
    return driven.served, front.dispatcher.snapshot(driven.ended_s).backends[0]


def settled_tpot(served):
    """Mean time per output token of what was served near the end, while the next ones still pushed."""
    late = (one for one in served if LASTS_S - 90 < one.arrived_s < LASTS_S - 30)
    return fmean(one.tpot_s for one in late if one.tpot_s is not None)


@pytest.mark.parametrize("start", [8, 200])
def test_time_per_token_comes_to_the_target_from_a_start_far_too_low_and_far_too_high(start):
    served, backend = pushed(LaneOptions(cap=start))
    assert settled_tpot(served) == pytest.approx(0.95 * TPOT_SLO_S, rel=0.05)
    first = Cause.ROOM_USED if start == 8 else Cause.TPOT_HIGH
    assert sum(count for (_, cause), count in backend.limit_changes.items() if cause is first) > 20
    assert len(backend.limit_moves) == 20


def test_a_fixed_limit_far_too_high_is_over_the_target_for_good():
    served, backend = pushed(LaneOptions(cap=200, adaptive=False))
    assert settled_tpot(served) > 1.2 * TPOT_SLO_S
    assert (backend.concurrency, backend.adaptive, backend.limit_moves) == (200, False, ())
