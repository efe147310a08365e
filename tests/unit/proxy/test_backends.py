"""Health of a backend: the first probe decides at once, later ones must agree in a row."""

from hypothesis import given
from hypothesis import strategies as st

from proxy.backends import Health, State


def after(probes, **hysteresis):
    health = Health(**{"down_after": 3, "up_after": 2, **hysteresis})
    changes = [health.note(good=good) for good in probes]
    return health.state, changes


def test_the_first_probe_decides():
    assert after([True]) == (State.UP, [True])
    assert after([False]) == (State.DOWN, [True])


def test_it_goes_down_only_after_failures_in_a_row():
    assert after([True, False, False]) == (State.UP, [True, False, False])
    assert after([True, False, False, True, False, False])[0] is State.UP
    assert after([True, False, False, False]) == (State.DOWN, [True, False, False, True])


def test_it_comes_up_only_after_good_probes_in_a_row():
    assert after([False, True]) == (State.DOWN, [True, False])
    assert after([False, True, False, True])[0] is State.DOWN
    assert after([False, True, True]) == (State.UP, [True, False, True])


@given(st.lists(st.booleans(), min_size=1), st.integers(1, 4), st.integers(1, 4))
def test_it_never_changes_against_the_last_probe(probes, down_after, up_after):
    health = Health(down_after=down_after, up_after=up_after)
    for good in probes:
        if health.note(good=good):
            assert health.state is (State.UP if good else State.DOWN)


def test_its_state_can_be_read():
    assert repr(Health(down_after=1, up_after=1)) == "<Health starting, 0 against>"
