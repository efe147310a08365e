"""How long a refused request is told to stay away."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.policy.comebacks import LONGEST_S, Comebacks


def test_a_first_refusal_says_what_the_drain_rate_says():
    assert Comebacks().refused(0.0, b"a", 2.0) == (2.0, False)


def test_who_comes_back_too_early_is_told_twice_as_long_each_time_up_to_a_bound():
    backs = Comebacks()
    backs.refused(0.0, b"a", 2.0)
    waits = [backs.refused(0.1 * n, b"a", 2.0) for n in range(1, 5)]
    assert waits == [(4.0, True), (8.0, True), (LONGEST_S, True), (LONGEST_S, True)]


def test_who_obeyed_starts_from_the_beginning():
    backs = Comebacks()
    backs.refused(0.0, b"a", 2.0)
    backs.refused(0.1, b"a", 2.0)
    assert backs.refused(0.1 + 4.0, b"a", 2.0) == (2.0, False)


def test_the_jitter_makes_nobody_early():
    backs = Comebacks()
    backs.refused(0.0, b"a", 4.0)
    assert backs.refused(3.0, b"a", 4.0) == (4.0, False)


def test_others_are_not_concerned():
    backs = Comebacks()
    backs.refused(0.0, b"a", 2.0)
    assert backs.refused(0.1, b"b", 2.0) == (2.0, False)


def test_an_sdk_that_says_it_retries_counts_without_being_known():
    assert Comebacks().refused(0.0, b"a", 1.0, retries=2) == (4.0, True)


def test_a_wait_that_is_long_already_is_not_made_shorter():
    backs = Comebacks()
    backs.refused(0.0, b"a", 100.0)
    assert backs.refused(0.1, b"a", 100.0) == (100.0, True)


def test_the_oldest_refusals_are_forgotten_first():
    backs = Comebacks(at_most=2)
    for name in (b"a", b"b", b"c"):
        backs.refused(0.0, name, 2.0)
    assert len(backs) == 2
    assert backs.refused(0.1, b"c", 2.0) == (4.0, True)
    assert backs.refused(0.1, b"a", 2.0) == (2.0, False)
    assert repr(backs) == "<Comebacks 2 of 2>"


@given(
    st.lists(st.tuples(st.sampled_from([b"a", b"b", b"c"]), st.floats(0, 20), st.floats(0.1, 15), st.integers(0, 999)))
)
def test_what_is_told_is_never_less_than_the_rate_says_nor_more_than_the_bound(refusals):
    backs, now = Comebacks(at_most=2), 0.0
    for name, pause, wanted, retries in refusals:
        now += pause
        wait, damped = backs.refused(now, name, wanted, retries)
        assert wanted <= wait <= max(wanted, LONGEST_S)
        assert damped or wait == pytest.approx(wanted)
        assert len(backs) <= 2
