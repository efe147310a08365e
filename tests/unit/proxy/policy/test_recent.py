from hypothesis import given
from hypothesis import strategies as st

from proxy.policy.recent import Recent


def test_what_is_older_than_the_window_is_forgotten():
    recent = Recent(2, 10.0)
    recent.add(0.5, 0)
    recent.add(0.9, 1)
    recent.add(5.0, 0)
    assert recent.totals(10.9) == (2, 1)
    assert recent.totals(11.0) == (1, 0)
    assert recent.totals(100.0) == (0, 0)


def test_it_can_be_cleared():
    recent = Recent(1, 10.0)
    recent.add(1.0, 0)
    recent.clear()
    assert recent.totals(1.0) == (0,)
    assert repr(recent) == "<Recent [0] in 10 s>"


@given(st.lists(st.tuples(st.floats(0, 5), st.integers(0, 1)), max_size=60))
def test_it_counts_what_came_within_the_window_to_a_second(steps):
    recent, now, added = Recent(2, 10.0), 0.0, []
    for gap, kind in steps:
        now += gap
        recent.add(now, kind)
        added.append((now, kind))
    for kind, total in enumerate(recent.totals(now)):
        surely = sum(1 for at, of in added if of == kind and at > now - 10.0)
        at_most = sum(1 for at, of in added if of == kind and at > now - 11.0)
        assert surely <= total <= at_most
