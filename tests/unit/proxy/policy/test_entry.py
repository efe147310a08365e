import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.policy.entry import Entry, Ramp
from proxy.policy.job import NEVER


def test_a_slow_start_goes_from_a_tenth_to_all_of_it():
    ramp = Ramp(began=100.0, seconds=9.0)
    assert [ramp.limit(100.0 + t, 20) for t in (0.0, 3.0, 6.0, 9.0, 99.0)] == [2, 8, 14, 20, 20]
    assert Ramp(0.0, 5.0).limit(0.0, 3) == 1, "at least one"


def test_the_next_step_is_said_until_there_is_none():
    ramp = Ramp(began=100.0, seconds=9.0)
    assert ramp.next_step(100.0, 20) == pytest.approx(100.5)
    assert ramp.next_step(109.0, 20) == NEVER


@given(st.floats(0.1, 60.0), st.integers(1, 300))
def test_the_limit_grows_by_one_at_each_step_and_reaches_all(seconds, cap):
    ramp, now, limits = Ramp(0.0, seconds), 0.0, []
    while now != NEVER:
        limits.append(ramp.limit(now, cap))
        now = ramp.next_step(now, cap)
    assert limits == list(range(limits[0], cap + 1))


def test_nothing_holds_a_backend_that_is_up():
    assert (Entry().trial, Entry().ramp) == (False, None)
