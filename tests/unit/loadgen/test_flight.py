from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.flight import Timeline


@given(st.lists(st.integers(0, 10**9), max_size=20), st.sampled_from([1.0, 4.0]), st.integers(1, 3))
def test_the_gaps_between_events_add_up_to_when_each_came(times, speed, together):
    times = [at for at in sorted(times) for _ in range(together)]
    gaps = Timeline(0, speed).event_deltas([at + 500 for at in times], 500)
    assert list(accumulate(gaps)) == pytest.approx([at * speed / 1000 for at in times], abs=0.5)


def test_events_of_one_read_have_no_gaps_between_them():
    assert Timeline(0, 1.0).event_deltas([5_000_000] * 3, 1_000_000) == (4000, 0, 0)
    assert Timeline(0, 1.0).event_deltas([], 1_000_000) == ()
