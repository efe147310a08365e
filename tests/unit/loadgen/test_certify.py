import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from loadgen.certify import MOST_SHOTS, busiest


def test_the_busiest_stretch_is_the_one_with_most_shots():
    due = np.array([0, 10, 20, 21, 22, 23, 40, 41], dtype=np.int64)
    assert busiest(due, 3) == (2, 6)


def test_no_more_shots_are_taken_than_a_short_certificate_needs():
    assert busiest(np.zeros(3 * MOST_SHOTS, dtype=np.int64), 5) == (0, MOST_SHOTS)


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=50), st.integers(0, 10**5))
def test_no_other_stretch_of_that_length_holds_more(dues, window):
    due = np.array(sorted(dues), dtype=np.int64)
    first, end = busiest(due, window)
    assert due[end - 1] - due[first] <= window
    assert end - first == max(int(((due >= at) & (due <= at + window)).sum()) for at in due)
