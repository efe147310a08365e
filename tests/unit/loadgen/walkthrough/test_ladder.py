"""Steps of concurrency: which comes next, and where the knee lies."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.walkthrough.ladder import FACTOR, Rung, ladder_of, next_step, rung_of


def climbed(knee, most):
    """Every step that is tried when steps up to `knee` are good."""
    rungs = []
    while (step := next_step(rungs, most)) is not None:
        rungs.append(Rung(step, 0.02, 0.1, 100.0, 0.0, None if step <= knee else "too late"))
    return rungs


@given(st.integers(1, 500), st.integers(1, 600))
def test_the_knee_lies_between_two_steps_at_most_a_quarter_apart(knee, most):
    found = ladder_of(climbed(knee, most))
    if knee >= most:
        assert (found.last_good, found.first_bad) == (most, None)
    else:
        assert found.last_good <= knee < found.first_bad
        assert found.first_bad <= max(found.last_good + 1, math.ceil(found.last_good * FACTOR))


@given(st.integers(0, 500), st.integers(1, 600))
def test_no_step_is_tried_twice_or_above_the_highest_allowed(knee, most):
    steps = [one.concurrency for one in climbed(knee, most)]
    assert len(set(steps)) == len(steps)
    assert max(steps) <= most


def test_a_first_step_that_is_bad_ends_it():
    found = ladder_of(climbed(0, 64))
    assert (found.last_good, found.first_bad, found.cap) == (None, 1, None)


def test_the_cap_stays_before_the_knee():
    assert ladder_of(climbed(40, 64)).cap == 36
    assert ladder_of(climbed(1, 64)).cap == 1


@pytest.mark.parametrize(
    ("results", "said"),
    [
        (lambda made: [made.ok(at) for at in range(20)], None),
        (lambda made: [made.ok(at, tpot=0.2) for at in range(20)], "TPOT p95"),
        (lambda made: [made.ok(at, ttft=2.0) for at in range(20)], "TTFT p95 of short"),
        (lambda made: [made.ok(at, ttft=7.0, lane="long") for at in range(20)], "TTFT p95 of long"),
        (lambda made: [*(made.ok(at) for at in range(9)), made.failed(9)], "10% of the requests"),
    ],
)
def test_a_step_is_judged_by_the_slo(made, results, said):
    bad = rung_of(4, made.summary(results(made)), 50.0).bad
    assert (bad is None) == (said is None)
    assert said is None or said in bad
