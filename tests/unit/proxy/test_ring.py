"""The ring of samples, rates, and quantiles of the last seconds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.ring import Ring, Window, rates


def test_it_keeps_as_many_samples_as_it_has_slots_the_oldest_first():
    ring = Ring(("a",), 3)
    for second in range(5):
        ring.add(float(second), {"a": second * 10})
    assert (len(ring), ring.times, ring.column("a")) == (3, [2.0, 3.0, 4.0], [20, 30, 40])


def test_what_is_not_known_is_a_hole_and_never_zero():
    ring = Ring(("a", "b"), 3)
    ring.add(0.0, {"a": 1})
    ring.add(5.0, {"a": None, "b": 2})
    assert (ring.column("a"), ring.column("b")) == ([1, None], [None, 2])


def test_nobody_samples_another_name():
    ring = Ring(("a",), 3)
    ring.add(0.0, {"a": 1, "other": 5})
    with pytest.raises(KeyError):
        ring.column("other")


def test_growth_counts_from_the_last_sample_before_the_moment():
    ring = Ring(("a",), 10)
    assert ring.grown("a", 0.0) == 0.0
    for second, total in ((0.0, 5), (5.0, 7), (10.0, 12)):
        ring.add(second, {"a": total})
    assert [ring.grown("a", since) for since in (-1.0, 0.0, 6.0, 10.0)] == [7, 7, 5, 0]


def test_a_rate_is_the_growth_per_second_and_holes_stay_holes():
    assert rates([0.0, 5.0, 10.0, 15.0, 20.0], [0, 10, None, 30, 30]) == [None, 2.0, None, None, 0.0]
    assert rates([0.0, 0.0], [0, 1]) == [None, None]
    assert rates([], []) == []


@given(st.lists(st.integers(0, 100), min_size=1, max_size=50))
def test_rates_add_up_to_what_was_counted(steps):
    totals = [0]
    for step in steps:
        totals.append(totals[-1] + step)
    found = rates([2.0 * place for place in range(len(totals))], totals)
    assert sum(2.0 * rate for rate in found[1:]) == pytest.approx(totals[-1])


def test_a_window_forgets_what_is_older_than_its_seconds():
    window = Window(60.0)
    window.add(0.0, 100.0)
    window.add(50.0, 1.0)
    assert window.quantile(55.0, 0.95) == 100.0
    assert window.quantile(61.0, 0.95) == 1.0
    assert window.quantile(200.0, 0.95) is None


def test_a_window_never_holds_more_than_it_may():
    window = Window(60.0, most=3)
    for value in range(10):
        window.add(1.0, float(value))
    assert window.quantile(1.0, 0.0) == 7.0


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=60), st.floats(0, 1))
def test_a_quantile_is_a_value_that_was_seen_and_enough_values_do_not_exceed_it(values, share):
    window = Window(60.0)
    for value in values:
        window.add(0.0, value)
    found = window.quantile(0.0, share)
    assert found in values
    assert sum(value <= found for value in values) >= share * len(values) - 1e-9
