import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.arrivals import Arrivals, Gaps, Stage, arrivals_of, stages_of
from loadgen.failure import UsageError
from loadgen.options import Process

DRAWN = [Process.CONSTANT, Process.POISSON, Process.GAMMA]


def steady(process, rate=4.0, cv=1.0):
    return arrivals_of(process, rate=rate, rates=None, cv=cv)


@pytest.mark.parametrize(
    ("process", "cv", "found"),
    [(Process.CONSTANT, 1, 0), (Process.POISSON, 1, 1), (Process.GAMMA, 3, 3), (Process.GAMMA, 0.5, 0.5)],
)
def test_gaps_have_the_asked_mean_and_spread(process, cv, found):
    gaps = np.diff(steady(process, cv=cv).times(100_001, seed=3))
    assert gaps.mean() == pytest.approx(0.25, rel=0.03)
    assert gaps.std() / gaps.mean() == pytest.approx(found, rel=0.05, abs=1e-9)


@pytest.mark.parametrize("process", DRAWN)
@given(count=st.integers(1, 60), more=st.integers(0, 60), seed=st.integers(0, 99))
def test_a_longer_schedule_begins_with_the_shorter_one(process, count, more, seed):
    arrivals = steady(process, cv=2.0)
    times = arrivals.times(count + more, seed)
    assert times[0] == 0
    assert (np.diff(times) >= 0).all()
    assert times[:count].tolist() == arrivals.times(count, seed).tolist()


def test_another_seed_is_another_schedule():
    one, two = (steady(Process.POISSON).times(50, seed).tolist() for seed in (1, 2))
    assert one != two


def test_a_rate_that_changes_is_followed_and_ends_the_schedule():
    arrivals = arrivals_of(Process.CONSTANT, rate=None, rates="10s@2,10s@2..10,5s@0,10s@10..0", cv=1.0)
    times = arrivals.times(10_000, seed=1)
    counts, _ = np.histogram(times, [0, 10, 20, 25, 35])
    assert counts.tolist() == [20, 60, 0, 50]
    assert times[-1] < arrivals.end_s == 35


@given(st.lists(st.tuples(st.floats(0.1, 50), st.floats(0, 20), st.floats(0, 20)), min_size=1, max_size=5))
def test_as_many_come_by_any_time_as_the_rate_says(drawn):
    stages = tuple(Stage(*one) for one in drawn)
    arrivals = Arrivals(Process.CONSTANT, stages)
    times = arrivals.times(4000, seed=1)
    total = sum(stage.mass for stage in stages)
    assert abs(len(times) - min(total, 4000)) <= 1
    before_s, before = 0.0, 0.0
    for stage in stages:
        before_s, before = before_s + stage.duration_s, before + stage.mass
        came = int((times < before_s - 1e-6).sum())
        assert abs(came - min(before, 4000)) <= 1.01


@pytest.mark.parametrize("rates", ["", "10@", "@2", "10s@-1", "0s@1", "10s@nan", "10s@1..2..3", "10s@0", "inf@2"])
def test_rates_that_make_no_sense_are_refused(rates):
    with pytest.raises(UsageError, match="--rates"):
        stages_of(rates)


@pytest.mark.parametrize(
    "options",
    [{}, {"rate": 1.0, "rates": "1s@1"}, {"rate": 0.0}, {"rate": math.inf}, {"rate": 1.0, "cv": 0.0}],
)
def test_a_process_needs_one_rate_that_makes_sense(options):
    with pytest.raises(UsageError, match="--"):
        arrivals_of(Process.GAMMA, **({"rate": None, "rates": None, "cv": 1.0} | options))


@pytest.mark.parametrize("gaps", [Gaps("gamma", 0.23, 0.05), Gaps("weibull", 0.43, 0.0041), Gaps("gamma", 4.0, 0.01)])
def test_a_process_that_has_been_running_keeps_its_rate_from_the_first_moment(gaps):
    counts = [len(gaps.times(3 * gaps.mean_s, np.random.Generator(np.random.PCG64(seed)))) for seed in range(4000)]
    assert np.mean(counts) == pytest.approx(3, rel=0.1)
