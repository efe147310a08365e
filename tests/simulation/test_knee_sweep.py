"""The sweep of `lanewise-load knee`, in virtual time, against every concurrency one by one."""

import pytest

from loadgen.knee import WIDEST_FACTOR, knee, levels, stop
from loadgen.sim.closed import closed_loop
from loadgen.sim.profile import load_profile

pytestmark = pytest.mark.shared

SLO_S = 0.1


def test_the_knee_is_within_one_step_of_where_a_fine_sweep_crosses(studies):
    profile, lengths = load_profile("8b"), studies("8b").workload("mixed").cut(0, 500).lengths
    done = []
    for asked in levels(8, 96):
        done.append(closed_loop(profile, lengths, int(asked)))
        if stop(done, SLO_S) is not None:
            break
    found = knee(done, SLO_S, "")
    fine = next(at for at in range(24, 60) if closed_loop(profile, lengths, at + 1).tpot_p95_s > SLO_S)
    assert fine / WIDEST_FACTOR <= found.crossing <= fine * WIDEST_FACTOR
    assert fine / WIDEST_FACTOR <= found.cap <= fine
    assert found.bend.at is not None
    assert found.bend.low <= found.bend.at <= found.bend.high
