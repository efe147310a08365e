"""The cap comes from where TPOT crosses its SLO; the bend stands beside it, or why there is none."""

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.knee import ALL_LEVELS, Level, bend, knee, levels, stop


def level(at, per_s=None, tpot=None, **more):
    """An engine whose throughput bends at 32, and whose TPOT rises by 3 ms for each in flight."""
    flat = min(at, 32) * 0.05 + max(0, at - 32) * 0.005
    values = {"requests": 100, "tokens_per_s": 1.0, "ttft_p95_s": 0.1, "failed_share": 0.0} | more
    return Level(
        at, at, per_s=flat if per_s is None else per_s, tpot_p95_s=at * 0.003 if tpot is None else tpot, **values
    )


SWEEP = [level(at) for at in (8, 10, 12, 15, 18, 22, 27, 33, 41, 51, 63)]


@given(st.integers(1, 50), st.integers(51, 500), st.floats(1.01, 1.25))
def test_levels_rise_by_at_most_a_quarter_or_by_one(lowest, highest, factor):
    found = levels(lowest, highest, factor)
    assert (found[0], found[-1]) == (lowest, highest)
    assert all(two <= max(one * factor + 1e-9, one + 1) and two > one for one, two in pairwise(found))
    assert all(float(one).is_integer() for one in found)


def test_rates_need_not_be_whole():
    assert levels(1.0, 1.5, 1.25, whole=False) == [1.0, 1.25, 1.5]


def test_the_cap_is_a_little_below_the_crossing():
    found = knee(SWEEP, 0.1, "")
    assert found.crossing == pytest.approx(100 / 3)
    assert found.cap == 31
    assert found.why == ""


def test_one_level_above_the_slo_that_is_followed_by_one_below_is_no_crossing():
    bumpy = [level(at, tpot=0.12 if at == 10 else None) for at in (8, 10, 12, 15, 18, 22, 27, 33, 41)]
    assert knee(bumpy, 0.1, "").crossing == pytest.approx(100 / 3)


@pytest.mark.parametrize(
    ("slo", "why"), [(1.0, "keeps its SLO up to 63; sweep further"), (0.01, "at the lowest level, 8, already")]
)
def test_without_a_crossing_it_says_why(slo, why):
    found = knee(SWEEP, slo, ALL_LEVELS)
    assert (found.crossing, found.cap) == (None, None)
    assert why in found.why


def test_a_sweep_that_was_stopped_does_not_ask_for_more_levels():
    found = knee(SWEEP, 1.0, "throughput collapsed")
    assert found.why == "TPOT p95 keeps its SLO up to 63, where the sweep ended"


def test_the_bend_is_found_with_an_interval():
    found = bend(SWEEP)
    assert found.low <= found.at <= found.high
    assert found.at == pytest.approx(32, abs=1)
    assert (found.steeper, found.flatter) == (pytest.approx(0.05, rel=0.05), pytest.approx(0.005, rel=0.2))


@pytest.mark.parametrize(
    ("sweep", "why"),
    [
        (SWEEP[:5], "5 levels are too few"),
        ([level(at, per_s=at * 0.05) for at in range(8, 20)], "does not bend"),
    ],
)
def test_without_a_bend_it_says_why(sweep, why):
    found = bend(sweep)
    assert found.at is None
    assert why in found.why


@pytest.mark.parametrize(
    ("last", "why"),
    [
        (level(12, client_limited=True), None),
        (level(12, failed_share=0.2), "20% of the requests failed"),
        (level(12, requests=0), "nothing completed"),
        (level(12, per_s=0.1), "throughput collapsed"),
        (level(12), None),
    ],
)
def test_a_sweep_stops_by_its_rules(last, why):
    said = stop([level(8), level(10), last], 0.1)
    assert said is None if why is None else why in said


def test_a_sweep_stops_where_the_load_generator_was_the_limit_twice():
    assert "load generator itself" in stop([level(8), *[level(at, client_limited=True) for at in (10, 12)]], 0.1)


def test_a_sweep_goes_one_level_beyond_the_slo():
    assert stop([level(30), level(35)], 0.1) is None
    assert "above its SLO" in stop([level(30), level(35), level(40)], 0.1)


def test_a_client_limited_level_is_not_read():
    limited = [*SWEEP[:4], level(18, tpot=9.0, client_limited=True)]
    assert math.isclose(knee(limited, 0.04, "").crossing, 40 / 3)
